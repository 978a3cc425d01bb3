"""What a report says, computed from the folder of a reproduction and from nothing else."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from neada.runs import RunFolder
from reproduction import experiment as experiments
from reproduction import figures
from reproduction.experiment import Claim, Record
from reproduction.runner import last_request

__all__ = ["RunLine", "Section", "as_data", "collect", "measured_text", "summary", "result_table"]


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
        paper: What the paper says about it.
        about: The module's own description.
        claims: What was judged.
        reasons: What is known of claims that fail, by patterns of their ids.
        figure: The SVG file, or None where nothing could be drawn.
        thumbnail: The same as a small PNG.
        runs: The finished runs.
        missing: Labels of the runs that are not there, with the reason.
        environment: Versions and threads of the first run.
    """

    name: str
    title: str
    where: str
    paper: str
    about: str
    claims: Sequence[Claim]
    reasons: Mapping[str, str]
    figure: Path | None
    thumbnail: bytes | None
    runs: Sequence[RunLine]
    missing: Sequence[tuple[str, str]]
    environment: dict[str, Any]

    @property
    def share(self) -> str:
        """How many claims hold: "13/15 hold"."""
        num_hold = sum(claim.result == "supported" for claim in self.claims)
        return f"{num_hold}/{len(self.claims)} hold"

    def known(self, claim: Claim) -> str:
        """What is known of a claim that fails; empty if nothing is."""
        fitting = (
            words for pattern, words in self.reasons.items() if fnmatchcase(claim.id, pattern)
        )
        return next(fitting, "")


def collect(out: Path, *, draw: bool = True) -> tuple[dict[str, Any], list[Section]]:
    """What was asked of a folder, and a section for every experiment asked for.

    Args:
        out: The folder that `reproduce` filled.
        draw: Whether to draw the figures, next to the runs, as PNG and SVG.

    Raises:
        ValueError: The folder is not one of `reproduce`, or what it holds cannot be judged.
    """
    request = last_request(out)
    if request is None:
        raise ValueError(
            f"{out} holds no reproduction: use a folder of `python -m reproduction --out`"
        )
    settings = {key: request[key] for key in ("scale", "seeds", "max_calls")}
    return request, [_section(out, name, settings, draw) for name in request["names"]]


_ODD = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""What claims and figures raise where rows are not those that the experiment writes."""


def _section(out: Path, name: str, settings: dict[str, Any], draw: bool) -> Section:
    experiment = experiments.make(name)
    records, runs, missing = [], [], []
    environment: dict[str, Any] = {}
    for config in experiments.configs(name, **settings):
        run = RunFolder(experiments.run_folder(out, name, config))
        try:
            if problem := run.problem(asdict(config)):
                raise ValueError(problem)
            record = Record(config, run.rows())
            line = RunLine(config.label, run.path, run.result()["seconds"], run.config())
            environment = environment or run.environment()
        except (OSError, ValueError) as error:
            missing.append((config.label, str(error)))
            continue
        records.append(record)
        runs.append(line)
    figure = thumbnail = None
    try:
        claims = experiment.claims(records)
        drawn = experiment.figure(records) if draw and records else None
        if drawn is not None:
            picture, figure = figures.save(drawn, out / name)
            thumbnail = _thumbnail(picture)
    except _ODD as error:
        raise ValueError(
            f"the metrics below {out / name} are not what {name} writes "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}): "
            f"remove that folder and reproduce {name} again"
        ) from error
    return Section(
        name=name,
        title=experiment.TITLE,
        where=experiment.WHERE,
        paper=experiment.PAPER,
        about=(experiment.__doc__ or "").strip(),
        claims=claims,
        reasons=getattr(experiment, "KNOWN", {}),
        figure=figure,
        thumbnail=thumbnail,
        runs=runs,
        missing=missing,
        environment=environment,
    )


_THUMBNAIL_PIXELS = 480


def _thumbnail(picture: Path) -> bytes:
    """A small copy of a PNG; drawing the figure anew would take ten times as long."""
    from PIL import Image  # matplotlib, which wrote the file, needs it too

    file = io.BytesIO()
    with Image.open(picture) as image:
        image.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
        image.save(file, "PNG")
    return file.getvalue()


_WIDTH = 46


def measured_text(claim: Claim) -> str:
    """The measured number in four digits.

    Example:
        >>> measured_text(Claim("a", "", "", 0.123456, "<", 1.0))
        '0.1235'
    """
    return "-" if claim.measured is None else f"{claim.measured:.4g}"


def summary(claims: Sequence[Claim]) -> str:
    """How many claims hold, fail, and were not tested.

    Example:
        >>> summary([Claim("a", "", "", 1.0, "<", 2.0)])
        '1 of 1 claims hold'
    """
    count = Counter(claim.result for claim in claims)
    parts = [f"{count['supported']} of {len(claims)} claims hold"]
    if count["not supported"]:
        parts.append(f"{count['fails']} fail{'s' if count['fails'] == 1 else ''}")
    if count["not tested"]:
        parts.append(f"{count['not tested']} not tested")
    return ", ".join(parts)


def result_table(sections: Sequence[Section]) -> str:
    """One line per claim: verdict, name, measured and expected value."""
    claims = [claim for section in sections for claim in section.claims]
    width = min(_WIDTH, max((len(claim.id) for claim in claims), default=10))
    lines = [f"{'verdict':10} {'claim':{width}} {'measured':>10}  expected"]
    lines += [
        f"{claim.result:10} {claim.id:{width}} {measured_text(claim):>10}  {claim.expectation}"
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
