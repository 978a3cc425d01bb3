"""The half-space on one side of a hyperplane."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neada.scalars import Flag
from neada.sets.base import (
    Set,
    Values,
    as_doubles,
    broadcast,
    check_values,
    describe,
    read_values,
    slack,
)
from neada.sets.per_sample import as_rows, from_rows

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
        parts = as_doubles(self.normal)
        largest = max((float(part.abs().max()) for part in parts if part.numel()), default=0.0)
        if largest == 0.0 or not math.isfinite(largest):
            raise ValueError(f"normal must be finite and not zero, got {self!r}")
        if not math.isfinite(self.offset / largest):
            raise ValueError(f"offset must be finite, also divided by the normal, got {self!r}")
        # With a largest entry of 1 the squared norm neither overflows nor underflows.
        scaled = [part / largest for part in parts]
        self._normal = scaled if isinstance(self.normal, list) else scaled[0]
        self._offset = self.offset / largest

    def __repr__(self) -> str:
        return f"HalfSpace(normal={describe(self.normal)}, offset={self.offset})"

    def _project_(self, tensors: list[Tensor]) -> None:
        scaled = self._scale(tensors)
        excess = scaled.excess()
        if excess <= 0.0 or excess <= scaled.rounding(tensors[0].dtype):
            return
        normal_sq = float(torch.dot(scaled.normal, scaled.normal))
        scaled = scaled._replace(point=scaled.point.sub(scaled.normal, alpha=excess / normal_sq))
        # Again, for the rounding error of the first step, which is proportional to its length.
        scaled.point.sub_(scaled.normal, alpha=scaled.excess() / normal_sq)
        row = scaled.point.mul_(scaled.unit)[None]
        for tensor, part in zip(tensors, from_rows(row, tensors, False), strict=True):
            tensor.copy_(part)

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        scaled = self._scale(tensors)
        if tol is None:
            return scaled.excess() <= scaled.rounding(tensors[0].dtype)
        distance = scaled.excess() * scaled.unit / float(torch.linalg.vector_norm(scaled.normal))
        return distance <= tol

    def _check_fit(self, tensors: list[Tensor]) -> None:
        check_values(self.normal, "normal", tensors)

    def _scale(self, tensors: list[Tensor]) -> "_Scaled":
        normal = as_rows(broadcast(self._normal, tensors, torch.float64), False)[0]
        scaled = _Scaled(as_rows(tensors, False)[0], normal, self._offset, 1.0)
        if math.isfinite(scaled.excess()):
            return scaled
        unit = float(scaled.point.abs().max())
        return _Scaled(scaled.point / unit, normal, scaled.offset / unit, unit)


class _Scaled(NamedTuple):
    """The problem in float64, in units in which no product overflows or underflows."""

    point: Tensor
    normal: Tensor
    offset: float
    unit: float

    def excess(self) -> float:
        return float(torch.dot(self.normal, self.point)) - self.offset

    def rounding(self, dtype: torch.dtype) -> float:
        size = abs(self.offset) + float(torch.dot(self.normal.abs(), self.point.abs()))
        return size * slack(dtype, len(self.point))
