"""Spectral projected gradient: the step is the inverse curvature along the last move.

Barzilai & Borwein 1988; Birgin, Martinez & Raydan 2000. The safeguard by values needs no
evaluation of its own, since every gradient comes with its value.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_flags, check_number
from neada.optim.base import Active, Common, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import (
    Flag,
    Scalar,
    all_true,
    any_true,
    divide,
    is_finite,
    maximum,
    minimum,
    negate,
    sqrt,
    where,
)

__all__ = ["SPG"]

_SHORTEST, _LONGEST = 0.05, 20.0  # times the first step
_TOLERANCE = 10.0  # rounding units by which a value may be worse than the best
_NOISE = 100.0  # rounding units of the gradient in which a probe sees no curvature
_SMALL_GAIN = 0.01  # of all that was gained
_PROBE_LENGTH, _PROBE_GROWTH = 1e-3, 10.0


class SPG(PlayerOptimizer):
    r"""Projected gradient steps whose length is the inverse curvature along the last move.

    With the best point :math:`w_*`, its value and its gradient kept, a step is given value and
    gradient at :math:`w`, the end of a move from :math:`w_*`. If the value is worse than the best
    (by more than rounding) or not finite, the step :math:`s` is halved and taken again from
    :math:`w_*`. Otherwise :math:`w` becomes :math:`w_*`, and with the differences
    :math:`\Delta w`, :math:`\Delta g` over the move

    .. math::
        s = \frac{\|\Delta w\|^2}{\langle\Delta w, \Delta g\rangle}
        \ \text{ if } \langle\Delta w, \Delta g\rangle > 0, \text{ else } s_0, \qquad
        s \in [0.05\,s_0,\ 20\,s_0], \qquad
        w_+ = P(w_* - s\,g_*)

    where :math:`s_0` is the first step; halvings may go below the interval. No evaluation is made
    besides, so the last move is not judged yet: `best` has the best point whose value is known.

    Needs to know: nothing; needs the value at every step, which comes with the gradient.

    Guarantees: with the safeguard, the values of the points it moves from never get worse by more
    than rounding. Without one, spectral steps converge on strictly convex quadratics (proven
    without the limits on the step) and may diverge elsewhere. Deterministic gradients only.

    Args:
        params: Tensors or parameter groups.
        lr: The first step, a number or a float64 tensor with one per row; the inverse of a known
            curvature is right. By default it comes from the first two gradients: after a move of
            a thousandth of the norm of the point (of 1, if that is larger) it is
            :math:`s_0 = \|\Delta w\| / \|\Delta g\|`; where the gradients do not differ, the next
            move is ten times as long.
        first_move: The length of the first move before it is projected, in place of `lr`:
            :math:`s_0` is this over the norm of the first gradient. The diameter of a small set is
            right.
        safeguard: Judge moves by their values. Turn it off where values are noisy, or where those
            of rows depend on other rows (normalization over the batch): values are then neither
            needed nor looked at.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem; values then come one per row.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = SPG([w])
        >>> for _ in range(30):
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2 * torch.tensor([1.0, 5.0])).sum()
        ...     loss.backward()
        ...     _ = optimizer.step(value=loss)
        >>> with optimizer.best():
        ...     print(w.detach().round(decimals=3))
        tensor([1., 1.])
    """

    masks_rows: ClassVar[bool] = True
    step_numbers: ClassVar[tuple[str, ...]] = ("first_step", "step")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor | None = None,
        *,
        first_move: float | None = None,
        safeguard: bool = True,
        **common: Unpack[Common],
    ) -> None:
        defaults = {"lr": lr, "first_move": first_move, "safeguard": safeguard}
        super().__init__(params, defaults, **common)

    @property
    def keeps_best(self) -> bool:
        """Whether values are judged, so that `best` is the answer."""
        return bool(self.param_groups[0]["safeguard"])

    @contextmanager
    def best(self, value: Tensor | float | None = None) -> Iterator[None]:
        """Inside the block the parameters hold the best point seen; afterwards their own again.

        Args:
            value: The objective at the present point, one per row if there are rows; the point
                then takes part. Otherwise only points whose value a step was given do.
        """
        if not self.keeps_best:
            raise RuntimeError("without a safeguard SPG looks at no values and knows no best point")
        numbers = self._saved_numbers()
        shown = [p for p in self._all_params() if "base_point" in self.state.get(p, {})]
        if not shown:
            yield
            return
        chosen: Flag = numbers["has_base"] > 0.0
        if value is not None:
            objective = self._objective(shown, value)
            now = objective.value("SPG", can_go_back=chosen)
            chosen = chosen & _is_worse(now, numbers["best_value"], objective.precision)
        points = [p.detach() for p in shown]
        own = tensors.clone(points)
        try:
            tensors.blend_(points, [self.state[p]["base_point"] for p in shown], chosen)
            tensors.drop_cached_casts()
            yield
        finally:
            tensors.copy_(points, own)
            tensors.drop_cached_casts()

    def _check(self, group: Group) -> None:
        check_flags(safeguard=group["safeguard"])
        if group["lr"] is not None:
            self._check_rate(group, group["rowwise"])
        if group["first_move"] is not None:
            check_number("first_move", group["first_move"])
            if group["lr"] is not None:
                raise ValueError(
                    "lr is the first step, and first_move its length: give one of them"
                )

    def _rests_at_zero_gradient(self) -> bool:
        return not self.keeps_best  # such a point may be the best, or worse than the best

    def _numbers(self, active: Active) -> dict[str, Any]:
        if "started" in self._saved_numbers() or not self._has_set(active):
            return super()._numbers(active)
        given = tensors.clone(active.params)
        numbers = super()._numbers(active)
        # The value was that of a point outside the set: no feasible one need be as good.
        moved_sq = tensors.squared_distance(active.params, given, self._rowwise)
        numbers["was_outside"] = where(moved_sq > 0.0, self._per_row(1.0), 0.0)
        return numbers

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        lr = self.param_groups[0]["lr"]
        first = 0.0 if lr is None else lr  # 0 where it has to be found
        return {
            "first_step": first,
            "step": first,
            "best_value": math.inf,
            "has_base": 0.0,
            "was_outside": 0.0,
            "gained": 0.0,
            "stale": 0.0,
        }

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        has_base: Flag = numbers["has_base"] > 0.0
        value = objective.value("SPG", can_go_back=has_base) if self.keeps_best else 0.0
        points = self._vectors("base_point", active.params, active.params)
        grads = self._vectors("base_gradient", active.params, active.grads)
        move = tensors.secant(active.params, points, active.grads, grads, self._rowwise)
        # At the base itself the newer value is the right one.
        has_moved = has_base & (move[0] > 0.0)
        rejected: Flag = False
        if self.keeps_best:
            worse = _is_worse(value, numbers["best_value"], objective.precision)
            rejected = active.moving & has_moved & worse
            best = where(has_moved, minimum(value, numbers["best_value"]), value)
            best = where(numbers["was_outside"] > 0.0, math.inf, best)
        accepted = active.moving & negate(rejected)
        if all_true(accepted):
            accepted, rejected = True, False
        self._choose_step(active, numbers, move, accepted & has_base, rejected)
        if self.keeps_best:
            self._count_stale(active, numbers, where(accepted, best, numbers["best_value"]))
            numbers["best_value"] = where(accepted, best, numbers["best_value"])
            numbers["was_outside"] = where(accepted, self._per_row(0.0), numbers["was_outside"])
        numbers["has_base"] = where(accepted, self._per_row(1.0), numbers["has_base"])
        tensors.blend_(points, active.params, accepted)
        tensors.blend_(grads, active.grads, accepted)
        tensors.blend_(active.params, points, rejected)
        self._probe(active, numbers, points, grads)
        tensors.add_scaled_(active.params, grads, -where(active.moving, numbers["step"], 0.0))
        self._project(active)

    @property
    def stalled(self) -> Flag:
        """Where the last steps gained next to nothing, so that more of them are not worth it.

        At a kink of the objective the gradient stays large and steps are halved without end. True
        after two steps that each gained less than a hundredth of all that was gained, or after four
        where nothing was.
        """
        numbers = self._saved_numbers()
        if "stale" not in numbers:
            return False
        stalled: Flag = numbers["stale"] >= where(numbers["gained"] > 0.0, 2.0, 4.0)
        return stalled

    def _count_stale(self, active: Active, numbers: dict[str, Any], best: Scalar) -> None:
        """Count the steps since the last gain that can be seen."""
        before = numbers["best_value"]
        known = active.moving & is_finite(before) & is_finite(best)
        gain = where(known, before - best, 0.0)
        gained = numbers["gained"] + gain
        fresh = gain > _SMALL_GAIN * gained
        numbers["stale"] = where(known, where(fresh, 0.0, numbers["stale"] + 1.0), numbers["stale"])
        numbers["gained"] = gained

    def _choose_step(
        self,
        active: Active,
        numbers: dict[str, Any],
        move: tuple[Scalar, Scalar, Scalar],
        measured: Flag,
        rejected: Flag,
    ) -> None:
        """The spectral step where a move was accepted, half of the last where it was rejected."""
        moved_sq, product, changed_sq = move
        precision = torch.finfo(active.params[0].dtype).eps
        first, step = numbers["first_step"], numbers["step"]
        if self.param_groups[0]["lr"] is None and any_true(first == 0.0):
            grad_sq = tensors.squared_norm(
                [self.state[p]["base_gradient"] for p in active.params], self._rowwise
            )
            unknown = measured & (first == 0.0)
            seen = (moved_sq > 0.0) & (changed_sq > (_NOISE * precision) ** 2 * grad_sq)
            first = where(unknown & seen, sqrt(divide(moved_sq, changed_sq)), first)
            longer = where(moved_sq > 0.0, _PROBE_GROWTH * step, 0.0)
            step = where(unknown & negate(seen), longer, step)
        curved = product > precision * sqrt(moved_sq * changed_sq)
        spectral = where(curved, divide(moved_sq, product), first)
        clipped = minimum(maximum(spectral, _SHORTEST * first), _LONGEST * first)
        step = where(measured & (first > 0.0), clipped, step)
        numbers["step"] = where(rejected, 0.5 * step, step)
        numbers["first_step"] = first

    def _probe(
        self,
        active: Active,
        numbers: dict[str, Any],
        points: list[Tensor],
        grads: list[Tensor],
    ) -> None:
        """A first step where there is none: of known length, or so short that it only probes."""
        if self.param_groups[0]["lr"] is not None or not any_true(numbers["step"] == 0.0):
            return
        length: Scalar | None = self.param_groups[0]["first_move"]
        known = length is not None
        if length is None:
            size = maximum(sqrt(tensors.squared_norm(points, self._rowwise)), 1.0)
            length = _PROBE_LENGTH * size
        norm = sqrt(tensors.squared_norm(grads, self._rowwise))
        probe = where(norm > 0.0, divide(length, norm), 0.0)
        missing = active.moving & (numbers["step"] == 0.0)
        numbers["step"] = where(missing, probe, numbers["step"])
        if known:
            numbers["first_step"] = where(missing, probe, numbers["first_step"])


def _is_worse(value: Scalar, best: Scalar, precision: float) -> Flag:
    """Whether a value to be minimized is worse than the best by more than rounding."""
    rounding = _TOLERANCE * precision * maximum(maximum(best, -best), 1.0)
    return (value > best + rounding) | negate(is_finite(value))
