"""One method on one problem with many learning rates at once: a row for each, its calls its own.

Rows go in step. One that has arrived, run away or used up its calls leaves the race: from then on
it is evaluated at the start with a zero gradient, so that it cannot stop the others.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neada import Players, StepInfo, make_stepper
from neada.problems import Problem

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
        x_set, y_set = problem.row_sets()
        players = Players(
            [self.x], [self.y], x_set, y_set, rowwise=True, stochastic=False, tol=self.goal
        )
        self.stepper = make_stepper(method, players, rates)

    def run(self) -> Tensor:
        """Step until nobody is left."""
        while bool(self.racing.any()):
            x, y = self.x.detach().clone(), self.y.detach().clone()
            info = self.stepper.step(self.closure)
            self.look(info, x, self.y.detach() if self.stepper.measures_after_y else y)
        return self.arrival

    def closure(self) -> Tensor:
        """One value per row; those that have left the race stand at the start, with no gradient."""
        if torch.is_grad_enabled():  # a trial point of a line search may be far out
            for player in (self.x, self.y):
                self.racing &= player.detach().abs().amax(1) < _FAR
            self.racing &= self.stepper.row_calls < self.rules.max_calls
        rows = self.racing[:, None]
        x, y = torch.where(rows, self.x, self.start[0]), torch.where(rows, self.y, self.start[1])
        return self.problem.fun(x, y)

    @torch.no_grad()
    def look(self, info: StepInfo, x: Tensor, y: Tensor) -> None:
        """See who has arrived at a point, and let those rest who have left the race."""
        calls = self.stepper.row_calls
        seen_sq = torch.maximum(torch.as_tensor(info.grad_sq_x), torch.as_tensor(info.grad_sq_y))
        arrived = self.racing & (seen_sq <= self.goal**2) & (calls <= self.rules.max_calls)
        if bool(arrived.any()):
            norms = torch.maximum(*self.problem.stationarity(x, y))
            arrived &= norms <= self.goal
            self.arrival[arrived] = calls[arrived].double()
            self.racing &= ~arrived
        self.stepper.rest(~self.racing)
        for player, start in zip((self.x, self.y), self.start, strict=True):
            player.copy_(torch.where(self.racing[:, None], player, start))
