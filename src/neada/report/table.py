"""The table of verdicts as plain text and as data."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from neada.experiments.claim import Claim
from neada.report.content import Section

__all__ = ["as_data", "measured_text", "summary", "verdict_table"]

_WIDTH = 46


def measured_text(claim: Claim) -> str:
    """The measured number in four digits.

    Example:
        >>> measured_text(Claim("a", "", "", 0.123456, "<", 1.0))
        '0.1235'
    """
    return "-" if claim.measured is None else f"{claim.measured:.4g}"


def summary(claims: Sequence[Claim]) -> str:
    """How many claims hold, fail, and were not run.

    Example:
        >>> summary([Claim("a", "", "", 1.0, "<", 2.0)])
        '1 of 1 claims hold'
    """
    count = Counter(claim.verdict for claim in claims)
    parts = [f"{count['holds']} of {len(claims)} claims hold"]
    if count["fails"]:
        parts.append(f"{count['fails']} fail{'s' if count['fails'] == 1 else ''}")
    if count["not run"]:
        parts.append(f"{count['not run']} not run")
    return ", ".join(parts)


def verdict_table(sections: Sequence[Section]) -> str:
    """One line per claim: verdict, name, measured and expected value."""
    claims = [claim for section in sections for claim in section.claims]
    width = min(_WIDTH, max((len(claim.id) for claim in claims), default=10))
    lines = [f"{'verdict':8} {'claim':{width}} {'measured':>10}  expected"]
    lines += [
        f"{claim.verdict:8} {claim.id:{width}} {measured_text(claim):>10}  {claim.expectation}"
        for claim in claims
    ]
    return "\n".join([*lines, "", summary(claims)])


def as_data(request: dict[str, Any], sections: Sequence[Section]) -> dict[str, Any]:
    """The verdicts for machines."""
    claims = [claim for section in sections for claim in section.claims]
    return {
        "scale": request["scale"],
        "seeds": request["seeds"],
        "budget": request["budget"],
        "experiments": {
            section.name: {
                "claims": [claim.as_dict() for claim in section.claims],
                "num_runs": len(section.runs),
                "missing": [label for label, _ in section.missing],
                "seconds": round(sum(line.seconds for line in section.runs), 3),
            }
            for section in sections
        },
        "summary": summary(claims),
    }
