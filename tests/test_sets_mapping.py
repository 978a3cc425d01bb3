"""Membership with its tolerance, and the gradient mapping inside, at bounds and at maxima."""

import pytest
import torch

from neada.sets import Box, L1Ball, L2Ball, LinfBall, NonNegative, Simplex, WholeSpace
from set_cases import eps, vector


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contains_forgives_rounding_and_nothing_more(dtype):
    point = torch.tensor([3.0, 4.0], dtype=dtype)
    for one, size in [(L2Ball, 5.0), (L1Ball, 7.0), (LinfBall, 4.0), (Simplex, 7.0)]:
        assert one(size * (1 - 2 * eps(dtype))).contains(point)
        assert not one(size * (1 - 20 * eps(dtype))).contains(point)


@pytest.mark.parametrize(
    "one", [WholeSpace(), Box(-2.0, 2.0), L2Ball(9.0), L1Ball(9.0), LinfBall(9.0)]
)
def test_mapping_inside_is_the_negative_gradient_exactly(one):
    y, g = torch.tensor([1.0, -1.0]), torch.tensor([1e-12, 3e-9])
    assert torch.equal(one.gradient_mapping(y, g), -g)


@pytest.mark.parametrize("one", [Box(0.0, 1.0), LinfBall(0.5, 0.5), Box(vector(0.0, 0.0), 1.0)])
def test_mapping_at_an_active_bound_is_zero_exactly(one):
    y, outward = torch.tensor([1.0, 0.0]), torch.tensor([1e-12, -3.0])
    assert one.gradient_mapping(y, outward).tolist() == [0.0, 0.0]
    assert torch.equal(
        NonNegative().gradient_mapping(y, outward), -outward * torch.tensor([1.0, 0])
    )


def test_mapping_vanishes_at_the_maximum_of_a_linear_function():
    g = vector(0.3, -2.0, 1.0)
    maxima = [
        (L2Ball(2.0), 2.0 * g / g.norm()),
        (L1Ball(2.0), vector(0.0, -2.0, 0.0)),
        (LinfBall(2.0), 2.0 * g.sign()),
        (Simplex(2.0), vector(0.0, 0.0, 2.0)),
    ]
    for one, maximum in maxima:
        assert one.gradient_mapping(maximum, g).abs().max() <= 1e-15  # an ulp of 2
        assert one.gradient_mapping(maximum, -g).norm() > 0.1
