"""Sets that bound each coordinate separately: the whole space, boxes, the nonnegative orthant."""

import math
from typing import Any

from torch import Tensor

from neada.scalars import Flag
from neada.sets.base import Set, Values, as_tensors, broadcast, read_values, slack

__all__ = ["Box", "NonNegative", "WholeSpace"]


class Box(Set):
    r"""The box between two bounds, coordinate by coordinate.

    .. math::
        P(v) = \min(\max(v,\ \text{lower}),\ \text{upper})

    Args:
        lower: a float, a tensor that broadcasts to the point, or one tensor per tensor of the
            point; -inf for no bound.
        upper: likewise, with inf for no bound.

    Example:
        >>> import torch
        >>> box = Box(lower=0.0, upper=torch.tensor([1.0, 2.0]))
        >>> box.project(torch.tensor([-1.0, 5.0]))
        tensor([0., 2.])
    """

    elementwise = True

    def __init__(self, lower: Values, upper: Values) -> None:
        self.lower = read_values(lower, "lower")
        self.upper = read_values(upper, "upper")
        lowers, uppers = as_tensors(self.lower), as_tensors(self.upper)
        num = max(len(lowers), len(uppers))
        pairs = zip(lowers * (num // len(lowers)), uppers * (num // len(uppers)), strict=True)
        for low, high in pairs:
            feasible = (low <= high.to(low.device)) & (low < math.inf)
            if not bool(feasible.all()) or bool((high == -math.inf).any()):
                raise ValueError(f"lower must not exceed upper, got {self!r}")

    def _project_(self, tensors: list[Tensor]) -> None:
        for tensor, (lower, upper) in zip(tensors, self._bounds(tensors), strict=True):
            tensor.clamp_(lower, upper)

    def _contains(self, tensors: list[Tensor]) -> Flag:
        return all(bool(inside.all()) for inside in self._entries_inside(tensors))

    def _entries_inside(self, tensors: list[Tensor]) -> list[Tensor]:
        inside = []
        for tensor, (lower, upper) in zip(tensors, self._bounds(tensors), strict=True):
            nearest = tensor.clamp(lower, upper)
            allowed = slack(tensor.dtype, 1) * self._scale(nearest)
            inside.append((tensor == nearest) | ((tensor - nearest).abs() <= allowed))
        return inside

    def _scale(self, nearest: Tensor) -> Tensor:
        """The size of the numbers that are rounded when a bound is computed."""
        return nearest.abs()

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        # point - min(max(point + gradient, lower), upper) without the rounding of the sum
        return [
            (-gradient).clamp(max=tensor - lower).clamp(min=tensor - upper)
            for tensor, gradient, (lower, upper) in zip(
                tensors, gradients, self._bounds(tensors), strict=True
            )
        ]

    def _check_fit(self, tensors: list[Tensor]) -> None:
        self._bounds(tensors)

    def _bounds(self, tensors: list[Tensor]) -> list[tuple[Any, Any]]:
        """The bounds of each tensor: two numbers, with which clamp is faster, or two tensors."""
        if isinstance(self.lower, float) and isinstance(self.upper, float):
            return [(self.lower, self.upper)] * len(tensors)
        lower = broadcast(self.lower, "lower", tensors)
        upper = broadcast(self.upper, "upper", tensors)
        return list(zip(lower, upper, strict=True))


class WholeSpace(Box):
    """No constraint.

    .. math::
        P(v) = v

    Example:
        >>> import torch
        >>> space = WholeSpace()
        >>> space.gradient_mapping(torch.tensor([1.0, 2.0]), torch.tensor([0.1, -0.2]))
        tensor([-0.1000,  0.2000])
    """

    def __init__(self) -> None:
        super().__init__(-math.inf, math.inf)


class NonNegative(Box):
    r"""The nonnegative orthant.

    .. math::
        P(v) = \max(v,\ 0)

    Example:
        >>> import torch
        >>> orthant = NonNegative()
        >>> orthant.project(torch.tensor([-1.0, 5.0]))
        tensor([0., 5.])
    """

    def __init__(self) -> None:
        super().__init__(0.0, math.inf)
