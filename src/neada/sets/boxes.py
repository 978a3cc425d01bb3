"""Sets that bound each coordinate by itself: the whole space, boxes, the nonnegative orthant."""

import math

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar
from neada.sets.base import (
    Set,
    Values,
    as_doubles,
    broadcast,
    check_values,
    describe,
    read_values,
    slack,
    values_for,
)
from neada.sets.per_sample import as_rows, row_norms

__all__ = [
    "Bound",
    "Box",
    "NonNegative",
    "WholeSpace",
    "clamp_",
    "clamped_step",
    "is_between",
    "linear_gains",
    "magnitude",
    "sample_between",
]

Bound = float | Tensor


class WholeSpace(Set):
    """No constraint.

    .. math::
        P(v) = v

    Example:
        >>> space = WholeSpace()
        >>> space.gradient_mapping(torch.tensor([1.0, 2.0]), torch.tensor([0.1, -0.2]))
        tensor([-0.1000,  0.2000])
    """

    elementwise = True
    _accepts_infinite = True

    def __repr__(self) -> str:
        return "WholeSpace()"

    def _project_(self, tensors: list[Tensor]) -> None:
        pass

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        return True

    def _sample(self, like: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        return [sample_between(t, -math.inf, math.inf, generator) for t in like]

    def _diameter(self, like: list[Tensor]) -> Scalar:
        return math.inf

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return [-gradient for gradient in gradients]

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        return linear_gains(tensors, gradients, [(-math.inf, math.inf)] * len(tensors), by_row)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        pass


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
            clamp_(tensor, lower, upper)

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
        return [sample_between(t, lower, upper, generator) for t, (lower, upper) in bounds]

    def _diameter(self, like: list[Tensor]) -> Scalar:
        lower = broadcast(self.lower, like, torch.float64)
        upper = broadcast(self.upper, like, torch.float64)
        widths = as_rows(upper, False) - as_rows(lower, False)
        if bool(widths.isinf().any()):
            return math.inf
        return float(row_norms(widths))

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        bounds = zip(tensors, gradients, self._bounds(tensors), strict=True)
        return [clamped_step(t, g, lower, upper) for t, g, (lower, upper) in bounds]

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        return linear_gains(tensors, gradients, self._bounds(tensors), by_row)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        check_values(self.lower, "lower", tensors)
        check_values(self.upper, "upper", tensors)

    def _bounds(self, tensors: list[Tensor]) -> list[tuple[Bound, Bound]]:
        lower, upper = values_for(self.lower, tensors), values_for(self.upper, tensors)
        return list(zip(lower, upper, strict=True))

    def _check_order(self) -> None:
        lowers, uppers = as_doubles(self.lower), as_doubles(self.upper)
        if len(lowers) > 1 and len(uppers) > 1 and len(lowers) != len(uppers):
            raise ValueError(
                f"lower has {len(lowers)} tensors but upper has {len(uppers)}; give one each"
            )
        num = max(len(lowers), len(uppers))
        for lower, upper in zip(
            lowers * (num // len(lowers)), uppers * (num // len(uppers)), strict=True
        ):
            if not _broadcast_together(lower, upper):
                raise ValueError(
                    f"lower of shape {tuple(lower.shape)} and upper of shape {tuple(upper.shape)} "
                    "do not fit together; give them the same shape, or a float"
                )
            if not bool((lower <= upper.to(lower.device)).all()):
                raise ValueError(f"lower must not exceed upper, got {self!r}; swap or correct them")
            if bool((lower == math.inf).any()) or bool((upper == -math.inf).any()):
                raise ValueError(
                    f"lower must be below inf and upper above -inf, got {self!r}; no number fits"
                )


def _broadcast_together(a: Tensor, b: Tensor) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


class NonNegative(Set):
    r"""The nonnegative orthant.

    .. math::
        P(v) = \max(v,\ 0)

    Example:
        >>> orthant = NonNegative()
        >>> orthant.project(torch.tensor([-1.0, 5.0]))
        tensor([0., 5.])
    """

    elementwise = True
    _accepts_infinite = True

    def __repr__(self) -> str:
        return "NonNegative()"

    def _project_(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            tensor.clamp_min_(0.0)

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        # The bound 0 has no rounding error, so neither has the default tolerance.
        return all(bool((tensor >= -(tol or 0.0)).all()) for tensor in tensors)

    def _sample(self, like: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        return [sample_between(t, 0.0, math.inf, generator) for t in like]

    def _diameter(self, like: list[Tensor]) -> Scalar:
        return math.inf

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return [torch.minimum(-g, t) for t, g in zip(tensors, gradients, strict=True)]

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        return linear_gains(tensors, gradients, [(0.0, math.inf)] * len(tensors), by_row)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        pass


def clamp_(tensor: Tensor, lower: Bound, upper: Bound) -> None:
    """`min(max(tensor, lower), upper)` in place."""
    if isinstance(lower, float) and isinstance(upper, float):
        tensor.clamp_(lower, upper)
    else:  # torch's clamp takes two numbers or two tensors
        low = torch.as_tensor(lower, dtype=tensor.dtype, device=tensor.device)
        high = torch.as_tensor(upper, dtype=tensor.dtype, device=tensor.device)
        tensor.clamp_(low, high)


def magnitude(bound: Bound) -> Bound:
    """The absolute value."""
    return bound.abs() if isinstance(bound, Tensor) else abs(bound)


def is_between(tensor: Tensor, lower: Bound, upper: Bound) -> Tensor:
    """Which entries lie between the bounds."""
    return (tensor >= lower) & (tensor <= upper)


def clamped_step(point: Tensor, gradient: Tensor, lower: Bound, upper: Bound) -> Tensor:
    """`point - min(max(point + gradient, lower), upper)` without the rounding of the sum."""
    return (-gradient).clamp(max=point - lower).clamp(min=point - upper)


def linear_gains(
    tensors: list[Tensor],
    gradients: list[Tensor],
    bounds: list[tuple[Bound, Bound]],
    by_row: bool,
) -> Tensor:
    """What a linear function gains when every entry goes to its better bound."""
    gains = []
    for tensor, gradient, (lower, upper) in zip(tensors, gradients, bounds, strict=True):
        point, slope = tensor.double(), gradient.double()
        gain = torch.where(slope > 0.0, upper - point, lower - point) * slope
        gains.append(torch.where(slope == 0.0, 0.0, gain))  # also where the bound is infinite
    return as_rows(gains, by_row).sum(1)


def sample_between(
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
