"""NeAda: how many inner steps, what is kept between them, and what it equals."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Optimizer

from neada import problems, steppers
from neada.inner import InnerOptions
from neada.optim import LBFGS, SPG, AdaptiveSGD, AdGD, Backtracking, GeneralizedAdaGrad
from neada.steppers import Alternating, NeAda
from neada.stopping import FixedSteps, GradientMapping, InnerSteps, RelativeAccuracy

Make = Callable[..., Optimizer]
MCCORMICK = problems.make("mccormick")
FIVE = GradientMapping(1e-3) | FixedSteps(5)


def leaf(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def quadratic(x: Tensor, y: Tensor) -> Tensor:
    return (-y * y / 2 + 2 * x * y - 2 * x * x).sum()


def run(
    num_steps: int,
    inner: Any,
    rule: Any,
    outer: Make = GeneralizedAdaGrad,
    *,
    x_samples: Any = 1,
    deterministic: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor, NeAda, list[steppers.StepInfo]]:
    """McCormick from its start; `inner` makes an optimizer of y, or a factory of one."""
    x, y = (p.clone().requires_grad_() for p in (MCCORMICK.x0, MCCORMICK.y0))
    stepper = NeAda(
        *(outer([x]), inner([y], maximize=True), rule),
        inner=InnerOptions(**options),
        x_samples=x_samples,
        deterministic=deterministic,
    )
    infos = [stepper.step(lambda: MCCORMICK.fun(x, y)) for _ in range(num_steps)]
    return x, y, stepper, infos


# How many inner steps.


@pytest.mark.parametrize(
    ("rule", "options", "counts"),
    [
        (GradientMapping(), {"min_steps": 0}, [1, 0, 0, 0, 0]),
        (GradientMapping(), {}, [1, 1, 1, 1, 1]),
        (InnerSteps(), {}, [1, 2, 3, 4, 5]),
        (InnerSteps(("log", 2)), {}, [1, 1, 2, 5, 9]),
        (InnerSteps(("power", 2)), {}, [1, 4, 9, 16, 25]),
        (InnerSteps(lambda t: t), {}, [1, 1, 2, 3, 4]),
        (InnerSteps(lambda t: t), {"min_steps": 0}, [0, 1, 2, 3, 4]),
        (FixedSteps(0), {}, [1, 1, 1, 1, 1]),
        (FixedSteps(0), {"min_steps": 0}, [0, 0, 0, 0, 0]),
        (FixedSteps(3), {"min_steps": 5}, [5, 5, 5, 5, 5]),
        (InnerSteps() & GradientMapping(), {}, [1, 2, 3, 4, 5]),
        (InnerSteps() | FixedSteps(2), {}, [1, 2, 2, 2, 2]),
        (InnerSteps(), {"max_steps": 3}, [1, 2, 3, 3, 3]),
    ],
)
def test_inner_steps_on_the_papers_quadratic(rule, options, counts) -> None:
    x, y = leaf(1.0), leaf(0.01)
    inner = Backtracking([y], maximize=True)
    policy = InnerOptions(keep="nothing", **options)
    stepper = NeAda(GeneralizedAdaGrad([x]), inner, rule, inner=policy)
    assert [stepper.step(lambda: quadratic(x, y)).inner_steps for _ in range(5)] == counts


@pytest.mark.parametrize(
    ("rule", "options", "reason"),
    [
        (FixedSteps(3) | GradientMapping(1e-30), {}, "3 "),
        (FixedSteps(99) | GradientMapping(9.0), {}, "mapping"),
        (GradientMapping(1e-30), {"max_steps": 4}, "cap"),
    ],
)
def test_the_step_says_why_the_loop_stopped(rule, options, reason: str) -> None:
    *_, infos = run(2, partial(SGD, lr=0.1), rule, **options)
    assert all(reason in info.stop_reason for info in infos)


def test_the_gradient_that_stops_the_loop_is_counted() -> None:
    """y halves its distance to 0 with every step; the mapping is that distance."""
    x, y = leaf(0.0), leaf(1.0)
    y_optimizer = SGD([y], lr=0.5, maximize=True)
    stepper = NeAda(SGD([x], lr=0.1), y_optimizer, GradientMapping(2.0**-8))
    info = stepper.step(lambda: (x * 0.0 - y * y / 2).sum())
    assert (info.inner_steps, info.calls_y, y.item()) == (4, 5, 2.0**-4)


# What the y optimizer keeps.

FRESH: dict[str, Make] = {
    "SGD momentum": partial(SGD, lr=0.1, momentum=0.9),
    "Adam": partial(Adam, lr=0.1),
    "Adagrad": partial(Adagrad, lr=0.3),
    "AdaptiveSGD": partial(AdaptiveSGD, lr=0.1, psi="adam"),
    "AdaGrad-Norm": partial(GeneralizedAdaGrad, lr=0.7),
    "averaged": partial(GeneralizedAdaGrad, lr=0.7, average=1.0),
    "Backtracking": partial(Backtracking, lr=0.3),
    "AdGD": partial(AdGD, lr=0.1),
    "L-BFGS": partial(LBFGS, lr=0.4),
    "SPG": partial(SPG, lr=0.1),
}


@pytest.mark.parametrize("name", FRESH)
def test_fresh_equals_a_new_optimizer_for_every_outer_step(name: str) -> None:
    x, y, kept, _ = run(8, FRESH[name], FIVE, keep="nothing")
    u, v, made, _ = run(1, FRESH[name], FIVE)
    for _ in range(7):
        made.y_optimizer = FRESH[name]([v], maximize=True)
        made.step(lambda: MCCORMICK.fun(u, v))
    assert torch.equal(x, u)
    assert torch.equal(y, v)
    assert kept.inner_steps == made.inner_steps > 8


def test_step_keeps_the_step_size_and_nothing_else() -> None:
    x, y, stepper, _ = run(3, partial(AdGD, lr=1e-3), FixedSteps(4), keep="step")
    size = stepper.y_optimizer.state_dict()["param_groups"][0]["numbers"]["step"]
    assert size > 2e-3
    twin = y.detach().clone().requires_grad_()
    alone = AdGD([twin], lr=size, maximize=True)
    point = x.detach().clone()
    for _ in range(4):
        (twin.grad,) = torch.autograd.grad(MCCORMICK.fun(point, twin), [twin])
        alone.step()
    stepper.step(lambda: MCCORMICK.fun(x, y))
    assert torch.equal(y, twin)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("AdGD", "step"), ("Adam", "everything"), ("L-BFGS", "step"), ("SPG", "step")],
)
def test_the_automatic_policy_keeps_a_step_size_where_there_is_one(name: str, kept: str) -> None:
    automatic = run(6, FRESH[name], FIVE)
    explicit = run(6, FRESH[name], FIVE, keep=kept)
    other = run(6, FRESH[name], FIVE, keep="nothing")
    assert torch.equal(automatic[1], explicit[1])
    assert not torch.equal(automatic[1], other[1])


def test_a_best_point_is_not_carried_to_another_problem() -> None:
    with pytest.raises(ValueError, match="back"):
        run(2, FRESH["SPG"], FIVE, keep="everything")
    run(2, partial(SPG, lr=0.1, safeguard=False), FIVE, keep="everything")


def test_the_answer_of_an_averaging_optimizer_is_its_average_and_the_next_start() -> None:
    seen: list[float] = []
    x, y = leaf(3.0), leaf(0.0)

    def closure() -> Tensor:
        seen.append(y.item())
        return (x * y - y * y / 2).sum()

    inner = GeneralizedAdaGrad([y], lr=1.0, average=0.0, maximize=True)
    stepper = NeAda(SGD([x], lr=1e-9), inner, FixedSteps(3))
    stepper.step(closure)
    last, at_x = seen[2], seen[3]
    assert at_x == y.item() != last
    # the third point is where the last y gradient was taken, the average contains the next one too
    v, point, points = 1.0, 0.0, []
    for _ in range(3):
        gradient = 3.0 - point
        v += gradient**2
        point += gradient / math.sqrt(v)
        points.append(point)
    assert at_x == pytest.approx(sum(points) / 3, rel=1e-12)  # ten operations
    stepper.step(closure)
    assert seen[4] == at_x


# The x gradient.


@pytest.mark.parametrize(("samples", "counts"), [(3, [3, 3, 3]), (lambda t: 2 * t + 1, [1, 3, 5])])
def test_the_x_gradient_is_the_mean_over_its_samples(samples, counts) -> None:
    x, y = leaf(0.0), leaf(0.0)
    slopes = iter(float(k) for k in range(100))
    used: list[float] = []

    def closure() -> Tensor:
        used.append(next(slopes))
        return (used[-1] * x - y * y / 2).sum()

    y_optimizer = SGD([y], maximize=True)
    stepper = NeAda(SGD([x], lr=1.0), y_optimizer, FixedSteps(2), x_samples=samples)
    for count in counts:
        used.clear()
        before = x.item()
        info = stepper.step(closure, batch_size=8)
        assert (info.calls_x, info.calls_y, len(used)) == (count, 2, count + 2)
        assert before - x.item() == pytest.approx(sum(used[2:]) / count, rel=1e-12)
    assert stepper.samples_x == 8 * sum(counts)


@pytest.mark.parametrize("name", list(FRESH))
def test_sharing_the_graph_changes_neither_iterates_nor_counts(name: str) -> None:
    rule = GradientMapping(0.05) | FixedSteps(40)
    plain = run(8, FRESH[name], rule)
    shared = run(8, FRESH[name], rule, deterministic=True)
    assert torch.equal(plain[0], shared[0])
    assert torch.equal(plain[1], shared[1])
    assert plain[2].state_dict()["counters"] == shared[2].state_dict()["counters"]


def test_sharing_the_graph_saves_one_evaluation_per_outer_step() -> None:
    evaluations = {False: 0, True: 0}
    for shared in evaluations:
        x, y = leaf(0.5, -0.5), leaf(0.1, 0.2)

        def closure(x: Tensor = x, y: Tensor = y, shared: bool = shared) -> Tensor:
            evaluations[shared] += 1
            return MCCORMICK.fun(x, y)

        y_optimizer = SGD([y], lr=0.5, maximize=True)
        stepper = NeAda(SGD([x], lr=0.1), y_optimizer, GradientMapping(), deterministic=shared)
        for _ in range(6):
            stepper.step(closure)
    assert evaluations[False] == evaluations[True] + 6


# What it equals.


@pytest.mark.parametrize("make", [partial(SGD, lr=0.1), partial(Adam, lr=0.1), AdaptiveSGD, AdGD])
def test_one_inner_step_is_the_alternating_method(make: Make) -> None:
    x, y, nested, _ = run(12, make, FixedSteps(1), make, keep="everything")
    u, v = (p.clone().requires_grad_() for p in (MCCORMICK.x0, MCCORMICK.y0))
    alternating = Alternating(make([u]), make([v], maximize=True), order="yx")
    for _ in range(12):
        alternating.step(lambda: MCCORMICK.fun(u, v))
    assert torch.equal(x, u)
    assert torch.equal(y, v)
    assert nested.state_dict()["counters"] == alternating.state_dict()["counters"]


# Rows.

BY_ROWS: dict[str, tuple[Make, Make, Callable[[], Any], dict[str, Any]]] = {
    "L-BFGS twice": (LBFGS, LBFGS, RelativeAccuracy, {}),
    "AdaGrad, line search": (GeneralizedAdaGrad, Backtracking, GradientMapping, {}),
    "AdaGrad, AdGD": (GeneralizedAdaGrad, AdGD, GradientMapping, {}),
    "AdaGrad, SPG": (
        *(GeneralizedAdaGrad, partial(SPG, lr=2.0)),
        *(lambda: GradientMapping(1e-6), {}),
    ),
    "AdaGrad, averaged": (
        *(GeneralizedAdaGrad, partial(GeneralizedAdaGrad, average=1.0)),
        *(lambda: GradientMapping(0.1) | FixedSteps(40), {}),
    ),
    "AdaGrad twice, at least none": (
        *(GeneralizedAdaGrad, GeneralizedAdaGrad, GradientMapping),
        {"min_steps": 0, "keep": "everything"},
    ),
}
for _psi in ("adagrad", "adam", "amsgrad"):
    _make: Any = lambda p, psi=_psi, rowwise=False, **kw: AdaptiveSGD(p, 0.1, psi, **kw)  # noqa: E731
    _rule: Any = lambda: GradientMapping(0.1) | FixedSteps(20)  # noqa: E731
    BY_ROWS[f"AdaptiveSGD {_psi}"] = (_make, _make, _rule, {})


@pytest.mark.parametrize("name", list(BY_ROWS))
def test_every_row_equals_its_own_run(name: str) -> None:
    outer, inner, rule, options = BY_ROWS[name]
    starts = torch.stack([MCCORMICK.x0, 3.0 * MCCORMICK.x0 + 1.0, MCCORMICK.x0 - 2.0])
    answers = torch.stack([MCCORMICK.x0 + 0.02, MCCORMICK.y0, 5.0 * MCCORMICK.y0 - 1.0])
    x, y = starts.clone().requires_grad_(), answers.clone().requires_grad_()
    x_optimizer, y_optimizer = outer([x], rowwise=True), inner([y], maximize=True, rowwise=True)
    together = NeAda(x_optimizer, y_optimizer, rule(), rowwise=True, inner=InnerOptions(**options))
    for _ in range(12):
        together.step(lambda: MCCORMICK.fun(x, y))
    num_steps = set()
    for i in range(3):
        u, v = (p[i : i + 1].clone().requires_grad_() for p in (starts, answers))
        alone = NeAda(outer([u]), inner([v], maximize=True), rule(), inner=InnerOptions(**options))
        for _ in range(12):
            alone.step(lambda u=u, v=v: MCCORMICK.fun(u, v).sum())
        num_steps.add(alone.inner_steps)
        # sums over one row and over three may round differently
        torch.testing.assert_close(x[i : i + 1], u, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(y[i : i + 1], v, rtol=1e-9, atol=1e-11)
    # In y the problem is a multiple of the square: two methods know its curvature at once.
    assert len(num_steps) > 1 or name in ("AdaGrad, line search", "AdaGrad, SPG")
