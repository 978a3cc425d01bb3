"""What a report says, computed from the folder of a reproduction and from nothing else."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neada import plots
from neada.experiments import registry
from neada.experiments.claim import Claim
from neada.experiments.experiment import Record, run_folder
from neada.experiments.runner import last_request
from neada.runs import Run

__all__ = ["RunLine", "Section", "collect"]


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
    request = last_request(out)
    if request is None:
        raise ValueError(
            f"{out} holds no reproduction: give the folder that `neada reproduce --out` filled"
        )
    settings = {key: request[key] for key in ("scale", "seeds", "budget")}
    return request, [_section(out, name, settings, draw) for name in request["names"]]


def _section(out: Path, name: str, settings: dict[str, Any], draw: bool) -> Section:
    experiment = registry.get(name)
    records, runs, missing = [], [], []
    environment: dict[str, Any] = {}
    for config in registry.configs(name, **settings):
        run = Run(run_folder(out, name, config))
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
