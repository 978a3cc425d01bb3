"""Online learning by betting: no learning rate, and regret bounds up to logarithms.

`KT` (Orabona & Pal 2016, arXiv:1602.04128), `COCOB` (Orabona & Tommasi 2017, arXiv:1705.07795),
`CoinBetting` (Cutkosky & Orabona 2018, arXiv:1802.06293), `FreeRex` (Cutkosky & Boahen 2017,
arXiv:1703.02629). The last two play on a set by the reduction of Cutkosky 2020: the learner
proposes a point, its projection is played, and the learner receives a surrogate gradient that also
penalizes the distance to the set.
"""

import math
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.base import Active, Common, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar, divide, expm1, maximum, minimum, sqrt, where
from neada.sets import Set

__all__ = ["COCOB", "KT", "CoinBetting", "FreeRex"]


_NEWTON = 2.0 / (2.0 - math.log(3.0))
_ROOT_5 = math.sqrt(5.0)


def surrogate_gradient(
    gradient: list[Tensor], proposed: list[Tensor], played: list[Tensor], rowwise: bool
) -> list[Tensor]:
    r"""The gradient that the learner receives, as new tensors.

    With :math:`e` the unit vector from the played to the proposed point (0 if they coincide), it
    is :math:`g - \min(\langle g, e\rangle, 0)\, e`.

    Args:
        gradient: The gradient at the played point.
        proposed: The point that the learner proposed.
        played: Its projection.
        rowwise: Whether every row is a separate problem.
    """
    outward = tensors.difference(proposed, played)
    distance = sqrt(tensors.squared_norm(outward, rowwise))
    # A projection may change the last bits of a feasible point.
    rounding = 8.0 * torch.finfo(played[0].dtype).eps
    size = sqrt(tensors.squared_norm(proposed, rowwise))
    tensors.scale_(outward, where(distance > rounding * size, divide(1.0, distance), 0.0))
    surrogate = tensors.clone(gradient)
    inward = minimum(tensors.dot(gradient, outward, rowwise), 0.0)
    tensors.add_scaled_(surrogate, outward, -inward)
    return surrogate


class KT(PlayerOptimizer):
    r"""Online learning as betting on a coin, with the Krichevsky-Trofimov fraction.

    With gradients divided by the bound :math:`G` and :math:`\theta_k = -\sum_{i\le k} g_i/G`,

    .. math::
        w_{k+1} = P\Bigl(w_0 + \frac{\theta_k}{k+1}\Bigl(\epsilon
        - \sum_{i\le k} \langle g_i/G,\, w_i - w_0\rangle\Bigr)\Bigr), \qquad k = 1, 2, \dots

    Required problem constants: a bound :math:`G` on the gradient norm. If a gradient exceeds it,
    the wealth may become negative and the method diverge.

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
        rowwise: Every row is a separate problem.

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

    positive: ClassVar[tuple[str, ...]] = ("bound", "wealth")

    def __init__(
        self,
        params: ParamsT,
        bound: float,
        *,
        wealth: float = 1.0,
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"bound": bound, "wealth": wealth, "average": average}, **common)

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


class COCOB(PlayerOptimizer):
    r"""Coin betting per coordinate, scale-free and without a learning rate.

    For each coordinate, :math:`L \leftarrow \max(L, |g|)`, :math:`A \leftarrow A + |g|`,
    :math:`R \leftarrow \max(R - g(w-w_0), 0)`, :math:`\theta \leftarrow \theta - g` and

    .. math::
        w \leftarrow P\Bigl(w_0 + \theta\,\frac{L + R}{L\,\max(A+L,\ \alpha L)}\Bigr)

    Required problem constants: none.

    Guarantees: convex regret up to logarithms without :math:`\alpha` and without the cut at zero;
    with them a heuristic, strong where the Hessian is nearly diagonal. Every coordinate is
    separate, and so is every row.

    Args:
        params: Tensors or parameter groups.
        alpha: Slows the first steps; a coordinate moves by 1/alpha at first.
        scale0: The initial value of the largest gradient :math:`L`.
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

    per_group: ClassVar[tuple[str, ...]] = ("alpha", "scale0")
    positive: ClassVar[tuple[str, ...]] = ("alpha", "scale0")

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
            largest = self._vectors(
                "largest", params, partial(torch.full_like, fill_value=group["scale0"])
            )
            torch._foreach_maximum_(largest, sizes[span])
            bets = torch._foreach_add(largest, rewards[span])
            spread = torch._foreach_add(absolute_sums[span], largest)
            torch._foreach_maximum_(spread, torch._foreach_mul(largest, group["alpha"]))
            torch._foreach_div_(bets, spread)  # divided twice: a product of two could overflow
            torch._foreach_mul_(bets, torch._foreach_div(sums[span], largest))
            torch._foreach_copy_(params, starts[span])
            torch._foreach_add_(params, bets)
        self._project(active)


