"""The nested method behind `minimax`: quasi-Newton steps of both players, accepted on evidence.

A trial x is judged by a y that was maximized for it, to an accuracy relative to the x gradient at
the present x. Where no step passes, y was not accurate enough, and the accuracy tightens. Where y
has no maximum or none that x can follow (f is concave in y without strength), y is held by a
proximal term whose center follows it: Rockafellar 1976, the method of multipliers for Lagrangians.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from neada import tensors
from neada.checks import check_number
from neada.inner import NoProgress
from neada.scalars import Scalar
from neada.sets import Set
from neada.steppers.base import Closure
from neada.steppers.direct import DirectStepper
from neada.steppers.quasi_newton_side import Side, dot, norm_of
from neada.transactions import Undo

__all__ = ["QuasiNewtonNeAda"]

_ARMIJO = 1e-4  # share of the predicted decrease that a step has to reach
_FLAT = 0.8  # near rounding a step may end with this share of its first slope, upwards
_MAX_INNER = 400  # steps of y for one x
_MAX_OUTER = 300  # steps of x for one center
_TRIALS = 14  # lengths of a step of x before y is doubted
_DOUBTS = 4  # how often in a row
_COSTLY = 500  # calls of one search for a step of x, if they are more than all before
_RUNAWAY = 1e9  # y is this many times farther out than it was when the loop began
_FAR = 1e6  # where x is this many times farther out once y is held, holding y was no remedy
_WINDOW, _CRAWL = 20, 1e-3  # steps of x that are too slow if they gain less than this share of all
_INVISIBLE = 10  # steps of y that change f by less than rounding does, and do not halve the norm
_VAIN = 5  # centers in a row for which no solution was found
_SHRINK_PROX = 0.3  # of the proximal weight, when its center moves slowly


class _AtY(NamedTuple):
    """Where a maximization over y ended; gradients are those of what is minimized."""

    y: Tensor
    value: float
    gradient: Tensor
    norm: float
    end: Literal["accurate", "at rounding", "not finite", "runs away", "curves up", "stuck"]


@dataclass
class _Run:
    """The state of the descent of x for one center of the proximal term, between two steps."""

    goal: float
    """Both norms are wanted this small."""
    floor: float
    x: Tensor
    at: _AtY
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


class QuasiNewtonNeAda(DirectStepper):
    r"""Nested quasi-Newton for deterministic f, smooth in x and concave in y.

    .. math::
        x_{t+1} = P(x_t - \alpha_t H_t\nabla_x f(x_t, y_t)), \qquad
        y_t \approx \arg\max_y f(x_t, y) - \tfrac{\rho}{2}\|y - c\|^2

    with :math:`\|G_y\| \le \theta\,\|G_x\|` at the present point, the length :math:`\alpha_t` such
    that the maximum over y falls, and :math:`\rho = 0` as long as y can be maximized. Steps are
    L-BFGS without a set and on boxes; on other sets projected spectral gradient steps, and L-BFGS
    in the face that the descent presses against where these take long.

    Needs to know: nothing.

    Guarantees: none in writing; an accepted step lowers the maximum over y as far as it is known.

    After a step that has met a number which is not finite, the next one begins anew from where the
    players are.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        tol: Both norms are wanted this small.
        theta: The accuracy of y relative to x; it shrinks when no step of x passes.
        history: How many pairs L-BFGS keeps; by default three times as many as the player has
            numbers, but at least 20 and at most 300, and 20 for a player of more than 1,000.
        prox: The proximal weight to begin with; 0 begins without one.
        x_set: Where x lives.
        y_set: Where y lives.
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "end"

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        tol: float,
        *,
        theta: float = 1e-4,
        history: int | None = None,
        prox: float = 0.0,
        x_set: Set | None = None,
        y_set: Set | None = None,
    ) -> None:
        super().__init__(x, y, x_set=x_set, y_set=y_set)
        self._check_positive(tol=tol, theta=theta)
        if history is not None:
            self._check_positive(history=history)
        check_number("prox", prox, strict=False)
        self.tol = tol
        self.theta = theta
        self._x = Side(self._players["x"], x_set, history)
        self._y = Side(self._players["y"], y_set, history)
        self._rounding = 0.0
        self._prox = prox
        self._far = math.inf
        self._center = self._y.read()
        self._closure: Closure | None = None
        self._graph: Tensor | None = None
        self._run: _Run | None = None

    def _step(self, closure: Closure) -> tuple[Tensor, Scalar, Scalar, str]:
        self._closure = closure
        self._rounding = _rounding(self._players["x"][0])
        run, self._run = self._run, None  # the step after one that raises begins anew
        if run is None:
            run = self._begin(max(0.1 * self.tol, 1e-2) if self._prox else 0.5 * self.tol)
        elif end := self._descend(run):
            run = self._next_run(run, end)
        run.at, run.gradient, run.norm = self._tighten(
            run.x, run.at, run.gradient, run.norm, run.floor
        )
        self._run = run
        value, norm_x, norm_y = self._true_norms(run.at, run.norm)
        words = f"proximal weight {self._prox:g}" if self._prox else ""
        return torch.tensor(value, dtype=torch.float64), norm_x**2, norm_y**2, words

    def _saved(self) -> list[Undo]:
        return [*super()._saved(), self._forget_run]

    def _forget_run(self) -> None:
        self._run = None

    def state_dict(self) -> dict[str, Any]:
        """Counters, the descent under way, the proximal term, and the memory of both players."""
        run = self._run and {**vars(self._run), "at": self._run.at._asdict()}
        own = {name: getattr(self, name) for name in ("theta", "_prox", "_far", "_center")}
        state = {"run": run, "own": own, "x": self._x.state_dict(), "y": self._y.state_dict()}
        return {**super().state_dict(), **copy.deepcopy(state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; the players must be where they were when it was saved."""
        super().load_state_dict(state_dict)
        state = copy.deepcopy(state_dict)
        run = state["run"]
        self._run = run and _Run(**{**run, "at": _AtY(**run["at"])})
        vars(self).update(state["own"])
        self._x.load_state_dict(state["x"])
        self._y.load_state_dict(state["y"])

    # What is evaluated.

    def _y_gradient(self, y: Tensor) -> tuple[float, Tensor]:
        """Minus f at the present x and some y, with the proximal term, and its gradient."""
        assert self._closure is not None
        self.counters.check_budget()
        self._y.write(y)
        tensors.drop_cached_casts()
        value = self._checked(self._closure())
        gradient = -self._y.gradient(value)
        self._count("y")
        self._graph = value
        if self._prox == 0.0:
            return -value.item(), gradient
        apart = y - self._center
        return (
            -value.item() + 0.5 * self._prox * dot(apart, apart),
            gradient + self._prox * apart,
        )

    def _x_gradient(self) -> Tensor:
        """The x gradient at the point that was evaluated last."""
        assert self._graph is not None
        self.counters.check_budget()
        gradient = self._x.gradient(self._graph)
        self._count("x")
        return gradient

    # One player: y until it is accurate.

    def _maximize(self, y: Tensor, accuracy: float) -> _AtY:
        side, far, way = self._y, _RUNAWAY * (1.0 + norm_of(y)), 0.0
        value, gradient = self._y_gradient(y)
        if not _finite(value, gradient):
            return _AtY(y, value, gradient, math.inf, "not finite")
        recent, num_straight, num_up, num_stuck, num_invisible = [value], 0, 0, 0, 0
        least = math.inf
        for k in range(_MAX_INNER):
            norm = side.mapping_norm(y, gradient)
            if k == 0 and not len(side.pairs):
                # Nothing is known of the curvature, so that no accuracy means anything yet.
                accuracy = max(min(accuracy, 0.1 * norm), 1e-3 * self.tol)
            if norm <= accuracy:
                return _AtY(y, value, gradient, norm, "accurate")
            if num_up >= 5:
                return _AtY(y, value, gradient, norm, "curves up")
            if self._prox == 0.0 and (num_straight >= 2 or way > far):
                return _AtY(y, value, gradient, norm, "runs away")
            direction, slope = side.direction(y, gradient, k)
            found = self._search_y(y, value, max(recent[-5:]), gradient, direction, slope)
            if found is None:
                num_stuck += 1
                side.forget(gradient)
                value, gradient = self._y_gradient(y)  # the graph is wanted at y
                if abs(slope) <= 10.0 * self._rounding * abs(value):
                    return _AtY(y, value, gradient, norm, "at rounding")
                if num_stuck > 2:
                    return _AtY(y, value, gradient, norm, "stuck")
                continue
            new, new_value, new_gradient, predicted = found
            known = side.learn(new - y, new_gradient - gradient, new, new_gradient)
            way += math.sqrt(known.moved_sq)
            num_up = num_up + 1 if side.home is None and known.product < 0.0 else 0
            visible = abs(predicted) > 10.0 * self._rounding * abs(value)
            straight = visible and known.changed_sq <= 1e-20 * dot(gradient, gradient)
            straight = straight and (side.home is None or side.is_box)
            num_straight = num_straight + 1 if straight else 0
            y, value, gradient = new, new_value, new_gradient
            recent.append(value)
            self.counters.inner_steps += 1
            num_invisible = 0 if visible or norm < 0.5 * least else num_invisible + 1
            least = min(least, norm)
            if num_invisible >= _INVISIBLE:
                norm = side.mapping_norm(y, gradient)
                return _AtY(y, value, gradient, norm, "at rounding")
        norm = side.mapping_norm(y, gradient)
        return _AtY(y, value, gradient, norm, "accurate" if norm <= accuracy else "stuck")

    def _search_y(
        self,
        y: Tensor,
        value: float,
        worst: float,
        gradient: Tensor,
        direction: Tensor,
        slope: float,
    ) -> tuple[Tensor, float, Tensor, float] | None:
        """Shorten a step of y until it passes; None if no length does.

        Returns:
            The new y, value and gradient, and the change that the old gradient predicted.
        """
        reference = worst if self._y.home is not None and not self._y.is_box else value
        length = 1.0
        if not slope < 0.0:
            return None
        for _ in range(40):
            new = self._y.moved_to(y, direction, length)
            new_value, new_gradient = self._y_gradient(new)
            moved = new - y
            predicted, slope = dot(moved, gradient), dot(moved, new_gradient)
            if not (math.isfinite(new_value) and math.isfinite(slope)):
                length *= 0.25
                continue
            if new_value <= reference + _ARMIJO * predicted or (
                new_value <= value + 10.0 * self._rounding * abs(value)
                and slope <= -_FLAT * predicted
            ):
                return new, new_value, new_gradient, predicted
            shorter = -predicted / (slope - predicted) if slope > predicted else 0.5
            length *= min(0.5, max(0.1, shorter))
        return None

    # Both players.

    def _begin(self, goal: float) -> _Run:
        """Begin a descent where the players are; a proximal term has its center at this y."""
        if self._prox:
            self._center = self._y.read()
        x = self._x.read()
        at = self._maximize(self._y.read(), 0.1)
        if at.end == "not finite":
            raise FloatingPointError("f or its gradient is not finite at the start")
        gradient = self._x_gradient()
        norm = self._x.mapping_norm(x, gradient)
        return _Run(goal, 1e-2 * goal, x, at, gradient, norm)

    def _next_run(self, run: _Run, end: str) -> _Run:
        """Begin the next descent: hold y by a proximal term, or move its center."""
        if not self._prox:
            if end == "y runs away":
                self._y.write(self._center)
            else:
                self._far = _FAR * (1.0 + norm_of(self._x.read()))
            self._prox = 1.0
            self._x.pairs.clear()
            self._y.pairs.clear()
            return self._begin(max(0.1 * self.tol, run.next_goal))
        goal = run.next_goal
        distance = norm_of(self._y.read() - self._center)
        num_vain = 0 if end == "solved" else run.num_vain + 1
        if num_vain > _VAIN or (distance == 0.0 and end == "no step passes"):
            raise NoProgress("no step of x lowers the maximum over y any more")
        if distance > 0.5 * run.moved:
            self._prox *= _SHRINK_PROX
            self._y.pairs.clear()
        if not self._prox > 1e-12:
            raise NoProgress("y runs away however it is held: f has no maximum", "runs away")
        goal = 0.1 * min(self._prox * distance, goal) if distance > 0.0 else 0.1 * goal
        new = self._begin(max(0.1 * self.tol, goal))
        new.next_goal, new.moved, new.num_vain = goal, distance, num_vain
        return new

    def _descend(self, run: _Run) -> str:
        """One step of x that lowers the maximum over y; returns how the descent ended, if it did.

        The descent ends when both norms are at most the goal, or when there is no progress.
        """
        x, at, gradient, norm = run.x, run.at, run.gradient, run.norm
        run.path.append((at.value, max(norm, at.norm), self.counters.total_calls))
        if at.end == "curves up" and self._prox:
            raise NoProgress("f curves upwards in y", "curves up")
        if at.end in ("runs away", "curves up") or (at.end == "stuck" and not self._prox):
            return "y is stuck" if at.end == "stuck" else "y runs away"
        if norm <= run.goal and at.norm <= run.goal:
            return "solved"
        if run.num_steps % 5 == 0 and _crawls(run.path):
            return "slow"
        if norm_of(x) > self._far:
            raise NoProgress("y could be maximized no further, and held it lets x run away")
        found = self._search_x(x, at, gradient, max(self.theta * norm, run.floor), run.num_steps)
        if isinstance(found, _AtY):
            self._x.write(x)
            self._y.write(at.y)
            return "y is stuck"
        if found is None:
            run.num_doubts += 1
            if self._prox and norm <= run.goal:
                return "solved"  # by x; y is as accurate as rounding lets it be
            slope = self._x.direction(x, gradient, run.num_steps)[1]
            if run.num_doubts > 1 and abs(slope) <= 10.0 * self._rounding * abs(at.value):
                raise NoProgress(
                    "a step of x would change f by less than rounding does", "rounding"
                )
            if run.num_doubts > _DOUBTS:
                return "no step passes"
            self.theta *= 1e-2
            run.floor = min(run.floor, self.theta * norm)
            self._x.forget(gradient)
            self._x.write(x)
            run.at = self._maximize(at.y, max(run.floor, 1e-16))
            run.gradient = self._x_gradient()
            run.norm = self._x.mapping_norm(x, run.gradient)
        else:
            run.num_doubts = 0
            new, new_at = found
            new_gradient = self._x_gradient()
            new_norm = self._x.mapping_norm(new, new_gradient)
            tight = self._tighten(new, new_at, new_gradient, new_norm, run.floor)
            self._x.learn(new - x, tight[1] - gradient, new, tight[1])
            run.x, (run.at, run.gradient, run.norm) = new, tight
        run.num_steps += 1
        return "slow" if run.num_steps >= (1 if self._prox else 100) * _MAX_OUTER else ""

    def _tighten(
        self, x: Tensor, at: _AtY, gradient: Tensor, norm: float, floor: float
    ) -> tuple[_AtY, Tensor, float]:
        """Maximize until y is accurate relative to the x gradient that it gives."""
        for _ in range(30):
            accuracy = max(self.theta * norm, floor)
            if at.norm <= accuracy or at.end != "accurate":
                break
            at = self._maximize(at.y, accuracy)
            gradient = self._x_gradient()
            norm = self._x.mapping_norm(x, gradient)
        return at, gradient, norm

    def _search_x(
        self, x: Tensor, at: _AtY, gradient: Tensor, accuracy: float, steps: int
    ) -> tuple[Tensor, _AtY] | _AtY | None:
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
            new = self._x.moved_to(x, direction, length)
            self._x.write(new)
            trial = self._maximize(at.y, accuracy)
            if trial.end in ("not finite", "runs away", "curves up"):
                length *= 0.25
                continue
            spent = self.counters.total_calls - before
            if not self._prox and (trial.end == "stuck" or spent > max(_COSTLY, before)):
                return trial
            moved = new - x
            predicted = dot(moved, gradient)
            for _ in range(6):
                # How far the maximum may still lie above, by the curvature of y that was seen.
                curvature = self._y.pairs.least_curvature
                gap = 0.5 * trial.norm**2 / curvature if curvature > 0.0 else 0.0
                rise = -trial.value - value
                enough = gap <= 0.1 * abs(rise) or trial.end != "accurate"
                if enough or rise > _ARMIJO * predicted:
                    break
                trial = self._maximize(trial.y, 0.1 * trial.norm)
            if rise <= _ARMIJO * predicted:
                return new, trial
            if rise <= 10.0 * self._rounding * abs(value):
                slope = dot(self._x_gradient(), moved)
                if 2.0 * predicted <= slope <= -_FLAT * predicted:
                    return new, trial
            excess = rise - predicted
            length *= min(0.5, max(0.1, -predicted / (2.0 * excess))) if excess > 0.0 else 0.5
        return None

    def _true_norms(self, at: _AtY, norm_x: float) -> tuple[float, float, float]:
        """The value of f and both norms, without the proximal term, where the players are."""
        if self._prox == 0.0:
            return -at.value, norm_x, at.norm
        apart = at.y - self._center
        value = -at.value + 0.5 * self._prox * dot(apart, apart)
        return value, norm_x, self._y.mapping_norm(at.y, at.gradient - self._prox * apart)


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


def _finite(value: float, gradient: Tensor) -> bool:
    return math.isfinite(value) and math.isfinite(gradient.sum().item())
