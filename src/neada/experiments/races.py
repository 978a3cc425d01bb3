"""One method on one problem with many learning rates at once: a row for each, its calls its own.

Rows go in step. One that has arrived, run away or used up its calls leaves the race: from then on
it is evaluated at the start with a zero gradient, so that it cannot stop the others.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada.problems import Problem
from neada.scalars import Scalar
from neada.solve.methods import Players, make_stepper
from neada.steppers import NeAda
from neada.steppers.base import BudgetExhausted, Closure, Evaluation, StepInfo

__all__ = ["Rules", "calls_to_arrive"]

_FAR = 1e8  # the players of the zoo start within 30 of the origin


class Rules(NamedTuple):
    """When a row has arrived, and when it has to give up.

    Attributes:
        max_calls: Gradients of both players and values, for each row.
        tol: Both mapping norms must be at most this times the larger one at the start.
    """

    max_calls: int
    tol: float


def calls_to_arrive(
    method: str, problem: Problem, rates: dict[str, Tensor], num_rows: int, rules: Rules
) -> Tensor:
    """After how many calls each row has found a stationary point; infinite if it has not.

    The norms that the method itself sees tell when to look; what counts is a fresh evaluation of
    both gradients at one point, which is not charged.

    Args:
        method: Its name in `neada.methods()`.
        problem: From the zoo; every row begins at its start.
        rates: The method's learning rates, each with one entry per row; may be empty.
        num_rows: How many rows.
        rules: How many calls, and the tolerance.

    Example:
        >>> from neada import problems
        >>> rate = torch.tensor([1e-3, 0.1, 10.0], dtype=torch.float64)
        >>> rates = {"lr_x": rate / 10, "lr_y": rate}
        >>> calls_to_arrive("gda", problems.make("quadratic"), rates, 3, Rules(300, 1e-3))
        tensor([ inf, 226.,  inf], dtype=torch.float64)
    """
    return _Race(method, problem, rates, num_rows, rules).run()


class _Race:
    def __init__(
        self, method: str, problem: Problem, rates: dict[str, Tensor], num_rows: int, rules: Rules
    ) -> None:
        self.problem = problem
        self.rules = rules
        self.start = (problem.x0.repeat(num_rows, 1), problem.y0.repeat(num_rows, 1))
        self.x, self.y = (point.clone().requires_grad_() for point in self.start)
        self.goal = rules.tol * float(
            torch.stack(problem.stationarity(problem.x0, problem.y0)).max()
        )
        self.racing = torch.ones(num_rows, dtype=torch.bool)
        self.arrival = torch.full((num_rows,), math.inf, dtype=torch.float64)
        players = Players([self.x], [self.y], *problem.row_sets(), True, False, self.goal)
        stepper = make_stepper(method, players, dict(rates))
        self.nested = _RowsAtTheirOwnCost.of(stepper) if isinstance(stepper, NeAda) else None
        self.stepper = self.nested or stepper
        if self.nested is None:
            self.stepper.max_calls = rules.max_calls

    def run(self) -> Tensor:
        """Step until nobody is left."""
        while bool(self.racing.any()):
            before = (self.x.detach().clone(), self.y.detach().clone())
            try:
                info = self.stepper.step(self.closure)
            except BudgetExhausted:
                break
            # A nested method measures both norms after y has moved and before x does.
            self.look(info, before[0], self.y.detach() if self.nested else before[1])
        return self.arrival

    def closure(self) -> Tensor:
        """One value per row; those that have left the race stand at the start, with no gradient."""
        if torch.is_grad_enabled():  # a trial point of a line search may be far out
            for player in (self.x, self.y):
                self.racing &= player.detach().abs().amax(1) < _FAR
            if self.nested is not None:
                self.racing &= self.nested.row_calls < self.rules.max_calls
        rows = self.racing[:, None]
        x, y = torch.where(rows, self.x, self.start[0]), torch.where(rows, self.y, self.start[1])
        return self.problem.fun(x, y)

    @property
    def calls(self) -> Tensor:
        """What each row has spent."""
        if self.nested is not None:
            return self.nested.row_calls
        return torch.full(self.racing.shape, self.stepper.total_calls)

    @torch.no_grad()
    def look(self, info: StepInfo, x: Tensor, y: Tensor) -> None:
        """See who has arrived at a point, and let those rest who have left the race."""
        seen_sq = torch.maximum(torch.as_tensor(info.grad_sq_x), torch.as_tensor(info.grad_sq_y))
        arrived = self.racing & (seen_sq <= self.goal**2) & (self.calls <= self.rules.max_calls)
        if bool(arrived.any()):
            norms = torch.maximum(*self.problem.stationarity(x, y))
            arrived &= norms <= self.goal
            self.arrival[arrived] = self.calls[arrived].double()
            self.racing &= ~arrived
        if self.nested is not None:
            self.nested.resting = ~self.racing
        for player, start in zip((self.x, self.y), self.start, strict=True):
            player.copy_(torch.where(self.racing[:, None], player, start))


class _RowsAtTheirOwnCost(NeAda):
    """NeAda that charges a row only for what it would have spent alone.

    In step, the inner loop goes on until the last row is done; the others rest and pay nothing.
    """

    @classmethod
    def of(cls, stepper: NeAda) -> "_RowsAtTheirOwnCost":
        """The same method."""
        state: Any = stepper.state
        return cls(
            stepper.x_optimizer,
            stepper.y_optimizer,
            stepper.stopping,
            state=state,
            min_inner_steps=stepper.min_inner_steps,
            max_inner_steps=stepper.max_inner_steps,
            x_samples=stepper.x_samples,
            deterministic=stepper.deterministic,
            test=stepper.test,
            rowwise=True,
        )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.resting = torch.zeros(len(self._players["x"][0]), dtype=torch.bool)
        self.row_calls = torch.zeros(len(self.resting), dtype=torch.int64)
        self._at_work = ~self.resting

    def _maximize(self, closure: Closure, t: int) -> tuple[Scalar, Tensor | None, str]:
        self._at_work = self._awake()
        result = super()._maximize(closure, t)
        self._at_work = self._awake()
        return result

    def _awake(self) -> Tensor:
        assert self.resting is not None
        return ~self.resting

    def _count(self, player: Literal["x", "y"]) -> None:
        super()._count(player)
        self.row_calls += self._at_work

    def _move(
        self,
        optimizer: Optimizer,
        closure: Closure,
        evaluation: Evaluation,
        rest: Tensor | None = None,
    ) -> None:
        if rest is not None:
            self._at_work = self._at_work & ~rest
        super()._move(optimizer, closure, evaluation, rest)

    def _value_closure(self, closure: Closure) -> Closure:
        evaluate = super()._value_closure(closure)
        (y,) = self._players["y"]
        before = y.detach().clone()

        def charged() -> Tensor:
            # A row that has found its step stands where it stood at the last trial.
            self.row_calls += self._at_work & (y != before).any(1)
            before.copy_(y.detach())
            return evaluate()

        return charged
