"""Sets that bound each coordinate by itself: the whole space, boxes, the nonnegative orthant."""

import math

import torch
from torch import Tensor

from neada.scalars import Flag
from neada.sets.base import (
    Set,
    Values,
    as_doubles,
    check_values,
    describe,
    read_values,
    slack,
    values_for,
)
from neada.sets.per_sample import as_rows

__all__ = ["Bound", "Box", "NonNegative", "WholeSpace", "is_between", "magnitude"]

Bound = float | Tensor


class Box(Set):
    r"""The box between two bounds, coordinate by coordinate.

    .. math::
        P(v) = \min(\max(v,\ \text{lower}),\ \text{upper})

    Args:
        lower: a float, a tensor that broadcasts to the point, or one tensor per tensor of the
            point; -inf for no bound.
        upper: likewise, with inf for no bound.

    Example:
        >>> box = Box(lower=0.0, upper=torch.tensor([1.0, 2.0]))
        >>> box.project(torch.tensor([-1.0, 5.0]))
        tensor([0., 2.])
    """

    elementwise = True
    _accepts_infinite = True

    def __init__(self, lower: Values, upper: Values) -> None:
        self.lower = read_values(lower, "lower")
        self.upper = read_values(upper, "upper")
        self._check_order()

    def __repr__(self) -> str:
        return f"Box(lower={describe(self.lower)}, upper={describe(self.upper)})"

    def _project_(self, tensors: list[Tensor]) -> None:
        for tensor, (lower, upper) in zip(tensors, self._bounds(tensors), strict=True):
            if isinstance(lower, float) and isinstance(upper, float):
                tensor.clamp_(lower, upper)
            else:  # torch's clamp takes two numbers or two tensors
                low = torch.as_tensor(lower, dtype=tensor.dtype, device=tensor.device)
                high = torch.as_tensor(upper, dtype=tensor.dtype, device=tensor.device)
                tensor.clamp_(low, high)

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        relative = slack(tensors[0].dtype, 1)
        return all(
            bool(
                is_between(
                    tensor,
                    lower - (relative * magnitude(lower) if tol is None else tol),
                    upper + (relative * magnitude(upper) if tol is None else tol),
                ).all()
            )
            for tensor, (lower, upper) in zip(tensors, self._bounds(tensors), strict=True)
        )

    def _sample(self, like: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        bounds = zip(like, self._bounds(like), strict=True)
        return [_sample_between(t, lower, upper, generator) for t, (lower, upper) in bounds]

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        # point - min(max(point + gradient, lower), upper) without the rounding of the sum
        return [
            (-gradient).clamp(max=tensor - lower).clamp(min=tensor - upper)
            for tensor, gradient, (lower, upper) in zip(
                tensors, gradients, self._bounds(tensors), strict=True
            )
        ]

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        gains = []
        for tensor, gradient, (lower, upper) in zip(
            tensors, gradients, self._bounds(tensors), strict=True
        ):
            point, slope = tensor.double(), gradient.double()
            gain = torch.where(slope > 0.0, upper - point, lower - point) * slope
            gains.append(torch.where(slope == 0.0, 0.0, gain))  # also where the bound is infinite
        return as_rows(gains, by_row).sum(1)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        check_values(self.lower, "lower", tensors)
        check_values(self.upper, "upper", tensors)

    def _bounds(self, tensors: list[Tensor]) -> list[tuple[Bound, Bound]]:
        lower, upper = values_for(self.lower, tensors), values_for(self.upper, tensors)
        return list(zip(lower, upper, strict=True))

    def _check_order(self) -> None:
        lowers, uppers = as_doubles(self.lower), as_doubles(self.upper)
        num = max(len(lowers), len(uppers))
        pairs = zip(lowers * (num // len(lowers)), uppers * (num // len(uppers)), strict=True)
        for lower, upper in pairs:
            feasible = (lower <= upper.to(lower.device)) & (lower < math.inf)
            if not bool(feasible.all()) or bool((upper == -math.inf).any()):
                raise ValueError(
                    f"lower must not exceed upper and a number must fit between them, got {self!r}"
                )


class WholeSpace(Box):
    """No constraint.

    .. math::
        P(v) = v

    Example:
        >>> space = WholeSpace()
        >>> space.gradient_mapping(torch.tensor([1.0, 2.0]), torch.tensor([0.1, -0.2]))
        tensor([-0.1000,  0.2000])
    """

    def __init__(self) -> None:
        super().__init__(-math.inf, math.inf)

    def __repr__(self) -> str:
        return "WholeSpace()"


class NonNegative(Box):
    r"""The nonnegative orthant.

    .. math::
        P(v) = \max(v,\ 0)

    Example:
        >>> orthant = NonNegative()
        >>> orthant.project(torch.tensor([-1.0, 5.0]))
        tensor([0., 5.])
    """

    def __init__(self) -> None:
        super().__init__(0.0, math.inf)

    def __repr__(self) -> str:
        return "NonNegative()"


def magnitude(bound: Bound) -> Bound:
    """The absolute value."""
    return bound.abs() if isinstance(bound, Tensor) else abs(bound)


def is_between(tensor: Tensor, lower: Bound, upper: Bound) -> Tensor:
    """Which entries lie between the bounds."""
    return (tensor >= lower) & (tensor <= upper)


def _sample_between(
    like: Tensor, lower: Bound, upper: Bound, generator: torch.Generator | None
) -> Tensor:
    """Uniform between finite bounds; elsewhere a standard normal, clamped."""
    low = torch.as_tensor(lower, dtype=like.dtype, device=like.device).expand_as(like)
    high = torch.as_tensor(upper, dtype=like.dtype, device=like.device).expand_as(like)
    bounded = low.isfinite() & high.isfinite()
    fraction = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    # Not low + fraction * (high - low): the difference may overflow.
    uniform = low * (1.0 - fraction) + high * fraction
    if not bool(bounded.all()):
        normal = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        uniform = torch.where(bounded, uniform, normal)
    return uniform.clamp(low, high)
