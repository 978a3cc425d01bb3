"""SC-AdaNGD: adaptive normalised gradient descent for strong convexity (Levy 2017)."""

from typing import Any, ClassVar, Literal

from torch.optim.optimizer import ParamsT

from neada.optim.arguments import check_choice, check_number
from neada.optim.objective import Objective
from neada.optim.player import Active, Group, PlayerOptimizer
from neada.scalars import Scalar, divide, is_finite, where
from neada.sets import Set

__all__ = ["SCAdaNGD"]


class SCAdaNGD(PlayerOptimizer):
    r"""Normalised gradient steps weighted by inverse powers of the gradient norm.

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

    needs_to_know: ClassVar[str] = "the strong-convexity modulus"
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

    def _keeps_average(self) -> bool:
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
