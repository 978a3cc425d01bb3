"""The regions of adversarial training: the Frank-Wolfe gap, and random points."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from neada.sets import Box
from neada.sets.regions import Region

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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), (0.0, math.inf)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("radius", [0.1, 0.6, 30.0])
def test_the_gap_in_the_sets_of_adversarial_training(
    norm: Any, bounds: tuple[float, float] | None, radius: float, seed: int
) -> None:
    center, point, gradient = draw(seed)
    region = Region(center, radius, norm, None if bounds is None else Box(*bounds))
    point = region.project(point)
    gaps = region.linear_gap(point, gradient)
    lower, upper = (-50.0, 50.0) if bounds is None else (bounds[0], min(bounds[1], 50.0))
    for v, z, g, gap in zip(center.numpy(), point.numpy(), gradient.numpy(), gaps, strict=True):
        expected = program(g, radius, lower - v, upper - v, norm) - (z - v) @ g
        assert float(gap) == pytest.approx(expected, rel=1e-6, abs=1e-6 * radius)


@pytest.mark.parametrize("bounds", [None, Box(0.0, 1.0)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_random_points_are_in_the_region_and_gain_no_more(norm: Any, bounds: Any) -> None:
    center, point, gradient = draw(0)
    region = Region(center, 0.6, norm, bounds)
    point = region.project(point)
    gaps = region.linear_gap(point, gradient)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        other = region.sample(generator)
        assert bool(torch.as_tensor(region.contains(other)).all())
        assert bool((((other - point) * gradient).sum(1) <= gaps + 1e-12).all())
    far = region.project(point + 1e6 * gradient)  # a maximizer, or close to one
    torch.testing.assert_close(((far - point) * gradient).sum(1), gaps, rtol=1e-4, atol=1e-4)


def test_random_points_are_uniform() -> None:
    generator, n = torch.Generator().manual_seed(0), 3
    center = torch.zeros(20_000, n, dtype=torch.float64)
    # In a ball the share of the volume within a radius is the n-th power of its share. A fixed
    # seed; a wrong law at 20,000 values has p below 1e-10.
    orders: list[tuple[Any, float]] = [("l2", 2.0), ("l1", 1.0), ("linf", math.inf)]
    for norm, order in orders:
        points = Region(center, 2.0, norm).sample(generator) / 2.0
        shares = torch.linalg.vector_norm(points, order, dim=1) ** n
        assert scipy.stats.kstest(shares.numpy(), "uniform").pvalue > 1e-3
        octants = (points > 0).long() @ torch.tensor([1, 2, 4])
        assert scipy.stats.chisquare(octants.bincount(minlength=8).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_extreme_slopes_in_a_cut_ball(norm: Any) -> None:
    center = torch.full((3, 4), 0.5, dtype=torch.float64)
    region = Region(center, 0.4, norm, Box(0.0, 0.6))
    gradient = torch.tensor([[0.0] * 4, [1e-200] * 4, [1e-9, 1.0, -1e9, 0.0]], dtype=torch.float64)
    gaps = region.linear_gap(center, gradient)
    assert float(gaps[0]) == 0.0
    assert float(gaps[1] / 1e-200) == pytest.approx(0.4)  # every entry by its reach of 0.1
    assert float(gaps[2]) == pytest.approx(4e8)  # all in the steepest
