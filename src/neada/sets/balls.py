"""Norm balls around a center, over the whole point or one per row."""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar
from neada.sets.base import Values, as_tensors, broadcast, read_size, read_values, slack
from neada.sets.boxes import Box
from neada.sets.rows import RowSet, row_norms
from neada.sets.simplex import project_rows_onto_simplex
from neada.tensors import copy_, difference, scale_, squared_norm

__all__ = ["L1Ball", "L2Ball", "LinfBall"]

# Below these numbers the formula of the L2 ball loses digits: float32 cannot hold the scale, or
# float64 the squares.
_SMALLEST_SCALE, _SMALLEST_RADIUS = 1e-30, 1e-140


class _Ball(RowSet):
    """A ball {|w - center| <= radius} that is projected by whole rows."""

    def __init__(
        self, radius: Scalar, center: Values | None = None, per_sample: bool = False
    ) -> None:
        self.per_sample = per_sample
        self.radius = read_size(radius, "radius", per_sample, zero_allowed=True)
        self.center = _read_center(center)

    @property
    def _size(self) -> Scalar:
        return self.radius

    @abstractmethod
    def _norms(self, rows: Tensor) -> Tensor:
        """The norm of each row."""

    def _excess(self, rows: Tensor, size: Tensor) -> Tensor:
        return self._norms(rows) - size

    def _reach(self, size: Tensor, center: Tensor | None) -> Tensor:
        return size if center is None else size + self._norms(center)


class L2Ball(_Ball):
    r"""The Euclidean ball of a radius :math:`r` around a center :math:`c`.

    .. math::
        P(v) = c + (v - c)\,\min(1,\ r / \|v - c\|_2)

    Args:
        radius: finite, at least 0; with `per_sample` also a tensor, one per row.
        center: a float, a tensor that broadcasts to the point, or one tensor per tensor of the
            point; the origin by default.
        per_sample: every row has its own ball.

    Example:
        >>> balls = L2Ball(radius=torch.tensor([1.0, 2.0]), per_sample=True)
        >>> balls.project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """

    def _project_(self, tensors: list[Tensor]) -> None:
        if self.per_sample or not self._project_joint_(tensors):
            super()._project_(tensors)

    def _project_joint_(self, tensors: list[Tensor]) -> bool:
        """The formula, with one norm and one product; false if it would lose digits."""
        radius, relative, reach = float(self.radius), tensors, float(self.radius)
        if self.center is not None:
            centers = broadcast(self.center, "center", tensors)
            relative = difference(tensors, centers)
            reach += math.sqrt(squared_norm(centers))
        norm = math.sqrt(squared_norm(relative))
        if radius <= _SMALLEST_RADIUS or radius < _SMALLEST_SCALE * norm:
            return False
        num_entries = sum(tensor.numel() for tensor in tensors)
        if norm - radius > reach * slack(tensors[0].dtype, num_entries):
            scale_(relative, radius / norm)
            if self.center is not None:
                copy_(tensors, list(torch._foreach_add(relative, centers)))
        return True

    def _norms(self, rows: Tensor) -> Tensor:
        return row_norms(rows)

    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        # Divided first: radius / norm may underflow.
        return (rows / row_norms(rows)[:, None]).mul_(size[:, None])


class L1Ball(_Ball):
    r"""The L1 ball of a radius :math:`r` around a center :math:`c`.

    .. math::
        P(v) = c + \mathrm{sign}(v - c)\,\max(|v - c| - \theta,\ 0)

    with :math:`\theta` such that the norm is the radius; points inside are unchanged.

    Args:
        radius: finite, at least 0; with `per_sample` also a tensor, one per row.
        center: a float, a tensor that broadcasts to the point, or one tensor per tensor of the
            point; the origin by default.
        per_sample: every row has its own ball.

    Example:
        >>> ball = L1Ball(radius=1.0)
        >>> ball.project(torch.tensor([0.5, -1.5, 2.0]))
        tensor([ 0.0000, -0.2500,  0.7500])

    Reference: Duchi, Shalev-Shwartz, Singer & Chandra, "Efficient projections onto the l1-ball for
    learning in high dimensions", ICML 2008.
    """

    def _norms(self, rows: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(rows, 1, dim=1)
        return norms

    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        return project_rows_onto_simplex(rows.abs(), size).mul_(rows.sign())


class LinfBall(Box):
    r"""The maximum-norm ball of a radius :math:`r` around a center :math:`c`.

    .. math::
        P(v) = \min(\max(v,\ c - r),\ c + r)

    Args:
        radius: finite, at least 0; with `per_sample` also a tensor, one per row.
        center: a float, a tensor that broadcasts to the point, or one tensor per tensor of the
            point; the origin by default.
        per_sample: every row has its own ball.

    Example:
        >>> ball = LinfBall(radius=0.5, center=torch.tensor([0.0, 1.0]))
        >>> ball.project(torch.tensor([0.75, 0.25]))
        tensor([0.5000, 0.5000])
    """

    def __init__(
        self, radius: Scalar, center: Values | None = None, per_sample: bool = False
    ) -> None:
        self.per_sample = per_sample
        self.radius = read_size(radius, "radius", per_sample, zero_allowed=True)
        self.center = _read_center(center)

    def _contains(self, tensors: list[Tensor]) -> Flag:
        if not self.per_sample:
            return super()._contains(tensors)
        inside = self._entries_inside(tensors)
        return torch.stack([entries.flatten(1).all(dim=1) for entries in inside]).all(dim=0)

    def _scale(self, nearest: Tensor) -> Tensor:
        return nearest.abs() + self._radius_for(nearest)

    def _bounds(self, tensors: list[Tensor]) -> list[tuple[Any, Any]]:
        centers = broadcast(0.0 if self.center is None else self.center, "center", tensors)
        radii = [self._radius_for(tensor) for tensor in tensors]
        return [(c - r, c + r) for c, r in zip(centers, radii, strict=True)]

    def _radius_for(self, tensor: Tensor) -> Tensor:
        """The radius, or one per row, as it broadcasts to the tensor."""
        radius = torch.as_tensor(self.radius, dtype=tensor.dtype, device=tensor.device)
        return radius.reshape(-1, *[1] * (tensor.dim() - 1)) if radius.dim() else radius


def _read_center(center: Values | None) -> float | Tensor | list[Tensor] | None:
    if center is None:
        return None
    values = read_values(center, "center")
    if not all(bool(part.isfinite().all()) for part in as_tensors(values)):
        raise ValueError("center has an infinite entry")
    return values
