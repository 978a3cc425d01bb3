"""What an experiment and a claim are, and the experiments by name.

An experiment is a module with these names:

- `TITLE`, one line: what is tried. `WHERE`, the part of the paper: "Figure 1", "Theorem 2", or
  "neada". `PAPER`, what the paper says about it, in two or three sentences.
- `KNOWN`, optional: what is known of claims that fail, by patterns of their ids; the first that
  fits counts.
- `Config`, a frozen dataclass with a `label`, of plain values only, so that it can be stored.
- `configs(scale, seeds=None)`: the runs of a scale; `seeds` replaces the usual seeds where there is
  randomness. A third argument `max_calls`, where there is one, replaces the scale's calls per run.
- `run(config, run)`: computes, and appends rows to the run's metrics; the caller starts and
  finishes it.
- `claims(records)`: checks what all runs of a scale show.
- `figure(records)`: draws what the runs show; None if they are too few for a figure.

Everything that `claims` and `figure` see comes from run folders, so both can be repeated without
running anything again.
"""

import hashlib
import importlib
import inspect
import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from neada.runs import RunFolder, encode

EXPERIMENTS = (
    "quadratic",
    "mccormick",
    "synthetic-dro",
    "mnist-dro",
    "lemma",
    "deterministic-rate",
    "constants",
    "stochastic-rate",
    "regret",
    "high-probability",
    "agnostic",
    "no-learning-rate",
    "errata",
)
"""The modules of this package that are experiments, in the order of the paper."""
Scale = Literal["quick", "standard", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Array = NDArray[np.float64]
Seeds = Sequence[int] | None
"""The seeds of random experiments; None for those of the scale."""
Relation = Literal["<=", ">=", "<", ">", "between"]
Result = Literal["supported", "not supported", "not tested"]
RESULTS: tuple[Result, ...] = get_args(Result)
Subject = Literal["paper", "correction", "library"]
SUBJECTS: dict[Subject, str] = {
    "paper": "claims of the paper",
    "correction": "corrections to the paper",
    "library": "claims about this library",
}
SCALE_WORDS: dict[Scale, str] = {
    "quick": (
        "fewer calls, seeds and problems, and 8x8 digits in place of MNIST: about one minute on "
        "two cores. Results can change with longer runs and more seeds."
    ),
    "standard": (
        "the paper's calls for Figures 1 to 3, a fiftieth of them for Figure 4 (MNIST): several "
        "hours on two cores, most of them for Figure 4 and `no-learning-rate`."
    ),
    "paper": "the paper's calls for every figure: several days, most of them for Figure 4.",
}
"""What a scale means: budgets, data, seeds, time."""
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Claim:
    """One sentence that a measurement can refute.

    Attributes:
        id: A short name, unique among all experiments: "quadratic/released/gda-diverges".
        sentence: What is claimed, in our words, with the unit of the measured number.
        where: Where in the paper it stands, or "neada" for claims about this library.
        measured: The number that was measured; None if the runs it needs are not there.
        relation: How it has to stand to `expected`.
        expected: The number to compare with; a pair (low, high) for "between".
        seeds: How many seeds the measurement rests on; 1 where nothing is random.
        note: What else was seen, for the reader.
        untested: Why the number allows no conclusion, such as too few calls; empty if it does.
        corrects: Whether the sentence corrects the paper.

    Example:
        >>> claim = Claim("demo", "the slope", "Theorem 2", -0.46, "between", (-0.6, -0.4))
        >>> claim.result, claim.subject
        ('supported', 'paper')
    """

    id: str
    sentence: str
    where: str
    measured: float | None
    relation: Relation
    expected: float | tuple[float, float]
    seeds: int = 1
    note: str = ""
    untested: str = ""
    corrects: bool = False

    @property
    def result(self) -> Result:
        """Whether the number supports the sentence; NaN never does."""
        if self.measured is None or self.untested:
            return "not tested"
        if isinstance(self.expected, tuple):
            low, high = self.expected
            supports = low <= self.measured <= high
        else:
            supports = _COMPARE[self.relation](self.measured, self.expected)
        return "supported" if supports else "not supported"

    @property
    def subject(self) -> Subject:
        """What the sentence is about: the tally in which it counts."""
        if self.corrects:
            return "correction"
        return "library" if self.where == "neada" else "paper"

    @property
    def expectation(self) -> str:
        """The relation in words: "<= 0.1", "between -0.6 and -0.4"."""
        if isinstance(self.expected, tuple):
            return f"between {self.expected[0]:.4g} and {self.expected[1]:.4g}"
        return f"{self.relation} {self.expected:.4g}"


@dataclass(frozen=True)
class Record:
    """A finished run: its config and the rows of its metrics."""

    config: Any
    rows: Sequence[dict[str, Any]]

    def column(self, name: str, **facts: object) -> Array:
        """One column as an array: one entry, or one list of entries, per row.

        Args:
            name: The name of the column; rows without it are left out.
            facts: Values that other columns must have, such as `ratio=0.01, start="random"`.
        """
        rows = [row for row in self.rows if facts.items() <= row.items()]
        return np.array([row[name] for row in rows if name in row], dtype=float)

    def columns(self, **facts: object) -> dict[str, Array]:
        """All columns of numbers by name; see `column`."""
        first = next((row for row in self.rows if facts.items() <= row.items()), {})
        names = [name for name, value in first.items() if not isinstance(value, str)]
        return {name: self.column(name, **facts) for name in names}


def read_record(run: RunFolder, config: Any) -> Record:
    """Read a finished run.

    Raises:
        ValueError: The run is missing, unfinished, damaged or of another config.
    """
    if problem := run.problem(asdict(config)):
        raise ValueError(problem)
    return Record(config, run.rows())


def chosen_seeds(seeds: Seeds, usual: int) -> tuple[int, ...]:
    """Return the given seeds, or else the first ones."""
    return tuple(range(usual) if seeds is None else seeds)


def interval(values: Array) -> tuple[Array, Array]:
    """The 95 % confidence interval of the mean over the last axis, by Student's t.

    Example:
        >>> low, high = interval(np.array([1.0, 2.0, 3.0]))
        >>> print(f"{low:.3f} {high:.3f}")
        -0.484 4.484
    """
    size = values.shape[-1]
    half = stdtrit(size - 1, 0.975) * values.std(axis=-1, ddof=1) / np.sqrt(size)
    return values.mean(axis=-1) - half, values.mean(axis=-1) + half


def draws(
    seeds: Sequence[int], draw: Callable[[np.random.Generator], NDArray[Any]]
) -> Iterator[Array]:
    """Yield the random numbers of all rows, again and again; rows of one seed have the same.

    Args:
        seeds: The seed of each row's own generator.
        draw: Draws the numbers of one row for many times, which are the first dimension.
    """
    generators = [np.random.default_rng(seed) for seed in seeds]
    while True:
        yield from np.stack([draw(generator) for generator in generators], axis=1)


def run_folder(out: Path, name: str, config: Any) -> Path:
    """Where a run of an experiment lives: a readable label and a fingerprint of its config."""
    content = json.dumps(encode(asdict(config)), sort_keys=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:8]
    label = re.sub(r"[^a-z0-9.]+", "-", config.label.lower()).strip("-")
    return out / name / "runs" / f"{label}-{fingerprint}"


def make(name: str) -> Any:
    """Return the module of an experiment.

    Raises:
        ValueError: There is no experiment of that name.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}: choose from {', '.join(EXPERIMENTS)}")
    return importlib.import_module(f"reproduction.{name.replace('-', '_')}")


def configs(
    name: str, scale: Scale, seeds: Seeds = None, max_calls: int | None = None
) -> list[Any]:
    """Return the runs of an experiment.

    Args:
        name: Which experiment.
        scale: Which of its scales.
        seeds: The seeds instead of the scale's.
        max_calls: Gradient calls per run instead of the scale's.

    Raises:
        ValueError: The experiment does not exist, or has no choice of `max_calls`.
    """
    experiment = make(name)
    if max_calls is None:
        return list(experiment.configs(scale, seeds))
    if "max_calls" not in inspect.signature(experiment.configs).parameters:
        raise ValueError(f"max_calls does not apply to {name}")
    return list(experiment.configs(scale, seeds, max_calls))
