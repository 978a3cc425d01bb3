"""Mirror descent on the simplex with the entropy as its geometry."""

import math
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from neada.optim.base import Active, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar
from neada.sets import Simplex

__all__ = ["ExponentiatedGradient"]


class ExponentiatedGradient(PlayerOptimizer):
    r"""Weights on the simplex that grow, or shrink, by factors.

    .. math::
        w_i \leftarrow \frac{w_i\,e^{-\eta g_i}}{\sum_j w_j\,e^{-\eta g_j}}

    With a learning rate of None the step adapts to the gradients so far, which have equal weights
    (Hedge with a second-order rate, as in AdaHedge):

    .. math::
        w_i \propto w_{0,i}\,e^{-\eta_t \sum_{s \le t} g_{s,i}}, \qquad
        \eta_t = \sqrt{\ln n \Big/ \textstyle\sum_{s \le t} (\max_i g_{s,i} - \min_i g_{s,i})^2}

    so that neither the unit of the gradients nor a constant added to all of them matters. A weight
    of 0 stays 0.

    Required problem constants: none, with a learning rate of None.

    Guarantees: with a learning rate of None and equal initial weights, the regret after T steps
    against any fixed weights is at most
    :math:`2\sqrt{\ln n \sum_t (\max_i g_{t,i} - \min_i g_{t,i})^2}`.

    Args:
        params: The weights, one tensor.
        lr: The learning rate :math:`\eta`; None for one that adapts.
        maximize: Ascend instead of descend.
    """

    positive: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(self, params: ParamsT, lr: float | None = None, *, maximize: bool = True) -> None:
        super().__init__(params, {"lr": lr}, maximize=maximize, constraint=Simplex())

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"spread_sq": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        (weights,), (gradient,) = active.params, active.grads
        start, total, lr = weights, gradient, self.param_groups[0]["lr"]
        if lr is None:
            (start,) = self._vectors("start", [weights], torch.clone)
            (total,) = self._vectors("total", [weights], torch.zeros_like)
            # A constant in all gradients has no effect, but would cost digits of the sum.
            total.add_(gradient - gradient.mean())
            numbers["spread_sq"] += (gradient.max() - gradient.min()).item() ** 2
            spread_sq = numbers["spread_sq"]
            lr = math.sqrt(math.log(len(weights)) / spread_sq) if spread_sq > 0.0 else 0.0
        logits = start.double().log() - lr * total.double()
        weights.copy_(torch.softmax(logits, dim=0))
        self._project(active)
