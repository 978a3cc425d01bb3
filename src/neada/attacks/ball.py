"""The points an attack may use: a ball around each input, cut to the valid range.

Offsets are computed in float64 and every sum is rounded towards the centre, so that a point is in
the ball as the number it is, not only up to rounding.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["Ball", "Norm", "check_epsilon", "per_row"]

Norm = Literal["linf", "l2"]


class Ball(NamedTuple):
    """The points that are allowed."""

    centre: Tensor
    epsilon: float
    norm: Norm
    lower: float  # the ends of the range, as numbers of the inputs' dtype that lie within it
    upper: float

    @classmethod
    def around(
        cls, inputs: Tensor, epsilon: float, norm: Norm, valid_range: tuple[float, float] | None
    ) -> "Ball":
        """The ball around every row of a batch, after a look at all the arguments."""
        check_epsilon(epsilon)
        if norm not in ("linf", "l2"):
            raise ValueError(f"norm must be 'linf' or 'l2', got {norm!r}")
        if inputs.dtype not in (torch.float32, torch.float64) or inputs.dim() < 2:
            raise TypeError(
                "inputs must be float32 or float64 with one sample per row, got "
                f"{inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        if valid_range is None:
            return cls(inputs.detach(), epsilon, norm, -math.inf, math.inf)
        low, high = valid_range
        if not low < high:
            raise ValueError(f"valid_range must be (smaller, larger), got {valid_range!r}")
        if len(inputs) and not low <= inputs.min().item() <= inputs.max().item() <= high:
            raise ValueError(f"inputs must lie in valid_range [{low:g}, {high:g}]")
        ends = torch.tensor([low, high], dtype=inputs.dtype)
        within = torch.nextafter(ends, ends.flip(0))
        outside = torch.stack([ends[0].double() < low, ends[1].double() > high])
        lower, upper = torch.where(outside, within, ends).tolist()
        return cls(inputs.detach(), epsilon, norm, lower, upper)

    def step(self, points: Tensor, gradient: Tensor, length: float) -> Tensor:
        """From points of the ball along the steepest ascent in its norm, and back into it."""
        slope = gradient.double()
        if self.norm == "linf":
            direction = slope.sign()
        else:
            # By the largest entry first: the square of a tiny gradient underflows.
            slope = slope / per_row(slope.abs().flatten(1).amax(1).clamp_min(1e-300), slope)
            direction = slope / per_row(slope.flatten(1).norm(dim=1).clamp_min(1e-300), slope)
        return self._place(points.double() - self.centre.double() + length * direction)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Uniform in the ball, clipped to the range."""
        shape, size = self.centre.shape, math.prod(self.centre.shape[1:])
        if self.norm == "linf":
            offsets = 2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0
        else:
            offsets = torch.randn(shape, generator=generator, dtype=torch.float64)
            radii = torch.rand(len(self.centre), generator=generator, dtype=torch.float64)
            norms = offsets.flatten(1).norm(dim=1).clamp_min(1e-300)
            offsets = offsets * per_row(radii ** (1.0 / max(size, 1)) / norms, offsets)
        return self._place(self.epsilon * offsets.to(self.centre.device))

    def _place(self, offsets: Tensor) -> Tensor:
        """The centre plus offsets brought into the ball, never further away for being rounded."""
        if self.norm == "linf":
            offsets = offsets.clamp(-self.epsilon, self.epsilon)
        else:
            # A hair inside, for the rounding of the norm itself.
            radius = (1.0 - 1e-12) * self.epsilon
            norms = offsets.flatten(1).norm(dim=1)
            factors = torch.where(norms > radius, radius / norms.clamp_min(1e-300), 1.0)
            offsets = offsets * per_row(factors, offsets)
        centre = self.centre.double()
        points = (centre + offsets).to(self.centre.dtype)
        # The distance as it is, and what its own rounding left out (Knuth's two-sum).
        wide = points.double()
        apart = wide - centre
        virtual = wide - apart
        rest = (wide - (apart + virtual)) + (virtual - centre)
        found, allowed = apart.abs(), offsets.abs()
        over = (found > allowed) | ((found == allowed) & (rest * apart.sign() > 0.0))
        points = torch.where(over, torch.nextafter(points, self.centre), points)
        return points.clamp(self.lower, self.upper)


def check_epsilon(epsilon: float) -> float:
    """Raise `ValueError` unless a ball can have that radius."""
    if not 0.0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number, at least 0, got {epsilon!r}")
    return float(epsilon)


def per_row(numbers: Tensor, like: Tensor) -> Tensor:
    """One number per row, shaped to broadcast over the rows of `like`."""
    return numbers.reshape(-1, *[1] * (like.dim() - 1))
