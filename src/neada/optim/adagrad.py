"""Generalized AdaGrad, the paper's Algorithm 4, and AdaGrad-Norm as its alpha = 1/2.

Yang, Li & He 2022 (arXiv:2206.00743, Algorithm 4 and Theorem 4); Ward, Wu & Bottou 2019 for the
scalar step; Mukkamala & Hein 2017 for alpha = 1.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Active, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar, divide, is_finite, where
from neada.sets import Set

__all__ = ["GeneralizedAdaGrad", "SCAdaNGD"]


class GeneralizedAdaGrad(PlayerOptimizer):
    r"""A gradient step divided by a power of the sum of all squared gradient norms.

    .. math::
        v_{k+1} = v_k + \|g_k\|^2, \qquad w_{k+1} = P\bigl(w_k - \eta\, g_k / v_{k+1}^{\alpha}\bigr)

    :math:`\alpha = 1/2` is AdaGrad-Norm. The norm is that of the whole player, all groups
    together; `scope` makes it that of each tensor or of each coordinate.

    Needs to know: nothing for :math:`\alpha < 1`; any `lr` has the rate, a too small one costs
    time. For :math:`\alpha = 1`, :math:`\eta \ge G^2/\mu` (gradient bound, strong convexity).

    Guarantees: smooth nonconvex, :math:`\alpha = 1/2`: gradient norm
    :math:`\tilde O(T^{-1/2})`, with noise :math:`\tilde O(T^{-1/4})`. Online strongly convex on
    a bounded set: regret :math:`O(T^{1-\alpha})`, :math:`O(\log T)` for :math:`\alpha = 1`. As
    the inner solver with noise the last iterate has error :math:`K^{-\alpha}`; with
    ``average=1.0`` about :math:`K^{-1}` is observed, not proven.

    Args:
        params: Tensors or parameter groups.
        lr: The learning rate :math:`\eta`; with `rowwise`, also a float64 tensor with one per row.
        alpha: The exponent, in (0, 1].
        v0: Where the sum starts. A tiny one makes the first step as long as `lr` whatever the
            gradient; for alpha > 1/2 it makes it unbounded, so at least 0.01 is asked for there.
        scope: Whose norms are summed: "player", "tensor" or "coordinate".
        accumulate: What is summed: the squared norm of the "gradient", or of the gradient
            "mapping" w - P(w - g), which vanishes at a solution on the boundary of the set.
        average: None, or the decay of the average that `averaged()` shows: 0 uniform, 1 weights
            proportional to the step's number.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem.

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

    shared: ClassVar[tuple[str, ...]] = ("alpha", "v0", "scope", "accumulate", "average")

    def __init__(
        self,
        params: ParamsT,
        lr: Scalar = 1.0,
        *,
        alpha: float = 0.5,
        v0: float = 1.0,
        scope: Literal["player", "tensor", "coordinate"] = "player",
        accumulate: Literal["gradient", "mapping"] = "gradient",
        average: float | None = None,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "v0": v0,
            "scope": scope,
            "accumulate": accumulate,
            "average": average,
        }
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        self._check_rate(group, has_rows=group["rowwise"])
        check_number("alpha", group["alpha"], most=1.0)
        check_number("v0", group["v0"])
        if group["alpha"] > 0.5 and group["v0"] < 1e-2:
            raise ValueError(
                f"v0 must be at least 0.01 for alpha > 1/2, got {group['v0']}: the first step "
                "grows without bound as v0 and the gradient go to zero"
            )
        check_choice("scope", group["scope"], ("player", "tensor", "coordinate"))
        check_choice("accumulate", group["accumulate"], ("gradient", "mapping"))
        if group["average"] is not None:
            check_number("average", group["average"], strict=False)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        head = self.param_groups[0]
        return {"v": head["v0"]} if head["scope"] == "player" else {}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        if head["scope"] == "player":
            numbers["v"] = v = numbers["v"] + self._added(active)
            self._descend(active, v ** -head["alpha"])
            return
        update = self._tensor_steps if head["scope"] == "tensor" else self._coordinate_steps
        update(active, numbers, self._accumulated(active))
        self._project(active)

    def _accumulated(self, active: Active) -> list[Tensor]:
        """The gradient, or the gradient mapping w - P(w - g) where there is a set."""
        if self.param_groups[0]["accumulate"] == "gradient":
            return active.grads
        mapping: list[Tensor] = []
        for group, span in active.spans:
            grads, constraint = active.grads[span], group["constraint"]
            if constraint is not None:
                place = {id(p): g for p, g in zip(active.params[span], grads, strict=True)}
                ascent = [-place.get(id(p), torch.zeros_like(p)) for p in group["params"]]
                everywhere = constraint.gradient_mapping(group["params"], ascent)
                grads = [
                    g for p, g in zip(group["params"], everywhere, strict=True) if id(p) in place
                ]
            mapping += grads
        return mapping

    def _added(self, active: Active) -> Scalar:
        if self.param_groups[0]["accumulate"] == "gradient":
            return active.norm_sq
        return tensors.squared_norm(self._accumulated(active), self._rowwise)

    def _tensor_steps(
        self, active: Active, numbers: dict[str, Any], accumulated: list[Tensor]
    ) -> None:
        alpha, v0 = self.param_groups[0]["alpha"], self.param_groups[0]["v0"]
        place = {id(param): i for i, param in enumerate(self._all_params())}
        for group, span in active.spans:
            for param, grad, added in zip(
                active.params[span], active.grads[span], accumulated[span], strict=True
            ):
                name = f"v of tensor {place[id(param)]}"
                v = numbers.get(name, v0) + tensors.squared_norm([added], self._rowwise)
                numbers[name] = v
                tensors.add_scaled_([param], [grad], -group["lr"] * v**-alpha)

    def _coordinate_steps(
        self, active: Active, numbers: dict[str, Any], accumulated: list[Tensor]
    ) -> None:
        alpha, v0 = self.param_groups[0]["alpha"], self.param_groups[0]["v0"]
        sums = self._vectors("v", active.params, lambda param: torch.full_like(param, v0))
        torch._foreach_addcmul_(sums, accumulated, accumulated)
        scales = torch._foreach_pow(sums, alpha)
        for group, span in active.spans:
            steps = torch._foreach_div(active.grads[span], scales[span])
            tensors.add_scaled_(active.params[span], steps, -group["lr"])


