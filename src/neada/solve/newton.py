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
from neada.solve.geometry import Array, Mask, Side, dot, norm, solve, times
from neada.solve.model import Model, face_step
from neada.steppers.base import Closure, Step
from neada.steppers.direct import DirectStepper
from neada.tensors import raise_non_finite

__all__ = ["Newton"]

_SHORT = 0.1  # the bracket is short if it is at most this share of the promised decrease
_ENOUGH = 0.05  # share of the promised decrease that a step has to reach
_POOR, _GOOD = 0.25, 0.75  # shares below and above which the trust region changes
_GROWTH = 4.0  # of the trust region, and of its decrease after a step that failed
_CORRECTIONS = 20  # of y for one trial; each of them at least halves the gap
_INSIDE = 0.9  # share of a step to the border of a set, if f is infinite there
_FLAT = 1e-9  # a smaller curvature, relative to that along the coordinates, may be rounding
_PROX = 0.1  # the first proximal weight as a share of the Hessian's norm
_SHRINK_PROX = 0.1  # of the proximal weight, unless its centers converge at that rate
_LEAST_PROX = 1e-10  # as a share of the Hessian's norm, where rounding would take over
_FAR = 1e9  # y runs away if it is this many times farther out than at the start
_AWAY = 1e2  # y is held by a proximal term if its maximum is this many times farther out
_GONE = 30.0  # y goes far at first if it is this many times farther out
_UPWARDS = 1e3  # where f curves upwards in y that far out, y has no maximum
_DIGIT = 0.1  # what a Hessian's worth of calls must gain
_FAILURES = 4  # steps in a row that fail before an updated Hessian is computed again
_DOUBT = 4  # steps in a row that fail before the Hessian is compared with differences
_STUCK = 25  # steps in a row that fail: the trust region is down by the precision
_CLEAR = 0.9  # a norm that falls by less may do so by rounding
_ROUNDING = 10.0  # rounding errors of f in units of the precision and of the size of its terms


class _Trial(NamedTuple):
    """A step of every row and what it was expected and found to do.

    Attributes:
        alone: The rows in which y moves alone.
        promised: The decrease of the maximum over y, or with y alone the increase of f.
        gap: The length of the bracket at the start of the step.
        noise: The rounding error of f.
        x, y, value: Where the step ends, and f there.
        length_x, length_y: The lengths of the steps.
        reached: The decrease or increase that was found.
        accepted: The rows that keep the step.
        price: The evaluations of f.
    """

    alone: Mask
    promised: Array
    gap: Array
    noise: Array
    x: Array
    y: Array
    value: Array
    length_x: Array
    length_y: Array
    reached: Array
    accepted: Mask
    price: Array


