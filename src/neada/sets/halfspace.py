"""The half-space on one side of a hyperplane."""

import math

import torch
from torch import Tensor

from neada.scalars import Flag
from neada.sets.base import Set, Values, as_tensors, broadcast, read_values, slack
from neada.sets.rows import as_rows, copy_rows_

__all__ = ["HalfSpace"]


class HalfSpace(Set):
    r"""The half-space :math:`\langle a, w\rangle \le b` of a normal :math:`a`, an offset :math:`b`.

    .. math::
        P(v) = v - \max(\langle a, v\rangle - b,\ 0)\, a / \|a\|^2

    Args:
        normal: a float (the same for every coordinate), a tensor that broadcasts to the point, or
            one tensor per tensor of the point; not zero.
        offset: a finite number.

    Example:
        >>> half = HalfSpace(normal=torch.tensor([1.0, 1.0]), offset=1.0)
        >>> half.project(torch.tensor([2.0, 1.0]))
        tensor([1., 0.])
    """

    def __init__(self, normal: Values, offset: float) -> None:
        self.normal = read_values(normal, "normal")
        self.offset = float(offset)
        parts = as_tensors(self.normal)
        largest = max((float(part.abs().max()) for part in parts if part.numel()), default=0.0)
        if largest == 0.0 or not math.isfinite(largest):
            raise ValueError(f"normal must be finite and not zero, got {self!r}")
        if not math.isfinite(self.offset / largest):
            raise ValueError(f"offset must be finite and not far larger than normal, got {self!r}")
        # With a largest entry of 1 the squared norm neither overflows nor underflows.
        scaled = [part / largest for part in parts]
        self._normal = scaled if isinstance(self.normal, list) else scaled[0]
        self._offset = self.offset / largest

    def _project_(self, tensors: list[Tensor]) -> None:
        point, normal = self._rows(tensors)
        excess = self._excess(point, normal)
        if excess <= self._rounding(point, normal, tensors[0].dtype):
            return
        normal_sq = float(torch.dot(normal, normal))
        point = point.sub(normal, alpha=excess / normal_sq)
        # Again, because the rounding error of the first step is proportional to its length.
        point.sub_(normal, alpha=self._excess(point, normal) / normal_sq)
        copy_rows_(tensors, point[None], per_sample=False)

    def _contains(self, tensors: list[Tensor]) -> Flag:
        point, normal = self._rows(tensors)
        excess = self._excess(point, normal)
        rounding = self._rounding(point, normal, tensors[0].dtype)
        return math.isfinite(excess) and excess <= rounding

    def _check_fit(self, tensors: list[Tensor]) -> None:
        broadcast(self.normal, "normal", tensors)

    def _rows(self, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The point and the scaled normal as vectors in float64."""
        normal = broadcast(self._normal, "normal", tensors, torch.float64)
        return as_rows(tensors, False)[0], as_rows(normal, False)[0]

    def _excess(self, point: Tensor, normal: Tensor) -> float:
        return float(torch.dot(normal, point)) - self._offset

    def _rounding(self, point: Tensor, normal: Tensor, dtype: torch.dtype) -> float:
        size = abs(self._offset) + float(torch.dot(normal.abs(), point.abs()))
        return size * slack(dtype, len(point))
