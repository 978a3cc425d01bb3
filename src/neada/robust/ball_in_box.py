"""The part of a ball that lies in a box, one per sample, with its exact projection."""

from typing import Literal

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar
from neada.sets import Box, L1Ball, L2Ball, Set
from neada.sets.rows import as_rows, from_rows

__all__ = ["BallInBox"]


class BallInBox(Set):
    r"""Balls around points of a box, cut off where they leave it.

    With :math:`d = v - c` and :math:`b` how far the box reaches from the center in the direction
    of each entry of :math:`d`, the projection of :math:`v` has the entries

    .. math::
        c + \mathrm{sign}(d)\,\min(s\,|d|,\ b) \quad (L_2), \qquad
        c + \mathrm{sign}(d)\,\min(\max(|d| - \theta,\ 0),\ b) \quad (L_1)

    with the largest :math:`s \le 1`, or smallest :math:`\theta \ge 0`, that is inside the ball.

    Args:
        radius: The radius of every ball.
        center: The centers, one per row, inside the box.
        box: The box.
        norm: "l2" or "l1".
    """

    per_sample = True

    def __init__(self, radius: float, center: Tensor, box: Box, norm: Literal["l2", "l1"]) -> None:
        ball = L2Ball if norm == "l2" else L1Ball
        self.radius = radius
        self.center = center
        self.box = box
        self.norm = norm
        self.ball = ball(radius, center=center, per_sample=True)
        lower, upper = (
            torch.as_tensor(bound, dtype=center.dtype, device=center.device).expand_as(center)
            for bound in (box.lower, box.upper)
        )
        self._center = as_rows([center], per_sample=True)
        self._below = self._center - as_rows([lower], per_sample=True)
        self._above = as_rows([upper], per_sample=True) - self._center

    def __repr__(self) -> str:
        return f"BallInBox({self.ball!r}, {self.box!r})"

    def _project_(self, tensors: list[Tensor]) -> None:
        rows = as_rows(tensors, per_sample=True) - self._center
        reach = torch.where(rows > 0.0, self._above, self._below).clamp_min_(0.0)
        lengths = rows.abs()
        if self.norm == "l2":
            shortened = _shortened_l2(lengths, reach, self.radius)
        else:
            shortened = _shortened_l1(lengths, reach, self.radius)
        projected = shortened.mul_(rows.sign()).add_(self._center)
        (entries,) = from_rows(projected, tensors, per_sample=True)
        # A point inside stays as it is, bit for bit.
        inside = self._contains(tensors, None)
        assert isinstance(inside, Tensor)
        keep = inside.reshape(-1, *[1] * (entries.dim() - 1))
        tensors[0].copy_(torch.where(keep, tensors[0], entries))
        self.box._project_(tensors)  # the last bit

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        rows = as_rows(tensors, per_sample=True) - self._center
        slack = 4.0 * torch.finfo(tensors[0].dtype).eps if tol is None else 0.0
        excess = torch.maximum(rows - self._above, -rows - self._below)
        allowed = slack * self._center.abs() if tol is None else tol
        in_box: Tensor = (excess <= allowed).all(dim=1)
        in_ball = self.ball._contains(tensors, tol)
        return in_box & in_ball

    def _sample(self, like: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        points = self.ball._sample(like, generator)
        self._project_(points)
        return points

    def _diameter(self, like: list[Tensor]) -> Scalar:
        """That of the ball: the part in the box has no larger one."""
        return self.ball._diameter(like)

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return self._mapping_by_projection(tensors, gradients)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        self.ball._check_fit(tensors)
        self.box._check_fit(tensors)


def _shortened_l2(lengths: Tensor, reach: Tensor, radius: float) -> Tensor:
    """`min(s * lengths, reach)` with the largest s <= 1 such that each row has at most the norm.

    In u = s^2 the squared norm is piecewise linear, increasing and concave, so Newton's method
    from u = 0 rises to the solution, and is there as soon as no entry more meets its reach.
    """
    squares, limits = lengths.square(), reach.square()
    u = torch.zeros(len(lengths), 1, dtype=lengths.dtype, device=lengths.device)
    num_before = -1
    met = torch.zeros_like(lengths, dtype=torch.bool)
    while (num_met := int(met.sum())) > num_before:
        num_before = num_met
        left = radius**2 - torch.where(met, limits, 0.0).sum(1, keepdim=True)
        slope = torch.where(met, 0.0, squares).sum(1, keepdim=True)
        u = torch.where(slope > 0.0, left / slope, 1.0).clamp_(0.0, 1.0)
        met |= squares * u >= limits
    return torch.minimum(lengths * u.sqrt(), reach)


def _shortened_l1(lengths: Tensor, reach: Tensor, radius: float) -> Tensor:
    """`min(max(lengths - theta, 0), reach)` with the least theta >= 0 of at most the norm.

    The norm falls piecewise linearly in theta. Its kinks in decreasing order, with the slope
    between them, give its value at every kink; the solution is between two of them.
    """
    whole = torch.minimum(lengths, reach)
    outside = whole.sum(1) > radius
    if not bool(outside.any()):
        return whole
    lengths, reach = lengths[outside], reach[outside]
    reach = torch.minimum(reach, lengths)  # an infinite reach has no kink
    kinks = torch.cat([lengths, lengths - reach], dim=1)
    order = kinks.sort(dim=1, descending=True)
    turns = torch.cat([torch.ones_like(lengths), -torch.ones_like(reach)], dim=1)
    slopes = turns.gather(1, order.indices).cumsum(1)
    gaps = -order.values.diff(dim=1)
    norms = torch.cat([torch.zeros_like(gaps[:, :1]), (slopes[:, :-1] * gaps).cumsum(1)], dim=1)
    last = (norms <= radius).sum(1, keepdim=True) - 1
    slope = slopes.gather(1, last).clamp_min_(1.0)
    theta = order.values.gather(1, last) - (radius - norms.gather(1, last)) / slope
    shortened = torch.minimum((lengths - theta).clamp_min_(0.0), reach)
    # The rounding error of theta counts once for every free entry: spread it.
    free = ((shortened > 0.0) & (shortened < reach)).to(shortened.dtype)
    error = (shortened.sum(1, keepdim=True) - radius) / free.sum(1, keepdim=True).clamp_min_(1.0)
    whole[outside] = torch.minimum(shortened.sub_(free * error).clamp_min_(0.0), reach)
    return whole
