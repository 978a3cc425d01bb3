"""The default of `minimax`: second-order claims, derivatives that are wrong or missing, scale."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neada import Status, minimax, sets

DOUBLE = torch.float64


def quadratic(dim: int, kappa: float, seed: int) -> tuple[Any, Tensor, Tensor]:
    """Nonconvex in x, with curvatures of y from 1/kappa to 1 and a least one of 0.05 of Phi."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    basis = torch.linalg.qr(normal(dim, dim))[0]
    curvatures = torch.logspace(-math.log10(kappa), 0, dim, dtype=DOUBLE)
    concave = basis @ torch.diag(curvatures) @ basis.T
    coupling, inner = normal(dim, dim) / (2 * dim**0.5), normal(dim, dim)
    inner = (inner + inner.T) / (4 * dim) ** 0.5
    reduced = inner + coupling @ torch.linalg.solve(concave, coupling.T)
    least = torch.linalg.eigvalsh(reduced)[0].item()
    inner = inner + max(0.05 - least, 0.0) * torch.eye(dim)
    p, q = normal(dim), normal(dim)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return x @ inner @ x / 2 + x @ coupling @ y - y @ concave @ y / 2 + p @ x + q @ y

    return fun, normal(dim), normal(dim)


@pytest.mark.parametrize("kappa", [1e1, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("dim", [5, 20, 100, 200])
def test_ill_conditioned_nonconvex_quadratics_are_solved(dim: int, kappa: float) -> None:
    fun, x0, y0 = quadratic(dim, kappa, seed=dim)
    result = minimax(fun, x0, y0)
    assert result.success
    x, y = result.x.requires_grad_(), result.y.requires_grad_()
    assert max(g.norm().item() for g in torch.autograd.grad(fun(x, y), (x, y))) <= 1e-6
    assert result.kind == "strict local minimax"
    assert result.curvature_y == pytest.approx(1 / kappa, rel=1e-6)


@pytest.mark.parametrize(
    ("fun", "start", "kind", "curvatures"),
    [
        (lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, (0.0, 0.0), "strict local minimax", (4, 2)),
        (lambda x, y: x**4 + x * y - y**2 - x**2 / 4, (0.0, 0.0), "strict local minimax", (0, 2)),
        (lambda x, y: x**4 - y**2, (1.0, 1.0), "stationary", (0, 2)),
        (lambda x, y: x * y, (1.0, 1.0), "stationary", (math.nan, 0)),
    ],
    ids=["quadratic", "saddle", "flat", "bilinear"],
)
def test_the_kind_of_point(fun: Any, start: Any, kind: str, curvatures: tuple) -> None:
    result = minimax(fun, *start)
    assert result.success
    if curvatures == (0, 2) and kind == "stationary":
        assert result.curvature_x < 1e-3  # x^4 has no curvature at its minimum
    elif curvatures[0]:
        assert result.kind == kind
        found = (result.curvature_x, result.curvature_y)
        assert found == pytest.approx(curvatures, abs=1e-6, nan_ok=True)


def test_a_saddle_of_the_maximum_is_left() -> None:
    """Phi is x^4/4 - x^2/2; the start 0 is stationary, its minima are -1 and 1."""
    result = minimax(lambda x, y: x**4 / 4 - x**2 + x * y - y**2 / 2, 0.0, 0.0)
    assert result.success and result.kind == "strict local minimax"
    assert abs(result.x) == pytest.approx(1.0, abs=1e-6)
    assert result.curvature_x == pytest.approx(2.0, abs=1e-5)


def test_an_active_bound_without_a_multiplier_is_not_called_strict() -> None:
    box = sets.Box(0.0, 1.0)
    strict = minimax(lambda x, y: (x + 1) ** 2 - y**2, 0.5, 0.5, x_set=box)
    degenerate = minimax(lambda x, y: x**2 - y**2, 0.5, 0.5, x_set=box)
    assert (strict.kind, degenerate.kind) == ("strict local minimax", "stationary")


def test_the_duality_gap_of_a_matrix_game_is_zero() -> None:
    matrix = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    start = torch.full((4,), 0.25, dtype=DOUBLE), torch.full((5,), 0.2, dtype=DOUBLE)
    simplex = sets.Simplex()
    result = minimax(lambda x, y: x @ matrix @ y, *start, x_set=simplex, y_set=simplex)
    gap = (result.x @ matrix).max() - (matrix @ result.y).min()
    assert result.duality_gap == pytest.approx(gap.item(), abs=1e-6)
    assert abs(result.duality_gap) <= 1e-5


# Derivatives.


def without_graph(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        product = x * y
    return x**2 - 3 * x + product - y**2


@pytest.mark.parametrize(
    "fun",
    [
        without_graph,
        lambda x, y: (x - 1) ** 2 + x * y.detach() - y**2,
        lambda x, y: (x.detach() - 1) ** 2 + x * y - y**2,
    ],
    ids=["no_grad", "detached y", "detached x"],
)
def test_wrong_derivatives_are_no_success(fun: Any) -> None:
    result = minimax(fun, 0.5, 1.0)
    assert result.status is Status.STALLED
    assert "derivatives" in result.message


def test_a_kink_is_named() -> None:
    result = minimax(lambda x, y: (x - 0.3).abs() + x * y - y**2 / 2, 3.0, 1.0)
    assert result.status is Status.STALLED
    assert "smooth" in result.message


class Once(torch.autograd.Function):
    """x^4/4 + x^2, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**4 / 4 + x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x**3 + 2 * x)


@pytest.mark.parametrize("times", [1.0, torch.ones(3, dtype=DOUBLE)])
def test_functions_without_second_derivatives_are_solved(times: Any) -> None:
    def fun(x: Tensor, y: Tensor) -> Tensor:
        return Once.apply(x - times).sum() + (x * y).sum() - Once.apply(y).sum()

    result = minimax(fun, [3.0, -2.0, 1.0], [1.0, 2.0, 0.0])
    assert result.success and result.kind == "unknown"


# Scale.


def chain(dim: int) -> Any:
    """Nonconvex in x, strongly concave in y, every coordinate coupled with its neighbors."""
    generator = torch.Generator().manual_seed(0)
    curvatures = 0.1 + 0.9 * torch.rand(dim, generator=generator).double()
    slopes = torch.randn(dim, generator=generator).double()

    def fun(x: Tensor, y: Tensor) -> Tensor:
        coupled = (x * y).sum() + 0.5 * (x[1:] * y[:-1]).sum()
        return (0.4 * x**2 + 0.8 * x.cos() + slopes * x - curvatures * y**2 / 2).sum() + coupled

    return fun


@pytest.mark.parametrize("y_set", [None, sets.Box(-1.0, 1.0), sets.L2Ball(3.0)])
def test_many_coordinates_are_solved_without_a_matrix(y_set: sets.Set | None) -> None:
    start = torch.zeros(600, dtype=DOUBLE)
    result = minimax(chain(600), start, start, y_set=y_set)
    assert result.success and result.kind == "unknown"
    x, y = result.x.requires_grad_(), result.y.requires_grad_()
    slope_x, slope_y = torch.autograd.grad(chain(600)(x, y), (x, y))
    if y_set is not None:
        slope_y = y_set.gradient_mapping(y.detach(), slope_y)
    assert max(slope_x.norm().item(), slope_y.norm().item()) <= 1e-6


# Differentiable solutions.


@pytest.mark.parametrize(
    ("x_set", "y_set"),
    [
        (None, None),
        (sets.Box(-0.3, 0.1), sets.Box(-0.2, 0.2)),
        (None, sets.L2Ball(0.1)),
        (sets.L2Ball(0.5), sets.Simplex()),
    ],
)
def test_implicit_gradients_are_those_of_differences(x_set: Any, y_set: Any) -> None:
    coupling = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    start = torch.zeros(3, dtype=DOUBLE)

    def loss(weight: Tensor) -> Tensor:
        def fun(x: Tensor, y: Tensor) -> Tensor:
            in_x = (x**4 / 4 + x**2 / 2).sum() + weight @ x
            return in_x + x @ coupling @ y - (1 + weight[0] ** 2) * y @ y / 2 + weight[1] * y[0]

        result = minimax(fun, start, start, x_set=x_set, y_set=y_set, tol=1e-9, differentiable=True)
        assert result.success
        return (result.x * torch.arange(1, 4)).sum() + result.y.square().sum()

    weight = torch.tensor([0.3, -0.7, 0.5], dtype=DOUBLE, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(weight), weight)
    step = 1e-4
    differences = [
        (loss((weight + e).detach()) - loss((weight - e).detach())).item() / (2 * step)
        for e in step * torch.eye(3, dtype=DOUBLE)
    ]
    np.testing.assert_allclose(gradient.numpy(), differences, atol=1e-4)