class CoinBetting(PlayerOptimizer):
    r"""Coin betting with a fraction learned by online Newton steps, times a learned direction.

    The point is :math:`w = P(c + v W u)`. With outcomes :math:`s = \langle g, u\rangle` of
    gradients scaled to norm at most 1, the wealth is :math:`W \leftarrow W - s v W`, the fraction

    .. math::
        \zeta = \frac{s}{1 - s v}, \qquad A \leftarrow A + \zeta^2, \qquad
        v \leftarrow \mathrm{clip}\Bigl(v - \tfrac{2}{2-\ln 3}\,\zeta/A,\ \pm\tfrac12\Bigr),

    and the direction :math:`u \leftarrow P_{\|u\|\le 1}(u - \sqrt2\, g/\sqrt{\sum\|g\|^2})`. The
    center :math:`c` is the start, or with `curvature` the mean of the start and of all iterates
    weighted by their gradient norms.

    Required problem constants: a bound on the gradient norm for the proof; without one the largest
    norm so far is used, a heuristic.

    Guarantees: on a bounded set with bounded gradients, strongly convex losses and `curvature`:
    regret :math:`O(\log^2 T/\mu)`, so :math:`\tilde O(1/T)` for the average, without
    :math:`\mu`. It is the only inner solver here with a proof for the stochastic theory. In
    noise-free problems use the last iterate.

    Args:
        params: Tensors or parameter groups.
        bound: A bound on the gradient norm, or None for the largest seen.
        wealth: The initial wealth.
        curvature: Whether the center follows the iterates.
        average: None, or the decay of the average that `averaged()` shows; 0 is the proven one.
        maximize: Ascend instead of descend.
        constraint: The set to play on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

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

    positive: ClassVar[tuple[str, ...]] = ("bound", "wealth")

    def __init__(
        self,
        params: ParamsT,
        *,
        bound: float | None = None,
        wealth: float = 1.0,
        curvature: bool = True,
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        defaults = {"bound": bound, "wealth": wealth, "curvature": curvature, "average": average}
        super().__init__(params, defaults, **common)

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
        # A gradient above the bound is cut to it, so that no bet loses more than its stake.
        inverse = divide(1.0, maximum(numbers["scale"], norm))
        tensors.scale_(gradient, inverse)
        proposed = self._vectors("proposed", active.params, torch.clone)
        if self._has_set(active):
            gradient = surrogate_gradient(gradient, proposed, active.params, self._rowwise)
        center = self._vectors("center", active.params, torch.clone)
        if head["curvature"]:
            weight = norm * inverse
            numbers["center_weight"] = total = numbers["center_weight"] + weight
            tensors.interpolate_(center, active.params, weight / total)

        # The wealth after the last bet, and the next fraction by an online Newton step.
        direction = self._vectors("direction", active.params, torch.zeros_like)
        outcome = tensors.dot(gradient, direction, self._rowwise)
        kept = 1.0 - outcome * numbers["fraction"]
        slope = outcome / kept
        numbers["wealth"] = numbers["wealth"] * kept
        numbers["outcome_sum"] = numbers["outcome_sum"] + slope * slope
        fraction = numbers["fraction"] - _NEWTON * slope / numbers["outcome_sum"]
        numbers["fraction"] = maximum(minimum(fraction, 0.5), -0.5)

        # The next direction by a projected AdaGrad step on the unit ball.
        grad_sq = tensors.squared_norm(gradient, self._rowwise)
        numbers["direction_sum"] = total = numbers["direction_sum"] + grad_sq
        step = where(total > 0.0, divide(math.sqrt(2.0), sqrt(total)), 0.0)
        tensors.add_scaled_(direction, gradient, -step)
        length = sqrt(tensors.squared_norm(direction, self._rowwise))
        tensors.scale_(direction, 1.0 / maximum(length, 1.0))

        tensors.copy_(proposed, center)
        tensors.add_scaled_(proposed, direction, numbers["fraction"] * numbers["wealth"])
        tensors.copy_(active.params, proposed)
        self._project(active)


class FreeRex(PlayerOptimizer):
    r"""An exponential of the summed gradient, without hyper-parameters.

    With :math:`G = \sum g` and :math:`L = \max\|g\|`,

    .. math::
        q \leftarrow \max(q + 2\|g\|^2,\ L\|G\|), \qquad a \leftarrow \max(a,\ q/L^2), \qquad
        w = w_0 - \frac{G}{\|G\|}\,\frac{\exp(\|G\|/\sqrt{5 q}) - 1}{a}

    With `momentum` the mean displacement, weighted by gradient norms, is added.

    Required problem constants: none.

    Guarantees: regret :math:`\tilde O(\|u\| G\sqrt T)` plus a term exponential in the largest
    ratio of consecutive gradient scales; with momentum, :math:`\tilde O(1/T)` if the expected
    loss is strongly convex, for the average. The constants are large: expect a hundred times the
    error of SGD with a known modulus. Without noise the momentum version does not reach the
    solution, because the weights of the mean fade.

    Args:
        params: Tensors or parameter groups.
        momentum: Whether to add the weighted mean displacement.
        average: None, or the decay of the average that `averaged()` shows; 0 is the proven one.
        maximize: Ascend instead of descend.
        constraint: The set to play on, joint over the tensors of a group.
        rowwise: Every row is a separate problem.

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

    def __init__(
        self,
        params: ParamsT,
        *,
        momentum: bool = False,
        average: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"momentum": momentum, "average": average}, **common)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"largest": 0.0, "q": 0.0, "a": 0.0, "weight_sum": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        has_momentum = self.param_groups[0]["momentum"]
        starts = self._vectors("start", active.params, torch.clone)
        proposed = self._vectors("proposed", active.params, torch.clone)
        gradient, norm_sq = active.grads, active.norm_sq
        if self._has_set(active):
            gradient = surrogate_gradient(gradient, proposed, active.params, self._rowwise)
            norm_sq = tensors.squared_norm(gradient, self._rowwise)
        norm = sqrt(norm_sq)
        mean = self._vectors("mean_displacement", active.params, torch.zeros_like)
        if has_momentum:
            numbers["weight_sum"] = total = numbers["weight_sum"] + norm
            displacement = tensors.difference(proposed, starts)
            tensors.interpolate_(mean, displacement, divide(norm, total))

        sums = self._vectors("sum", active.params, torch.zeros_like)
        tensors.add_scaled_(sums, gradient, 1.0)
        sum_norm = sqrt(tensors.squared_norm(sums, self._rowwise))
        numbers["largest"] = largest = maximum(numbers["largest"], norm)
        numbers["q"] = q = maximum(numbers["q"] + 2.0 * norm_sq, largest * sum_norm)
        numbers["a"] = a = maximum(numbers["a"], divide(q, largest * largest))

        length = divide(expm1(divide(sum_norm, _ROOT_5 * sqrt(q))), a)
        tensors.copy_(proposed, starts)
        tensors.add_scaled_(proposed, sums, -divide(length, sum_norm))
        if has_momentum:
            tensors.add_scaled_(proposed, mean, 1.0)
        tensors.copy_(active.params, proposed)
        self._project(active)
