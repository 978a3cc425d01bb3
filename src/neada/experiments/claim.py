"""A claim: what is said, what was measured, and whether the two agree."""

import operator
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Claim", "Relation", "Verdict"]

Relation = Literal["<=", ">=", "<", ">", "between"]
Verdict = Literal["holds", "fails", "not run"]
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Claim:
    """One sentence that a measurement can refute.

    Attributes:
        id: A short name, unique among all experiments: "quadratic/released/gda-diverges".
        sentence: What is claimed, in our words, with the unit of the measured number.
        where: Where in the paper it stands, or "neada" for the library's own claims.
        measured: The number that was measured; None if the runs it needs are not there.
        relation: How it has to stand to `expected`.
        expected: The number to compare with; a pair (low, high) for "between".
        seeds: How many seeds the measurement rests on; 1 where nothing is random.
        note: What else was seen, for the reader.

    Example:
        >>> Claim("demo", "the slope", "Theorem 2", -0.46, "between", (-0.6, -0.4)).verdict
        'holds'
    """

    id: str
    sentence: str
    where: str
    measured: float | None
    relation: Relation
    expected: float | tuple[float, float]
    seeds: int = 1
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Whether the measurement agrees; a NaN agrees with nothing."""
        if self.measured is None:
            return "not run"
        if isinstance(self.expected, tuple):
            low, high = self.expected
            return "holds" if low <= self.measured <= high else "fails"
        return "holds" if _COMPARE[self.relation](self.measured, self.expected) else "fails"

    @property
    def expectation(self) -> str:
        """The relation in words: "<= 0.1", "between -0.6 and -0.4"."""
        if isinstance(self.expected, tuple):
            return f"between {self.expected[0]:.4g} and {self.expected[1]:.4g}"
        return f"{self.relation} {self.expected:.4g}"

    def as_dict(self) -> dict[str, Any]:
        """The claim and its verdict as plain data."""
        return {**asdict(self), "verdict": self.verdict}
