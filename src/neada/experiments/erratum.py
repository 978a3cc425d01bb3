"""What an erratum is: what the print says, what should stand there, and what shows it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from neada.experiments.claim import Relation

__all__ = ["Erratum", "Rows", "Statement", "curve", "measure"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Statement:
    """One number of an erratum, and how it has to be for the erratum to be right.

    Attributes:
        name: What the number is called in the rows.
        sentence: What is said about it.
        relation: How the number has to stand to `expected`.
        expected: The number to compare with; a pair for "between".
    """

    name: str
    sentence: str
    relation: Relation
    expected: float | tuple[float, float]


@dataclass(frozen=True)
class Erratum:
    """A place of the paper that is wrong or soft.

    Attributes:
        id: A short name.
        where: The place.
        printed: What the print says, in our words.
        corrected: What should stand there.
        compute: From the budget of the scale, rows made by `measure` and `curve`.
        statements: What the rows have to show.
        axes: Labels of the picture: x and y.
        scales: Its scales: "log" or "linear" for x and y.
    """

    id: str
    where: str
    printed: str
    corrected: str
    compute: Callable[[int], Rows]
    statements: tuple[Statement, ...]
    axes: tuple[str, str]
    scales: tuple[str, str] = ("log", "log")


def measure(name: str, value: float) -> dict[str, Any]:
    """The row of a number that a statement is about."""
    return {"measure": name, "value": float(value)}


def curve(name: str, x: Iterable[float], y: Iterable[float]) -> Rows:
    """The rows of a line in the picture."""
    return [
        {"curve": name, "x": float(at), "y": float(height)} for at, height in zip(x, y, strict=True)
    ]
