"""The players of TiAda as two optimizers that share their sums (Li, Yang & He 2023).

The y of robust training is another tensor with every batch, so that x holds both sums.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import parallel
from neada.optim.base import Active, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar

__all__ = ["TiAdaX", "TiAdaY"]

_V0 = 1e-8


class TiAdaX(PlayerOptimizer):
    r"""Gradient steps for x, divided by :math:`\max(v^x, v^y)^{\alpha}`.

    Args:
        params: Tensors or parameter groups.
        lr: The learning rate.
        alpha: The exponent.
    """

    per_group: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(self, params: ParamsT, lr: float, alpha: float = 0.6) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha})

    def _check(self, group: Group) -> None:
        self._check_rate(group, has_rows=False)

    def add(self, player: str, grad_sq: float) -> float:
        """Add a squared gradient norm to the sum of a player; return the sum."""
        numbers = self._saved_numbers()
        numbers[player] = total = numbers.get(player, _V0) + grad_sq
        return float(total)

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        slowest = max(self.add("x", float(active.norm_sq)), numbers.get("y", _V0))
        self._descend(active, slowest ** -self.param_groups[0]["alpha"])


class TiAdaY(PlayerOptimizer):
    r"""Gradient steps for y, divided by :math:`(v^y)^{\beta}`.

    With `rowwise` the rows are the samples of a mean: the sum gathers the mean of their squared
    gradients, and all rows have one step size.

    Args:
        params: A list with y.
        lr: The learning rate.
        x_optimizer: Holds the sums.
        beta: The exponent.
        rowwise: Whether the rows are samples.
    """

    per_group: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        x_optimizer: TiAdaX,
        beta: float = 0.4,
        *,
        rowwise: bool = False,
    ) -> None:
        super().__init__(list(params), {"lr": lr, "beta": beta}, maximize=True, rowwise=rowwise)
        self._x_optimizer = x_optimizer

    def _check(self, group: Group) -> None:
        self._check_rate(group, has_rows=False)

    def _rests_at_zero_gradient(self) -> bool:
        return False  # samples without a gradient count in the mean

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        total = self._x_optimizer.add("y", _mean(active.norm_sq))
        self._descend(active, total ** -self.param_groups[0]["beta"])


def _mean(norm_sq: Scalar) -> float:
    """The squared norm, or its mean over the samples of all ranks."""
    if not isinstance(norm_sq, Tensor) or norm_sq.dim() == 0:
        return float(norm_sq)
    return parallel.agree(norm_sq.mean().item(), weight=len(norm_sq))
