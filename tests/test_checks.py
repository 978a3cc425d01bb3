"""Checks of arguments: ranges to the last digit, and one sentence for a wrong name."""

import math

import numpy as np
import pytest

from neada.checks import check_choice, check_number, not_one_of


@pytest.mark.parametrize("number", [1, 2.5, np.float32(0.1), np.int64(3)])
def test_numbers_of_any_kind_are_taken(number) -> None:
    check_number("lr", number)


@pytest.mark.parametrize(
    ("number", "options", "sentence"),
    [
        (0.0, {}, "lr must be a number greater than 0, got 0.0"),
        (math.nan, {}, "lr must be a number greater than 0, got nan"),
        (math.inf, {}, "lr must be a number greater than 0 and finite, got inf"),
        (True, {}, "lr must be a number greater than 0, got True"),
        ("1", {}, "lr must be a number greater than 0, got '1'"),
        (1.0, {"below": 1.0}, "lr must be a number greater than 0 and less than 1, got 1.0"),
        (1.5, {"most": 1.0}, "lr must be a number greater than 0 and at most 1, got 1.5"),
        (1.5, {"whole": True}, "lr must be a whole number greater than 0, got 1.5"),
    ],
)
def test_other_numbers_are_refused(number, options, sentence) -> None:
    with pytest.raises(ValueError) as caught:
        check_number("lr", number, **options)
    assert str(caught.value) == sentence


def test_large_whole_numbers_are_not_rounded() -> None:
    check_number("seed", 2**63 - 1, below=2**63, whole=True)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        check_number("seed", 2**63, below=2**63, whole=True)


def test_a_wrong_name_is_answered_with_the_nearest_or_with_all() -> None:
    choices = ("nothing", "step", "everything", None)
    check_choice("keep", None, choices)
    assert not_one_of("keep", "steps", choices) == "there is no keep 'steps'; did you mean 'step'?"
    everything = "keep must be one of 'nothing', 'step', 'everything', None, got "
    assert not_one_of("keep", "full", choices) == everything + "'full'"
    with pytest.raises(ValueError, match="keep must be one of .*, got 3"):
        check_choice("keep", 3, iter(choices))
