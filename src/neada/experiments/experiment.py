"""What an experiment is: a module with a config, runs, claims and a figure.

Everything that `claims` and `figure` see comes from run folders, so both can be repeated without
running anything again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from neada.experiments.claim import Claim
from neada.runs import Run
from neada.runs.files import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "SCALES",
    "Experiment",
    "ExperimentConfig",
    "Progress",
    "Record",
    "Scale",
    "run_folder",
]

Scale = Literal["quick", "standard", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "standard", "paper")
Progress = Callable[[float], None]
"""Called now and then with the part of a run that is done, between 0 and 1."""


class ExperimentConfig(Protocol):
    """A frozen dataclass of plain values that says all about one run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def label(self) -> str:
        """A few words that tell this run from the others of its experiment."""


@dataclass(frozen=True)
class Record:
    """A finished run: its config and the rows of its metrics."""

    config: Any
    rows: Sequence[dict[str, Any]]


class Experiment(Protocol):
    """The contract of a module in `neada.experiments`."""

    TITLE: str
    """One line: what is tried."""
    WHERE: str
    """Which part of the paper: "Figure 1", "Theorem 2", or "neada"."""
    Config: Any
    """A frozen dataclass with a `label`; only plain values, so that it can be stored as JSON."""

    def configs(self, scale: Scale, seeds: int | None = None) -> list[Any]:
        """The runs of a scale; `seeds` replaces the usual number where there is randomness.

        A third argument `budget`, where there is one, replaces the scale's gradient calls per run.
        """

    def run(self, config: Any, run: Run, progress: Progress) -> None:
        """Compute, and append rows to the run's metrics; the caller has started it and seals it."""

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """Judge what the runs show; a claim whose runs are missing has `measured=None`."""

    def figure(self, records: Sequence[Record]) -> "Figure":
        """Draw what the runs show."""


def run_folder(out: Path, name: str, config: ExperimentConfig) -> Path:
    """Where a run of an experiment lives: a readable label and a fingerprint of its config."""
    content = json.dumps(encode(asdict(config)), sort_keys=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:8]
    label = re.sub(r"[^a-z0-9.]+", "-", config.label.lower()).strip("-")
    return out / name / "runs" / f"{label}-{fingerprint}"
