"""What sets measured by rows share: one vector, or with `per_sample` one per row."""

import math
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar
from neada.sets.base import Set, broadcast, check_one_per_row, check_values, slack

__all__ = ["RowSet", "as_rows", "from_rows", "row_norms"]


# Entries per block: a few float64 temporaries of this size fit in the cache.
_BLOCK = 1 << 18

# Squares of numbers in this range neither overflow nor lose digits in float64.
_SMALLEST, _LARGEST = 1e-140, 1e150


def as_rows(tensors: list[Tensor], per_sample: bool) -> Tensor:
    """The point as a float64 matrix; it may share memory with the point."""
    parts = [t.reshape(len(t) if per_sample else 1, _num_columns(t, per_sample)) for t in tensors]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).double()


def from_rows(rows: Tensor, like: list[Tensor], per_sample: bool) -> list[Tensor]:
    """The matrix cut into tensors shaped like those of a point, in their dtype.

    The number of rows may differ from the point's, for a selection of its rows.
    """
    parts = rows.split_with_sizes([_num_columns(t, per_sample) for t in like], dim=1)
    return [
        part.to(t.dtype).reshape((len(rows), *t.shape[1:]) if per_sample else t.shape)
        for part, t in zip(parts, like, strict=True)
    ]


def row_norms(rows: Tensor) -> Tensor:
    """The Euclidean norm of each row without overflow or underflow."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    if bool(((norms > _SMALLEST) & (norms < _LARGEST)).all()):
        return norms
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=1)
    divisor = torch.where(largest > 0.0, largest, 1.0)
    norms = torch.linalg.vector_norm(rows / divisor[:, None], dim=1)
    return norms * divisor


class RowSet(Set):
    """A set of some size (radius or total) around a center, projected row by row in float64."""

    _size: Scalar
    _size_name: str
    _center: float | Tensor | list[Tensor] | None = None

    @abstractmethod
    def _excess(self, rows: Tensor, size: Tensor) -> Tensor:
        """By how much each row, relative to the center, is outside; at most 0 inside."""

    @abstractmethod
    def _reach(self, size: Tensor, center: Tensor | None) -> Tensor:
        """The scale of each row's set, to which rounding errors are proportional."""

    @abstractmethod
    def _is_outside(self, rows: Tensor, excess: Tensor, tol: Tensor) -> Tensor:
        """Which rows must be projected."""

    @abstractmethod
    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        """The projections of rows that are outside, relative to the center."""

    @abstractmethod
    def _support(self, rows: Tensor, size: Tensor) -> Tensor:
        """The largest product of each row with a point of its set around 0."""

    def _project_blocks_(self, tensors: list[Tensor]) -> None:
        for block, size, center in self._blocks(tensors):
            rows = as_rows(block, self.per_sample)
            relative = rows if center is None else rows - center
            excess = self._excess(relative, size)
            tol = self._reach(size, center) * slack(block[0].dtype, rows.shape[1])
            outside = self._is_outside(relative, excess, tol)
            num_outside = int(outside.sum())
            if num_outside == 0:
                continue
            if num_outside == len(rows):
                projected = self._project_rows(relative, size)
                if center is not None:
                    projected += center
                for tensor, part in zip(
                    block, from_rows(projected, block, self.per_sample), strict=True
                ):
                    tensor.copy_(part)
                continue
            index = outside.nonzero().squeeze(1)
            projected = self._project_rows(relative[index], size[index])
            if center is not None:
                projected += center[index]
            for tensor, part in zip(block, from_rows(projected, block, True), strict=True):
                tensor.index_copy_(0, index, part)

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        flags = [torch.ones(0, dtype=torch.bool, device=tensors[0].device)]  # for an empty batch
        for block, size, center in self._blocks(tensors):
            rows = as_rows(block, self.per_sample)
            excess = self._excess(rows if center is None else rows - center, size)
            rounding = self._reach(size, center) * slack(block[0].dtype, rows.shape[1])
            # An infinite point gives infinity or NaN here, and neither is inside.
            flags.append(excess <= (rounding if tol is None else tol))
        return torch.cat(flags) if self.per_sample else bool(flags[1])

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        slopes, rows = as_rows(gradients, by_row), as_rows(tensors, by_row)
        if self._center is not None:
            rows = rows - as_rows(broadcast(self._center, tensors), by_row)
        return self._support(slopes, self._sizes(len(rows), rows.device)) - (rows * slopes).sum(1)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        check_one_per_row(self._size, self._size_name, tensors)
        if self._center is not None:
            check_values(self._center, "center", tensors)
        if not any(_num_columns(tensor, self.per_sample) for tensor in tensors):
            raise ValueError(f"the point has no entries; {self!r} needs at least one")

    def _sizes(self, num_rows: int, device: torch.device) -> Tensor:
        if isinstance(self._size, Tensor):
            return self._size.to(device)
        return torch.full((num_rows,), self._size, dtype=torch.float64, device=device)

    def _blocks(
        self, tensors: list[Tensor]
    ) -> Iterator[tuple[list[Tensor], Tensor, Tensor | None]]:
        """Parts of the point, with the sizes and centers (as rows) that belong to them."""
        device = tensors[0].device
        center = None if self._center is None else broadcast(self._center, tensors)
        if not self.per_sample:
            joint = None if center is None else as_rows(center, False)
            yield tensors, self._sizes(1, device), joint
            return
        num_rows = len(tensors[0])
        step = max(1, num_rows)
        if device.type == "cpu":  # an accelerator wants one large kernel
            step = max(1, _BLOCK // sum(_num_columns(t, True) for t in tensors))
        sizes = self._sizes(num_rows, device)
        for start in range(0, num_rows, step):
            rows = slice(start, start + step)
            yield (
                [tensor[rows] for tensor in tensors],
                sizes[rows],
                None if center is None else as_rows([c[rows] for c in center], True),
            )


def _num_columns(tensor: Tensor, per_sample: bool) -> int:
    return math.prod(tensor.shape[1:]) if per_sample else tensor.numel()
