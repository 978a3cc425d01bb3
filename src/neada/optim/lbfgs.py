"""L-BFGS with one evaluation per step: the next gradient decides whether a step is accepted.

Nocedal 1980; the acceptance test is the approximate Wolfe condition of Hager & Zhang 2005, which
compares slopes instead of values and so works down to rounding, and with inexact values.
"""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_number
from neada.optim.base import Active, Common, Group, Keep, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import (
    Flag,
    Scalar,
    any_true,
    divide,
    is_finite,
    maximum,
    minimum,
    negate,
    sqrt,
    where,
)
from neada.sets import Set

__all__ = ["LBFGS"]

_SLOPE_SHARE = 0.8  # a step is too long when the slope at its end exceeds this share, upwards,
_VALUE_SHARE = 0.1  # or when the value rose by more than this share of the predicted fall
_MOST_REJECTED = 5  # then the current point replaces the base, whose value may be inexact


class LBFGS(PlayerOptimizer):
    r"""Quasi-Newton steps from the last few changes of the gradient.

    .. math::
        w_{k+1} = w_k - \alpha H_k g_k

    with :math:`H_k` built from at most `history` pairs :math:`(s, u)` of displacements and changes
    of gradient, cautiously: only where :math:`\langle s, u\rangle > 0`. Every call of `step`
    receives value and gradient at one point and proposes the next. If the slope or the value shows
    that the last step was too long, it is shortened towards the minimizer along the line; otherwise
    it is accepted and a new direction is taken. There are no other evaluations.

    Required problem constants: none. Requires the value at every step, which comes with the
    gradient.

    Guarantees: superlinear in practice on smooth strongly convex functions; the theory of cautious
    L-BFGS with a full line search gives convergence of the gradient to zero, which this one-trial
    form has not been shown to inherit. Deterministic gradients only, and no sets: use `AdGD` or
    `Backtracking` there.

    Args:
        params: Tensors or parameter groups.
        lr: The length of the first step, at most: it is `lr * g`, cut to length `lr`.
        history: How many pairs are kept.
        maximize: Ascend instead of descend.
        rowwise: Every row is a separate problem; values then come one per row.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = LBFGS([w])
        >>> for _ in range(15):
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2 * torch.tensor([1.0, 50.0])).sum()
        ...     loss.backward()
        ...     _ = optimizer.step(value=loss)
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    masks_rows: ClassVar[bool] = True
    step_numbers: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        history: int = 10,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"lr": lr, "history": history}, **common)

    def _check(self, group: Group) -> None:
        check_number("lr", group["lr"])
        check_number("history", group["history"], above=1, strict=False, whole=True)

    def _check_constraint(self, group: Group, constraint: Set | None) -> None:
        if constraint is not None:
            raise ValueError("LBFGS has no version for sets: use AdGD or Backtracking")

    def reset(self, keep: Keep = "nothing") -> None:
        """Forget the state; ``keep="step"`` keeps the pairs, since curvature changes slowly."""
        numbers = dict(self._saved_numbers())
        vectors = {param: dict(memory) for param, memory in self.state.items()}
        super().reset(keep)
        if keep == "step":
            self._saved_numbers().update(_pairs_in(numbers))
            for param, memory in vectors.items():
                self.state[param].update(_pairs_in(memory))

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        names = ("scale", "base_value", "slope", "step", "has_base", "num_rejected")
        return dict.fromkeys(names, 0.0)

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        value = objective.value("LBFGS")
        points = self._vectors("base_point", active.params, torch.clone)
        grads = self._vectors("base_gradient", active.params, active.grads)
        direction = self._vectors("direction", active.params, torch.zeros_like)
        slope = tensors.dot(active.grads, direction, self._rowwise)
        has_base: Flag = numbers["has_base"] > 0.0
        moving = active.moving
        passed = moving & has_base & _passes(numbers, value, slope, objective.precision)
        renewed = moving & (negate(has_base) | (numbers["num_rejected"] >= _MOST_REJECTED))
        self._make_room(active, numbers)
        if any_true(passed):
            self._learn(active, numbers, points, grads, passed)
        accepted = passed | renewed
        rejected = moving & negate(accepted)
        step = numbers["step"]
        if any_true(rejected):
            step = where(rejected, _shortened(numbers, slope), step)
        if any_true(accepted):
            new = tensors.negative(active.grads)
            self._apply_inverse_hessian(active, numbers, new)
            tensors.blend_(direction, new, accepted)
            tensors.blend_(points, active.params, accepted)
            tensors.blend_(grads, active.grads, accepted)
            new_slope = tensors.dot(active.grads, direction, self._rowwise)
            numbers["slope"] = where(accepted, new_slope, numbers["slope"])
            numbers["base_value"] = where(accepted, value, numbers["base_value"])
            numbers["has_base"] = where(accepted, 1.0, numbers["has_base"])
        numbers["num_rejected"] = where(accepted, 0.0, numbers["num_rejected"] + 1.0 * rejected)
        numbers["step"] = where(accepted, 1.0, step)
        tensors.copy_(active.params, points)
        tensors.add_scaled_(active.params, direction, numbers["step"])

    def _make_room(self, active: Active, numbers: dict[str, Any]) -> None:
        """Create the pairs; an empty one has inverse product 0 and no effect."""
        for i in range(self.param_groups[0]["history"]):
            self._vectors(f"moved {i}", active.params, torch.zeros_like)
            self._vectors(f"changed {i}", active.params, torch.zeros_like)
            numbers.setdefault(f"inverse product {i}", self._per_row(0.0))

    def _learn(
        self,
        active: Active,
        numbers: dict[str, Any],
        points: list[Tensor],
        grads: list[Tensor],
        passed: Flag,
    ) -> None:
        """Store the last displacement and change of gradient as the newest pair, if convex."""
        moved = tensors.difference(active.params, points)
        changed = tensors.difference(active.grads, grads)
        product = tensors.dot(moved, changed, self._rowwise)
        moved_sq = tensors.squared_norm(moved, self._rowwise)
        changed_sq = tensors.squared_norm(changed, self._rowwise)
        convex: Flag = product > 1e-10 * sqrt(moved_sq * changed_sq)
        stored = passed & convex
        bent = passed & negate(convex)
        history = self.param_groups[0]["history"]
        for i in reversed(range(history)):
            for kind, newest in (("moved", moved), ("changed", changed)):
                younger = [self.state[p][f"{kind} {i - 1}"] for p in active.params] if i else newest
                self._replace(f"{kind} {i}", active, younger, stored)
            younger_product = numbers[f"inverse product {i - 1}"] if i else divide(1.0, product)
            name = f"inverse product {i}"
            numbers[name] = where(stored, younger_product, numbers[name])
        numbers["scale"] = where(stored, divide(product, changed_sq), numbers["scale"])
        if any_true(bent):
            # With negative curvature the quadratic model is wrong: take longer steps along -g.
            grad_sq = tensors.squared_norm(grads, self._rowwise)
            longer = 2.0 * sqrt(divide(moved_sq, grad_sq))
            numbers["scale"] = where(bent, longer, numbers["scale"])
            for i in range(history):
                name = f"inverse product {i}"
                numbers[name] = where(bent, 0.0, numbers[name])

    def _replace(self, name: str, active: Active, vectors: list[Tensor], rows: Flag) -> None:
        """Store other vectors under a name: by reference, or by copying some rows."""
        if isinstance(rows, Tensor):
            tensors.blend_([self.state[p][name] for p in active.params], vectors, rows)
        elif rows:
            for param, vector in zip(active.params, vectors, strict=True):
                self.state[param][name] = vector

    def _apply_inverse_hessian(
        self, active: Active, numbers: dict[str, Any], vector: list[Tensor]
    ) -> None:
        """The two-loop recursion, in place; without pairs a scaled gradient."""
        history = self.param_groups[0]["history"]
        moved = [[self.state[p][f"moved {i}"] for p in active.params] for i in range(history)]
        changed = [[self.state[p][f"changed {i}"] for p in active.params] for i in range(history)]
        factors = [numbers[f"inverse product {i}"] for i in range(history)]
        weights: list[Scalar] = []
        for s, u, factor in zip(moved, changed, factors, strict=True):
            weight = factor * tensors.dot(s, vector, self._rowwise)
            weights.append(weight)
            tensors.add_scaled_(vector, u, -weight)
        first = divide(self.param_groups[0]["lr"], maximum(sqrt(active.norm_sq), 1.0))
        tensors.scale_(vector, where(numbers["scale"] > 0.0, numbers["scale"], first))
        for i in reversed(range(history)):
            back = factors[i] * tensors.dot(changed[i], vector, self._rowwise)
            tensors.add_scaled_(vector, moved[i], weights[i] - back)


def _pairs_in(entries: dict[str, Any]) -> dict[str, Any]:
    prefixes = ("moved ", "changed ", "inverse product ")
    return {name: entry for name, entry in entries.items() if name.startswith(prefixes)}


def _passes(numbers: dict[str, Any], value: Scalar, slope: Scalar, precision: float) -> Flag:
    """Whether the last proposed point is accepted."""
    rounding = 10.0 * precision * maximum(value, -value)
    rise = -_VALUE_SHARE * numbers["step"] * numbers["slope"]
    low_enough: Flag = value <= numbers["base_value"] + rise + rounding
    flat_enough: Flag = slope <= -_SLOPE_SHARE * numbers["slope"]
    return low_enough & flat_enough


def _shortened(numbers: dict[str, Any], slope: Scalar) -> Scalar:
    """The step to the minimizer of the parabola through both slopes, within safe limits."""
    step, start = numbers["step"], -numbers["slope"]
    upwards = where(is_finite(slope), maximum(slope, 0.0), 0.0)
    best = step * divide(start, start + upwards)
    return minimum(maximum(best, 0.1 * step), 0.5 * step)
