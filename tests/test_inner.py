"""The inner loop by itself: what is asked when, which rows go on, and what is counted."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import neada
from neada.inner import Counters, InnerLoop, InnerOptions, InnerResult
from neada.optim import AdGD, GeneralizedAdaGrad
from neada.stopping import (
    FixedAccuracy,
    FixedSteps,
    GradientMapping,
    InnerSteps,
    RelativeAccuracy,
    StoppingRule,
)


class Halving:
    """An oracle without a game: every move halves the gradients of the rows that are not done."""

    def __init__(self, grad_sq: Any, trusting: bool = False) -> None:
        self.grad_sq = grad_sq
        self.trusts_first_step = trusting
        self.log: list[str] = []
        self.done: Any = False

    def evaluate(self) -> Any:
        self.log.append("evaluate")
        return self.grad_sq.clone() if isinstance(self.grad_sq, Tensor) else self.grad_sq

    def move(self) -> None:
        self.log.append("move")
        self.grad_sq = self.grad_sq / 4.0
        if isinstance(self.done, Tensor):
            self.grad_sq[self.done] = 100.0  # not to be used

    def retire(self, done: Any, *, unevaluated: bool = False) -> bool:
        if isinstance(done, Tensor):
            self.log.append(f"retire {done.tolist()}" + " unevaluated" * unevaluated)
        self.done = done
        return bool(torch.as_tensor(done).all())


def run(
    oracle: Halving, rule: StoppingRule, t: int = 0, frozen: Tensor | None = None, **options: Any
) -> tuple[InnerResult, Counters]:
    counters = Counters()
    loop = InnerLoop(rule, InnerOptions(**options), max_steps=50)
    return loop.maximize(oracle, t, counters, frozen), counters


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_the_current_gradient_is_asked_before_the_next_step() -> None:
    oracle = Halving(1.0)
    result, counters = run(oracle, FixedAccuracy(0.25))
    assert oracle.log == ["evaluate", "move", "evaluate", "move", "evaluate"]
    assert result == InnerResult(1.0 / 16.0, 2, "gradient mapping <= 0.25")
    assert counters == Counters(inner_steps=2)


def test_a_count_is_asked_before_anything_is_evaluated() -> None:
    oracle = Halving(1.0)
    result, _ = run(oracle, InnerSteps(), t=1)
    assert oracle.log == ["evaluate", "move"] * 2
    assert (result.grad_sq, result.steps, result.reason) == (0.25, 2, "t+1 inner steps")
    nothing, _ = run(Halving(1.0), FixedSteps(0), min_steps=0)
    assert math.isnan(nothing.grad_sq)
    assert nothing.steps == 0


def test_the_smallest_and_the_largest_number_of_steps() -> None:
    easy, _ = run(Halving(0.0), FixedAccuracy(1.0), min_steps=4)
    assert easy.steps == 4
    hard, _ = run(Halving(1e300), FixedAccuracy(1e-9), max_steps=7)
    assert (hard.steps, hard.reason) == (7, "the cap of 7 inner steps")


def test_rows_are_settled_one_by_one_and_the_reasons_are_counted() -> None:
    oracle = Halving(double(1.0, 16.0, 0.1, 1e9))
    result, _ = run(oracle, FixedAccuracy(0.5) | FixedSteps(3), min_steps=0)
    assert result.steps == 3
    assert [line for line in oracle.log if line.startswith("retire")] == [
        "retire [False, False, True, False]",
        "retire [True, False, True, False]",
        "retire [True, False, True, False]",
    ]
    torch.testing.assert_close(result.grad_sq, double(0.25, 1.0, 0.1, 1e9 / 16))
    assert result.reason == "gradient mapping <= 0.5 (2), 3 inner steps (2)"


def test_frozen_rows_do_not_delay_the_others() -> None:
    oracle = Halving(double(1e300, 1.0))
    result, _ = run(oracle, FixedAccuracy(0.5), frozen=torch.tensor([True, False]))
    assert result.steps == 1


def test_rows_that_need_no_step_take_one_and_are_not_evaluated_again() -> None:
    oracle = Halving(double(0.2, 16.0, 0.1), trusting=True)
    result, _ = run(oracle, FixedAccuracy(0.5))
    assert oracle.log[:4] == [
        "evaluate",
        "move",
        "retire [True, False, True] unevaluated",
        "evaluate",
    ]
    assert (result.steps, oracle.log.count("evaluate")) == (3, 4)
    # The measure of a row is that of its last evaluation.
    torch.testing.assert_close(result.grad_sq, double(0.2, 0.25, 0.1))
    assert result.reason == "gradient mapping <= 0.5"
    easy = Halving(double(0.2, 0.1), trusting=True)
    result, counters = run(easy, FixedAccuracy(0.5))
    assert easy.log == ["evaluate", "move", "retire [True, True] unevaluated"]
    assert (result.steps, counters.inner_steps) == (1, 1)


@pytest.mark.parametrize("options", [{"min_steps": 2}, {"min_steps": 0}])
def test_only_the_one_step_that_is_always_taken_is_trusted(options: Any) -> None:
    logs = []
    for trusting in (False, True):
        oracle = Halving(double(0.2, 16.0), trusting=trusting)
        run(oracle, FixedAccuracy(0.5), **options)
        logs.append(oracle.log)
    assert logs[0] == logs[1]


def test_a_rule_that_compares_with_x_is_saved_with_the_loop() -> None:
    first, second = (InnerLoop(RelativeAccuracy(0.5), InnerOptions(), 10) for _ in range(2))
    first.observe_x_gradient(4.0)
    first.observe_x_gradient(4.0)  # did not fall: the share is halved
    second.load_state_dict(first.state_dict())
    assert (second.grad_sq_x, second.stopping.theta) == (4.0, 0.25)  # type: ignore[attr-defined]


def test_counters_can_be_shared_and_have_a_limit() -> None:
    x, y = (torch.ones(1, requires_grad=True) for _ in range(2))
    pair = [torch.optim.SGD([x], lr=0.1), torch.optim.SGD([y], lr=0.1, maximize=True)]
    one, other = neada.Simultaneous(*pair), neada.Alternating(*pair)
    other.counters = one.counters
    for stepper in (one, other, one):
        stepper.step(lambda: (x * y).sum())
    assert one.total_calls == other.total_calls == 6
    assert one.outer_steps == other.counters.outer_steps == 3
    other.max_calls = 7
    with pytest.raises(neada.BudgetExhausted):
        one.step(lambda: (x * y).sum())


@pytest.mark.parametrize("y_optimizer", [AdGD, neada.optim.Backtracking])
def test_rows_pay_for_what_they_would_have_spent_alone(y_optimizer: Any) -> None:
    """A row that is done early pays nothing while the others go on, trials of values included."""
    scales = double(1.0, 7.0, 0.2)[:, None]

    def value(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return (x.square() / (1 + x.square()) + 2 * x * y - scale * y.square() / 2).sum(-1)

    def make(rows: Tensor) -> tuple[neada.NeAda, Any]:
        x, y = torch.ones_like(rows), torch.full_like(rows, 0.3)
        x.requires_grad_(), y.requires_grad_()
        stepper = neada.NeAda(
            GeneralizedAdaGrad([x], rowwise=True),
            y_optimizer([y], maximize=True, rowwise=True),
            GradientMapping(0.01),
            rowwise=True,
        )
        return stepper, lambda: value(x, y, rows)

    together, closure = make(scales)
    for _ in range(6):
        together.step(closure)
    alone = []
    for row in scales:
        stepper, closure = make(row[None])
        for _ in range(6):
            stepper.step(closure)
        assert stepper.row_calls.tolist() == [stepper.total_calls]
        alone.append(stepper.total_calls)
    assert together.row_calls.tolist() == alone
    assert max(alone) > min(alone)
    together.freeze(torch.tensor([True, False, False]))
    before = together.row_calls.clone()
    together.step(make(scales)[1])
    assert together.row_calls[0] == before[0]
    assert bool((together.row_calls[1:] > before[1:]).all())


def test_rows_pay_again_after_a_loop_that_broke_off() -> None:
    x, y = torch.ones(3, 1), double(0.1, 3.0, 0.1)[:, None].float()
    x.requires_grad_(), y.requires_grad_()
    stepper = neada.NeAda(
        GeneralizedAdaGrad([x], rowwise=True),
        GeneralizedAdaGrad([y], lr=0.01, maximize=True, rowwise=True),
        FixedAccuracy(0.5),
        rowwise=True,
    )
    stepper.max_calls = 6
    with pytest.raises(neada.BudgetExhausted):
        stepper.step(lambda: (x**2 - y**2).sum(-1))
    before = stepper.row_calls.clone()
    stepper.evaluate(lambda: (x**2 - y**2).sum(-1), within_budget=False)
    assert (stepper.row_calls - before).tolist() == [2, 2, 2]


def test_a_state_of_other_rows_is_refused_before_anything_is_loaded() -> None:
    def make(num_rows: int) -> neada.TiAda:
        x, y = (torch.ones(num_rows, 1, requires_grad=True) for _ in range(2))
        stepper = neada.TiAda([x], [y], rowwise=True)
        stepper.step(lambda: (x * y).sum(-1))
        return stepper

    for num_rows in (1, 2):
        other = make(3)
        with pytest.raises(ValueError, match="rows"):
            other.load_state_dict(make(num_rows).state_dict())
        assert other.outer_steps == 1


def test_relative_accuracy_works_with_counters_that_have_been_used() -> None:
    def inner_steps(counters: Counters) -> int:
        x, y = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
        optimizers = [torch.optim.SGD([x], lr=0.1), torch.optim.SGD([y], lr=0.5, maximize=True)]
        stepper = neada.NeAda(*optimizers, RelativeAccuracy(0.5) | FixedSteps(50))
        stepper.counters = counters
        return stepper.step(lambda: (x * x / 2 + x * y - y * y / 2).sum()).inner_steps

    assert inner_steps(Counters()) == inner_steps(Counters(outer_steps=3)) < 50
