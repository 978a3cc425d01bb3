"""Coin betting with an online Newton step (Cutkosky & Orabona 2018, arXiv:1802.06293).

Four blocks: a one-dimensional bettor, a learner of directions on the unit ball, the constraint
reduction (`neada.optim.reductions`) and the curvature reduction, a centre that follows the
iterates.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.arguments import check_choice, check_number
from neada.optim.objective import Objective
from neada.optim.player import Active, Group, PlayerOptimizer
from neada.optim.reductions import Reduction, surrogate_gradient
from neada.scalars import Scalar, divide, maximum, minimum, sqrt, where
from neada.sets import Set

__all__ = ["CoinBetting"]

_NEWTON = 2.0 / (2.0 - math.log(3.0))


class CoinBetting(PlayerOptimizer):
    r"""A bettor whose fraction is learned by online Newton steps, times a learned direction.

    The point is :math:`w = P(c + v W u)`. With outcomes :math:`s = \langle g, u\rangle` of
    gradients scaled to norm at most 1, the wealth is :math:`W \leftarrow W - s v W`, the fraction

    .. math::
        \zeta = \frac{s}{1 - s v}, \qquad A \leftarrow A + \zeta^2, \qquad
        v \leftarrow \mathrm{clip}\Bigl(v - \tfrac{2}{2-\ln 3}\,\zeta/A,\ \pm\tfrac12\Bigr),

    and the direction :math:`u \leftarrow P_{\|u\|\le 1}(u - \sqrt2\, g/\sqrt{\sum\|g\|^2})`. The
    centre :math:`c` is the start, or with `curvature` the mean of the start and of all iterates
    weighted by their gradient norms.

    Needs to know: a bound on the gradient norm for the proof; without one the largest norm seen
    so far is used, a heuristic.

    Guarantees: on a bounded set with bounded gradients, strongly convex losses and `curvature`:
    regret :math:`O(\log^2 T/\mu)`, so :math:`\tilde O(1/T)` for the average, without knowing
    :math:`\mu`. This makes it the one inner solver with a proof for the stochastic theory. In
    noise-free problems use the last iterate.

    Args:
        params: Tensors or parameter groups.
        bound: A bound on the gradient norm, or None for the largest seen.
        wealth: The initial wealth.
        curvature: Whether the centre follows the iterates.
        reduction: What the learner is told when it proposes a point outside the set.
        average: None, or the decay of the average that `averaged()` shows; 0 is the proven one.
        maximize: Ascend instead of descend.
        constraint: The set to play on, joint over the tensors of a group.
        rowwise: Every row is its own problem.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = CoinBetting([w])
        >>> for _ in range(400):
        ...     optimizer.zero_grad()
        ...     ((w - 1.0) ** 2).sum().backward()
        ...     _ = optimizer.step()
        >>> w.detach().round(decimals=2)
        tensor([1., 1.])
    """

    needs_to_know: ClassVar[str] = "nothing (a bound on the gradient norm for the proof)"
    shared: ClassVar[tuple[str, ...]] = ("bound", "wealth", "curvature", "reduction", "average")

    def __init__(
        self,
        params: ParamsT,
        *,
        bound: float | None = None,
        wealth: float = 1.0,
        curvature: bool = True,
        reduction: Reduction = "cut",
        average: float | None = None,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {
            "bound": bound,
            "wealth": wealth,
            "curvature": curvature,
            "reduction": reduction,
            "average": average,
        }
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        if group["bound"] is not None:
            check_number("bound", group["bound"])
        check_number("wealth", group["wealth"])
        check_choice("curvature", group["curvature"], (True, False))
        check_choice("reduction", group["reduction"], ("half", "cut"))
        if group["average"] is not None:
            check_number("average", group["average"], strict=False)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        head = self.param_groups[0]
        return {
            "scale": head["bound"] or 0.0,
            "wealth": head["wealth"],
            "fraction": 0.0,
            "outcome_sum": 1.0,
            "direction_sum": 0.0,
            "center_weight": 1.0,
        }

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        norm = sqrt(active.norm_sq)
        if head["bound"] is None:
            numbers["scale"] = maximum(numbers["scale"], norm)
        gradient = tensors.clone(active.grads)
        # A gradient beyond the bound is cut to it: a bet lost by more than it was is ruin.
        inverse = divide(1.0, maximum(numbers["scale"], norm))
        tensors.scale_(gradient, inverse)
        proposed = self._vectors("proposed", active.params, torch.clone)
        if self._has_set(active):
            gradient = surrogate_gradient(
                gradient, proposed, active.params, head["reduction"], self._rowwise
            )
        center = self._vectors("center", active.params, torch.clone)
        if head["curvature"]:
            weight = norm * inverse
            numbers["center_weight"] = total = numbers["center_weight"] + weight
            tensors.interpolate_(center, active.params, weight / total)
        direction = self._vectors("direction", active.params, torch.zeros_like)
        self._settle_bet(numbers, tensors.dot(gradient, direction, self._rowwise))
        self._turn(numbers, direction, gradient)
        tensors.copy_(proposed, center)
        tensors.add_scaled_(proposed, direction, numbers["fraction"] * numbers["wealth"])
        tensors.copy_(active.params, proposed)
        self._project(active)

    def _settle_bet(self, numbers: dict[str, Any], outcome: Scalar) -> None:
        """Pay the last bet and choose the next fraction by an online Newton step."""
        fraction = numbers["fraction"]
        numbers["wealth"] = numbers["wealth"] * (1.0 - outcome * fraction)
        slope = outcome / (1.0 - outcome * fraction)
        numbers["outcome_sum"] = numbers["outcome_sum"] + slope * slope
        fraction = fraction - _NEWTON * slope / numbers["outcome_sum"]
        numbers["fraction"] = maximum(minimum(fraction, 0.5), -0.5)

    def _turn(
        self, numbers: dict[str, Any], direction: list[Tensor], gradient: list[Tensor]
    ) -> None:
        """One projected AdaGrad step of the direction on the unit ball."""
        norm_sq = tensors.squared_norm(gradient, self._rowwise)
        numbers["direction_sum"] = total = numbers["direction_sum"] + norm_sq
        step = where(total > 0.0, divide(math.sqrt(2.0), sqrt(total)), 0.0)
        tensors.add_scaled_(direction, gradient, -step)
        length = sqrt(tensors.squared_norm(direction, self._rowwise))
        tensors.scale_(direction, 1.0 / maximum(length, 1.0))
