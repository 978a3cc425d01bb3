"""The simplex, and the search for its threshold, which the L1 ball uses too."""

import torch
from torch import Tensor

from neada.scalars import Scalar
from neada.sets.base import read_size
from neada.sets.rows import RowSet

__all__ = ["Simplex", "project_rows_onto_simplex"]


class Simplex(RowSet):
    r"""The simplex: nonnegative entries with a given total.

    .. math::
        P(v) = \max(v - \theta,\ 0)

    with :math:`\theta` such that the entries sum to the total.

    Args:
        total: the sum of the entries, positive; with `per_sample` also a tensor, one per row.
        per_sample: every row is in its own simplex.

    Example:
        >>> simplex = Simplex()
        >>> simplex.project(torch.tensor([0.5, -1.5, 1.0, 0.1]))
        tensor([0.2500, 0.0000, 0.7500, 0.0000])

    Reference: Duchi, Shalev-Shwartz, Singer & Chandra, "Efficient projections onto the l1-ball for
    learning in high dimensions", ICML 2008.
    """

    def __init__(self, total: Scalar = 1.0, per_sample: bool = False) -> None:
        self.per_sample = per_sample
        self.total = read_size(total, "total", per_sample, zero_allowed=False)

    @property
    def _size(self) -> Scalar:
        return self.total

    def _excess(self, rows: Tensor, size: Tensor) -> Tensor:
        return torch.maximum((rows.sum(1) - size).abs(), -rows.amin(1))

    def _reach(self, size: Tensor, center: Tensor | None) -> Tensor:
        return size

    def _is_outside(self, rows: Tensor, excess: Tensor, tol: Tensor) -> Tensor:
        # A sum has rounding errors, a sign has none: negative entries are always projected.
        return (excess > tol) | (rows.amin(1) < 0.0)

    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        return project_rows_onto_simplex(rows, size)


def project_rows_onto_simplex(rows: Tensor, totals: Tensor) -> Tensor:
    """The projection of each row onto the simplex with its total."""
    totals = totals[:, None]
    # Relative to the largest entry the threshold is between -total and 0, so that only entries
    # within total of the largest enter a sum: large entries cost no digits.
    rows = rows - rows.amax(1, keepdim=True)
    weights = (rows - _threshold(rows, totals)).clamp_min_(0.0)
    # The rounding error of the threshold counts once for every active entry: spread it.
    active = weights.sign()
    error = (weights.sum(1, keepdim=True) - totals) / active.sum(1, keepdim=True).clamp_min_(1.0)
    return weights.addcmul_(active, error, value=-1.0).clamp_min_(0.0)


def _threshold(rows: Tensor, totals: Tensor) -> Tensor:
    """The threshold by Duchi et al. (2008), Figure 1."""
    # Entries further down than total are not active, and their sums might overflow.
    decreasing = torch.maximum(rows, -totals).sort(dim=1, descending=True).values
    ranks = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device)
    thresholds = (decreasing.cumsum(1) - totals) / ranks
    num_active = (decreasing > thresholds).sum(1, keepdim=True).clamp_min_(1)
    return thresholds.gather(1, num_active - 1)
