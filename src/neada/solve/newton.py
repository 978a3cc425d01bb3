r"""The default method of `minimax`: trust-region Newton steps on the maximum over y.

With C = -f_yy, the maximum over y, Phi(x), has the gradient f_x + f_xy C^-1 f_y and the Hessian
f_xx + f_xy C^-1 f_yx. x takes a step in a trust region (Conn, Gould & Toint 2000), y follows by the
tangent of its maximizer and is corrected until the bracket

    f(x, y) <= Phi(x) <= f(x, y) + gap,   gap = f_y' C^-1 f_y / 2,

is short against the decrease that the model promises. Where f is concave in y, but not strongly, a
proximal term is added whose center follows y (Rockafellar 1976; the method of multipliers for
Lagrangians).
"""

import copy
import math
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neada.inner import NoProgress
from neada.sets import Set
from neada.solve.derivatives import Derivatives
from neada.solve.geometry import Array, Mask, Side, dot, norm, solve_many, times
from neada.solve.model import Model, definite_update, least_curvature
from neada.steppers.base import Closure, Step
from neada.steppers.direct import DirectStepper
from neada.tensors import raise_non_finite

__all__ = ["DOUBT", "Newton"]

_SHORT = 0.1  # the bracket is short if it is at most this share of the promised decrease
_ENOUGH = 0.05  # share of the promised decrease that a step has to reach
_POOR, _GOOD = 0.25, 0.75  # shares below and above which a trust region changes
_WIDER, _SHRINK = 2.5, 4.0  # factors of a trust region after a step that was good, or failed
_MOST_RISES = 50  # evaluations of y at one trial of x
_MOST_ALONE = 3  # evaluations of y after the first between two models
_INSIDE = 0.9  # share of a step to the border of a set, if f is infinite there
_FLAT = 1e-9  # a smaller curvature, relative to that along the coordinates, may be rounding
_PROX = 0.1  # the first proximal weight as a share of the Hessian's norm
_SHRINK_PROX = 0.1  # of the proximal weight, unless its centers converge at that rate
_LEAST_PROX = 1e-12  # as a share of the Hessian's norm, where rounding would take over
_AWAY = 1e2  # if y goes this many times farther out than expected, the model of it is wrong
_FAR = 1e9  # y runs away if it is this many times farther out than at the start
_UPWARDS = 1e3  # where f curves upwards in y that far out, y has no maximum
_GAIN = 0.3  # the norm has to fall to this share, or a new Hessian is due
_WORTH = 16  # calls that an exact Hessian is worth at most: batched products take that long
DOUBT = 4  # steps in a row that fail before the Hessian is computed again, and then compared
_STUCK = 25  # steps in a row that fail: the trust region is down by the precision
_CLEAR = 0.9  # a norm that falls by less may do so by rounding
_COARSE = 1e4  # a norm below this many rounding errors ends as "rounding", not as "stalled"
_ROUNDING = 10.0  # rounding errors of f in units of the precision and of the size of its terms


class _Plan(NamedTuple):
    """What every row is going to try, and what the model expects of it.

    Attributes:
        moving: The rows that are not frozen.
        alone: The rows in which only y moves.
        d, s: The steps of x and y.
        promised: By how much the maximum over y is to fall.
        gap: The length of the bracket at the start.
        base: f at the start, with the proximal term.
        noise: The rounding error of f.
    """

    moving: Mask
    alone: Mask
    d: Array
    s: Array
    promised: Array
    gap: Array
    base: Array
    noise: Array

    @property
    def goal(self) -> Array:
        """How short the bracket has to become."""
        share = np.where(self.alone, 0.5 * _SHORT, _SHORT)
        goal: Array = share * np.maximum(self.promised, self.gap) + self.noise
        return goal

    @property
    def limit(self) -> Array:
        """How high the upper end of the bracket may be."""
        highest = self.base + 1.5 * self.gap - _ENOUGH * self.promised + self.noise
        return np.where(self.alone, math.inf, highest)


