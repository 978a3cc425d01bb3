"""Checks of arguments: ranges to the last digit, and one sentence for a wrong name."""

import math

import numpy as np
import pytest

from neada.checks import check_choice, check_number, not_one_of


@pytest.mark.parametrize("number", [1, 2.5, np.float32(0.1), np.int64(3)])
def test_numbers_of_any_kind_are_taken(number) -> None:
    check_number("lr", number)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (0.0, {}),
        (math.nan, {}),
        (math.inf, {}),
        (True, {}),
        ("1", {}),
        (1.0, {"below": 1.0}),
        (1.5, {"most": 1.0}),
        (1.5, {"whole": True}),
    ],
)
def test_other_numbers_are_refused(number, options) -> None:
    with pytest.raises(ValueError, match="lr"):
        check_number("lr", number, **options)


def test_large_whole_numbers_are_not_rounded() -> None:
    check_number("seed", 2**63 - 1, below=2**63, whole=True)
    with pytest.raises(ValueError, match="seed"):
        check_number("seed", 2**63, below=2**63, whole=True)


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    choices = ("nothing", "step", "everything", None)
    check_choice("keep", None, choices)
    assert "did you mean 'step'" in not_one_of("keep", "steps", choices)
    with pytest.raises(ValueError, match="keep"):
        check_choice("keep", 3, iter(choices))
