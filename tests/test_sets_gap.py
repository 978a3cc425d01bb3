"""The gap of a linear maximization over a set, against linear programs and a solver of its own."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from neada.robust import AdversarialTraining
from neada.sets import Box, HalfSpace, L1Ball, L2Ball, LinfBall, NonNegative, Simplex, WholeSpace
from neada.sets.balls import BallInBox

SIZE = 5


def draw(seed: int, rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Centers in [0, 1], points anywhere, and gradients, some of whose entries are zero."""
    generator = torch.Generator().manual_seed(seed)
    center = torch.rand(rows, SIZE, generator=generator, dtype=torch.float64)
    point = 2.0 * torch.rand(rows, SIZE, generator=generator, dtype=torch.float64) - 0.5
    gradient = torch.randn(rows, SIZE, generator=generator, dtype=torch.float64)
    return center, point, gradient * (gradient.abs() > 0.2)


def program(g: np.ndarray, radius: float, low: np.ndarray, high: np.ndarray, norm: str) -> float:
    """max <d, g> over low <= d <= high within the norm: a linear program, or SLSQP for "l2"."""
    if norm == "linf":
        bounds = list(zip(np.maximum(low, -radius), np.minimum(high, radius), strict=True))
        return -float(linprog(-g, bounds=bounds).fun)
    if norm == "l1":  # d = p - q with p, q >= 0 and sum(p + q) <= radius
        both = np.concatenate([g, -g])
        bounds = [(0.0, h) for h in high] + [(0.0, -b) for b in low]
        return -float(linprog(-both, np.ones((1, 2 * SIZE)), [radius], bounds=bounds).fun)
    found = minimize(
        lambda d: -d @ g,
        np.zeros(SIZE),
        jac=lambda d: -g,
        bounds=list(zip(low, high, strict=True)),
        constraints={"type": "ineq", "fun": lambda d: radius**2 - d @ d, "jac": lambda d: -2.0 * d},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return -float(found.fun)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), (0.0, math.inf)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("radius", [0.1, 0.6, 30.0])
def test_the_gap_in_the_sets_of_adversarial_training(
    norm: Any, bounds: tuple[float, float] | None, radius: float, seed: int
) -> None:
    center, point, gradient = draw(seed)
    robust = AdversarialTraining(
        torch.nn.Linear(SIZE, 2), torch.nn.functional.cross_entropy, radius, norm, bounds=bounds
    )
    region = robust._region(center)
    point = region.project(point)
    gaps = region.linear_gap(point, gradient, rowwise=True)
    assert isinstance(gaps, Tensor)
    assert gaps.dtype == torch.float64
    lower, upper = (-50.0, 50.0) if bounds is None else (bounds[0], min(bounds[1], 50.0))
    for v, z, g, gap in zip(center.numpy(), point.numpy(), gradient.numpy(), gaps, strict=True):
        expected = program(g, radius, lower - v, upper - v, norm) - (z - v) @ g
        assert float(gap) == pytest.approx(expected, rel=1e-6, abs=1e-6 * radius)


@pytest.mark.parametrize(
    "one",
    [L1Ball(0.7), L2Ball(0.7), LinfBall(0.7, 0.1), Simplex(2.0), Box(-0.2, 0.5)],
    ids=lambda one: type(one).__name__,
)
def test_no_random_point_gains_more_and_the_gap_is_the_sum_over_tensors(one: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    _, point, gradient = draw(0, rows=1)
    point, gradient = one.project(point[0]), gradient[0]
    gap = one.linear_gap(point, gradient)
    assert isinstance(gap, float)
    for _ in range(2000):
        assert float((one.sample(point, generator) - point) @ gradient) <= gap + 1e-12
    far = one.project(point + 1e6 * gradient)  # a point far out is projected on a maximizer
    assert float((far - point) @ gradient) == pytest.approx(gap, rel=1e-4)
    parts = one.linear_gap([point[:2], point[2:]], [gradient[:2], gradient[2:]])
    assert parts == pytest.approx(gap, rel=1e-12)
    assert one.linear_gap(far, gradient) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_extreme_slopes_in_a_cut_ball(norm: Any) -> None:
    center = torch.full((3, 4), 0.5, dtype=torch.float64)
    region = BallInBox(0.4, center, Box(0.0, 0.6), norm)
    gradient = torch.tensor([[0.0] * 4, [1e-200] * 4, [1e-9, 1.0, -1e9, 0.0]], dtype=torch.float64)
    gaps = region.linear_gap(center, gradient)
    assert isinstance(gaps, Tensor)
    assert float(gaps[0]) == 0.0
    assert float(gaps[1] / 1e-200) == pytest.approx(0.4)  # every entry by its reach of 0.1
    assert float(gaps[2]) == pytest.approx(4e8)  # all in the steepest


def test_sets_without_bounds_have_an_infinite_gap_where_the_gradient_points_out() -> None:
    point, zero = torch.tensor([1.0, 0.0]), torch.zeros(2)
    assert WholeSpace().linear_gap(point, zero) == 0.0
    assert WholeSpace().linear_gap(point, torch.tensor([0.0, 1.0])) == math.inf
    assert NonNegative().linear_gap(point, torch.tensor([-2.0, -1.0])) == 2.0
    rows = NonNegative().linear_gap(point[:, None], torch.tensor([[1.0], [-1.0]]), rowwise=True)
    assert isinstance(rows, Tensor)
    assert rows.tolist() == [math.inf, 0.0]


def test_what_has_no_gap_says_so() -> None:
    point = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="no formula for the linear gap of HalfSpace"):
        HalfSpace(torch.ones(2, 2), 1.0).linear_gap(point, point)
    with pytest.raises(ValueError, match="ties the rows together"):
        L2Ball(1.0).linear_gap(point, point, rowwise=True)
    with pytest.raises(ValueError, match="of the same shape"):
        Box(0.0, 1.0).linear_gap(point, torch.zeros(2))
