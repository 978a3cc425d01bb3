"""COCOB: continuous coin betting per coordinate (Orabona & Tommasi 2017, arXiv:1705.07795)."""

from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.arguments import check_number
from neada.optim.objective import Objective
from neada.optim.player import Active, Group, PlayerOptimizer
from neada.sets import Set

__all__ = ["COCOB"]


class COCOB(PlayerOptimizer):
    r"""A bettor per coordinate, scale-free and without a learning rate.

    For each coordinate, :math:`L \leftarrow \max(L, |g|)`, :math:`A \leftarrow A + |g|`,
    :math:`R \leftarrow \max(R - g(w-w_0), 0)`, :math:`\theta \leftarrow \theta - g` and

    .. math::
        w \leftarrow P\Bigl(w_0 + \theta\,\frac{L + R}{L\,\max(A+L,\ \alpha L)}\Bigr)

    Needs to know: nothing.

    Guarantees: convex regret up to logarithms for the bettor without :math:`\alpha` and without
    the cut at zero; with them a heuristic, strong where the Hessian is nearly diagonal. Rows
    never interact, so it serves `rowwise` use as it is.

    Args:
        params: Tensors or parameter groups.
        alpha: Slows the first steps; a coordinate moves by 1/alpha at first.
        scale0: Where the largest gradient :math:`L` starts.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = COCOB([w])
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        alpha: float = 100.0,
        scale0: float = 1e-8,
        maximize: bool = False,
        constraint: Set | None = None,
    ) -> None:
        defaults = {"alpha": alpha, "scale0": scale0}
        super().__init__(params, defaults, maximize=maximize, constraint=constraint)

    def _check(self, group: Group) -> None:
        check_number("alpha", group["alpha"])
        check_number("scale0", group["scale0"])

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        starts = self._vectors("start", active.params, torch.clone)
        sums = self._vectors("negative_sum", active.params, torch.zeros_like)
        absolute_sums = self._vectors("absolute_sum", active.params, torch.zeros_like)
        rewards = self._vectors("reward", active.params, torch.zeros_like)
        sizes = torch._foreach_abs(active.grads)
        torch._foreach_add_(absolute_sums, sizes)
        torch._foreach_sub_(sums, active.grads)
        played = tensors.difference(active.params, starts)
        torch._foreach_addcmul_(rewards, active.grads, played, value=-1.0)
        torch._foreach_clamp_min_(rewards, 0.0)
        for group, span in active.spans:
            params = active.params[span]
            smallest = partial(torch.full_like, fill_value=group["scale0"])
            largest = self._vectors("largest", params, smallest)
            torch._foreach_maximum_(largest, sizes[span])
            bets = torch._foreach_add(largest, rewards[span])
            spread = torch._foreach_add(absolute_sums[span], largest)
            torch._foreach_maximum_(spread, torch._foreach_mul(largest, group["alpha"]))
            torch._foreach_div_(bets, spread)  # divided twice: a product of two could overflow
            torch._foreach_mul_(bets, torch._foreach_div(sums[span], largest))
            torch._foreach_copy_(params, starts[span])
            torch._foreach_add_(params, bets)
        self._project(active)