class _Trial(NamedTuple):
    """Where a plan has led every row.

    Attributes:
        x, y: The point.
        value: f there, without a proximal term.
        gained: By how much f has grown, with the proximal term.
        gap: The length of the bracket.
        radius_y: The trust region of y at the end.
        unfinished: The rows in which the bracket is still long.
        lost: Those in which y has gone far by an approximate Hessian.
        price: The evaluations of f.
    """

    x: Array
    y: Array
    value: Array
    gained: Array
    gap: Array
    radius_y: Array
    unfinished: Mask
    lost: Mask
    price: Array


class Newton(DirectStepper):
    r"""Newton's method in a trust region for :math:`\Phi(x) = \max_y f(x, y)`.

    .. math::
        d_t = \arg\min_{|d| \le r_t} g_t \cdot d + \tfrac12\, d \cdot S_t d, \qquad
        x_{t+1} = P(x_t + d_t), \qquad
        y_{t+1} \approx \arg\max_y f(x_{t+1}, y) - \tfrac{\rho}{2}\|y - c\|^2

    with the gradient g and the Hessian S of the maximum over y, and :math:`\rho = 0` where f is
    strongly concave in y. Sets are handled by Newton steps in the face that the projected gradient
    reaches. Hessians are updated by secants, and computed again where updates gain too little.

    Required problem constants: none.

    Guarantees: none is proven. A step of x is accepted only if the upper end of the bracket of
    :math:`\Phi` does not rise, up to rounding.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        tol: The tolerance of both norms.
        prox: The proximal weight to begin with; 0 begins without one.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own problem.
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "end"
    _has_matrix: ClassVar[bool] = True

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        tol: float,
        *,
        prox: float = 0.0,
        x_set: Set | None = None,
        y_set: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        super().__init__(x, y, x_set=x_set, y_set=y_set, rowwise=rowwise)
        self.tol = tol
        num_rows = len(self._players["x"][0]) if rowwise else 1
        self._x = Side(self._players["x"], x_set, num_rows)
        self._y = Side(self._players["y"], y_set, num_rows)
        self._first_prox = prox
        # Small Hessians of many rows take less time than their updates.
        is_cheap = rowwise and 4 * (self._x.size + self._y.size) <= _WORTH
        self._updates = self._has_matrix and not is_cheap
        self._eps = torch.finfo(self._players["x"][0].dtype).eps
        self._f = Derivatives(self._x, self._y, self._charge)
        self._is_checked = False
        self._state: dict[str, Any] = {}

    @np.errstate(all="ignore")  # NaN and Inf are tested for where they matter
    def _step(self, closure: Closure) -> Step:
        self._f.evaluate = partial(self._call, closure, "y")
        if self._state:
            accepted = self._attempt()
            while not (self.rowwise or accepted.any() or self._is_over().all()):
                accepted = self._attempt()
        else:
            self._begin()
        state = self._state
        self._x.write(state["x"])
        self._y.write(state["y"])
        device = self._players["x"][0].device
        value, norm_x, norm_y = (
            torch.from_numpy(numbers.copy()).to(device)
            for numbers in (state["value"], state["norm_x"], state["norm_y"])
        )
        prox = state["prox"].max()
        words = f"proximal weight {prox:g}" if prox else ""
        if self.rowwise:
            return value, norm_x.square(), norm_y.square(), words
        return value[0], norm_x.item() ** 2, norm_y.item() ** 2, words

    def state_dict(self) -> dict[str, Any]:
        """Counters, and where every row is and what is known there."""
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._state.items()}
        known = {"is_checked": self._is_checked, "are_second": self._f.are_second}
        return {**super().state_dict(), "rows": arrays, **known}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; the players must be where they were when it was saved."""
        super().load_state_dict(state_dict)
        self._is_checked = state_dict["is_checked"]
        self._f.are_second = state_dict["are_second"]
        rows = copy.deepcopy(state_dict["rows"])
        self._state = {name: tensor.numpy() for name, tensor in rows.items()}

    def _charge(self, name: str, number: int) -> None:
        """Count some evaluations of one kind, if the budget allows them."""
        self.counters.check_budget(4 * number if name == "calls_hvp" else number)
        setattr(self.counters, name, getattr(self.counters, name) + number)
        if self.rowwise:
            self.row_calls += (4 if name == "calls_hvp" else 1) * number * self._counted_rows

    def _moving(self) -> Mask:
        """The rows that are not frozen."""
        if self._frozen is None:
            return np.ones(self._x.num_rows, dtype=bool)
        moving: Mask = ~self._frozen.cpu().numpy()
        return moving

    def _is_solved(self) -> Mask:
        solved: Mask = self._larger_norm() <= self.tol
        return solved

    def _larger_norm(self) -> Array:
        larger: Array = np.maximum(self._state["norm_x"], self._state["norm_y"])
        return larger

    def _is_over(self) -> Mask:
        """Which rows are solved, and not at a saddle that they can leave."""
        state = self._state
        over: Mask = self._is_solved() & (~state["is_saddle"] | (state["failures"] >= _STUCK))
        return over

    def _begin(self) -> None:
        """Evaluate f where the players are."""
        x, y = self._x.read(), self._y.read()
        value, _ = self._f.at(x, y)
        slope_x, slope_y = self._f.gradients()
        finite = np.isfinite(value + slope_x.sum(1) + slope_y.sum(1))
        bad = ~finite & self._moving()
        if bad.any():
            numbers = [torch.from_numpy(part) for part in (slope_x, slope_y, value)]
            rows = torch.from_numpy(bad) if self.rowwise else None
            raise_non_finite(numbers[:2], numbers[2], rows)
        zeros = np.zeros(len(x))
        self._state = {
            "x": x,
            "y": y,
            "value": np.where(finite, value, 0.0),
            "slope_x": np.where(finite[:, None], slope_x, 0.0),
            "slope_y": np.where(finite[:, None], slope_y, 0.0),
            "hessian": self._first_hessian(slope_x, slope_y),
            "is_exact": zeros > 0.0,  # whether the Hessian was computed here
            "price": zeros.copy(),  # calls since the last exact Hessian, or the start
            "radius_x": 1.0 + norm(x),
            "radius_y": 1.0 + norm(y),
            "failures": zeros.copy(),  # steps in a row
            "is_saddle": zeros > 0.0,  # of the maximum over y, to be left
            "infinite": zeros > 0.0,
            "prox": zeros + self._first_prox,
            "center": y.copy(),
            "moved": zeros + math.inf,  # by the last center
            "start_y": 1.0 + norm(y),
            "reach_y": 1.0 + norm(y),  # or where the first exact model has its maximum
        }
        self._state["norm_x"] = self._x.mapping_norm(x, self._state["slope_x"])
        self._state["norm_y"] = self._y.mapping_norm(y, -self._state["slope_y"])
        self._state["norm_then"] = self._larger_norm()  # where the price was zero

    def _first_hessian(self, slope_x: Array, slope_y: Array) -> Array:
        """One by which a Newton step is a unit gradient step; the updates learn the rest."""
        if not self._has_matrix:
            return np.zeros((len(slope_x), 0, 0))
        signs = np.repeat([1.0, -1.0], [self._x.size, self._y.size])
        sizes = np.repeat(
            np.stack([norm(slope_x), norm(slope_y)], 1), [self._x.size, self._y.size], 1
        )
        curved = signs * np.where(np.isfinite(sizes) & (sizes > 0.0), sizes, 1.0)
        first: Array = np.eye(len(signs)) * curved[:, None, :]
        return first

    # One attempt at a step.

    def _attempt(self) -> Mask:
        """Try one step of every row; returns which of them were accepted."""
        moving = self._moving()
        self._refresh_hessian(moving)
        self._update_prox(moving)
        model = self._model()
        plan = self._plan(model, moving)
        trial = self._try(model, plan)
        is_blurred = np.where(plan.alone, trial.gained, plan.promised) <= plan.noise
        accepted = self._accept(plan, trial, is_blurred)
        self._resize(plan, trial, accepted)
        self._end_hopeless(plan, trial, accepted, model.is_concave, is_blurred)
        return accepted

    def _model(self) -> Any:
        """The quadratic model of f here, with the proximal term."""
        state, n = self._state, self._x.size
        hessian = state["hessian"]
        return Model(
            *(self._x, self._y, state["x"], state["y"], state["slope_x"]),
            self._pulled(state["slope_y"], state["y"]),
            *(hessian[:, :n, :n], hessian[:, n:, :n], self._held(-hessian[:, n:, n:])),
        )

    def _plan(self, model: Any, moving: Mask) -> _Plan:
        """Where the bracket is not short, y moves alone; else both do."""
        state = self._state
        first = state["is_exact"] & model.is_concave & (state["reach_y"] == state["start_y"])
        if first.any():
            reach = 1.0 + norm(state["y"] + model.answer(model.b, state["y"])[0])
            reach = np.maximum(reach, state["reach_y"])
            state["reach_y"] = np.where(first, reach, state["reach_y"])
        d, s, promised, gap = model.step(state["radius_x"])
        base = self._with_prox(state["value"], state["y"])
        noise = self._noise(base)
        # If f cannot tell, the player with the larger norm moves.
        norm_y = self._held_norm(state["y"], state["slope_y"], state["norm_y"])
        blurred = np.maximum(promised, gap) <= noise
        is_long = np.where(blurred, norm_y > state["norm_x"], gap > _SHORT * promised)
        alone = ~model.is_concave | is_long
        return _Plan(moving, alone, d, s, promised, gap, base, noise)

    def _try(self, model: Any, plan: _Plan) -> _Trial:
        """Take a step of x and maximize over y there.

        A row is done when its bracket is as short as the goal, when the lower end of it is above
        the limit, or when y cannot gain any more.
        """
        state, radius, alone = self._state, self._state["radius_y"], plan.alone
        x = np.where(alone[:, None], state["x"], self._x.nearest(state["x"] + plan.d))
        y, slope, value = state["y"], model.b, np.where(alone, plan.base, -math.inf)
        ahead, expected, goal, limit = plan.s, plan.noise, plan.goal, plan.limit
        if alone.any():
            rise, expected, _ = model.rise(slope, y, radius)
            ahead = np.where(alone[:, None], rise, ahead)
        ahead = self._y.nearest(y + ahead)
        pending, price, lost = plan.moving.copy(), np.zeros(len(x)), np.zeros_like(alone)
        learns = ~state["is_exact"]
        for k in range(_MOST_RISES):
            price = price + pending
            found, new_slope = self._f.at(x, ahead)
            found, new_slope = self._with_prox(found, ahead), self._pulled(new_slope, ahead)
            finite = np.isfinite(found + new_slope.sum(1))
            first = pending & (value == -math.inf)
            gained = np.where(first, 0.0, found - value)
            better = pending & finite & (first | (gained >= _ENOUGH * expected - plan.noise))
            usable = pending & finite & ~first & learns
            if usable.any():
                model.learn(usable, ahead - y, new_slope - slope)
            length = norm(ahead - y)
            wider = better & ~first & (gained >= _GOOD * expected) & (length >= 0.5 * radius)
            narrower = pending & ~first & ~better
            radius = np.where(wider, _WIDER * radius, np.where(narrower, length / _SHRINK, radius))
            y = np.where(better[:, None], ahead, y)
            slope = np.where(better[:, None], new_slope, slope)
            value = np.where(better, found, value)
            model.move(x, ahead)
            rise, expected, gap = model.rise(slope, y, radius)
            # f or its gradient may be infinite on the border of a set: try once a little inside.
            inside = first & ~finite & (k == 0)
            tiny = radius <= self._eps * (1.0 + norm(y))
            reach = np.where(state["is_exact"], _FAR * state["start_y"], _AWAY * state["reach_y"])
            gone = norm(y) > reach
            lost |= pending & gone & ~state["is_exact"]
            over = (gap <= goal) | (value > limit) | tiny | gone | (first & ~finite)
            pending &= (~over | inside) & ~(alone & (k >= _MOST_ALONE))
            if not pending.any():
                break
            self.counters.inner_steps += 1
            ahead = np.where(pending[:, None], self._y.nearest(y + rise), y)
            if inside.any():
                back = inside[:, None]
                x = np.where(back, self._x.nearest(state["x"] + _INSIDE * (x - state["x"])), x)
                nearer = self._y.nearest(state["y"] + _INSIDE * plan.s)
                ahead = np.where(back, nearer, ahead)
        self._keep_concavity(model, learns)
        without = value + (value - self._with_prox(value, y))
        unfinished = np.where(alone, ~(gap <= goal), pending)
        gained = value - plan.base
        return _Trial(x, y, without, gained, gap, radius, unfinished, lost, price)

    def _keep_concavity(self, model: Any, rows: Mask) -> None:
        """Keep what the model has learned of f in y."""
        state, n = self._state, self._x.size
        if rows.any():
            learned = self._held(np.zeros_like(model.concavity)) - model.concavity
            hessian = state["hessian"].copy()
            hessian[:, n:, n:] = np.where(rows[:, None, None], learned, hessian[:, n:, n:])
            state["hessian"] = hessian

    def _accept(self, plan: _Plan, trial: _Trial, is_blurred: Mask) -> Mask:
        """Move the rows whose step has passed; returns who moved."""
        state, alone = self._state, plan.alone
        falls = plan.base + trial.gained + trial.gap <= plan.limit
        passed = plan.moving & ~trial.lost & np.where(alone, trial.gained > -plan.noise, falls)
        if not passed.any():
            return passed
        if not np.array_equal(self._f.point[1], trial.y):  # y has gone back
            self._f.at(trial.x, trial.y)
        slope_x, slope_y = self._f.gradients()
        finite = np.isfinite(trial.value + slope_x.sum(1) + slope_y.sum(1))
        # Where f cannot tell any more, a step has to lower the norm of who moves.
        new_x = self._x.mapping_norm(trial.x, slope_x)
        new_y = self._y.mapping_norm(trial.y, -slope_y)
        before = self._held_norm(state["y"], state["slope_y"], state["norm_y"])
        after = self._held_norm(trial.y, slope_y, new_y)
        before = np.where(alone, before, np.maximum(before, state["norm_x"]))
        lower = np.where(alone, after, np.maximum(after, new_x)) < _CLEAR * before
        accepted: Mask = passed & finite & (~is_blurred | lower)
        changes = (
            (trial.x, state["x"]),
            (trial.y, state["y"]),
            (slope_x, state["slope_x"]),
            (slope_y, state["slope_y"]),
        )
        learned = [np.where(accepted[:, None], new - old, 0.0) for new, old in changes]
        state["is_exact"] &= ~accepted
        state["is_saddle"] &= ~accepted
        names = ("x", "y", "slope_x", "slope_y")
        for name, (new, old) in zip(names, changes, strict=True):
            state[name] = np.where(accepted[:, None], new, old)
        for name, number in (("value", trial.value), ("norm_x", new_x), ("norm_y", new_y)):
            state[name] = np.where(accepted, number, state[name])
        if self._updates:
            self._learn(*learned)
        return accepted

    def _resize(self, plan: _Plan, trial: _Trial, accepted: Mask) -> None:
        """Change the trust regions and the counts after a trial."""
        state, alone, promised = self._state, plan.alone, plan.promised
        failed = plan.moving & ~accepted
        radius, length = state["radius_x"], norm(plan.d)
        reached = plan.gap - trial.gained - trial.gap
        wider = accepted & (reached >= _GOOD * promised) & (length >= 0.5 * radius)
        poor = accepted & (reached < _POOR * promised) & (promised > plan.noise)
        new = np.where(wider, _WIDER * radius, np.where(poor, 0.5 * length, radius))
        # Below the rounding of f a new Hessian is needed, not a shorter step.
        wrong = failed & ((promised > plan.noise) | state["is_exact"])
        new = np.where(wrong, np.where(length > 0.0, length, radius) / _SHRINK, new)
        state["radius_x"] = np.where(plan.moving & ~alone, new, radius)
        keep = accepted | (plan.moving & alone)
        state["radius_y"] = np.where(keep, trial.radius_y, state["radius_y"])
        # Whether f is NaN or Inf a little farther: so it is until a step gets far again.
        far = accepted & ~alone & (length > norm(state["x"]))
        state["infinite"] = (state["infinite"] & ~far) | (plan.moving & ~np.isfinite(trial.value))
        more = np.where(alone & accepted, state["failures"], 0.0)
        state["failures"] = np.where(failed, state["failures"] + 1.0, more)
        worthless = plan.moving & (trial.lost | (trial.unfinished & ~alone))
        price = state["price"] + trial.price + accepted
        state["price"] = np.where(worthless, math.inf, price)

    def _learn(self, moved_x: Array, moved_y: Array, changed_x: Array, changed_y: Array) -> None:
        """Update the Hessians by steps and changes of the gradients; no step changes nothing.

        Broyden's update for f_yx, by the gradient of x where y has moved alone, and BFGS for the
        Hessian of the maximum over y. That of f in y has learned while y climbed.
        """
        state, n = self._state, self._x.size
        hessian = state["hessian"]
        f_xx, f_yx, c = hessian[:, :n, :n], hessian[:, n:, :n], -hessian[:, n:, n:]
        alone: Mask = ~np.asarray(moved_x.any(1))
        missed_x = changed_x - times(f_yx.swapaxes(1, 2), moved_y)
        missed_y = changed_y + times(c, moved_y) - times(f_yx, moved_x)
        left = np.where(alone[:, None], moved_y, missed_y)
        right = np.where(alone[:, None], missed_x, moved_x)
        size = np.where(alone, dot(moved_y, moved_y), dot(moved_x, moved_x))
        turn = left[:, :, None] * right[:, None, :]
        f_yx = f_yx + turn / np.maximum(size, 1e-300)[:, None, None]
        along = f_yx.swapaxes(1, 2) @ self._follows(c, f_yx)
        along = 0.5 * (along + along.swapaxes(1, 2))
        target = changed_x - times(f_yx.swapaxes(1, 2), moved_y) + times(along, moved_x)
        reduced = definite_update(f_xx + along, moved_x, target)
        f_xx = np.where(alone[:, None, None], f_xx, reduced - along)
        x_rows = np.concatenate([f_xx, f_yx.swapaxes(1, 2)], 2)
        new = np.concatenate([x_rows, np.concatenate([f_yx, -c], 2)], 1)
        state["hessian"] = np.where(_is_sane(new)[:, None, None], new, hessian)

    def _follows(self, c: Array, f_yx: Array) -> Array:
        """How y follows x along its face."""
        state = self._state
        c, b = self._held(c), self._pulled(state["slope_y"], state["y"])
        length = 1.0 / np.maximum(np.linalg.norm(c, axis=(1, 2)), 1e-300)
        face = self._y.face(state["y"] + length[:, None] * b)
        return solve_many(face.system(c, length), length[:, None, None] * face.along(f_yx))

    def _end_hopeless(
        self, plan: _Plan, trial: _Trial, accepted: Mask, is_concave: Mask, is_blurred: Mask
    ) -> None:
        """End the rows that get no further, and say why."""
        state, moving = self._state, plan.moving
        norm_y = norm(state["y"])
        upwards = moving & ~is_concave & (norm_y > _UPWARDS * state["start_y"])
        self._give_up(upwards, "f curves upwards in y", "curves up")
        far = moving & (norm_y > _FAR * state["start_y"])
        self._give_up(far, "y runs away", "runs away")
        limited = ~plan.alone & (norm(plan.d) >= 0.5 * state["radius_x"])
        blurred = moving & state["is_exact"] & is_blurred & ~limited & ~accepted
        # The problem with this center is solved as far as rounding allows: take the next one.
        size = np.linalg.norm(state["hessian"], axis=(1, 2))
        due = (
            blurred & (state["prox"] > _LEAST_PROX * size) & (state["y"] != state["center"]).any(1)
        )
        state["center"] = np.where(due[:, None], state["y"], state["center"])
        state["prox"] = np.where(due, _SHRINK_PROX * state["prox"], state["prox"])
        blurred &= ~due
        # Where the trust region is down at the precision, the model was wrong, as at a kink.
        shrunk = blurred & (state["radius_x"] <= 100.0 * self._eps * (1.0 + norm(state["x"])))
        stuck = moving & (state["failures"] >= _STUCK)
        # y may have no maximum that x can follow: hold it by a proximal term.
        away = norm_y > _AWAY * state["reach_y"]
        endless = plan.alone & trial.unfinished & is_concave & away
        hold = moving & (stuck | endless) & (state["prox"] == 0.0)
        stuck &= ~hold
        if hold.any():
            start = state["center"]  # where y was before it climbed
            self._hold(hold)
            state["center"] = np.where((hold & endless)[:, None], start, state["center"])
        infinite = state["infinite"] & (shrunk | stuck)
        self._give_up(infinite, "f is not finite where a step leads", "not finite")
        shrunk |= blurred & ~self._is_coarse()
        self._give_up(shrunk, "no step lowers the maximum over y", "stalled")
        self._give_up(blurred, "a step would change f by less than rounding does", "rounding")
        self._give_up(stuck, "no step lowers the maximum over y", "stalled")

    def _give_up(
        self,
        rows: Mask,
        sentence: str,
        kind: Literal["stalled", "curves up", "runs away", "rounding", "not finite"],
    ) -> None:
        rows = rows & ~self._is_solved()
        if not rows.any():
            return
        reason = NoProgress(sentence, kind)
        if not self.rowwise:
            raise reason
        for row in rows.nonzero()[0].tolist():
            self.ended.setdefault(row, reason)

    def escape(self, rows: Mask) -> Mask:
        """Leave saddles of the maximum over y along negative curvature, with the next step.

        Returns:
            The rows that can; no step has led away from the others.
        """
        state = self._state
        rows = rows & ~state["is_saddle"]
        state["is_saddle"] |= rows
        state["is_exact"] &= ~rows
        state["price"] = np.where(rows, math.inf, state["price"])
        state["radius_x"] = np.where(rows, 1.0 + norm(state["x"]), state["radius_x"])
        state["failures"] = np.where(rows, 0.0, state["failures"])
        return rows

    # The proximal term.

    def _with_prox(self, value: Array, y: Array) -> Array:
        apart = y - self._state["center"]
        total: Array = value - 0.5 * self._state["prox"] * dot(apart, apart)
        return total

    def _pulled(self, slope_y: Array, y: Array) -> Array:
        pulled: Array = slope_y - self._state["prox"][:, None] * (y - self._state["center"])
        return pulled

    def _held_norm(self, y: Array, slope_y: Array, without: Array) -> Array:
        """The norm of y's gradient mapping with the proximal term."""
        if not self._state["prox"].any():
            return without
        return self._y.mapping_norm(y, -self._pulled(slope_y, y))

    def _held(self, minus_f_yy: Array) -> Array:
        held: Array = minus_f_yy + self._state["prox"][:, None, None] * np.eye(self._y.size)
        return held

    def _hold(self, rows: Mask) -> None:
        """Begin with a proximal term in these rows."""
        state = self._state
        size = np.linalg.norm(state["hessian"][:, :, : self._x.size], axis=(1, 2))
        state["prox"] = np.where(rows, _PROX * np.where(size > 0.0, size, 1.0), state["prox"])
        state["center"] = np.where(rows[:, None], state["y"], state["center"])
        state["radius_x"] = np.where(rows, 1.0 + norm(state["x"]), state["radius_x"])
        state["failures"] = np.where(rows, 0.0, state["failures"])

    def _update_prox(self, moving: Mask) -> None:
        """Hold y where f is concave in it, but not strongly; move the centers that are due."""
        state, n = self._state, self._x.size
        minus_f_yy = -state["hessian"][:, n:, n:]
        held = state["prox"] > 0.0
        size = np.linalg.norm(state["hessian"], axis=(1, 2))
        known = moving & state["is_exact"] & ~held
        if known.any():
            # In units of y in which f curves by one along every coordinate.
            curved = np.abs(np.diagonal(minus_f_yy, axis1=1, axis2=2))
            unit = 1.0 / np.sqrt(np.where(curved > 0.0, curved, 1.0))
            least = least_curvature(
                unit[:, :, None] * minus_f_yy * unit[:, None, :], np.full(len(size), _FLAT)
            )
            flat = known & (least <= 0.0)
            if self._y.home is not None and flat.any():
                length = 1.0 / np.maximum(size, 1e-300)
                face = self._y.face(state["y"] + length[:, None] * state["slope_y"])
                least = np.minimum(face.curvature(minus_f_yy, length), 0.0) / size
            flat &= least >= -2.0 * _FLAT
            if flat.any():
                self._hold(flat)
        if held.any():
            self._move_centers(moving, size)

    def _move_centers(self, moving: Mask, size: Array) -> None:
        """Move a center when its problem is solved, relative to the way of y or to tol."""
        state = self._state
        apart = state["y"] - state["center"]
        pull = state["prox"] * norm(apart)
        slope = state["prox"][:, None] * apart - state["slope_y"]
        both = np.maximum(state["norm_x"], self._y.mapping_norm(state["y"], slope))
        solved = moving & (state["prox"] > 0.0) & (both <= 0.1 * np.maximum(pull, self.tol))
        state["center"] = np.where(solved[:, None], state["y"], state["center"])
        slow = solved & (norm(apart) > _SHRINK_PROX * state["moved"])
        state["moved"] = np.where(solved, norm(apart), state["moved"])
        lower = np.maximum(_SHRINK_PROX * state["prox"], _LEAST_PROX * size)
        state["prox"] = np.where(slow, np.minimum(lower, state["prox"]), state["prox"])

    # What is known of f.

    def _noise(self, base: Array) -> Array:
        """The rounding error of f, from the size of the terms that its expansion has."""
        state = self._state
        point = np.abs(np.concatenate([state["x"], state["y"]], 1))
        slope = np.abs(np.concatenate([state["slope_x"], state["slope_y"]], 1))
        bend: Array = np.zeros(len(base))
        if self._has_matrix:
            bend = 0.5 * dot(point, times(np.abs(state["hessian"]), point))
        errors: Array = _ROUNDING * self._eps * (np.abs(base) + dot(slope, point) + bend)
        return errors

    def _is_coarse(self) -> Mask:
        """Whether the norms may be due to rounding."""
        state = self._state
        if not self._has_matrix:
            return np.ones(1, dtype=bool)
        point = np.abs(np.concatenate([state["x"], state["y"]], 1))
        terms = norm(times(np.abs(state["hessian"]), point))
        coarse: Mask = self._larger_norm() <= _COARSE * self._eps * terms
        return coarse

    def _refresh_hessian(self, moving: Mask) -> None:
        """Compute the Hessians again where updates have gained too little for their price."""
        state = self._state
        price = 4 * (self._x.size + self._y.size)
        now = self._larger_norm()
        worth = min(price, _WORTH) if self._updates else 0
        due = state["price"] >= worth
        gains = due & (now <= _GAIN * state["norm_then"]) & (worth > 0)
        failing = state["failures"] >= DOUBT
        stale = moving & ~state["is_exact"] & ((due & ~gains) | failing)
        state["price"] = np.where(gains, 0.0, state["price"])
        state["norm_then"] = np.where(gains, now, state["norm_then"])
        if not self._is_checked and (failing & state["is_exact"]).any():
            self._is_checked = True
            self._f.doubt(state["x"], state["y"], state["hessian"])
            stale |= moving & (not self._f.are_second)
        limit = self.counters.max_calls
        if not stale.any() or (limit is not None and self.counters.total_calls + price + 2 > limit):
            return
        hessian = self._f.hessian(state["x"], state["y"])
        known = stale & _is_sane(hessian)
        state["hessian"] = np.where(known[:, None, None], hessian, state["hessian"])
        state["is_exact"] |= stale
        # The failures were those of the model before.
        grown = np.minimum(state["radius_x"] * _SHRINK ** state["failures"], 1.0 + norm(state["x"]))
        state["radius_x"] = np.where(stale, np.maximum(grown, state["radius_x"]), state["radius_x"])
        for name, new in (("failures", 0.0), ("price", 0.0), ("norm_then", now)):
            state[name] = np.where(stale, new, state[name])


def _is_sane(hessian: Array) -> Mask:
    """Which matrices can be factorized without overflow."""
    sane: Mask = np.asarray((np.abs(hessian) < 1e150).all((1, 2)))
    return sane
