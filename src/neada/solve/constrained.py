"""Minimize under constraints: `minimize`, by `minimax` on the Lagrangian."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neada import tensors
from neada.sets import NonNegative
from neada.solve.constraints import ConstrainedProblem
from neada.solve.methods import Players
from neada.solve.minimax import check_arguments, minimax
from neada.solve.newton import Newton
from neada.solve.points import Sets, read_form, unbounded_part
from neada.solve.result import KKT, History, MinimaxResult, MinimizeResult, Multipliers, Status
from neada.steppers import StepInfo, Stepper

__all__ = ["minimize"]

# Proximal weights of y, one after the other if a solve fails: 1 / weight is the penalty of the
# method of multipliers, which has to be large enough where the problem is not convex.
_WEIGHTS = (0.1, 0.01, 1e-3, 1.0)
_STRIDES = 14  # each ten times as long as the one before, to see whether that is so
_GROWTH = 10.0  # multipliers that grow this much while the violation does not halve raise doubts
_CLEAR = 1e3  # a violation this many times above the norm of its gradient is no rounding
_TRIES = 8  # random starts from which a feasible point is sought before there is none
_WORDS = {
    Status.CONVERGED: "the KKT conditions hold within the tolerance",
    Status.STALLED: (
        "no progress any more above the tolerance: the functions may not be smooth, or the "
        "gradients of the constraints dependent; start elsewhere, or loosen tol"
    ),
    Status.DIVERGED: (
        "the iterates run away: bound x with x_set, or start nearer to where the constraints hold"
    ),
}


class _Best(NamedTuple):
    """The point with the smallest residual so far."""

    residual: float
    x: Any
    multipliers: dict[str, Tensor]
    value: float
    kkt: KKT


class _Search:
    """Solves of the Lagrangian until one satisfies the KKT conditions, or it is known why not."""

    def __init__(
        self, problem: ConstrainedProblem, tol: float, max_calls: int, callback: Any, progress: bool
    ) -> None:
        self.problem = problem
        self.tol = tol
        self.max_calls = max_calls
        self.callback = callback
        self.progress = progress
        self.calls = 0
        self.running = 0  # calls of the solve that is under way
        self.history = History()
        self.best: _Best | None = None
        self.present: tuple[Any, Any] = (None, None)  # the players, as the functions get them
        self.path = [problem.start] * 3  # x at the start, then at the last powers of two of looks
        self.num_looks = 0
        self.doubt = (1.0, math.inf)  # the size of y and the violation when it was last in doubt
        self.feasible: Any = None  # a point that satisfies the constraints, or may
        self.is_trapped = False  # and no way down leads there from where it was sought first
        self.seen: Status | None = None  # what a look has found, which ends the solve

    def run(self) -> MinimizeResult:
        """Try one proximal weight after the other."""
        problem = self.problem
        start = problem.x0
        for weight in _WEIGHTS if problem.constraints else (0.0,):
            status = self.attempt(start, weight)
            final = (Status.CONVERGED, Status.INTERRUPTED, Status.INFEASIBLE, Status.UNBOUNDED)
            if status in final:
                break
            if status is Status.BUDGET:
                status = Status.INFEASIBLE if self.is_held_off() else status
                break
            if self.is_unbounded():
                status = Status.UNBOUNDED
                break
            if problem.constraints and not self.may_be_feasible():
                status = Status.INFEASIBLE
                break
            if self.feasible is not None:
                start = self.feasible
                self.move_to(read_form(start, "x", problem.kind).leaves)
                problem.scale_constraints()
        return self.finish(status)

    def attempt(self, x: Any, weight: float) -> Status:
        """Solve from a point, more accurately if the multipliers are large."""
        problem = self.problem
        tol = self.tol / problem.largest_unit
        y: Any = problem.y0 if problem.constraints else 0.0
        y_set = {"inequality": NonNegative(), "equality": None}
        homes = {name: y_set[name] for name in y} if problem.constraints else None
        self.doubt, self.seen = (1.0, math.inf), None
        while True:
            result = self.solve(problem.scaled, x, y, tol, y_set=homes, weight=weight)
            x, y = result.x, result.y
            residual = self.judge(x, y)
            if residual <= self.tol:
                return Status.CONVERGED
            if self.seen is not None:
                return self.seen
            if self.calls >= self.max_calls:
                return Status.BUDGET
            if result.status is not Status.CONVERGED:
                return Status(result.status)
            tol *= 0.5 * min(1.0, self.tol / residual)
            if not tol > sys.float_info.min:
                return Status.TOLERANCE

    def judge(self, x: Any, y: Any) -> float:
        """The largest residual of the KKT conditions; the best point is remembered."""
        multipliers = self.problem.multipliers(y)
        value, kkt = self.problem.judge(x, multipliers)
        residual = max(kkt) if all(map(math.isfinite, kkt)) else math.inf
        if self.best is None or residual < self.best.residual:
            form = read_form(x, "x", self.problem.kind)
            x = self.problem.form.give_back(form.leaves)
            self.best = _Best(residual, x, multipliers, value, kkt)
        return residual

    def solve(
        self, fun: Any, x: Any, y: Any, tol: float, *, y_set: Any = None, weight: float = 0.0
    ) -> MinimaxResult:
        """One call of `minimax` within the budget, counted and recorded."""
        of_lagrangian = fun == self.problem.scaled

        def remembering(x: Any, y: Any) -> Tensor:
            self.present = (x, y)
            value: Tensor = fun(x, y)
            return value

        def nested(players: Players) -> Stepper:
            return Newton(
                *(players.x, players.y, players.tol),
                prox=weight,
                x_set=players.x_set,
                y_set=players.y_set,
            )

        before = self.calls
        result = minimax(
            *(remembering if of_lagrangian else fun, x, y),
            x_set=self.problem.x_set,
            y_set=y_set,
            tol=tol,
            max_calls=max(self.left, 1),
            callback=self.look if of_lagrangian else None,
            progress=self.progress,
            method=nested,
        )
        self.calls += result.total_calls
        if of_lagrangian:
            self.running = 0
            for name, column in vars(result.history).items():
                shift = before if name == "calls" else 0
                getattr(self.history, name).extend(entry + shift for entry in column)
        return result

    @property
    def left(self) -> int:
        """Calls that may still be spent."""
        return self.max_calls - self.calls - self.running

    # Checks after every step of x.

    def look(self, info: StepInfo) -> bool:
        """Whether the solve is over: solved in the user's units, or known not to have an answer."""
        self.running += info.calls_x + info.calls_y + info.calls_value + 4 * info.calls_hvp
        if self.callback is not None and self.callback(info):
            self.seen = Status.INTERRUPTED
        elif self.is_solved(info):
            self.seen = Status.CONVERGED
        elif float(self.problem.seen[0]) < self.problem.low and self.is_low_without_bounds():
            self.seen = Status.DIVERGED  # where the constraints may not hold
        elif self.falls_along():
            self.seen = Status.UNBOUNDED
        elif self.is_in_doubt():
            was_known = self.feasible is not None
            if not self.may_be_feasible():
                self.seen = Status.INFEASIBLE
            elif was_known or self.is_trapped:
                self.seen = Status.STALLED  # to begin again where the constraints hold
        return self.seen is not None or self.left <= 0

    def is_solved(self, info: StepInfo) -> bool:
        """Whether the KKT conditions hold, checked if the norms of this step are small enough."""
        problem = self.problem
        norm_x, norm_y = math.sqrt(float(info.grad_sq_x)), math.sqrt(float(info.grad_sq_y))
        if norm_x * problem.unit > self.tol or norm_y * problem.smallest_unit > self.tol:
            return False
        self.calls += 2
        return self.judge(*self.present) <= self.tol

    def is_in_doubt(self) -> bool:
        """Whether the multipliers grow while the violation does not fall."""
        values = self.problem.seen[1]
        if not values:
            return False
        growth = _GROWTH if self.feasible is None else _GROWTH**4
        size = max(float(part.detach().abs().max()) for part in self.present[1].values())
        missed = max(
            float((v.clamp_min(0.0) if name == "inequality" else v.abs()).max())
            for name, v in values.items()
        )
        old_size, old_missed = self.doubt
        has_fallen = missed <= 0.5 * old_missed
        if not has_fallen and size <= growth * old_size:
            return False
        self.doubt = (max(size, 1.0), missed)
        return not has_fallen and missed > _CLEAR * self.tol

    def falls_along(self) -> bool:
        """Whether x goes ever farther and the objective falls without end on the way."""
        self.num_looks += 1
        if self.num_looks.bit_count() != 1:
            return False
        here = read_form(self.present[0], "x", self.problem.kind).leaves
        self.path = [*self.path[1:], here]
        first, second = (_distance(a, b) for a, b in zip(self.path, self.path[1:], strict=False))
        return self.num_looks >= 8 and second >= first > 0.0 and self.is_unbounded()

    def is_low_without_bounds(self) -> bool:
        """Whether the objective is low because x moved where its set has no bound."""
        start, here = self.problem.start, read_form(self.present[0], "x", self.problem.kind).leaves
        moved = [(new - old).detach() for new, old in zip(here, start, strict=True)]
        part = unbounded_part(self.problem.x_set, start, moved)
        place = [old + step for old, step in zip(start, part, strict=True)]
        return self.value_at(place) < self.problem.low

    def is_unbounded(self) -> bool:
        """Whether the objective falls without end: ever longer strides, back to the constraints."""
        problem, eps = self.problem, torch.finfo(self.problem.kind.dtype).eps
        here, place = self.path[1:]
        value, fall = self.value_at(place), self.value_at(here) - self.value_at(place)
        low = value + problem.low
        for _ in range(_STRIDES):
            step = [10.0 * (new - old) for new, old in zip(place, here, strict=True)]
            step = unbounded_part(problem.x_set, place, step)
            here = place
            place = [(old + s).detach() for old, s in zip(here, step, strict=True)]
            if problem.x_set is not None:
                place = problem.x_set.project(place)
            if not (fall > 0.0 and value - self.value_at(place) > fall):
                return False
            slack = self.tol + 100.0 * eps * math.sqrt(float(tensors.squared_norm(place)))
            if problem.violation(self.move_to(place)) > slack:
                start = problem.form.give_back(place)
                x = self.solve(problem.shortfall, start, 0.0, 0.1 * self.tol).x
                place = read_form(x, "x", problem.kind).leaves
            new = self.value_at(place)
            if not (value - new > fall and problem.violation(self.move_to(place)) <= slack):
                return False
            if new < low:
                return True
            value, fall = new, value - new
        return False

    @torch.no_grad()
    def move_to(self, place: list[Tensor]) -> Any:
        """Put the problem's own point somewhere; returns it as the functions get it."""
        tensors.copy_(self.problem.form.leaves, place)
        tensors.drop_cached_casts()
        return self.problem.form.for_fun()

    @torch.no_grad()
    def value_at(self, place: list[Tensor]) -> float:
        """The objective at a point: one call."""
        self.calls += 1
        return float(self.problem.objective(self.move_to(place)))

    # Whether there is a feasible point.

    def may_be_feasible(self) -> bool:
        """Whether some point satisfies the constraints, or may; it is remembered.

        None does, as far as one can see, if from here, from the start and from random points the
        violation has a minimum that is not zero.
        """
        if self.feasible is not None:
            return True
        places = [self.plain(self.present[0]), self.problem.x0, *self.random_places()]
        for i, place in enumerate(places):
            result = self.solve(self.problem.shortfall, place, 0.0, 0.1 * self.tol)
            # Of random points nothing is known, not even that the functions are defined there.
            if self.is_feasible(result) or (i < 2 and not self.is_clearly_violated(result)):
                self.feasible, self.is_trapped = result.x, i > 0
                return True
        return False

    def plain(self, point: Any) -> Any:
        """A point in the form of the start."""
        return self.problem.form.give_back(read_form(point, "x", self.problem.kind).leaves)

    def is_feasible(self, result: MinimaxResult) -> bool:
        point = read_form(result.x, "x", self.problem.kind).for_fun()
        return self.problem.violation(point) <= self.tol

    def is_clearly_violated(self, result: MinimaxResult) -> bool:
        missed = math.sqrt(2.0 * max(result.fun, 0.0))
        return bool(missed > _CLEAR * max(self.tol, result.grad_norm_x))  # False for NaN

    def random_places(self) -> Iterator[Any]:
        """Around the user's start and around zero, nearer and farther."""
        problem = self.problem
        generator = torch.Generator().manual_seed(0)
        for i in range(_TRIES):
            center = [leaf * float(i % 2 == 0) for leaf in problem.start]
            place = [
                leaf
                + (10.0 if i % 4 > 1 else 1.0)
                * (1.0 + leaf.abs())
                * torch.randn(leaf.shape, generator=generator).to(leaf)
                for leaf in center
            ]
            if problem.x_set is not None:
                place = problem.x_set.project(place)
            yield problem.form.give_back(place)

    def is_held_off(self) -> bool:
        """Whether the violation has a minimum that is not zero where the budget ran out."""
        problem = self.problem
        if self.feasible is not None or not problem.constraints:
            return False
        form = read_form(self.present[0], "x", problem.kind)
        dummy = torch.zeros((), dtype=problem.kind.dtype, device=problem.kind.device)
        value = problem.shortfall(form.for_fun(), dummy)
        missed = math.sqrt(2.0 * value.item())
        if not missed > _CLEAR * self.tol:
            return False
        gradient = list(torch.autograd.grad(value, form.leaves))
        if problem.x_set is not None:
            gradient = problem.x_set.gradient_mapping(form.leaves, [-g for g in gradient])
        if math.sqrt(float(tensors.squared_norm(gradient))) > 0.01 * missed:
            return False
        self.max_calls = self.calls + max(self.max_calls // 10, 100)
        return not self.may_be_feasible()

    def finish(self, status: Status) -> MinimizeResult:
        """The best point, with its multipliers."""
        assert self.best is not None
        best = self.best
        return MinimizeResult(
            best.x,
            best.value,
            status is Status.CONVERGED,
            status,
            _WORDS.get(status, status.value),
            Multipliers(best.multipliers.get("inequality"), best.multipliers.get("equality")),
            best.kkt.violation,
            best.kkt,
            self.calls,
            self.history,
            self.tol,
        )


def _distance(left: list[Tensor], right: list[Tensor]) -> float:
    return math.sqrt(float(tensors.squared_norm([a - b for a, b in zip(left, right, strict=True)])))


def minimize(
    objective: Callable[[Any], Tensor],
    x0: Any,
    *,
    inequality: Callable[[Any], Tensor] | None = None,
    equality: Callable[[Any], Tensor] | None = None,
    x_set: Sets = None,
    tol: float = 1e-6,
    max_calls: int = 100_000,
    callback: Callable[[StepInfo], bool | None] | None = None,
    progress: bool = False,
) -> MinimizeResult:
    r"""Minimize a smooth function under constraints, by `minimax` on its Lagrangian.

    .. math::
        \min_{x \in X} f(x) \ \text{ with } g(x) \le 0,\ h(x) = 0, \qquad
        L(x, y) = f(x) + y_g \cdot g(x) + y_h \cdot h(x), \quad y_g \ge 0

    y is held by a proximal term, which is the method of multipliers. Inside, every constraint is
    divided by the length of its gradient at the start; success is checked in the user's units. The
    result is a point that satisfies the KKT conditions, a local minimum at best.

    Args:
        objective: f(x) of tensors in the form of `x0`; returns one number.
        x0: The start of x, in any form that `minimax` takes.
        inequality: g(x), a tensor of any shape, constrained to be at most zero.
        equality: h(x), a tensor of any shape, constrained to be zero.
        x_set: The constraint set of x; every trial point is in it.
        tol: Stationarity, violation and complementarity must each be at most this.
        max_calls: Gradients and values that may be evaluated, not including the first evaluation
            and the check of the result.
        callback: Called with every `StepInfo`; returning True ends the solve.
        progress: Show a line of progress on a terminal or in a notebook.

    Returns:
        A `MinimizeResult`. Numerical failures, infeasible constraints and an unbounded objective
        are statuses on it, not exceptions.

    Raises:
        ValueError, TypeError: An argument is invalid, or a function does not return a
            differentiable tensor.

    Example:
        >>> result = minimize(lambda x: x @ x, [3.0, 0.0], equality=lambda x: x.sum() - 1)
        >>> result.success, [round(entry, 4) for entry in result.x]
        (True, [0.5, 0.5])
    """
    check_arguments(tol, max_calls)
    problem = ConstrainedProblem(objective, inequality, equality, x0, x_set)
    return _Search(problem, tol, max_calls, callback, progress).run()
