"""The default method of `minimax`: nested quasi-Newton steps of both players.

A step of x is accepted if it lowers the maximum over y, which is computed to an accuracy relative
to the x gradient. If no step is accepted, y was not accurate enough, and the accuracy is tightened.
If y has no maximum or none that x can follow (f is concave in y, but not strongly), a proximal term
is added whose center follows y: Rockafellar 1976, the method of multipliers for Lagrangians.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from neada.inner import NoProgress
from neada.sets import Set
from neada.steppers.base import Closure, Step
from neada.steppers.direct import DirectStepper
from neada.steppers.quasi_newton_side import ARMIJO, FLAT, AtY, Maximizer, Side

__all__ = ["NestedQuasiNewton"]

_MAX_OUTER = 300  # steps of x for one center
_TRIALS = 14  # lengths of a step of x before y is doubted
_DOUBTS = 4  # how often in a row
_COSTLY = 500  # calls of one search for a step of x, if they are more than all before
_FAR = 1e6  # where x is this many times farther out once y is held, holding y was no remedy
_WINDOW, _CRAWL = 20, 1e-3  # steps of x that are too slow if they gain less than this share of all
_VAIN = 5  # centers in a row for which no solution was found
_SHRINK_PROX = 0.3  # of the proximal weight, when its center moves slowly


@dataclass
class _Run:
    """The state of the descent of x for one center of the proximal term, between two steps."""

    goal: float
    """The tolerance of both norms."""
    floor: float
    x: Tensor
    at: AtY
    gradient: Tensor
    norm: float
    num_steps: int = 0
    num_doubts: int = 0
    path: list[tuple[float, float, int]] = field(default_factory=list)
    next_goal: float = 1e-2
    """The goal for the next center."""
    moved: float = math.inf
    """The distance between the last two centers."""
    num_vain: int = 0


class NestedQuasiNewton(DirectStepper):
    r"""Nested quasi-Newton for deterministic f, smooth in x and concave in y.

    .. math::
        x_{t+1} = P(x_t - \alpha_t H_t\nabla_x f(x_t, y_t)), \qquad
        y_t \approx \arg\max_y f(x_t, y) - \tfrac{\rho}{2}\|y - c\|^2

    with :math:`\|G_y\| \le \theta\,\|G_x\|` at the present point, the length :math:`\alpha_t` such
    that the maximum over y falls, and :math:`\rho = 0` as long as y can be maximized. Steps are
    L-BFGS without a set and on boxes; on other sets projected spectral gradient steps, and L-BFGS
    in the face that the descent presses against where these take long.

    Required problem constants: none.

    Guarantees: none in writing; an accepted step lowers the maximum over y as far as it is known.

    After a step with NaN or Inf, the next one starts again from the current point.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        tol: The tolerance of both norms.
        prox: The proximal weight to begin with; 0 begins without one.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "end"

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        tol: float,
        *,
        prox: float = 0.0,
        x_set: Set | None = None,
        y_set: Set | None = None,
    ) -> None:
        super().__init__(x, y, x_set=x_set, y_set=y_set)
        self.tol = tol
        self._theta = 1e-4
        self._x = Side(self._players["x"], x_set)
        self._y = Maximizer(self._players["y"], y_set, tol, prox)
        self._far = math.inf
        self._run: _Run | None = None

    def _step(self, closure: Closure) -> Step:
        rounding = _rounding(self._players["x"][0])
        self._y.begin_step(partial(self._call, closure, "y"), self.counters, rounding)
        run, self._run = self._run, None  # the step after one that raises begins anew
        if run is None:
            run = self._begin(max(0.1 * self.tol, 1e-2) if self._y.prox else 0.5 * self.tol)
        elif end := self._descend(run):
            run = self._next_run(run, end)
        run.at, run.gradient, run.norm = self._tighten(
            run.x, run.at, run.gradient, run.norm, run.floor
        )
        self._run = run
        value, norm_y = self._y.without_prox(run.at)
        words = f"proximal weight {self._y.prox:g}" if self._y.prox else ""
        return torch.tensor(value, dtype=torch.float64), run.norm**2, norm_y**2, words

    def state_dict(self) -> dict[str, Any]:
        """Counters, the descent under way, the proximal term, and the memory of both players."""
        run = self._run and {**vars(self._run), "at": self._run.at._asdict()}
        own = {name: getattr(self, name) for name in ("_theta", "_far")}
        state = {"run": run, "own": own, "x": self._x.state_dict(), "y": self._y.state_dict()}
        return {**super().state_dict(), **copy.deepcopy(state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; the players must be where they were when it was saved."""
        super().load_state_dict(state_dict)
        state = copy.deepcopy(state_dict)
        run = state["run"]
        self._run = run and _Run(**{**run, "at": AtY(**run["at"])})
        vars(self).update(state["own"])
        self._x.load_state_dict(state["x"])
        self._y.load_state_dict(state["y"])

    def _x_gradient(self, x: Tensor) -> tuple[Tensor, float]:
        """The x gradient at the point that was evaluated last, and the norm of its mapping."""
        assert self._y.graph is not None
        self.counters.check_budget()
        self._count("x")
        return self._x.gradient_and_norm(self._y.graph, x)

    def _begin(self, goal: float) -> _Run:
        """Begin a descent where the players are; a proximal term has its center at this y."""
        if self._y.prox:
            self._y.center = self._y.read()
        x = self._x.read()
        at = self._y.maximize(self._y.read(), 0.1)
        if at.end == "not finite":
            raise FloatingPointError("f or its gradient is not finite at the start")
        gradient, norm = self._x_gradient(x)
        return _Run(goal, 1e-2 * goal, x, at, gradient, norm)

    def _next_run(self, run: _Run, end: str) -> _Run:
        """Begin the next descent: hold y by a proximal term, or move its center."""
        if not self._y.prox:
            if end == "y runs away":
                self._y.write(self._y.center)
            else:
                self._far = _FAR * (1.0 + _norm(self._x.read()))
            self._y.prox = 1.0
            self._x.pairs.clear()
            self._y.pairs.clear()
            return self._begin(max(0.1 * self.tol, run.next_goal))
        goal = run.next_goal
        distance = _norm(self._y.read() - self._y.center)
        num_vain = 0 if end == "solved" else run.num_vain + 1
        if num_vain > _VAIN or (distance == 0.0 and end == "no step passes"):
            raise NoProgress("no step of x lowers the maximum over y any more")
        if distance > 0.5 * run.moved:
            self._y.prox *= _SHRINK_PROX
            self._y.pairs.clear()
        if not self._y.prox > 1e-12:
            raise NoProgress("y runs away however it is held: f has no maximum", "runs away")
        goal = 0.1 * min(self._y.prox * distance, goal) if distance > 0.0 else 0.1 * goal
        new = self._begin(max(0.1 * self.tol, goal))
        new.next_goal, new.moved, new.num_vain = goal, distance, num_vain
        return new

    def _descend(self, run: _Run) -> str:
        """One step of x that lowers the maximum over y; returns how the descent ended, if it did.

        The descent ends when both norms are at most the goal, or when there is no progress.
        """
        x, at, gradient, norm = run.x, run.at, run.gradient, run.norm
        run.path.append((at.value, max(norm, at.norm), self.counters.total_calls))
        if at.end == "curves up" and self._y.prox:
            raise NoProgress("f curves upwards in y", "curves up")
        if at.end in ("runs away", "curves up") or (at.end == "stuck" and not self._y.prox):
            return "y is stuck" if at.end == "stuck" else "y runs away"
        if norm <= run.goal and at.norm <= run.goal:
            return "solved"
        if run.num_steps % 5 == 0 and _crawls(run.path):
            return "slow"
        if _norm(x) > self._far:
            raise NoProgress("y could be maximized no further, and held it lets x run away")
        found = self._search_x(x, at, gradient, max(self._theta * norm, run.floor), run.num_steps)
        if isinstance(found, AtY):
            self._x.write(x)
            self._y.write(at.y)
            return "y is stuck"
        if found is None:
            run.num_doubts += 1
            if self._y.prox and norm <= run.goal:
                return "solved"  # by x; y is as accurate as rounding lets it be
            slope = self._x.direction(x, gradient, run.num_steps)[1]
            if run.num_doubts > 1 and abs(slope) <= 10.0 * self._y.rounding * abs(at.value):
                raise NoProgress(
                    "a step of x would change f by less than rounding does", "rounding"
                )
            if run.num_doubts > _DOUBTS:
                return "no step passes"
            self._theta *= 1e-2
            run.floor = min(run.floor, self._theta * norm)
            self._x.forget(gradient)
            self._x.write(x)
            run.at = self._y.maximize(at.y, max(run.floor, 1e-16))
            run.gradient, run.norm = self._x_gradient(x)
        else:
            run.num_doubts = 0
            new, new_at = found
            tight = self._tighten(new, new_at, *self._x_gradient(new), run.floor)
            self._x.learn(new - x, tight[1] - gradient, new, tight[1])
            run.x, (run.at, run.gradient, run.norm) = new, tight
        run.num_steps += 1
        return "slow" if run.num_steps >= (1 if self._y.prox else 100) * _MAX_OUTER else ""

    def _tighten(
        self, x: Tensor, at: AtY, gradient: Tensor, norm: float, floor: float
    ) -> tuple[AtY, Tensor, float]:
        """Maximize until y is accurate relative to the x gradient that it gives."""
        for _ in range(30):
            accuracy = max(self._theta * norm, floor)
            if at.norm <= accuracy or at.end != "accurate":
                break
            at = self._y.maximize(at.y, accuracy)
            gradient, norm = self._x_gradient(x)
        return at, gradient, norm

    def _search_x(
        self, x: Tensor, at: AtY, gradient: Tensor, accuracy: float, steps: int
    ) -> tuple[Tensor, AtY] | AtY | None:
        """Shorten a step of x until the maximum over y falls; None if no length does.

        On success the players are at the new point; otherwise x is at the last trial. Where y could
        not be maximized for a trial, or at a price out of proportion, only where that ended.
        """
        direction, slope = self._x.direction(x, gradient, steps)
        if not slope < 0.0:
            return None
        length = 1.0
        value = -at.value
        before = self.counters.total_calls
        for _ in range(_TRIALS):
            new = self._x.move(x, direction, length)
            trial = self._y.maximize(at.y, accuracy)
            if trial.end in ("not finite", "runs away", "curves up"):
                length *= 0.25
                continue
            spent = self.counters.total_calls - before
            if not self._y.prox and (trial.end == "stuck" or spent > max(_COSTLY, before)):
                return trial
            moved = new - x
            predicted = moved.dot(gradient).item()
            for _ in range(6):
                # How far the maximum may still lie above, by the curvature of y that was seen.
                curvature = self._y.pairs.least_curvature
                gap = 0.5 * trial.norm**2 / curvature if curvature > 0.0 else 0.0
                rise = -trial.value - value
                enough = gap <= 0.1 * abs(rise) or trial.end != "accurate"
                if enough or rise > ARMIJO * predicted:
                    break
                trial = self._y.maximize(trial.y, 0.1 * trial.norm)
            if rise <= ARMIJO * predicted:
                return new, trial
            if rise <= 10.0 * self._y.rounding * abs(value):
                slope = self._x_gradient(new)[0].dot(moved).item()
                if 2.0 * predicted <= slope <= -FLAT * predicted:
                    return new, trial
            excess = rise - predicted
            length *= min(0.5, max(0.1, -predicted / (2.0 * excess))) if excess > 0.0 else 0.5
        return None


def _norm(vector: Tensor) -> float:
    return math.sqrt(vector.dot(vector).item())


def _crawls(path: list[tuple[float, float, int]]) -> bool:
    """Whether the last steps lowered neither the maximum, as at a kink of it, nor the norms.

    The last steps are some twenty, or those that cost half of a large number of calls.

    Args:
        path: After every step what y minimizes, which is minus f and grows; the larger norm; and
            the calls so far.
    """
    num_last = _WINDOW
    calls = [spent for _, _, spent in path]
    if calls[-1] - calls[0] > 2 * _COSTLY:
        num_last = sum(2 * spent >= calls[0] + calls[-1] for spent in calls)
    num_last = min(max(num_last, 3), _WINDOW)
    if len(path) <= num_last:
        return False
    values, norms = [value for value, _, _ in path], [norm for _, norm, _ in path]
    gain, recent = values[-1] - values[0], values[-1] - values[-1 - num_last]
    return recent <= _CRAWL * gain and min(norms[-num_last:]) > 0.5 * min(norms[:-num_last])


def _rounding(like: Tensor) -> float:
    """The relative error that f is assumed to have."""
    error, kind = 500.0 * torch.finfo(like.dtype).eps, like.device.type
    if like.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return error
    return max(error, 0.5 * torch.finfo(torch.get_autocast_dtype(kind)).eps)
