"""The default of `minimax`: second-order claims, derivatives that are wrong or missing, scale."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neada import Status, minimax, sets
from neada.solve.geometry import Side

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


BALL = sets.L2Ball(1.0)
# A function, the start, the set of y, and the kind and both curvatures of the point that is found.
KINDS: dict[str, tuple[Any, ...]] = {
    "quadratic": (
        lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2,
        *(0.0, 0.0, None),
        *("strict local minimax", 4.0, 2.0),
    ),
    "flat": (lambda x, y: x**4 - y**2, 0.0, 0.0, None, "stationary", 0.0, 2.0),
    "flat by cancellation": (
        lambda x, y: -0.35 * x**2 + 0.7**0.5 * x * y - 0.5 * y**2 + x**4,
        *(0.0, 0.0, None),
        *("stationary", 0.0, 1.0),
    ),
    "inflection": (lambda x, y: 5 * x**3 - y**2, 0.0, 0.1, None, "stationary", 0.0, 2.0),
    "bilinear": (lambda x, y: x * y, 1.0, 1.0, None, "stationary", math.nan, 0.0),
    "at infinity": (lambda x, y: x**2 + y.log(), 1.0, 1.0, None, "stationary", 2.0, 0.0),
    # The multiplier of the ball adds to the curvature of -f along its border.
    "border of a ball": (
        lambda x, y: x**2 + 5 * (y @ y) + 0.5 * y[0],
        *(1.0, [0.5, 0.1], BALL),
        *("strict local minimax", 2.0, 0.5),
    ),
    "coupled along a border": (
        lambda x, y: -0.5 * x**2 + x**4 + 1.2 * x * y[1] - 0.05 * y @ y + 2 * y[0],
        *(0.0, [1.0, 0.0], BALL),
        *("strict local minimax", None, None),
    ),
    "multiplier": (
        lambda x, y: (x - 2) ** 2 + y * (x - 1),
        *(0.0, 0.5, sets.NonNegative()),
        *("stationary", math.nan, 0.0),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_point(name: str) -> None:
    fun, x0, y0, y_set, kind, curvature_x, curvature_y = KINDS[name]
    result = minimax(fun, x0, y0, y_set=y_set)
    assert result.success and result.kind == kind
    if curvature_x is not None:
        assert result.curvature_x == pytest.approx(curvature_x, abs=1e-6, nan_ok=True)
        assert result.curvature_y == pytest.approx(curvature_y, abs=1e-6)


def test_the_curvature_along_a_ball_is_that_of_its_maximum() -> None:
    """By differences of the maximum over the circle, which is computed on a grid of angles."""
    fun, x0, y0, y_set, *_ = KINDS["coupled along a border"]
    result = minimax(fun, x0, y0, y_set=y_set)
    angles = torch.linspace(-0.6, 0.6, 400_001, dtype=DOUBLE)
    circle = torch.stack([angles.cos(), angles.sin()])

    def maximum(x: float) -> float:
        values = -0.5 * x**2 + x**4 + 1.2 * x * circle[1] - 0.05 + 2 * circle[0]
        return values.max().item()

    step = 1e-2
    ends = maximum(result.x + step) + maximum(result.x - step)
    assert result.curvature_x == pytest.approx((ends - 2 * maximum(result.x)) / step**2, abs=1e-2)


def test_the_direction_in_which_y_is_no_maximum_may_be_slight() -> None:
    result = minimax(lambda x, y: x**2 - 1e8 * y[0] ** 2 + 10 * y[1] ** 2, 0.0, [0.0, 0.0])
    assert result.status is Status.NOT_A_MAXIMUM


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


@pytest.mark.parametrize(
    "y_set",
    [
        sets.Simplex(per_sample=True),
        sets.Simplex(torch.tensor([1.0, 2.0]), per_sample=True),
        sets.Product([sets.Simplex(per_sample=True)]),
        sets.L2Ball(0.4, per_sample=True),
        sets.L1Ball(0.4, per_sample=True),
    ],
    ids=str,
)
def test_samples_have_their_own_sets_without_rows(y_set: sets.Set) -> None:
    slopes = torch.randn(2, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))

    def solve(weight: Tensor, **options: Any) -> Any:
        def fun(x: Tensor, y: Tensor) -> Tensor:
            gain = (y * (slopes * x.sum() + 0.3)).sum()
            return (x - weight) @ (x - weight) + gain - (1 + weight / 9) * (y * y).sum() / 2

        return minimax(fun, [0.5], np.full((2, 3), 0.3), y_set=y_set, tol=1e-8, **options)

    weight = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    result = solve(weight, differentiable=True)
    assert result.success and result.kind == "strict local minimax"
    (slope,) = torch.autograd.grad(result.x[0] + result.y[0, 1], weight)
    up, down = (solve(torch.tensor(0.7 + h, dtype=DOUBLE)) for h in (1e-3, -1e-3))
    difference = (up.x[0] + up.y[0, 1] - down.x[0] - down.y[0, 1]) / 2e-3
    assert slope.item() == pytest.approx(float(difference), abs=1e-4)


def test_both_players_may_have_the_same_set() -> None:
    one, start = sets.Product([sets.Box(-1.0, 1.0)]), [np.ones(2)]
    result = minimax(
        *(lambda x, y: x[0] @ x[0] + x[0] @ y[0] - y[0] @ y[0], start, start),
        **{"x_set": one, "y_set": one},
    )
    assert result.success


# Derivatives.


def without_graph(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        product = x * y
    return x**2 - 3 * x + product - y**2


# A function whose derivatives are wrong, the start, and the sets.
WRONG: dict[str, tuple[Any, ...]] = {
    "no_grad": (without_graph, 0.5, 1.0, None, None),
    "detached y": (lambda x, y: (x - 1) ** 2 + x * y.detach() - y**2, 0.5, 1.0, None, None),
    "detached x": (lambda x, y: (x.detach() - 1) ** 2 + x * y - y**2, 0.5, 1.0, None, None),
    "on a simplex": (
        lambda x, y: (x**2).sum() + 10 * x[0].detach() - (y**2).sum(),
        *([0.5, 0.5], [0.3, 0.3], sets.Simplex(), None),
    ),
    "at a bound": (
        lambda x, y: x**2 - 3 * y[0] - (y[1] - 1) ** 2 + 4 * y[1].detach(),
        *(1.0, [0.5, 0.5], None, sets.NonNegative()),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_derivatives_are_no_success(name: str) -> None:
    fun, x0, y0, x_set, y_set = WRONG[name]
    result = minimax(fun, x0, y0, x_set=x_set, y_set=y_set)
    assert result.status is Status.STALLED and result.kind == "unknown"
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


def test_a_hidden_second_derivative_is_missed() -> None:
    """A term that enters linearly does not raise; its Hessian is zero, but its gradient changes."""

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return 5 * x[0] ** 2 + 0.01 * x[1] ** 2 - Once.apply(x[1]) / 10 - 500 * y**2

    start = [1.0, 0.0], 0.3
    assert minimax(fun, *start).kind == "unknown"
    with pytest.raises(ValueError, match="second derivatives"):
        minimax(fun, *start, differentiable=True)


def test_rows_of_games_without_curvature_do_not_end_each_other() -> None:
    matrices = torch.randn(8, 3, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    start = torch.full((8, 3), 1 / 3, dtype=DOUBLE)
    simplex = sets.Simplex(per_sample=True)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("ri,rij,rj->r", x, matrices, y)

    result = minimax(fun, start, start, x_set=simplex, y_set=simplex, rowwise=True)
    assert result.success.all()


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


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_fast_projection_onto_simplices_is_that_of_the_set(per_sample: bool) -> None:
    points = 3 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    totals = 0.1 + torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    home = sets.Simplex(totals if per_sample else 2.0, per_sample=True)
    found = Side([points.clone()], home, num_rows=50).project(points.numpy())
    np.testing.assert_allclose(found, home.project(points).numpy(), atol=1e-14)