class SCAdaNGD(PlayerOptimizer):
    r"""Normalized gradient steps weighted by inverse powers of the gradient norm.

    .. math::
        Q_k = Q_{k-1} + \|g_k\|^{-p}, \qquad
        w_{k+1} = P\Bigl(w_k - \frac{g_k}{H\,Q_k\,\|g_k\|^{p}}\Bigr)

    The guarantee is about the average of the :math:`w_k` with weights :math:`\|g_k\|^{-p}`, which
    `averaged()` shows.

    Needs to know: the strong-convexity modulus :math:`H`. Up to about twice the true one is
    harmless; five times too large makes the rate polynomial. (The NeAda paper counts this method
    among those that need no such constant.)

    Guarantees: p = 2, smooth, solution in the interior: linear, in proportion to
    :math:`e^{-HT/l}(1+HT/l)`; Lipschitz: :math:`\tilde O(1/(HT))`. The first step has length
    :math:`1/H`, so the iterate first moves away by a factor of about the condition number.

    Args:
        params: Tensors or parameter groups.
        strong_convexity: The modulus :math:`H`.
        power: The exponent :math:`p`, 1 or 2.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem.

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

    shared: ClassVar[tuple[str, ...]] = ("strong_convexity", "power")

    def __init__(
        self,
        params: ParamsT,
        strong_convexity: float,
        *,
        power: Literal[1, 2] = 2,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {"strong_convexity": strong_convexity, "power": power}
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        check_number("strong_convexity", group["strong_convexity"])
        check_choice("power", group["power"], (1, 2))

    @property
    def keeps_average(self) -> bool:
        """The guarantee is about the average, so there always is one."""
        return True

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"sum": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        norm_to_power = active.norm_sq ** (head["power"] / 2.0)
        weight = divide(1.0, norm_to_power)
        weight = where(is_finite(weight), weight, 0.0)  # a norm this small is zero
        numbers["sum"] = total = numbers["sum"] + weight
        numbers["num_averaged"] = averaged = numbers["num_averaged"] + weight
        self._fold_into_average(self._all_params(), divide(weight, averaged))
        step = divide(weight, head["strong_convexity"] * total)
        self._descend(active, step)