class Newton(DirectStepper):
    r"""Newton's method in a trust region for :math:`\Phi(x) = \max_y f(x, y)`.

    .. math::
        d_t = \arg\min_{|d| \le r_t} g_t \cdot d + \tfrac12\, d \cdot S_t d, \qquad
        x_{t+1} = P(x_t + d_t), \qquad
        y_{t+1} \approx \arg\max_y f(x_{t+1}, y) - \tfrac{\rho}{2}\|y - c\|^2

    with the gradient g and the Hessian S of the maximum over y, and :math:`\rho = 0` where f is
    strongly concave in y. Sets are handled by Newton steps in the face that the projected gradient
    reaches. Hessians are updated by secants while that gains a digit for the price of a Hessian.

    Required problem constants: none.

    Guarantees: an accepted step lowers :math:`\Phi`, plus the proximal term, as far as its bracket
    shows; a point that is accepted again and again is a stationary one if f is smooth.

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
            for numbers in (state["value"], *self._norms())
        )
        prox = state["prox"].max()
        words = f"proximal weight {prox:g}" if prox else ""
        if self.rowwise:
            return value, norm_x.square(), norm_y.square(), words
        return value[0], norm_x.item() ** 2, norm_y.item() ** 2, words

    def state_dict(self) -> dict[str, Any]:
        """Counters, and where every row is and what is known there."""
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._state.items()}
        return {**super().state_dict(), "rows": arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; the players must be where they were when it was saved."""
        super().load_state_dict(state_dict)
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

    def _norms(self) -> tuple[Array, Array]:
        """The norms of both gradient mappings, without a proximal term."""
        state = self._state
        return (
            self._x.mapping_norm(state["x"], state["slope_x"]),
            self._y.mapping_norm(state["y"], -state["slope_y"]),
        )

    def _is_solved(self) -> Mask:
        norm_x, norm_y = self._norms()
        solved: Mask = np.maximum(norm_x, norm_y) <= self.tol
        return solved

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
            "known_x": zeros > 0.0,
            "known_y": zeros > 0.0,
            "is_exact": zeros > 0.0,  # whether the Hessian is that of f here
            "price": zeros.copy(),  # calls since the last exact Hessian, or the start
            "norm_then": zeros.copy(),  # the larger norm there
            "radius_x": 1.0 + norm(x),
            "radius_y": 1.0 + norm(y),
            "trusted_x": 1.0 + norm(x),  # the radii at the last accepted step
            "trusted_y": 1.0 + norm(y),
            "failures": zeros.copy(),  # steps in a row
            "had_exact": zeros > 0.0,
            "is_blurred": zeros > 0.0,  # the last step promised less than rounding hides
            "is_saddle": zeros > 0.0,  # of the maximum over y, to be left
            "infinite": zeros > 0.0,
            "y_first": zeros > 0.0,  # y was too far from its maximum for a step of x
            "prox": zeros + self._first_prox,
            "center": y.copy(),
            "moved": zeros + math.inf,  # by the last center
            "start_y": 1.0 + norm(y),
            "reach_y": 1.0 + norm(y),  # or where the first exact model has its maximum
        }
        self._state["norm_then"] = np.maximum(*self._norms())

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
        moving, state = self._moving(), self._state
        self._refresh_hessian(moving)
        trial = self._try(*self._propose(moving), moving)
        accepted, alone = trial.accepted, trial.alone
        if accepted.any():
            self._accept(trial)
        elif self._has_matrix and not (self.rowwise or state["is_exact"].any()):
            x, y = self._f.point
            slope_x, slope_y = self._f.gradients()
            if np.isfinite(slope_x.sum() + slope_y.sum()):
                self._learn(
                    x - state["x"],
                    y - state["y"],
                    slope_x - state["slope_x"],
                    slope_y - state["slope_y"],
                )
        ratio = trial.reached / trial.promised
        # Steps that are short for another reason than that the model has no more to gain.
        limited = state["y_first"] | (~alone & (trial.length_x >= 0.5 * state["radius_x"]))
        for name, mine, step in (
            ("radius_x", ~alone, trial.length_x),
            ("radius_y", alone, trial.length_y),
        ):
            radius = state[name]
            wider = accepted & (ratio >= _GOOD) & (step >= 0.5 * radius)
            poor = accepted & (ratio < _POOR) & (trial.promised > trial.noise)
            new = np.where(wider, _GROWTH * radius, np.where(poor, 0.5 * step, radius))
            new = np.where(accepted, new, np.where(step > 0.0, step, radius) / _GROWTH)
            state[name] = np.where(moving & mine, new, radius)
            trusted = f"trusted_{name[-1]}"
            state[trusted] = np.where(accepted, state[name], state[trusted])
        # Whether f is NaN or Inf a little farther: so it is until a step gets far again.
        far = accepted & (trial.length_x > norm(state["x"]))
        state["infinite"] = (state["infinite"] & ~far) | (moving & ~np.isfinite(trial.reached))
        failed = moving & ~accepted
        state["y_first"] = failed & ~alone & (trial.gap > _SHORT * trial.promised)
        more = np.where(alone & accepted, state["failures"], 0.0)
        state["failures"] = np.where(failed, state["failures"] + 1.0, more)
        state["price"] = state["price"] + trial.price + accepted
        state["is_blurred"] = trial.promised <= trial.noise
        self._look(moving, trial, limited)
        return accepted

    def _propose(self, moving: Mask) -> tuple[Any, Mask, Array, Array, Array, Array]:
        """The model, where y moves alone, both steps, what they promise, and the bracket."""
        state, n = self._state, self._x.size
        f_xx, f_yx = state["hessian"][:, :n, :n], state["hessian"][:, n:, :n]
        minus_f_yy = -state["hessian"][:, n:, n:]
        self._update_prox(moving, minus_f_yy)
        identity = np.eye(self._y.size)
        concavity = minus_f_yy + state["prox"][:, None, None] * identity
        b = state["slope_y"] - state["prox"][:, None] * (state["y"] - state["center"])
        size = np.linalg.norm(concavity, axis=(1, 2))
        least = least_curvature(concavity, 1e-14 * size)
        if (state["is_exact"] & (least > 0.0)).any():
            safe = np.where((least > 0.0)[:, None, None], concavity, identity)
            far = np.where(
                state["is_exact"] & (least > 0.0) & (state["reach_y"] == state["start_y"]),
                norm(solve(safe, b)),
                0.0,
            )
            state["reach_y"] = np.maximum(state["reach_y"], far)
        face = self._y.face(state["y"] + b / np.maximum(size, 1e-300)[:, None])
        concave = (least if self._y.home is None else face.curvature(concavity)) > 0.0
        # In other faces f may curve upwards; the model needs a definite matrix in all of them.
        lift = np.where(least > 0.0, 0.0, 1e-3 * size - least)
        definite = np.where(
            concave[:, None, None], concavity + lift[:, None, None] * identity, identity
        )
        model = Model(
            self._x, self._y, state["x"], state["y"], state["slope_x"], b, f_xx, f_yx, definite
        )
        d, s, promised, gap = model.step(state["radius_x"])
        alone = ~concave | state["y_first"] | (promised <= _SHORT * gap)
        if alone.any():
            up = face_step(self._y, state["y"], -b, concavity, state["radius_y"])
            up = self._y.project(state["y"] + up) - state["y"]
            gain = dot(b, up) - 0.5 * dot(up, times(concavity, up))
            d, s = np.where(alone[:, None], 0.0, d), np.where(alone[:, None], up, s)
            promised = np.where(alone, gain, promised)
        self._concave = concave
        return model, alone, d, s, promised, gap

    def _try(
        self,
        model: Any,
        alone: Mask,
        d: Array,
        s: Array,
        promised: Array,
        gap: Array,
        moving: Mask,
    ) -> _Trial:
        """Evaluate f after a step, and correct y until the bracket there is short."""
        state = self._state
        base = self._with_prox(state["value"], state["y"])
        x, y = self._x.nearest(state["x"] + d), self._y.nearest(state["y"] + s)
        noise = self._noise(base)
        highest = base + 1.5 * gap - _ENOUGH * promised + noise
        pending, accepted = moving.copy(), np.zeros_like(moving)
        last, reached = np.full(len(x), math.inf), np.zeros(len(x))
        price = np.zeros(len(x))
        last_y, last_slope, was_finite = y, np.zeros_like(y), np.zeros_like(moving)
        for k in range(_CORRECTIONS):
            price = price + pending
            value, slope = self._f.at(x, y)
            self._renew(model, x, y)
            lower = self._with_prox(value, y)
            slope = slope - state["prox"][:, None] * (y - state["center"])
            finite = np.isfinite(lower + slope.sum(1))
            slope = np.where(finite[:, None], slope, 0.0)
            if self._has_matrix:
                usable = pending & finite & was_finite
                self._learn_y(model, usable, y - last_y, slope - last_slope)
            last_y, last_slope, was_finite = y, slope, finite
            more, now = model.answer(slope, y)
            short = now <= _SHORT * np.maximum(promised, gap) + noise
            rises = lower >= base + _ENOUGH * promised - noise
            passes = np.where(alone, rises, short & (lower + now <= highest)) & finite
            change = np.where(alone, lower - base, base + gap - lower - now)
            reached = np.where(pending, change, reached)
            accepted |= pending & passes
            # f or its gradient may be infinite on the border of a set: try once a little inside.
            inside = (pending & ~finite & (k == 0))[:, None]
            hopeless = ~inside[:, 0] & (
                ~finite | alone | (lower > highest) | short | (now > 0.5 * last)
            )
            pending &= ~passes & ~hopeless
            if not pending.any():
                break
            self.counters.inner_steps += 1
            last = np.where(pending & finite, now, last)
            x = np.where(inside, self._x.nearest(state["x"] + _INSIDE * (x - state["x"])), x)
            nearer = np.where(inside, state["y"] + _INSIDE * (y - state["y"]), y + more)
            y = np.where(pending[:, None], self._y.nearest(nearer), y)
        lengths = norm(d), norm(s)
        return _Trial(alone, promised, gap, noise, x, y, value, *lengths, reached, accepted, price)

    def _renew(self, model: Any, x: Array, y: Array) -> None:
        """The model of a step serves for the corrections of y, too."""

    def _learn_y(self, model: Any, rows: Mask, moved: Array, changed: Array) -> None:
        """Update the Hessian in y by a correction, on which x stays."""
        state, n = self._state, self._x.size
        rows = rows & ~state["is_exact"] & (dot(moved, changed) < 0.0)
        if not rows.any():
            return
        concavity = np.where(
            (rows & ~state["known_y"])[:, None, None],
            scaled(model.concavity, moved, -changed),
            model.concavity,
        )
        new = definite_update(concavity, moved, -changed)
        state["known_y"] |= rows
        model.concavity = np.where(rows[:, None, None], new, model.concavity)
        model.length = 1.0 / np.linalg.norm(model.concavity, axis=(1, 2))
        held = state["prox"][:, None, None] * np.eye(self._y.size)
        block = state["hessian"][:, n:, n:]
        state["hessian"][:, n:, n:] = np.where(rows[:, None, None], held - model.concavity, block)

    def _learn(self, moved_x: Array, moved_y: Array, changed_x: Array, changed_y: Array) -> None:
        """Update the Hessians by a step of both players; a row that has not moved keeps its own."""
        state, n = self._state, self._x.size
        hessian = state["hessian"]
        f_xx, f_yx, c = hessian[:, :n, :n], hessian[:, n:, :n], -hessian[:, n:, n:]
        size_x, size_y = dot(moved_x, moved_x), dot(moved_y, moved_y)
        alone = (size_x == 0.0) & (size_y > 0.0)
        both = size_x > 0.0
        if alone.any():
            first = alone & ~state["known_y"]
            start = np.where(first[:, None, None], scaled(c, moved_y, -changed_y), c)
            c = np.where(alone[:, None, None], definite_update(start, moved_y, -changed_y), c)
            missed = changed_x - times(f_yx.swapaxes(1, 2), moved_y)
            turn = (
                moved_y[:, :, None] * missed[:, None, :] / np.maximum(size_y, 1e-300)[:, None, None]
            )
            f_yx = np.where(alone[:, None, None], f_yx + turn, f_yx)
            state["known_y"] |= alone
        if both.any():
            missed = changed_y + times(c, moved_y) - times(f_yx, moved_x)
            turn = (
                missed[:, :, None] * moved_x[:, None, :] / np.maximum(size_x, 1e-300)[:, None, None]
            )
            f_yx = np.where(both[:, None, None], f_yx + turn, f_yx)
            follows = self._follows(c, f_yx)
            along = f_yx.swapaxes(1, 2) @ follows
            target = changed_x - times(f_yx.swapaxes(1, 2), moved_y) + times(along, moved_x)
            s = f_xx + along
            first = both & ~state["known_x"]
            s = np.where(first[:, None, None], scaled(s, moved_x, target), s)
            s = definite_update(s, moved_x, target)
            f_xx = np.where(both[:, None, None], s - 0.5 * (along + along.swapaxes(1, 2)), f_xx)
            state["known_x"] |= both
        state["hessian"] = np.concatenate(
            [np.concatenate([f_xx, f_yx.swapaxes(1, 2)], 2), np.concatenate([f_yx, -c], 2)], 1
        )

    def _follows(self, c: Array, f_yx: Array) -> Array:
        """How y follows x along its face."""
        state = self._state
        c = c + state["prox"][:, None, None] * np.eye(self._y.size)
        b = state["slope_y"] - state["prox"][:, None] * (state["y"] - state["center"])
        length = 1.0 / np.maximum(np.linalg.norm(c, axis=(1, 2)), 1e-300)
        face = self._y.face(state["y"] + length[:, None] * b)
        try:
            steps: Array = np.linalg.solve(
                face.system(c, length), length[:, None, None] * face.along(f_yx)
            )
        except np.linalg.LinAlgError:
            return np.zeros_like(f_yx)
        return steps

    def _accept(self, trial: _Trial) -> None:
        """Move the rows whose step was accepted, and update their Hessians."""
        state, accepted = self._state, trial.accepted
        slope_x, slope_y = self._f.gradients()
        # Where f cannot tell any more, a step has to lower the norm of who moves.
        blurred = accepted & (trial.promised <= trial.noise)
        old_x, old_y = self._norms()
        new_x = self._x.mapping_norm(trial.x, slope_x)
        new_y = self._y.mapping_norm(trial.y, -slope_y)
        lower = np.where(
            trial.alone,
            new_y < _CLEAR * old_y,
            np.maximum(new_x, new_y) < _CLEAR * np.maximum(old_x, old_y),
        )
        accepted &= np.isfinite(new_x + new_y) & (~blurred | lower)
        keep = accepted[:, None]
        moved = np.concatenate([trial.x - state["x"], trial.y - state["y"]], 1)
        changed = np.concatenate([slope_x - state["slope_x"], slope_y - state["slope_y"]], 1)
        moved, changed = np.where(keep, moved, 0.0), np.where(keep, changed, 0.0)
        n = self._x.size
        learn = (moved[:, :n], moved[:, n:], changed[:, :n], changed[:, n:])
        state["is_exact"] &= ~accepted
        state["is_saddle"] &= ~accepted
        for name, new in (
            ("x", trial.x),
            ("y", trial.y),
            ("slope_x", slope_x),
            ("slope_y", slope_y),
        ):
            state[name] = np.where(keep, new, state[name])
        state["value"] = np.where(accepted, trial.value, state["value"])
        if self._has_matrix:
            self._learn(*learn)

    def _look(self, moving: Mask, trial: _Trial, limited: Mask) -> None:
        """Find the rows that get no further, and say why."""
        state = self._state
        norm_y = norm(state["y"])
        upwards = moving & ~self._concave
        at_rest = state["is_exact"] & ~limited & (trial.promised <= trial.noise)
        up = upwards & ((norm_y > _UPWARDS * state["start_y"]) | (at_rest & ~trial.accepted))
        self._give_up(up, "f curves upwards in y", "curves up")
        far = moving & (norm_y > _FAR * state["start_y"])
        self._give_up(far, "y runs away", "runs away")
        blurred = moving & ~trial.accepted & at_rest
        # The problem with this center is solved as far as rounding allows: take the next one.
        due = blurred & (state["prox"] > _LEAST_PROX) & (state["y"] != state["center"]).any(1)
        state["center"] = np.where(due[:, None], state["y"], state["center"])
        state["prox"] = np.where(due, _SHRINK_PROX * state["prox"], state["prox"])
        blurred &= ~due
        # Where the trust region is down at the precision, the model was wrong, as at a kink.
        shrunk = blurred & (state["radius_x"] <= 100.0 * self._eps * (1.0 + norm(state["x"])))
        stuck = moving & (state["failures"] >= _STUCK)
        # y may have no maximum that x can follow: hold it by a proximal term.
        away = trial.alone & self._concave & (norm_y > _AWAY * state["reach_y"])
        hold = moving & (stuck | away) & (state["prox"] == 0.0)
        # Only an exact Hessian tells that from a wrong model.
        state["price"] = np.where(hold & ~state["is_exact"], math.inf, state["price"])
        stuck &= ~hold | state["is_exact"]
        hold &= state["is_exact"]
        if hold.any():
            self._hold(hold)
        infinite = state["infinite"] & (shrunk | (stuck & ~hold))
        self._give_up(infinite, "f is not finite where a step leads", "not finite")
        self._give_up(shrunk, "no step lowers the maximum over y", "stalled")
        self._give_up(blurred, "a step would change f by less than rounding does", "rounding")
        self._give_up(stuck & ~hold, "no step lowers the maximum over y", "stalled")

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
        state["trusted_x"] = np.where(rows, 1.0 + norm(state["x"]), state["trusted_x"])
        state["failures"] = np.where(rows, 0.0, state["failures"])
        return rows

    # The proximal term.

    def _with_prox(self, value: Array, y: Array) -> Array:
        apart = y - self._state["center"]
        total: Array = value - 0.5 * self._state["prox"] * dot(apart, apart)
        return total

    def _hold(self, rows: Mask) -> None:
        """Begin with a proximal term in these rows."""
        state = self._state
        size = np.linalg.norm(state["hessian"][:, :, : self._x.size], axis=(1, 2))
        state["prox"] = np.where(rows, _PROX * np.where(size > 0.0, size, 1.0), state["prox"])
        state["center"] = np.where(rows[:, None], state["y"], state["center"])
        state["radius_x"] = np.where(rows, 1.0 + norm(state["x"]), state["radius_x"])
        state["failures"] = np.where(rows, 0.0, state["failures"])

    def _update_prox(self, moving: Mask, minus_f_yy: Array) -> None:
        """Hold y where f is concave in it, but not strongly; move the centers that are due."""
        state = self._state
        held = state["prox"] > 0.0
        size = np.linalg.norm(state["hessian"], axis=(1, 2))
        if not held.all():
            # In units of y in which f curves by one along every coordinate.
            curved = np.abs(np.diagonal(minus_f_yy, axis1=1, axis2=2))
            unit = 1.0 / np.sqrt(np.where(curved > 0.0, curved, 1.0))
            least = least_curvature(
                unit[:, :, None] * minus_f_yy * unit[:, None, :], np.full(len(size), _FLAT)
            )
            flat = least <= 0.0
            if self._y.home is not None and flat.any():
                point = state["y"] + state["slope_y"] / np.maximum(size, 1e-300)[:, None]
                least = np.minimum(self._y.face(point).curvature(minus_f_yy), 0.0) / size
            flat &= moving & ~held & (least >= -2.0 * _FLAT)
            state["price"] = np.where(flat & ~state["is_exact"], math.inf, state["price"])
            flat &= state["is_exact"]
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
        both = np.maximum(self._norms()[0], self._y.mapping_norm(state["y"], slope))
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

    def _refresh_hessian(self, moving: Mask) -> None:
        """Compute the Hessians again where updates have gained too little for the same price."""
        state = self._state
        price = 4 * (self._x.size + self._y.size)
        now = np.maximum(*self._norms())
        slow = (state["price"] >= price) & (now > _DIGIT * state["norm_then"])
        # If y goes far, f may be flat in y.
        slow |= ~state["had_exact"] & (norm(state["y"]) > _GONE * state["start_y"])
        first = state["price"] == math.inf
        if not self._is_checked and (state["failures"] >= _DOUBT).any():
            self._is_checked = True
            self._f.doubt(state["hessian"])
            state["is_exact"] &= self._f.are_second
        stale = moving & ~state["is_exact"] & (first | slow | (state["failures"] >= _FAILURES))
        limit = self.counters.max_calls
        affordable = limit is None or self.counters.total_calls + price + 2 <= limit
        if stale.any() and affordable:
            hessian = self._f.hessian(state["x"], state["y"])
            known = stale & np.isfinite(hessian).all((1, 2))
            state["hessian"] = np.where(known[:, None, None], hessian, state["hessian"])
            state["is_exact"] |= stale
            state["known_x"] |= stale
            state["known_y"] |= stale
            state["had_exact"] |= stale
            # Failures were those of the model before, and where f cannot tell, of nobody.
            for name in ("x", "y"):
                trusted = np.maximum(
                    state[f"trusted_{name}"],
                    np.where(state["is_blurred"], 1.0 + norm(state[name]), 0.0),
                )
                state[f"radius_{name}"] = np.where(stale, trusted, state[f"radius_{name}"])
            state["failures"] = np.where(stale, 0.0, state["failures"])
            state["price"] = np.where(stale, 0.0, state["price"])
            state["norm_then"] = np.where(stale, now, state["norm_then"])


