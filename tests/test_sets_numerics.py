"""Huge, tiny and many numbers: what overflow, underflow and rounding do to projections."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from neada.sets import HalfSpace, L1Ball, L2Ball, LinfBall, Simplex
from set_cases import INF, NORMAL, eps, vector


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(
    "dtype, size, radius",
    [
        (torch.float32, 1e30, 1.0),
        (torch.float32, 3e38, 1e-3),
        (torch.float32, 1e-30, 1e-31),
        (torch.float64, 1e200, 1.0),
        (torch.float64, 1e200, 1e-200),
        (torch.float64, 1e-200, 1e-201),
    ],
)
def test_l2_ball_neither_overflows_nor_underflows(dtype, size, radius, per_sample):
    point = torch.tensor([[3.0, -4.0, 0.0]], dtype=torch.float64).div(4).to(dtype) * size
    projected = L2Ball(radius, per_sample=per_sample).project(point) / radius
    expected = torch.tensor([[0.6, -0.8, 0.0]], dtype=dtype)
    # A few roundings; the smallest quotient above is still a normal float32.
    torch.testing.assert_close(projected, expected, rtol=4 * eps(dtype), atol=0)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_l2_ball_leaves_extreme_points_inside(size):
    point = vector(3.0, 4.0) * size
    assert torch.equal(L2Ball(5.5 * size).project(point), point)
    assert L2Ball(5.5 * size).contains(point) and not L2Ball(4.5 * size).contains(point)


@pytest.mark.parametrize("dtype, size", [(torch.float32, 1e30), (torch.float64, 1e200)])
def test_other_sets_survive_huge_points(dtype, size):
    point = torch.tensor([3.0, -4.0, 1.0], dtype=dtype) * size
    assert Simplex().project(point).tolist() == [1.0, 0.0, 0.0]
    assert L1Ball(1.0).project(point).tolist() == [0.0, -1.0, 0.0]
    assert LinfBall(1.0).project(point).tolist() == [1.0, -1.0, 1.0]
    projected = HalfSpace(torch.tensor([1.0, 0.0, 1.0]), 0.0).project(point) / size
    torch.testing.assert_close(  # one rounding each
        projected, torch.tensor([1.0, -4.0, -1.0], dtype=dtype), rtol=4 * eps(dtype), atol=0
    )
    for one in (Simplex(), L1Ball(1.0), L2Ball(1.0), HalfSpace(1.0, 0.0)):
        assert one.contains(one.project(point))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_half_space_does_not_depend_on_the_scale_of_its_normal(scale):
    point = torch.tensor([2.0, 1.0])
    half = HalfSpace(vector(1.0, 1.0) * scale, 1.0 * scale)
    # One division by the largest entry.
    torch.testing.assert_close(half.project(point), torch.tensor([1.0, 0.0]), rtol=1e-6, atol=1e-7)
    assert not half.contains(point)


def test_half_space_is_feasible_after_a_step_from_afar():
    half = HalfSpace(NORMAL, 1.0)
    for length in (1e10 / 3, 1e12 / 7, 1e14 / 11):
        projected = half.project(length * NORMAL)
        # One step leaves length * eps, 1e-6 and more; the second leaves the rounding of the result.
        size = float(NORMAL.abs() @ projected.abs()) + 1.0
        assert abs(float(NORMAL @ projected) - 1.0) <= 1e-14 * size


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_large_center_costs_only_its_own_rounding(size):
    center = torch.full((50,), size)
    point = center + torch.linspace(-5, 5, 50)
    for ball in (L2Ball(1.0, center), L1Ball(1.0, center), LinfBall(1.0, center)):
        projected = ball.project(point)
        assert ball.contains(projected)
        assert torch.equal(ball.project(projected), projected)
        order = {L2Ball: 2, L1Ball: 1, LinfBall: INF}[type(ball)]
        distance = float(torch.linalg.vector_norm((projected - center).double(), order))
        # float32 places a coordinate to eps * size, and the norm adds up to 50 of these.
        assert distance == pytest.approx(1.0, abs=50 * eps(torch.float32) * size)


def test_zero_radius_is_the_center():
    point = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    for ball in (L2Ball, L1Ball, LinfBall):
        assert torch.equal(ball(0.0).project(point), torch.zeros(2, 2))
        assert torch.equal(ball(0.0, 1.0, per_sample=True).project(point), torch.ones(2, 2))


# --------------------------------------------------------- the simplex and the L1 ball


def threshold_by_brent(v, total):
    top = v.max()
    return top + scipy.optimize.brentq(
        lambda theta: np.maximum(v - top - theta, 0).sum() - total, -total, 0.0, xtol=1e-15
    )


@pytest.mark.parametrize("num_entries", [7, 300, 20_000])
@pytest.mark.parametrize("total", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_simplex_threshold_agrees_with_root_finding(num_entries, total, scale):
    v = scale * np.random.default_rng(num_entries).standard_normal(num_entries)
    expected = np.maximum(v - threshold_by_brent(v, total), 0.0)
    projected = Simplex(total).project(torch.from_numpy(v))
    # Brent's root is good to 1e-15 and to a few ulp of the entries.
    np.testing.assert_allclose(projected.numpy(), expected, atol=1e-14 * (total + scale) * 10)
    assert float(projected.sum()) == pytest.approx(total, rel=1e-14)


@pytest.mark.parametrize("num_entries", [1_000, 100_000])
def test_simplex_sum_is_right_when_many_small_entries_are_active(num_entries):
    # theta is near -1, its rounding error eps counts once per entry: 1e5 * eps without care.
    v = torch.full((num_entries,), -1.0 + 2.0 / num_entries, dtype=torch.float64)
    v[0] = 0.0
    projected = Simplex().project(v)
    assert abs(math.fsum(projected.tolist()) - 1.0) <= 4 * eps(torch.float64)


@pytest.mark.parametrize("offset", [100.0, 1e4])
def test_simplex_ignores_a_constant_in_float32(offset):
    v = torch.randn(1000, generator=torch.Generator().manual_seed(0)).mul(512).round().div(512)
    shifted = v + offset  # exact: multiples of 1/512 below 2^14 have 23 bits
    projected = Simplex().project(shifted)
    assert torch.equal(projected, Simplex().project(v))
    # Without the shift by the maximum: 2e-2 for 100 and 2.8 for 1e4.
    assert abs(float(projected.double().sum()) - 1.0) <= 4 * eps(torch.float32)


def test_simplex_lets_no_negative_entry_through():
    projected = Simplex().project(torch.tensor([1.0, -1e-9]))  # the sum is right to eps
    assert projected.tolist() == [1.0, 0.0]


def test_simplex_survives_a_sum_that_overflows():
    assert Simplex().project(vector(0.0, -1.7e308, -1.7e308, 0.0)).tolist() == [0.5, 0.0, 0.0, 0.5]


def test_ties_share_alike():
    assert Simplex().project(torch.full((4,), 9.0)).tolist() == [0.25] * 4
    assert L1Ball(1.0).project(torch.tensor([2.0, -2.0])).tolist() == [0.5, -0.5]
