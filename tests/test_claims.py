"""The result of a claim follows from its number and by nothing else."""

import math

import pytest

from reproduction.experiment import Claim


@pytest.mark.parametrize(
    ("measured", "relation", "expected", "result"),
    [
        (1.0, "<=", 1.0, "supported"),
        (1.1, "<=", 1.0, "not supported"),
        (1.0, "<", 1.0, "not supported"),
        (1.0, ">=", 1.0, "supported"),
        (1.0, ">", 1.0, "not supported"),
        (2.0, ">", 1.0, "supported"),
        (0.5, "between", (0.0, 1.0), "supported"),
        (1.5, "between", (0.0, 1.0), "not supported"),
        (math.nan, "<=", 1.0, "not supported"),
        (math.nan, ">", 1.0, "not supported"),
        (math.nan, "between", (0.0, 1.0), "not supported"),
        (math.inf, ">", 1.0, "supported"),
        (None, ">", 1.0, "not tested"),
    ],
)
def test_the_result_follows_from_the_number(
    measured: float | None, relation: str, expected: float, result: str
) -> None:
    claim = Claim("id", "a sentence", "Figure 1", measured, relation, expected)  # type: ignore[arg-type]
    assert claim.result == result


def test_a_number_that_allows_no_conclusion_is_not_tested() -> None:
    untested = Claim("id", "a sentence", "Figure 1", 2.0, ">", 1.0, untested="too few calls")
    assert untested.result == "not tested"
