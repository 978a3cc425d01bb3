"""SGD with 1/(mu k) steps for strongly convex functions.

Rakhlin, Shamir & Sridharan 2012 (arXiv:1109.5647); Lacoste-Julien, Schmidt & Bach 2012
(arXiv:1212.2002) for the average with weights proportional to k.
"""

from typing import Any, ClassVar, Unpack

from torch.optim.optimizer import ParamsT

from neada.optim.base import Active, Common, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar

__all__ = ["StronglyConvexSGD"]


class StronglyConvexSGD(PlayerOptimizer):
    r"""SGD whose k-th step is the inverse of k times the strong-convexity modulus.

    .. math::
        w_{k+1} = P\Bigl(w_k - \frac{\eta}{\mu k}\, g_k\Bigr), \qquad k = 1, 2, \dots

    Required problem constants: the strong-convexity modulus :math:`\mu`. A value that is too large
    by more than a factor of two loses the rate; a value that is too small costs accuracy in
    proportion.

    Guarantees: with noisy gradients of second moment at most :math:`G^2`, the last iterate has
    :math:`E\|w_k - w_*\|^2 \le 4G^2/(\mu^2 k)`, which is the hypothesis of the paper's Theorem 3.
    With ``average=1.0`` the value at the average is within :math:`O(G^2/(\mu k))` of the minimum,
    without smoothness. The first step has length :math:`\|g\|/\mu`, so without a set the iterate
    first moves away by a factor of up to the condition number.

    Args:
        params: Tensors or parameter groups.
        strong_convexity: The modulus :math:`\mu`.
        lr: The multiplier :math:`\eta`. Lacoste-Julien et al. take about 2, with ``average=1.0``.
        average: None, or the decay of the average that `averaged()` shows: 0 uniform, 1 weights
            proportional to the step's number.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = StronglyConvexSGD([w], strong_convexity=2.0, average=1.0)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2 * torch.tensor([1.0, 3.0])).sum().backward()
        ...     _ = optimizer.step()
        >>> with optimizer.averaged():
        ...     print(w.detach().round(decimals=2))
        tensor([1., 1.])
    """

    per_group: ClassVar[tuple[str, ...]] = ("lr",)
    positive: ClassVar[tuple[str, ...]] = ("lr", "strong_convexity")

    def __init__(
        self,
        params: ParamsT,
        strong_convexity: float,
        *,
        lr: float = 1.0,
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        defaults = {"strong_convexity": strong_convexity, "lr": lr, "average": average}
        super().__init__(params, defaults, **common)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"num_steps": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        numbers["num_steps"] = k = numbers["num_steps"] + 1.0
        self._descend(active, 1.0 / (self.param_groups[0]["strong_convexity"] * k))
