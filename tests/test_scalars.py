"""A function of scalars means the same on a float and on each entry of a tensor."""

import math

import pytest
import torch

from neada import scalars

NUMBERS = [-math.inf, -2.0, -0.0, 0.0, 1e-300, 0.5, 3.0, 1e300, math.inf]


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("function", [scalars.minimum, scalars.maximum, scalars.divide])
def test_functions_of_two_numbers(function: object) -> None:
    for a in NUMBERS:
        for b in NUMBERS:
            if function is scalars.divide and (math.isinf(a) or math.copysign(1, b) < 0):
                continue  # steps are divided by norms, which have no sign
            row = function(torch.tensor([a, 1.0], dtype=torch.float64), b)
            assert same(float(row[0]), function(a, b)), (a, b)


@pytest.mark.parametrize("function", [scalars.sqrt, scalars.expm1])
def test_functions_of_one_number(function: object) -> None:
    for a in NUMBERS:
        row = function(torch.tensor([a], dtype=torch.float64))
        assert float(row[0]) == pytest.approx(function(a), rel=1e-15)


def test_division_by_zero_is_no_step_or_an_infinite_one() -> None:
    assert scalars.divide(0.0, 0.0) == 0.0
    assert scalars.divide(2.0, 0.0) == math.inf


def test_where_picks_by_row() -> None:
    flag = torch.tensor([True, False])
    assert scalars.where(flag, 1.0, 2.0).tolist() == [1.0, 2.0]
    assert scalars.where(True, 1.0, 2.0) == 1.0


def test_all_any_and_finite() -> None:
    flag = torch.tensor([True, False])
    assert not scalars.all_true(flag)
    assert scalars.any_true(flag)
    assert scalars.all_true(True)
    assert not scalars.any_true(False)
    finite = scalars.is_finite(torch.tensor([1.0, math.nan]))
    assert isinstance(finite, torch.Tensor)
    assert finite.tolist() == [True, False]
    assert not scalars.is_finite(math.inf)
