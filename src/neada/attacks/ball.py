"""The feasible points of an attack: a ball around each input, within the valid range.

Offsets are computed in float64 and every sum is rounded towards the center, so that a point lies in
the ball exactly, not only up to rounding.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neada.checks import check_choice, check_number

__all__ = ["Ball", "Norm", "per_row"]

Norm = Literal["linf", "l2"]


class Ball(NamedTuple):
    """The feasible points."""

    center: Tensor
    eps: float
    norm: Norm
    lower: float  # the ends of the range, rounded inwards in the dtype of the inputs
    upper: float

    @classmethod
    def around(
        cls, inputs: Tensor, eps: float, norm: Norm, bounds: tuple[float, float] | None
    ) -> "Ball":
        """The ball around every row of a batch; raises if an argument is invalid."""
        check_number("eps", eps, strict=False)
        check_choice("norm", norm, ("linf", "l2"))
        if inputs.dtype not in (torch.float32, torch.float64) or inputs.dim() < 2:
            raise TypeError(
                "inputs must be float32 or float64 with one sample per row, got "
                f"{inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        if bounds is None:
            return cls(inputs.detach(), eps, norm, -math.inf, math.inf)
        low, high = bounds
        if len(inputs) and not low <= inputs.min().item() <= inputs.max().item() <= high:
            raise ValueError(f"inputs must lie in bounds [{low:g}, {high:g}]")
        ends = torch.tensor([low, high], dtype=inputs.dtype)
        within = torch.nextafter(ends, ends.flip(0))
        outside = torch.stack([ends[0].double() < low, ends[1].double() > high])
        lower, upper = torch.where(outside, within, ends).tolist()
        return cls(inputs.detach(), eps, norm, lower, upper)

    def rows(self, rows: Tensor) -> "Ball":
        """The balls around some of the rows: their indices, or a mask."""
        return self._replace(center=self.center[rows])

    def step(self, points: Tensor, gradient: Tensor, length: float) -> Tensor:
        """From points of the ball along the steepest ascent in its norm, and back into it."""
        offsets = points.double() - self.center.double()
        return self.place(offsets + length * self.ascent(gradient))

    def ascent(self, gradient: Tensor) -> Tensor:
        """Per row the direction of length 1 along which a linear function rises most; float64."""
        slope = gradient.double()
        if self.norm == "linf":
            return slope.sign()
        # By the largest entry first: the square of a tiny gradient underflows.
        slope = slope / per_row(slope.abs().flatten(1).amax(1).clamp_min(1e-300), slope)
        return slope / per_row(slope.flatten(1).norm(dim=1).clamp_min(1e-300), slope)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Uniform in the ball, clipped to the range."""
        shape, size = self.center.shape, math.prod(self.center.shape[1:])
        if self.norm == "linf":
            offsets = 2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0
        else:
            offsets = torch.randn(shape, generator=generator, dtype=torch.float64)
            radii = torch.rand(len(self.center), generator=generator, dtype=torch.float64)
            norms = offsets.flatten(1).norm(dim=1).clamp_min(1e-300)
            offsets = offsets * per_row(radii ** (1.0 / max(size, 1)) / norms, offsets)
        return self.place(self.eps * offsets.to(self.center.device))

    def place(self, offsets: Tensor) -> Tensor:
        """The center plus the offsets projected on the ball, rounded towards the center."""
        if self.norm == "linf":
            offsets = offsets.clamp(-self.eps, self.eps)
        else:
            # Slightly inside, for the rounding of the norm itself.
            radius = (1.0 - 1e-12) * self.eps
            norms = offsets.flatten(1).norm(dim=1)
            factors = torch.where(norms > radius, radius / norms.clamp_min(1e-300), 1.0)
            offsets = offsets * per_row(factors, offsets)
        center = self.center.double()
        points = (center + offsets).to(self.center.dtype)
        # The exact distance is the sum of `apart` and its rounding error `rest` (two-sum).
        wide = points.double()
        apart = wide - center
        virtual = wide - apart
        rest = (wide - (apart + virtual)) + (virtual - center)
        found, allowed = apart.abs(), offsets.abs()
        over = (found > allowed) | ((found == allowed) & (rest * apart.sign() > 0.0))
        points = torch.where(over, torch.nextafter(points, self.center), points)
        return points.clamp(self.lower, self.upper)


def per_row(numbers: Tensor, like: Tensor) -> Tensor:
    """One number per row, shaped to broadcast over the rows of `like`."""
    return numbers.reshape(-1, *[1] * (like.dim() - 1))
