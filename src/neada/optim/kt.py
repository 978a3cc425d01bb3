"""The Krichevsky-Trofimov bettor in vector form (Orabona & Pal 2016, arXiv:1602.04128)."""

from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.arguments import check_number
from neada.optim.objective import Objective
from neada.optim.player import Active, Group, PlayerOptimizer
from neada.scalars import Scalar
from neada.sets import Set

__all__ = ["KT"]


class KT(PlayerOptimizer):
    r"""Online learning as betting on a coin, with the Krichevsky-Trofimov fraction.

    With gradients divided by the bound :math:`G` and :math:`\theta_k = -\sum_{i\le k} g_i/G`,

    .. math::
        w_{k+1} = P\Bigl(w_0 + \frac{\theta_k}{k+1}\Bigl(\epsilon
        - \sum_{i\le k} \langle g_i/G,\, w_i - w_0\rangle\Bigr)\Bigr), \qquad k = 1, 2, \dots

    Needs to know: a bound :math:`G` on the gradient norm. If a gradient exceeds it the bettor may
    go bankrupt and diverge.

    Guarantees: regret :math:`O(\|u\|\sqrt{T\log(1+\|u\|T/\epsilon)} + \epsilon)` against any
    :math:`u`, for the average of the iterates; with a set the projection keeps feasibility, not
    the proof.

    Args:
        params: Tensors or parameter groups.
        bound: The bound :math:`G`.
        wealth: The initial wealth :math:`\epsilon`; 1 in theory, 1e-4 in practice.
        average: None, or the decay of the average that `averaged()` shows; 0 is uniform.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = KT([w], bound=3.0, average=1.0)
        >>> for _ in range(500):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> with optimizer.averaged():
        ...     print(w.detach().round(decimals=1))
        tensor([1., 1.])
    """

    needs_to_know: ClassVar[str] = "a bound on the gradient norm"
    shared: ClassVar[tuple[str, ...]] = ("bound", "wealth", "average")

    def __init__(
        self,
        params: ParamsT,
        bound: float,
        *,
        wealth: float = 1.0,
        average: float | None = None,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {"bound": bound, "wealth": wealth, "average": average}
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        check_number("bound", group["bound"])
        check_number("wealth", group["wealth"])
        if group["average"] is not None:
            check_number("average", group["average"], strict=False)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"wealth": self.param_groups[0]["wealth"], "num_rounds": 1.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        bound = self.param_groups[0]["bound"]
        starts = self._vectors("start", active.params, torch.clone)
        sums = self._vectors("negative_sum", active.params, torch.zeros_like)
        played = tensors.difference(active.params, starts)
        loss = tensors.dot(active.grads, played, self._rowwise) / bound
        numbers["wealth"] = wealth = numbers["wealth"] - loss
        numbers["num_rounds"] = rounds = numbers["num_rounds"] + 1.0
        tensors.add_scaled_(sums, active.grads, -1.0 / bound)
        tensors.copy_(active.params, starts)
        tensors.add_scaled_(active.params, sums, wealth / rounds)
        self._project(active)
