"""The adaptive family of the NeAda paper: one player's half of its Algorithms 1 and 2.

Yang, Li & He, "Nest Your Adaptive Algorithm for Parameter-Agnostic Nonconvex Minimax
Optimization", NeurIPS 2022, arXiv:2206.00743. Exactly the printed update: no bias correction and
no epsilon, with 0/0 = 0. `torch.optim.Adam`, used in the paper's experiments, differs by both.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Active, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar
from neada.sets import Set

__all__ = ["AdaptiveSGD"]

Psi = Literal["none", "adagrad", "adam", "amsgrad"]
_MOMENTUM = {"none": 0.0, "adagrad": 0.0, "adam": 0.9, "amsgrad": 0.9}


class AdaptiveSGD(PlayerOptimizer):
    r"""Gradient steps scaled coordinate by coordinate with a second moment :math:`\psi`.

    .. math::
        m_{k+1} = \beta m_k + (1-\beta) g_k, \qquad
        w_{k+1} = P\Bigl(w_k - \eta\, m_{k+1} / \sqrt{v_{k+1}}\Bigr)

    with :math:`v_{k+1}` equal to 1 (``"none"``), :math:`v_k + g_k^2` (``"adagrad"``),
    :math:`\gamma v_k + (1-\gamma) g_k^2` (``"adam"``), or the largest of Adam's
    :math:`v_1, \dots, v_{k+1}` (``"amsgrad"``; :math:`v_0` itself is not in the maximum).

    Required problem constants: none to run; as a player of a non-nested game, a ratio of learning
    rates.

    Guarantees: as the x player of NeAda the paper's rates hold for AdaGrad with a scalar `v`
    (`GeneralizedAdaGrad`); for the coordinate-wise family none is proven.

    Args:
        params: Tensors or parameter groups.
        lr: The learning rate :math:`\eta`; or a float64 tensor with one for each row (first
            dimension) of the parameters.
        psi: The kind of second moment.
        beta: Momentum; by default 0.9 for Adam and AMSGrad and 0 otherwise.
        gamma: Decay of Adam's second moment.
        v0: The initial second moment.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = AdaptiveSGD([w], lr=0.5, psi="adagrad")
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    uses_gradient_norm: ClassVar[bool] = False
    per_group: ClassVar[tuple[str, ...]] = ("lr", "psi", "beta", "gamma", "v0")

    def __init__(
        self,
        params: ParamsT,
        lr: Scalar = 1e-2,
        psi: Psi = "adagrad",
        *,
        beta: float | None = None,
        gamma: float = 0.999,
        v0: float = 0.0,
        maximize: bool = False,
        constraint: Set | None = None,
    ) -> None:
        defaults = {"lr": lr, "psi": psi, "beta": beta, "gamma": gamma, "v0": v0}
        super().__init__(params, defaults, maximize=maximize, constraint=constraint)

    def _check(self, group: Group) -> None:
        self._check_rate(group, has_rows=True)  # every step is elementwise
        check_choice("psi", group["psi"], tuple(_MOMENTUM))
        if group["beta"] is None:
            group["beta"] = _MOMENTUM[group["psi"]]
        check_number("beta", group["beta"], strict=False, below=1.0)
        check_number("gamma", group["gamma"], strict=False, below=1.0)
        check_number("v0", group["v0"], strict=False)

    def _rests_at_zero_gradient(self) -> bool:
        return False  # momentum still moves the point

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        # Made before the first update, after which rows at rest are restored to it.
        for group, span in active.spans:
            self._squares(group, active.params[span])
        return {}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        for group, span in active.spans:
            params, grads = active.params[span], active.grads[span]
            steps = grads
            if group["beta"] > 0.0:
                steps = self._vectors("first_moment", params, torch.zeros_like)
                torch._foreach_lerp_(steps, grads, 1.0 - group["beta"])
            if group["psi"] != "none":
                scales = torch._foreach_rsqrt(self._second_moment(group, params, grads))
                torch._foreach_mul_(scales, steps)
                steps = list(scales)
                for step in steps:  # 0/0 = 0; no step either where the square underflowed
                    step.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            tensors.add_scaled_(params, steps, -group["lr"])
        self._project(active)

    def _second_moment(
        self, group: Group, params: list[Tensor], grads: list[Tensor]
    ) -> list[Tensor]:
        squares = self._squares(group, params)
        if group["psi"] == "adagrad":
            torch._foreach_addcmul_(squares, grads, grads)
            return squares
        torch._foreach_mul_(squares, group["gamma"])
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - group["gamma"])
        if group["psi"] == "adam":
            return squares
        largest = self._vectors("largest_second_moment", params, torch.zeros_like)
        torch._foreach_maximum_(largest, squares)
        return largest

    def _squares(self, group: Group, params: list[Tensor]) -> list[Tensor]:
        return self._vectors(
            "second_moment", params, lambda param: torch.full_like(param, group["v0"])
        )
