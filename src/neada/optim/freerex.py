"""FreeRex: online learning without any parameter (Cutkosky & Boahen 2017, arXiv:1703.02629)."""

import math
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.arguments import check_choice, check_number
from neada.optim.objective import Objective
from neada.optim.player import Active, Group, PlayerOptimizer
from neada.optim.reductions import Reduction, surrogate_gradient
from neada.scalars import Scalar, divide, expm1, maximum, sqrt
from neada.sets import Set

__all__ = ["FreeRex"]


class FreeRex(PlayerOptimizer):
    r"""An exponential of the summed gradient, with nothing to tune.

    With :math:`G = \sum g` and :math:`L = \max\|g\|`,

    .. math::
        q \leftarrow \max(q + 2\|g\|^2,\ L\|G\|), \qquad a \leftarrow \max(a,\ q/L^2), \qquad
        w = w_0 - \frac{G}{\|G\|}\,\frac{\exp(\|G\|/(k\sqrt q)) - 1}{a}

    With `momentum` the mean displacement, weighted by gradient norms, is added.

    Needs to know: nothing.

    Guarantees: regret :math:`\tilde O(\|u\| G\sqrt T)` plus a term exponential in the largest
    ratio of consecutive gradient scales; with momentum, :math:`\tilde O(1/T)` if the expected
    loss is strongly convex, for the average. The constants are large: expect a hundred times the
    error of SGD with a known modulus. Without noise the momentum version does not reach the
    solution, because the weights of the mean fade.

    Args:
        params: Tensors or parameter groups.
        k: The only constant; the authors' is the square root of 5.
        momentum: Whether to add the weighted mean displacement.
        reduction: What the learner is told when it proposes a point outside the set.
        average: None, or the decay of the average that `averaged()` shows; 0 is the proven one.
        maximize: Ascend instead of descend.
        constraint: The set to play on, joint over the tensors of a group.
        rowwise: Every row is its own problem.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = FreeRex([w])
        >>> for _ in range(1000):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    shared: ClassVar[tuple[str, ...]] = ("k", "momentum", "reduction", "average")

    def __init__(
        self,
        params: ParamsT,
        *,
        k: float = math.sqrt(5.0),
        momentum: bool = False,
        reduction: Reduction = "cut",
        average: float | None = None,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {"k": k, "momentum": momentum, "reduction": reduction, "average": average}
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        check_number("k", group["k"])
        check_choice("momentum", group["momentum"], (True, False))
        check_choice("reduction", group["reduction"], ("half", "cut"))
        if group["average"] is not None:
            check_number("average", group["average"], strict=False)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"largest": 0.0, "q": 0.0, "a": 0.0, "weight_sum": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        starts = self._vectors("start", active.params, torch.clone)
        proposed = self._vectors("proposed", active.params, torch.clone)
        gradient, norm_sq = active.grads, active.norm_sq
        if self._has_set(active):
            gradient = surrogate_gradient(
                gradient, proposed, active.params, head["reduction"], self._rowwise
            )
            norm_sq = tensors.squared_norm(gradient, self._rowwise)
        norm = sqrt(norm_sq)
        mean = self._vectors("mean_displacement", active.params, torch.zeros_like)
        if head["momentum"]:
            numbers["weight_sum"] = total = numbers["weight_sum"] + norm
            displacement = tensors.difference(proposed, starts)
            tensors.interpolate_(mean, displacement, divide(norm, total))

        sums = self._vectors("sum", active.params, torch.zeros_like)
        tensors.add_scaled_(sums, gradient, 1.0)
        sum_norm = sqrt(tensors.squared_norm(sums, self._rowwise))
        numbers["largest"] = largest = maximum(numbers["largest"], norm)
        numbers["q"] = q = maximum(numbers["q"] + 2.0 * norm_sq, largest * sum_norm)
        numbers["a"] = a = maximum(numbers["a"], divide(q, largest * largest))

        length = divide(expm1(divide(sum_norm, head["k"] * sqrt(q))), a)
        tensors.copy_(proposed, starts)
        tensors.add_scaled_(proposed, sums, -divide(length, sum_norm))
        if head["momentum"]:
            tensors.add_scaled_(proposed, mean, 1.0)
        tensors.copy_(active.params, proposed)
        self._project(active)
