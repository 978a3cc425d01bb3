"""What a report says, computed from the folder of a reproduction and from nothing else."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neada import experiments, plots
from neada.experiments import Claim, Record
from neada.runs import Run

__all__ = ["RunLine", "Section", "as_data", "collect", "measured_text", "summary", "verdict_table"]


@dataclass(frozen=True)
class RunLine:
    """One run of an experiment: its folder, seconds, and settings."""

    label: str
    folder: Path
    seconds: float
    config: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """One experiment of a report.

    Attributes:
        name: Its name on the command line.
        title: What is tried.
        where: Which part of the paper.
        about: The module's own description.
        claims: What was judged.
        figure: The SVG file, or None where nothing could be drawn.
        runs: The finished runs.
        missing: Labels of the runs that are not there, with the reason.
        environment: Versions and threads of the first run.
    """

    name: str
    title: str
    where: str
    about: str
    claims: Sequence[Claim]
    figure: Path | None
    runs: Sequence[RunLine]
    missing: Sequence[tuple[str, str]]
    environment: dict[str, Any]


def collect(out: Path, *, draw: bool = True) -> tuple[dict[str, Any], list[Section]]:
    """What was asked of a folder, and a section for every experiment asked for.

    Args:
        out: The folder that `reproduce` filled.
        draw: Whether to draw the figures, next to the runs, as PNG and SVG.

    Raises:
        ValueError: The folder is not one of `reproduce`.
    """
    request = experiments.last_request(out)
    if request is None:
        raise ValueError(
            f"{out} holds no reproduction: give the folder that `neada reproduce --out` filled"
        )
    settings = {key: request[key] for key in ("scale", "seeds", "max_calls")}
    return request, [_section(out, name, settings, draw) for name in request["names"]]


def _section(out: Path, name: str, settings: dict[str, Any], draw: bool) -> Section:
    experiment = experiments.make(name)
    records, runs, missing = [], [], []
    environment: dict[str, Any] = {}
    for config in experiments.configs(name, **settings):
        run = Run(experiments.run_folder(out, name, config))
        if trouble := run.trouble(asdict(config)):
            missing.append((config.label, trouble))
            continue
        records.append(Record(config, run.rows()))
        runs.append(RunLine(config.label, run.folder, run.seconds(), run.config()))
        environment = environment or run.environment()
    figure = None
    if draw and records:
        _, figure = plots.save(experiment.figure(records), out / name)
    return Section(
        name=name,
        title=experiment.TITLE,
        where=experiment.WHERE,
        about=(experiment.__doc__ or "").strip(),
        claims=experiment.claims(records),
        figure=figure,
        runs=runs,
        missing=missing,
        environment=environment,
    )


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
        "max_calls": request["max_calls"],
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
