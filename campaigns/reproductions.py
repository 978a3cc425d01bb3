"""A small reproduction to do harm to: one experiment, a hundred calls per run, an empty figure."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from neada.experiments import quadratic
from neada.tables import Scale

__all__ = ["arguments", "claims_of", "rows_of", "shorten"]

_CALLS = 100
_configs = quadratic.configs


def shorten() -> None:
    """Make the experiment short in this process and in the children that it forks."""

    def configs(scale: Scale, seeds: int | None = None) -> list[quadratic.Config]:
        return [
            dataclasses.replace(one, max_calls=tuple((ratio, _CALLS) for ratio, _ in one.max_calls))
            for one in _configs(scale, seeds)[:4]
        ]

    def figure(records: Any) -> Figure:
        return Figure((1.0, 1.0))

    quadratic.configs = configs
    quadratic.figure = figure


def arguments(out: Path, jobs: int = 1) -> list[str]:
    """The command line of a reproduction."""
    return ["reproduce", "quadratic", "--out", str(out), "--jobs", str(jobs), "--quiet"]


def rows_of(out: Path) -> dict[str, str]:
    """The metrics of every run."""
    return {
        str(path.relative_to(out)): path.read_text(encoding="utf-8")
        for path in out.rglob("metrics.jsonl")
    }


def claims_of(content: dict[str, Any]) -> str:
    """What was found, times aside."""
    for found in content["experiments"].values():
        found.pop("seconds", None)
    return json.dumps(content, sort_keys=True)
