"""Sets that are projected row by row: the whole point is one row, or with `per_sample` each row."""

import math
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar
from neada.sets.base import Set, broadcast, slack

__all__ = ["RowSet", "as_rows", "copy_rows_", "row_norms"]

# Entries per block: a few float64 temporaries of this size fit in the cache.
_BLOCK = 1 << 18

# Squares of numbers in this range neither overflow nor lose digits in float64.
_SMALLEST, _LARGEST = 1e-140, 1e150


def as_rows(tensors: list[Tensor], per_sample: bool) -> Tensor:
    """The point as a float64 matrix; it may share memory with the point."""
    parts = [t.reshape(len(t) if per_sample else 1, _num_columns(t, per_sample)) for t in tensors]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).double()


def copy_rows_(
    tensors: list[Tensor], rows: Tensor, per_sample: bool, index: Tensor | None = None
) -> None:
    """Set a point, or the rows of it with the given indices, to a matrix as of `as_rows`."""
    parts = rows.split_with_sizes([_num_columns(t, per_sample) for t in tensors], dim=1)
    for tensor, part in zip(tensors, parts, strict=True):
        if index is None:
            tensor.copy_(part.reshape(tensor.shape))
        else:
            tensor.index_copy_(0, index, part.reshape(-1, *tensor.shape[1:]).to(tensor.dtype))


def row_norms(rows: Tensor) -> Tensor:
    """The Euclidean norm of each row without overflow or underflow."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    if bool(((norms > _SMALLEST) & (norms < _LARGEST)).all()):
        return norms
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=1)
    divisor = torch.where(largest > 0.0, largest, 1.0)
    norms = torch.linalg.vector_norm(rows / divisor[:, None], dim=1)
    return norms * divisor


def _num_columns(tensor: Tensor, per_sample: bool) -> int:
    return math.prod(tensor.shape[1:]) if per_sample else tensor.numel()


class RowSet(Set):
    """A set of some size (radius or total) around a center, projected row by row in float64."""

    center: float | Tensor | list[Tensor] | None = None

    @property
    @abstractmethod
    def _size(self) -> Scalar: ...

    @abstractmethod
    def _excess(self, rows: Tensor, size: Tensor) -> Tensor:
        """The distance of each row, relative to the center, from the set; at most 0 inside."""

    @abstractmethod
    def _reach(self, size: Tensor, center: Tensor | None) -> Tensor:
        """The scale of each row's set, to which rounding errors are proportional."""

    @abstractmethod
    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        """The projections of rows that are outside, relative to the center."""

    def _is_outside(self, rows: Tensor, excess: Tensor, tol: Tensor) -> Tensor:
        """Which rows must be projected."""
        return excess > tol

    def _project_(self, tensors: list[Tensor]) -> None:
        for block, size, center in self._blocks(tensors):
            rows = self._relative(block, center)
            tol = self._reach(size, center) * slack(block[0].dtype, rows.shape[1])
            outside = self._is_outside(rows, self._excess(rows, size), tol)
            if not bool(outside.any()):
                continue
            index = None
            if not bool(outside.all()):
                index = outside.nonzero().squeeze(1)
                rows, size = rows[index], size[index]
                center = center if center is None else center[index]
            projected = self._project_rows(rows, size)
            if center is not None:
                projected += center
            copy_rows_(block, projected, self.per_sample, index)

    def _contains(self, tensors: list[Tensor]) -> Flag:
        flags = [torch.ones(0, dtype=torch.bool, device=tensors[0].device)]  # for an empty batch
        for block, size, center in self._blocks(tensors):
            rows = self._relative(block, center)
            rounding = self._reach(size, center) * slack(block[0].dtype, rows.shape[1])
            # The excess of an infinite point is infinite or NaN, and neither is inside.
            flags.append(self._excess(rows, size) <= rounding)
        return torch.cat(flags) if self.per_sample else bool(flags[1])

    def _check_fit(self, tensors: list[Tensor]) -> None:
        if not any(_num_columns(tensor, self.per_sample) for tensor in tensors):
            raise ValueError(f"the point has no entries; {self!r} needs at least one")
        if isinstance(self._size, Tensor) and len(self._size) != len(tensors[0]):
            raise ValueError(
                f"{self!r} has {len(self._size)} entries but the point has {len(tensors[0])} rows"
            )
        if self.center is not None:
            broadcast(self.center, "center", tensors)

    def _relative(self, block: list[Tensor], center: Tensor | None) -> Tensor:
        rows = as_rows(block, self.per_sample)
        return rows if center is None else rows - center

    def _blocks(
        self, tensors: list[Tensor]
    ) -> Iterator[tuple[list[Tensor], Tensor, Tensor | None]]:
        """Parts of the point that fit in the cache, with the size and the center of each row."""
        num_rows = len(tensors[0]) if self.per_sample else 1
        device = tensors[0].device
        size = torch.as_tensor(self._size, dtype=torch.float64, device=device).expand(num_rows)
        center = None if self.center is None else broadcast(self.center, "center", tensors)
        if not self.per_sample:
            yield tensors, size, None if center is None else as_rows(center, per_sample=False)
            return
        step = max(1, num_rows)
        if device.type == "cpu":  # an accelerator is faster with one large kernel
            step = max(1, _BLOCK // sum(_num_columns(tensor, True) for tensor in tensors))
        for start in range(0, num_rows, step):
            rows = slice(start, start + step)
            yield (
                [tensor[rows] for tensor in tensors],
                size[rows],
                None if center is None else as_rows([c[rows] for c in center], per_sample=True),
            )
