"""Adaptive gradient descent without a line search: the step comes from the last two gradients.

Malitsky & Mishchenko 2020 ("mm20", "mm20lin") and 2023 (arXiv:2308.02261, "mm23");
Latafat, Themelis, Stella & Patrinos (arXiv:2301.04431) and Latafat, Themelis & Patrinos
(arXiv:2311.18431, "adapg").
"""

import math
from typing import Any, ClassVar, Literal, Unpack, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_choice
from neada.optim.base import Active, Common, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar, divide, is_finite, minimum, sqrt, where
from neada.sets import Set

__all__ = ["AdGD"]

Variant = Literal["mm20", "mm20lin", "mm23", "adapg"]


_FOR_SETS = ("mm23", "adapg")


def _bounds(
    variant: str, step: Scalar, growth: Scalar, smoothness: Scalar, curvature: Scalar
) -> tuple[Scalar, Scalar]:
    """The two bounds of the next step: by growth, and by the local smoothness.

    Args:
        variant: The rule.
        step: The last step.
        growth: The last step over the one before.
        smoothness: The change of the gradient over that of the point, in norm.
        curvature: The product of both changes over the squared change of the point.
    """
    if variant in _FOR_SETS:
        ratio = step * smoothness
        excess = 2.0 * ratio * ratio - 1.0 - step * curvature
        return sqrt(2.0 / 3.0 + growth) * step, divide(step, sqrt(excess))
    growth_share = growth if variant == "mm20" else growth / 2.0
    return sqrt(1.0 + growth_share) * step, divide(1.0, 2.0 * smoothness)


class AdGD(PlayerOptimizer):
    r"""Gradient descent whose step follows the local smoothness.

    With :math:`L_k = \|g_k-g_{k-1}\| / \|w_k-w_{k-1}\|` and
    :math:`\theta_k = \lambda_k/\lambda_{k-1}`,

    .. math::
        \lambda_k = \min\Bigl\{\sqrt{1+\theta_{k-1}/2}\;\lambda_{k-1},\; 1/(2L_k)\Bigr\}, \qquad
        w_{k+1} = P(w_k - \lambda_k g_k)

    is ``"mm20lin"``, the default without a set. With a set the default is ``"adapg"``:
    :math:`\sqrt{2/3+\theta_{k-1}}\,\lambda_{k-1}` against
    :math:`\lambda_{k-1}/\sqrt{[2\lambda_{k-1}^2L_k^2 - 1 - \lambda_{k-1}\ell_k]_+}`, where
    :math:`\ell_k = \langle\Delta g, \Delta w\rangle/\|\Delta w\|^2`.

    Required problem constants: none; one gradient per step and no values. Deterministic gradients
    only: with noise, :math:`L_k` measures the noise.

    Guarantees: "mm20lin" is linear, :math:`O(\kappa\log 1/\varepsilon)`, on smooth strongly
    convex functions; "mm20", "mm23", "adapg" converge on convex functions with locally Lipschitz
    gradient, the last two with a set as well, where a linear rate is observed, not proven.

    Args:
        params: Tensors or parameter groups.
        lr: The first step; by default 1e-6 (3.5e-4 in float32) for "mm20" and "mm20lin",
            where the second step already has the right size, and 1e-2 for the others.
        variant: The rule; by default "adapg" if some group has a set and "mm20lin" otherwise.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = AdGD([w])
        >>> for _ in range(40):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2 * torch.tensor([1.0, 5.0])).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    positive: ClassVar[tuple[str, ...]] = ("lr",)
    step_numbers: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        *,
        variant: Variant | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"lr": lr, "variant": variant}, **common)

    def _check(self, group: Group) -> None:
        check_choice("variant", group["variant"], (None, *get_args(Variant)))

    def _check_constraint(self, group: Group, constraint: Set | None) -> None:
        super()._check_constraint(group, constraint)
        variant = group["variant"]
        if constraint is not None and variant not in (None, *_FOR_SETS):
            raise ValueError(f'variant "{variant}" has no version for sets: use one of {_FOR_SETS}')

    def _variant(self) -> str:
        chosen = self.param_groups[0]["variant"]
        if chosen is not None:
            return str(chosen)
        has_set = any(group["constraint"] is not None for group in self.param_groups)
        return "adapg" if has_set else "mm20lin"

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        lr, growth = (1e-2, 1.0 / 3.0) if self._variant() in _FOR_SETS else (1e-6, math.inf)
        # The second step comes from the difference of the first two gradients, which must not be
        # below the rounding of float32.
        lr = max(lr, torch.finfo(active.params[0].dtype).eps ** 0.5)
        given = self.param_groups[0]["lr"]
        return {"step": lr if given is None else given, "growth": growth, "moved_sq": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        last = numbers["step"]
        grads = self._vectors("previous_gradient", active.params, active.grads)
        changed_sq = tensors.squared_distance(active.grads, grads, self._rowwise)
        moved_sq, slope = self._last_move(active, numbers, grads)
        smoothness, curvature = sqrt(divide(changed_sq, moved_sq)), divide(slope, moved_sq)
        step = minimum(*_bounds(self._variant(), last, numbers["growth"], smoothness, curvature))
        # Two equal gradients give no bound: keep growing, as along a straight slope.
        step = where(is_finite(step), step, 2.0 * last)
        usable = (moved_sq > 0.0) & (step > 0.0)
        numbers["step"] = step = where(usable, step, last)
        numbers["growth"] = where(usable, step / last, numbers["growth"])
        numbers["moved_sq"] = step * step * active.norm_sq
        tensors.copy_(grads, active.grads)
        if self._has_set(active):
            tensors.copy_(self._previous_points(active), active.params)
        self._descend(active, step)

    def _last_move(
        self, active: Active, numbers: dict[str, Any], grads: list[Tensor]
    ) -> tuple[Scalar, Scalar]:
        """The squared length of the last move, and its product with the change of gradient.

        The product is 0 for the variants that do not use it.
        """
        needs_slope = self._variant() == "adapg"
        changed = tensors.difference(active.grads, grads) if needs_slope else []
        if self._has_set(active):
            points = self._previous_points(active)
            moved_sq = tensors.squared_distance(active.params, points, self._rowwise)
            if not needs_slope:
                return moved_sq, 0.0
            moved = tensors.difference(active.params, points)
            return moved_sq, tensors.dot(changed, moved, self._rowwise)
        if not needs_slope:
            return numbers["moved_sq"], 0.0
        # The move was -step * gradient.
        return numbers["moved_sq"], -numbers["step"] * tensors.dot(changed, grads, self._rowwise)

    def _previous_points(self, active: Active) -> list[Tensor]:
        return self._vectors("previous_point", active.params, torch.clone)
