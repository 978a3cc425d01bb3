"""Mirror descent on the simplex with the entropy as its geometry."""

from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from neada.checks import check_number
from neada.optim.base import Active, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.sets import Simplex

__all__ = ["ExponentiatedGradient"]


class ExponentiatedGradient(PlayerOptimizer):
    r"""Weights on the simplex that grow, or shrink, by factors.

    .. math::
        w_i \leftarrow \frac{w_i\,e^{-\eta g_i}}{\sum_j w_j\,e^{-\eta g_j}}

    A weight of 0 stays 0.

    Args:
        params: The weights, one tensor.
        lr: The learning rate :math:`\eta`.
        maximize: Ascend instead of descend.
    """

    def __init__(self, params: ParamsT, lr: float, *, maximize: bool = True) -> None:
        super().__init__(params, {"lr": lr}, maximize=maximize, constraint=Simplex())

    def _check(self, group: Group) -> None:
        check_number("lr", group["lr"])

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        for group, span in active.spans:
            for weights, gradient in zip(active.params[span], active.grads[span], strict=True):
                logits = weights.double().log() - group["lr"] * gradient.double()
                weights.copy_(torch.softmax(logits, dim=0))
        self._project(active)
