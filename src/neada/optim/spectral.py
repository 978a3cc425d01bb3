"""Spectral projected gradient: the step is the inverse curvature along the last move.

Barzilai & Borwein 1988; Birgin, Martinez & Raydan 2000. The safeguard by values needs no
additional evaluation, since every gradient comes with its value.

The numbers of the method are float64 tensors: one entry per row, or none (shape ``()``) for a
player without rows.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_number
from neada.optim.base import Active, Common, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Flag, Scalar

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
    (by more than rounding), NaN or Inf, the step :math:`s` is halved and taken again from
    :math:`w_*`. Otherwise :math:`w` becomes :math:`w_*`, and with the differences
    :math:`\Delta w`, :math:`\Delta g` over the move

    .. math::
        s = \frac{\|\Delta w\|^2}{\langle\Delta w, \Delta g\rangle}
        \ \text{ if } \langle\Delta w, \Delta g\rangle > 0, \text{ else } s_0, \qquad
        s \in [0.05\,s_0,\ 20\,s_0], \qquad
        w_+ = P(w_* - s\,g_*)

    where :math:`s_0` is the first step; halvings may go below the interval. The value after the
    last move is unknown: `best` has the best point whose value is known.

    Required problem constants: none. Every step requires the value, which comes with the gradient.

    Guarantees: with the safeguard, the values of the points it moves from never get worse by more
    than rounding. Without one, spectral steps converge on strictly convex quadratics (proven
    without the limits on the step) and may diverge elsewhere. Deterministic gradients only.

    Args:
        params: Tensors or parameter groups.
        lr: The first step, a number or a float64 tensor with one per row, for example the inverse
            of a known curvature. By default it comes from the first two gradients: after a move of
            a thousandth of the norm of the point (of 1, if that is larger) it is
            :math:`s_0 = \|\Delta w\| / \|\Delta g\|`; where the gradients do not differ, the next
            move is ten times as long.
        first_move: The length of the first move before it is projected, in place of `lr`:
            :math:`s_0` is this over the norm of the first gradient. For a small set, use its
            diameter.
        safeguard: Reject moves to worse values. Turn it off where values are noisy, or where those
            of rows depend on other rows (normalization over the batch); values are then not used.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem with its own value.

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
        """Whether moves are compared by their values, so that `best` is the result."""
        return bool(self.param_groups[0]["safeguard"])

    @contextmanager
    def best(self, value: Tensor | float | None = None) -> Iterator[None]:
        """Inside the block the parameters hold the best point seen; afterwards their own again.

        Args:
            value: The objective at the current point, one per row if there are rows; it is then
                compared too. Otherwise only points whose value was passed to `step` are considered.
        """
        if not self.keeps_best:
            raise RuntimeError("SPG without a safeguard knows no best point")
        numbers = self._saved_numbers()
        shown = [p for p in self._all_params() if "base_point" in self.state.get(p, {})]
        if not shown:
            yield
            return
        chosen = numbers["has_base"]
        if value is not None:
            objective = self._objective(shown, value)
            now = _as_number(objective.value("SPG", can_go_back=chosen))
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

    @property
    def stalled(self) -> Flag:
        """Where the last steps gained next to nothing, so that more of them are not worth it.

        At a kink of the objective the gradient stays large and steps are halved without end. True
        after two steps that each gained less than a hundredth of the total gain, or after four
        without any gain.
        """
        numbers = self._saved_numbers()
        if "stale" not in numbers:
            return False
        stalled: Tensor = numbers["stale"] >= torch.where(numbers["gained"] > 0.0, 2.0, 4.0)
        return stalled

    def _check(self, group: Group) -> None:
        if group["lr"] is not None:
            self._check_rate(group, group["rowwise"])
        if group["first_move"] is not None:
            check_number("first_move", group["first_move"])
            if group["lr"] is not None:
                raise ValueError("lr is the first step, and first_move its length: give one")

    def _rests_at_zero_gradient(self) -> bool:
        return not self.keeps_best  # such a point may be the best, or worse than the best

    def _started_numbers(self, active: Active) -> dict[str, Any]:
        if not self._has_set(active) or "started" in self._saved_numbers():
            return super()._started_numbers(active)
        given = tensors.clone(active.params)
        numbers = super()._started_numbers(active)
        # The value was that of a point outside the set: no feasible one need be as good.
        moved_sq = tensors.squared_distance(active.params, given, self._rowwise)
        numbers["was_outside"] = _as_number(moved_sq) > 0.0
        return numbers

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        lr = self.param_groups[0]["lr"]
        zeros = torch.zeros_like(_as_number(active.norm_sq))
        first = zeros if lr is None else zeros + lr  # 0 where it has to be found
        return {
            "first_step": first,
            "step": first,
            "best_value": zeros + math.inf,
            "has_base": zeros > 0.0,
            "was_outside": zeros > 0.0,
            "gained": zeros,
            "stale": zeros,
        }

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        points = self._vectors("base_point", active.params, active.params)
        grads = self._vectors("base_gradient", active.params, active.grads)
        move = tensors.secant(active.params, points, active.grads, grads, self._rowwise)
        has_base: Tensor = numbers["has_base"]
        moving = torch.ones_like(has_base) & active.moving
        rejected = torch.zeros_like(has_base)
        if self.keeps_best:
            value = _as_number(objective.value("SPG", can_go_back=has_base))
            last_best = numbers["best_value"]
            # At the base itself the newer value is the right one.
            has_moved = has_base & (move[0] > 0.0)
            rejected = moving & has_moved & _is_worse(value, last_best, objective.precision)
            best = torch.where(has_moved, torch.minimum(value, last_best), value)
            best = torch.where(numbers["was_outside"], math.inf, best)
            best = torch.where(moving & ~rejected, best, last_best)
            self._count_stale(numbers, moving, gain=last_best - best)
            numbers["best_value"] = best
        accepted = moving & ~rejected
        self._choose_step(active, numbers, grads, move, accepted & has_base, rejected)
        numbers["has_base"] = has_base | accepted
        numbers["was_outside"] = numbers["was_outside"] & ~accepted
        base, current = [*points, *grads], [*active.params, *active.grads]
        if bool(accepted.all()):
            tensors.copy_(base, current)
        else:
            tensors.blend_(base, current, accepted)
            tensors.blend_(active.params, points, rejected)
        self._probe(numbers, moving, points, grads)
        tensors.add_scaled_(active.params, grads, -torch.where(moving, numbers["step"], 0.0))
        self._project(active)

    def _count_stale(self, numbers: dict[str, Any], moving: Tensor, gain: Tensor) -> None:
        """Count the steps since the last visible gain; unknown values give NaN or Inf."""
        known = moving & gain.isfinite()
        gain = torch.where(known, gain, 0.0)
        numbers["gained"] = gained = numbers["gained"] + gain
        stale = torch.where(gain > _SMALL_GAIN * gained, 0.0, numbers["stale"] + 1.0)
        numbers["stale"] = torch.where(known, stale, numbers["stale"])

    def _choose_step(
        self,
        active: Active,
        numbers: dict[str, Any],
        grads: list[Tensor],
        move: tuple[Tensor, Tensor, Tensor],
        measured: Tensor,
        rejected: Tensor,
    ) -> None:
        """The spectral step where a move was accepted, half of the last where it was rejected."""
        moved_sq, product, changed_sq = move
        precision = torch.finfo(active.params[0].dtype).eps
        first, step = numbers["first_step"], numbers["step"]
        if self.param_groups[0]["lr"] is None and bool((first == 0.0).any()):
            grad_sq = tensors.squared_norm(grads, self._rowwise)
            unknown = measured & (first == 0.0)
            seen = (moved_sq > 0.0) & (changed_sq > (_NOISE * precision) ** 2 * grad_sq)
            first = torch.where(unknown & seen, (moved_sq / changed_sq).sqrt(), first)
            longer = torch.where(moved_sq > 0.0, _PROBE_GROWTH * step, 0.0)
            step = torch.where(unknown & ~seen, longer, step)
        curved = product > precision * (moved_sq * changed_sq).sqrt()
        spectral = torch.where(curved, moved_sq / product, first)
        spectral = spectral.clamp(_SHORTEST * first, _LONGEST * first)
        step = torch.where(measured & (first > 0.0), spectral, step)
        numbers["step"] = torch.where(rejected, 0.5 * step, step)
        numbers["first_step"] = first

    def _probe(
        self, numbers: dict[str, Any], moving: Tensor, points: list[Tensor], grads: list[Tensor]
    ) -> None:
        """A first step where there is none: of known length, or so short that it only probes."""
        missing = moving & (numbers["step"] == 0.0)
        if self.param_groups[0]["lr"] is not None or not bool(missing.any()):
            return
        length = self.param_groups[0]["first_move"]
        has_length = length is not None
        if not has_length:
            size = _as_number(tensors.squared_norm(points, self._rowwise)).sqrt().clamp_min(1.0)
            length = _PROBE_LENGTH * size
        norm = _as_number(tensors.squared_norm(grads, self._rowwise)).sqrt()
        probe = torch.where(norm > 0.0, length / norm, 0.0)
        numbers["step"] = torch.where(missing, probe, numbers["step"])
        if has_length:
            numbers["first_step"] = torch.where(missing, probe, numbers["first_step"])


def _as_number(number: Tensor | float) -> Tensor:
    return torch.as_tensor(number, dtype=torch.float64)


def _is_worse(value: Tensor, best: Tensor, precision: float) -> Tensor:
    """Whether a value to be minimized is worse than the best by more than rounding."""
    rounding = _TOLERANCE * precision * best.abs().clamp_min(1.0)
    return (value > best + rounding) | ~value.isfinite()