def least_curvature(matrix: Array, floor: Array) -> Array:
    """By how much the least eigenvalues exceed a floor; infinite if all of them do."""
    shifted = matrix - floor[:, None, None] * np.eye(matrix.shape[1])
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        least: Array = np.linalg.eigvalsh(shifted)[:, 0]
        return least
    return np.full(len(matrix), math.inf)


def definite_update(matrix: Array, moved: Array, changed: Array) -> Array:
    """Map the step so: by BFGS where that stays definite, else by the least change (Powell)."""
    image = times(matrix, moved)
    bend, along = dot(moved, image)[:, None, None], dot(moved, changed)[:, None, None]
    size = np.maximum(dot(moved, moved), 1e-300)[:, None, None]
    missed = changed - image
    cross = missed[:, :, None] * moved[:, None, :]
    inner = dot(missed, moved)[:, None, None] / size
    least = (cross + cross.swapaxes(1, 2) - inner * moved[:, :, None] * moved[:, None, :]) / size
    bfgs = (
        changed[:, :, None] * changed[:, None, :] / along
        - image[:, :, None] * image[:, None, :] / bend
    )
    updated: Array = matrix + np.where((along > 1e-8 * bend) & (bend > 0.0), bfgs, least)
    return updated


def scaled(matrix: Array, moved: Array, changed: Array) -> Array:
    """A multiple of one that fits a first step (Nocedal & Wright 2006, section 6.1)."""
    along = dot(moved, changed)
    fits = dot(changed, changed) / np.where(along > 0.0, along, 1.0)
    unit: Array = np.eye(matrix.shape[1]) * fits[:, None, None]
    return np.where((along > 0.0)[:, None, None], unit, matrix)
