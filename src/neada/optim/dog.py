"""Distance over gradients: step sizes from how far the iterate has already travelled.

Ivgi, Hinder & Carmon 2023 (arXiv:2302.12022, DoG); Khaled, Mishchenko & Jin 2023 (DoWG).
"""

from typing import Any, ClassVar, Unpack

import torch
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.base import Active, Common, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar, maximum, sqrt

__all__ = ["DoG", "DoWG"]


_EPS = 1e-8  # keeps the quotient finite


class _DistanceMethod(PlayerOptimizer):
    """The common part of DoG and DoWG: the largest distance from the start."""

    per_group: ClassVar[tuple[str, ...]] = ("lr",)
    positive: ClassVar[tuple[str, ...]] = ("lr", "r_eps")
    step_numbers: ClassVar[tuple[str, ...]] = ("distance",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        r_eps: float = 1e-6,
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"lr": lr, "r_eps": r_eps, "average": average}, **common)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        norm = sqrt(tensors.squared_norm(active.params, self._rowwise))
        return {"distance": self.param_groups[0]["r_eps"] * (1.0 + norm), "sum": 0.0}

    def _kept_step(self, numbers: dict[str, Any]) -> dict[str, Any]:
        # As an inner solver: the last displacement is the first guess of the next distance.
        params = [param for param, memory in self.state.items() if "start" in memory]
        if not params:
            return super()._kept_step(numbers)
        starts = [self.state[param]["start"] for param in params]
        moved = sqrt(tensors.squared_distance(params, starts, self._rowwise))
        return {"distance": maximum(moved, self.param_groups[0]["r_eps"])}

    def _distance(self, active: Active, numbers: dict[str, Any]) -> Scalar:
        starts = self._vectors("start", active.params, torch.clone)
        moved_sq = tensors.squared_distance(active.params, starts, self._rowwise)
        numbers["distance"] = maximum(numbers["distance"], sqrt(moved_sq))
        distance: Scalar = numbers["distance"]
        return distance


class DoG(_DistanceMethod):
    r"""SGD with the step "distance over gradients".

    .. math::
        \bar r_k = \max\bigl(r_\epsilon(1+\|w_0\|),\, \max_{i\le k}\|w_i-w_0\|\bigr), \quad
        w_{k+1} = P\Bigl(w_k - \frac{\eta\,\bar r_k}{\sqrt{\epsilon+\sum_{i\le k}\|g_i\|^2}}\,
        g_k\Bigr)

    Required problem constants: none. The first :math:`\log(\text{distance}/r_\epsilon)` steps or so
    are short; as an inner solver, use ``reset(keep="step")`` or a larger `r_eps`.

    Guarantees: convex and stochastic: near-optimal up to logarithms if the iterates stay
    bounded, for the average with ``average=8.0``. No linear or 1/k rate under strong convexity
    is proven.

    Args:
        params: Tensors or parameter groups.
        lr: Multiplies the step; 1 is the method.
        r_eps: The first movement, relative to 1 + the norm of the start.
        average: None, or the decay of the average that `averaged()` shows; the authors use 8.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = DoG([w], r_eps=1e-2)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        distance = self._distance(active, numbers)
        numbers["sum"] = total = numbers["sum"] + active.norm_sq
        self._descend(active, distance / sqrt(total + _EPS))


class DoWG(_DistanceMethod):
    r"""SGD with the step "distance over weighted gradients".

    With :math:`\bar r_k` as in `DoG` and :math:`V_k = \sum_{i\le k} \bar r_i^2\|g_i\|^2`,

    .. math::
        w_{k+1} = P\bigl(w_k - \eta\,\bar r_k^2\, g_k / (\sqrt{V_k} + \epsilon)\bigr)

    Required problem constants: none.

    Guarantees: convex: optimal up to logarithms, for Lipschitz and for smooth functions, at an
    average weighted towards the end. No linear rate under strong convexity is proven.

    Args:
        params: Tensors or parameter groups.
        lr: Multiplies the step; 1 is the method.
        r_eps: The first movement, relative to 1 + the norm of the start.
        average: None, or the decay of the average that `averaged()` shows.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = DoWG([w])
        >>> for _ in range(300):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        r_eps: float = 1e-4,
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, lr, r_eps=r_eps, average=average, **common)

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        distance = self._distance(active, numbers)
        distance_sq = distance * distance
        numbers["sum"] = total = numbers["sum"] + distance_sq * active.norm_sq
        self._descend(active, distance_sq / (sqrt(total) + _EPS))
