"""Generalized AdaGrad, the paper's Algorithm 4, and AdaGrad-Norm as its alpha = 1/2.

Yang, Li & He 2022 (arXiv:2206.00743, Algorithm 4 and Theorem 4); Ward, Wu & Bottou 2019 for the
scalar step; Mukkamala & Hein 2017 for alpha = 1.
"""

from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Active, Common, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar, divide, is_finite, where

__all__ = ["GeneralizedAdaGrad", "SCAdaNGD"]


class GeneralizedAdaGrad(PlayerOptimizer):
    r"""A gradient step divided by a power of the sum of all squared gradient norms.

    .. math::
        v_{k+1} = v_k + \|g_k\|^2, \qquad w_{k+1} = P\bigl(w_k - \eta\, g_k / v_{k+1}^{\alpha}\bigr)

    :math:`\alpha = 1/2` is AdaGrad-Norm. The norm is that of the whole player, all groups
    together; for one sum per coordinate use `AdaptiveSGD`.

    Required problem constants: none for :math:`\alpha < 1`; every `lr` has the stated rate, but a
    small one is slow. For :math:`\alpha = 1`, :math:`\eta \ge G^2/\mu` (gradient bound, strong
    convexity).

    Guarantees: smooth nonconvex, :math:`\alpha = 1/2`: gradient norm
    :math:`\tilde O(T^{-1/2})`, with noise :math:`\tilde O(T^{-1/4})`. Online strongly convex on
    a bounded set: regret :math:`O(T^{1-\alpha})`, :math:`O(\log T)` for :math:`\alpha = 1`. As
    the inner solver with noise the last iterate has error :math:`K^{-\alpha}`; with
    ``average=1.0`` about :math:`K^{-1}` is observed, not proven.

    Args:
        params: Tensors or parameter groups.
        lr: The learning rate :math:`\eta`; with `rowwise`, also a float64 tensor with one per row.
        alpha: The exponent, in (0, 1].
        v0: The initial sum; at least 0.01 for alpha > 1/2. With a tiny one the first step has
            length `lr` whatever the gradient for alpha = 1/2, and is unbounded for alpha > 1/2.
        accumulate: What is summed: the squared norm of the "gradient", or of the gradient
            "mapping" w - P(w - g), which vanishes at a solution on the boundary of the set.
        average: None, or the decay of the average that `averaged()` shows: 0 uniform, 1 weights
            proportional to the step's number.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = GeneralizedAdaGrad([w], lr=1.0)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    per_group: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(
        self,
        params: ParamsT,
        lr: Scalar = 1.0,
        *,
        alpha: float = 0.5,
        v0: float = 1.0,
        accumulate: Literal["gradient", "mapping"] = "gradient",
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "v0": v0,
            "accumulate": accumulate,
            "average": average,
        }
        super().__init__(params, defaults, **common)

    def _check(self, group: Group) -> None:
        self._check_rate(group, has_rows=group["rowwise"])
        check_number("alpha", group["alpha"], most=1.0)
        check_number("v0", group["v0"])
        if group["alpha"] > 0.5 and group["v0"] < 1e-2:
            raise ValueError(
                f"v0 must be at least 0.01 for alpha > 1/2, got {group['v0']}: the first step "
                "grows without bound as v0 and the gradient go to zero"
            )
        check_choice("accumulate", group["accumulate"], ("gradient", "mapping"))

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"v": self.param_groups[0]["v0"]}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        added = active.norm_sq
        if head["accumulate"] == "mapping" and self._has_set(active):
            added = tensors.squared_norm(self._gradient_mapping(active), self._rowwise)
        numbers["v"] = v = numbers["v"] + added
        self._descend(active, v ** -head["alpha"])

    def _gradient_mapping(self, active: Active) -> list[Tensor]:
        """The gradient mapping w - P(w - g); the gradient in groups without a set."""
        mapping: list[Tensor] = []
        for group, span in active.spans:
            grads, constraint = active.grads[span], group["constraint"]
            if constraint is not None:
                descent = dict(zip(active.params[span], grads, strict=True))
                ascent = [-descent.get(p, torch.zeros_like(p)) for p in group["params"]]
                everywhere = constraint.gradient_mapping(group["params"], ascent)
                pairs = zip(group["params"], everywhere, strict=True)
                grads = [gradient for p, gradient in pairs if p in descent]
            mapping += grads
        return mapping


class SCAdaNGD(PlayerOptimizer):
    r"""Normalized gradient steps weighted by inverse powers of the gradient norm.

    .. math::
        Q_k = Q_{k-1} + \|g_k\|^{-p}, \qquad
        w_{k+1} = P\Bigl(w_k - \frac{g_k}{H\,Q_k\,\|g_k\|^{p}}\Bigr)

    The guarantee is about the average of the :math:`w_k` with weights :math:`\|g_k\|^{-p}`, which
    `averaged()` shows.

    Required problem constants: the strong-convexity modulus :math:`H`. Up to about twice the true
    one is harmless; five times too large makes the rate polynomial. (The NeAda paper lists this
    method among those that need no such constant.)

    Guarantees: p = 2, smooth, solution in the interior: linear, in proportion to
    :math:`e^{-HT/l}(1+HT/l)`; Lipschitz: :math:`\tilde O(1/(HT))`. The first step has length
    :math:`1/H`, so the iterate first moves away by a factor of about the condition number.

    Args:
        params: Tensors or parameter groups.
        strong_convexity: The modulus :math:`H`.
        power: The exponent :math:`p`, 1 or 2.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = SCAdaNGD([w], strong_convexity=2.0)
        >>> for _ in range(60):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2 * torch.tensor([1.0, 3.0])).sum().backward()
        ...     _ = optimizer.step()
        >>> with optimizer.averaged():
        ...     print(w.detach().round(decimals=3))
        tensor([1., 1.])
    """

    def __init__(
        self,
        params: ParamsT,
        strong_convexity: float,
        *,
        power: Literal[1, 2] = 2,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"strong_convexity": strong_convexity, "power": power}, **common)

    def _check(self, group: Group) -> None:
        check_number("strong_convexity", group["strong_convexity"])
        check_choice("power", group["power"], (1, 2))

    @property
    def keeps_average(self) -> bool:
        """Always true: the guarantee is about the average."""
        return True

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"sum": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        norm_to_power = active.norm_sq ** (head["power"] / 2.0)
        weight = divide(1.0, norm_to_power)
        weight = where(is_finite(weight), weight, 0.0)  # the square of the norm underflowed
        numbers["sum"] = total = numbers["sum"] + weight
        numbers["num_averaged"] = averaged = numbers["num_averaged"] + weight
        self._fold_into_average(divide(weight, averaged))
        step = divide(weight, head["strong_convexity"] * total)
        self._descend(active, step)
