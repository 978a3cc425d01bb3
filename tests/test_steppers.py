"""Every stepper in one table: numpy references, resuming, counters, errors, budgets."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad

import references as ref
from neada import Players, constrain, make_stepper, methods, sets, steppers
from neada.inner import BudgetExhausted, InnerOptions
from neada.optim import (
    LBFGS,
    AdaptiveSGD,
    AdGD,
    Backtracking,
    GeneralizedAdaGrad,
)
from neada.solve.newton import Newton
from neada.steppers.direct import DirectStepper
from neada.stopping import FixedAccuracy, FixedSteps, GradientMapping, InnerSteps, RelativeAccuracy
from neada.testing import check_stepper

A = np.array([[0.9, -0.4, 0.3], [0.2, 0.7, -0.6]])
X0, Y0 = np.array([0.8, -1.1, 0.4]), np.array([0.3, -0.2])
BOX_X, BOX_Y, BALL_Y = (-1.15, 0.9), (-0.35, 0.32), 0.4
LX, LY = 0.07, 0.3
RATES = {"lr_x": LX, "lr_y": LY}
RTOL = 1e-10  # twenty steps of a smooth map, each exact to a few units in the last place


def game(x: Tensor, y: Tensor) -> Tensor:
    """Nonconvex in x, strongly concave in y, quadratic in neither."""
    matrix = torch.as_tensor(A, dtype=x.dtype)
    return x.cos().sum() + y @ (matrix @ x) - y @ y / 2 - 0.1 * (y**4).sum() / 4


def game_value(x: Any, y: Any) -> float:
    return float(np.cos(x).sum() + y @ (A @ x) - y @ y / 2 - 0.1 * (y**4).sum() / 4)


def game_x(x: Any, y: Any) -> Any:
    return -np.sin(x) + A.T @ y


def game_y(x: Any, y: Any) -> Any:
    return A @ x - y - 0.1 * y**3


def pair(stepper: Any, optimizer: Any, **options: Any) -> Callable[..., steppers.Stepper]:
    def make(x: Any, y: Any, x_set: Any = None, y_set: Any = None) -> steppers.Stepper:
        return stepper(
            constrain(optimizer(x, lr=LX), x_set),
            constrain(optimizer(y, lr=LY, maximize=True), y_set),
            **options,
        )

    return make


def nested(outer: Any, y_inner: Any, rule: Any, **options: Any) -> Callable[..., steppers.Stepper]:
    def make(x: Any, y: Any, x_set: Any = None, y_set: Any = None) -> steppers.Stepper:
        x_optimizer = constrain(outer(x), x_set)
        y_optimizer = constrain(y_inner(y, maximize=True), y_set)
        return steppers.NeAda(x_optimizer, y_optimizer, rule(), **options)

    return make


def direct(stepper: Any, *args: Any, **options: Any) -> Callable[..., steppers.Stepper]:
    return lambda x, y, x_set=None, y_set=None: stepper(
        x, y, *args, x_set=x_set, y_set=y_set, **options
    )


def nested_reference(outer: Any, inner: Any, stop: Any, **more: Any) -> Callable[..., ref.Minimax]:
    return partial(ref.NeAda, inner=inner, outer=outer, stop=stop, f=game_value, **more)


ADAM = {"psi": "adam", "v0": 0.5, "lr": 0.1}
AMSGRAD = {"psi": "amsgrad", "v0": 0.2}
SQRT = {**RATES, "amsgrad": True, "bias": "sqrt"}
SCHEDULE = {"k": 1.3, "m": 5.0}
AVERAGE = {"lr": 0.8, "average": 1.0}
ADAPG = {"lr": 0.1, "variant": "adapg"}
OUTER, REF_OUTER = partial(GeneralizedAdaGrad, lr=0.3), partial(ref.GeneralizedAdaGrad, lr=0.3)
INNER, REF_INNER = (
    partial(GeneralizedAdaGrad, **AVERAGE),
    partial(ref.GeneralizedAdaGrad, **AVERAGE),
)
SLOW, FAST = partial(SGD, lr=LX), partial(SGD, lr=LY)
PAPER, REF_PAPER = partial(AdaptiveSGD, **ADAM), partial(ref.AdaptiveSGD, **ADAM)
TWO = ref.Count(ref.criterion_two)
ONE_OR_TWO = ref.Either(ref.SquaredMapping(0.1), TWO)
GROWING = {"policy": "full", "averaged": True, "batch": lambda t: t + 1}

MAKE: dict[str, Callable[..., steppers.Stepper]] = {
    "simultaneous SGD": pair(steppers.Simultaneous, SGD),
    "simultaneous Adagrad": pair(steppers.Simultaneous, Adagrad),
    "simultaneous AMSGrad": pair(steppers.Simultaneous, partial(AdaptiveSGD, **AMSGRAD)),
    "alternating xy": pair(steppers.Alternating, SGD, order="xy"),
    "alternating yx": pair(steppers.Alternating, SGD, order="yx"),
    "Extragradient": direct(steppers.Extragradient, **RATES),
    "PastExtragradient": direct(steppers.PastExtragradient, **RATES),
    "OptimisticGDA": direct(steppers.OptimisticGDA, **RATES),
    "AdaptiveExtragradient": direct(steppers.AdaptiveExtragradient, 0.4),
    "UniversalMirrorProx": direct(steppers.UniversalMirrorProx, 0.5, 2.0),
    "SmoothedAGDA": direct(steppers.SmoothedAGDA, **RATES, pull=0.7, follow=0.2),
    "TiAda": direct(steppers.TiAda, **RATES),
    "TiAda coordinate": direct(steppers.TiAda, **RATES, scope="coordinate"),
    "TiAdaAdam": direct(steppers.TiAdaAdam, **RATES),
    "TiAdaAdam AMSGrad": direct(steppers.TiAdaAdam, **SQRT, betas=(0.8, 0.7)),
    "AdaGDA": direct(steppers.AdaGDA, 0.1, 0.2, **SCHEDULE, c_x=2.0),
    "VRAdaGDA": direct(steppers.VRAdaGDA, 0.1, 0.2, **SCHEDULE, c_y=2.0),
    "GDmax steps": nested(SLOW, FAST, lambda: FixedSteps(3)),
    "GDmax accuracy": nested(
        SLOW, FAST, lambda: FixedAccuracy(0.005), inner=InnerOptions(min_steps=0)
    ),
    "NeAda Adam": nested(PAPER, PAPER, InnerSteps),
    "NeAda line search": nested(
        OUTER,
        partial(Backtracking, lr=2.0),
        lambda: GradientMapping(0.1) | InnerSteps(),
        inner=InnerOptions(keep="nothing"),
    ),
    "NeAda AdGD": nested(OUTER, partial(AdGD, **ADAPG), lambda: GradientMapping(0.01)),
    "NeAda average": nested(OUTER, INNER, lambda: FixedSteps(4), x_samples=lambda t: t + 1),
    "NeAda L-BFGS": nested(LBFGS, LBFGS, lambda: RelativeAccuracy() | FixedSteps(2)),
}
REFERENCE: dict[str, Callable[..., ref.Minimax]] = {
    "simultaneous SGD": partial(ref.SimultaneousGDA, **RATES),
    "simultaneous Adagrad": partial(ref.NonNestedAdagrad, **RATES),
    "simultaneous AMSGrad": partial(ref.NonNestedAdaptive, **AMSGRAD, **RATES),
    "alternating xy": partial(ref.AlternatingGDA, order="xy", **RATES),
    "alternating yx": partial(ref.AlternatingGDA, order="yx", **RATES),
    "Extragradient": partial(ref.Extragradient, **RATES),
    "PastExtragradient": partial(ref.PastExtragradient, **RATES),
    "OptimisticGDA": partial(ref.OptimisticGDA, **RATES),
    "AdaptiveExtragradient": partial(ref.AdaptiveExtragradient, scale=0.4),
    "UniversalMirrorProx": partial(ref.UniversalMirrorProx, diameter=0.5, g0=2.0),
    "SmoothedAGDA": partial(ref.SmoothedAGDA, **RATES, p=0.7, beta=0.2),
    "TiAda": partial(ref.TiAda, **RATES),
    "TiAda coordinate": partial(ref.TiAdaCoordinate, **RATES),
    "TiAdaAdam": partial(ref.TiAdaAdam, **RATES),
    "TiAdaAdam AMSGrad": partial(ref.TiAdaAdam, **SQRT, beta1=0.8, beta2=0.7),
    "AdaGDA": partial(ref.AdaGDA, gam=0.1, lam=0.2, **SCHEDULE, c1=2.0),
    "VRAdaGDA": partial(ref.VRAdaGDA, gam=0.1, lam=0.2, **SCHEDULE, c2=2.0),
    "GDmax steps": partial(ref.GDmax, inner_steps=3, **RATES),
    "GDmax accuracy": partial(ref.GDmax, tol=0.005, **RATES),
    "NeAda Adam": nested_reference(REF_PAPER, REF_PAPER, TWO, policy="full"),
    "NeAda line search": nested_reference(
        REF_OUTER, partial(ref.Backtracking, lr=2.0), ONE_OR_TWO, policy="fresh"
    ),
    "NeAda AdGD": nested_reference(
        REF_OUTER, partial(ref.AdGD, **ADAPG), ref.SquaredMapping(0.01), policy="step"
    ),
    "NeAda average": nested_reference(REF_OUTER, REF_INNER, ref.Count(lambda t: 4), **GROWING),
}
SETS: dict[str, tuple[Any, Any, Any, Any]] = {
    "free": (None, None, None, None),
    "ball": (None, sets.L2Ball(BALL_Y), None, partial(ref.project_l2_ball, radius=BALL_Y)),
    "boxes": (
        sets.Box(*BOX_X),
        sets.Box(*BOX_Y),
        partial(ref.project_box, low=BOX_X[0], high=BOX_X[1]),
        partial(ref.project_box, low=BOX_Y[0], high=BOX_Y[1]),
    ),
}


def start(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x, y = (torch.tensor(point, dtype=dtype, requires_grad=True) for point in (X0, Y0))
    return x, y


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize("name", REFERENCE)
def test_twenty_steps_equal_the_reference(name: str, where: str) -> None:
    x_set, y_set, project_x, project_y = SETS[where]
    x, y = start()
    stepper = MAKE[name]([x], [y], x_set, y_set)
    reference = REFERENCE[name](X0, Y0, game_x, game_y, project_x, project_y)
    for _ in range(20):
        stepper.step(lambda: game(x, y))
        reference.step()
        np.testing.assert_allclose(x.detach(), reference.x, rtol=RTOL, atol=RTOL)
        np.testing.assert_allclose(y.detach(), reference.y, rtol=RTOL, atol=RTOL)
    assert (stepper.calls_x, stepper.calls_y) == (reference.n_gx, reference.n_gy)
    assert stepper.calls_value == reference.n_f
    nested_run = isinstance(stepper, steppers.NeAda)
    assert stepper.inner_steps == (reference.n_inner if nested_run else 20) > 0


@pytest.mark.parametrize("max_calls", [1, 5, 8])
@pytest.mark.parametrize("name", MAKE)
def test_a_budget_is_kept_and_the_players_stand_where_they_were(name: str, max_calls: int) -> None:
    """The next evaluation, which exceeds the budget, would be the same as without a budget."""
    (x, y), (u, v) = start(), start()
    free, limited = MAKE[name]([x], [y]), MAKE[name]([u], [v])
    points: list[Tensor] = []

    def record() -> Tensor:
        points.append(torch.cat([x, y]).detach().clone())
        return game(x, y)

    for _ in range(12):
        free.step(record)
    limited.max_calls = max_calls
    num_seen, last_gradient = 0, torch.empty(0)

    def closure() -> Tensor:
        nonlocal num_seen, last_gradient
        num_seen += 1
        if torch.is_grad_enabled():
            last_gradient = torch.cat([u, v]).detach().clone()
        return game(u, v)

    begin = torch.empty(0)
    with pytest.raises(BudgetExhausted):
        for _ in range(12):
            begin = torch.cat([u, v]).detach().clone()
            limited.step(closure)
    assert max_calls - 1 <= limited.total_calls <= max_calls
    now = torch.cat([u, v])
    if isinstance(limited, DirectStepper):  # a step is taken whole or not at all
        assert torch.equal(now, begin)
        return
    went_back = name == "NeAda line search" and torch.equal(now, last_gradient)
    assert went_back or torch.equal(now, points[num_seen])


def test_a_simultaneous_line_search_sees_the_point_of_its_gradient() -> None:
    (x, y), (alone, fixed) = start(), start()
    fast = SGD([y], lr=3.0, maximize=True)
    steppers.Simultaneous(Backtracking([x], lr=8.0), fast).step(lambda: game(x, y))
    still = SGD([fixed], lr=1e-300, maximize=True)
    steppers.Simultaneous(Backtracking([alone], lr=8.0), still).step(lambda: game(alone, fixed))
    assert torch.equal(x, alone)


BAD_CLOSURES = [
    (lambda x, y: 1.0, TypeError, "tensor"),
    (lambda x, y: x[:2] * y, ValueError, "shape"),
    (lambda x, y: game(x, y).detach(), ValueError, "depends"),
]


@pytest.mark.parametrize(("fun", "error", "message"), BAD_CLOSURES)
@pytest.mark.parametrize("name", ["simultaneous SGD", "Extragradient", "NeAda Adam"])
def test_a_closure_that_is_no_objective_raises(name, fun, error, message) -> None:
    x, y = start()
    stepper = MAKE[name]([x], [y])
    with pytest.raises(error, match=message):
        stepper.step(lambda: fun(x, y))
    assert stepper.total_calls == 0


@pytest.mark.parametrize("name", ["simultaneous SGD", "Extragradient", "NeAda Adam"])
def test_a_tensor_belongs_to_one_player(name: str) -> None:
    x, _ = start()
    with pytest.raises(ValueError, match="share"):
        MAKE[name]([x], [x])


@pytest.mark.parametrize("stepper", [steppers.Simultaneous, steppers.Alternating, steppers.NeAda])
def test_an_optimizer_with_the_wrong_sign_raises(stepper: Any) -> None:
    x, y = start()
    with pytest.raises(ValueError, match="optimizer"):
        stepper(SGD([x]), SGD([y]))
    with pytest.raises(ValueError, match="minimize"):
        stepper(SGD([x]), AdGD([y]))
    with pytest.raises(ValueError, match="optimizer"):
        stepper(SGD([x], maximize=True), SGD([y], maximize=True))
    with pytest.raises(ValueError, match="LBFGS"):
        stepper(SGD([x]), torch.optim.LBFGS([y]))


@pytest.mark.parametrize("where", ["free", "boxes"])
@pytest.mark.parametrize("name", MAKE)
def test_the_promises_of_a_stepper_are_kept(name: str, where: str) -> None:
    if name == "NeAda L-BFGS":
        if where == "free":
            check_stepper(MAKE[name])
        return
    x_set, y_set, *_ = SETS[where]
    check_stepper(lambda x, y: MAKE[name](x, y, x_set, y_set))


def test_a_gradient_penalty_in_the_closure_is_differentiated() -> None:
    """With the critic y z the slope is y, so the penalty (y - 1)^2 has the derivative 2 (y - 1)."""
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([0.5], [3.0]))

    def penalized() -> Tensor:
        point = torch.ones(1, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad((y * point).sum(), point, create_graph=True)
        return (2 * y - y * x - (slope - 1) ** 2).sum()

    steppers.Simultaneous(SGD([x], lr=LX), SGD([y], lr=LY, maximize=True)).step(penalized)
    expected = (0.5 + LX * 3.0, 3.0 + LY * (2 - 0.5 - 2 * (3.0 - 1)))
    np.testing.assert_allclose([x.item(), y.item()], expected, rtol=1e-12)


def with_prox(players: Players) -> steppers.Stepper:
    return Newton(players.x, players.y, players.tol, prox=0.3, y_set=players.y_set)


@pytest.mark.parametrize("y_set", [None, sets.L2Ball(0.4)])
@pytest.mark.parametrize("name", [*(info.name for info in methods()), "prox"])
def test_every_method_resumes_bit_for_bit(name: str, y_set: sets.Set | None) -> None:
    method = with_prox if name == "prox" else name

    def players(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, steppers.Stepper]:
        x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        return x, y, make_stepper(method, Players([x], [y], y_set=y_set, tol=1e-12))

    def run(x: Tensor, y: Tensor, stepper: steppers.Stepper, num_steps: int) -> None:
        for _ in range(num_steps):
            stepper.step(lambda: game(x, y) + 0.3 * x @ x)

    for num_before in (0, 1, 4):
        first = players(torch.tensor(X0), torch.tensor(Y0))
        run(*first, num_before)
        state = copy.deepcopy(first[2].state_dict())
        second = players(*first[:2])
        run(*first, 6)
        second[2].load_state_dict(state)
        run(*second, 6)
        assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
        assert first[2].total_calls == second[2].total_calls
