"""Norm balls around a center, over the whole point or one per row, and balls cut off by a box."""

import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar
from neada.sets.base import (
    Set,
    Values,
    as_doubles,
    broadcast,
    check_one_per_row,
    check_values,
    describe,
    read_size,
    read_values,
    slack,
    values_for,
)
from neada.sets.boxes import Bound, Box, is_between, magnitude
from neada.sets.per_sample import RowSet, as_rows, from_rows, row_norms
from neada.sets.simplex import project_rows_onto_simplex
from neada.tensors import copy_, difference, scale_, squared_norm

__all__ = ["BallInBox", "L1Ball", "L2Ball", "LinfBall"]

# Above these the formula of the L2 ball loses nothing: float32 can hold the scale, and float64 the
# squares of numbers as small as the radius.
_SMALLEST_SCALE, _SMALLEST_RADIUS = 1e-30, 1e-140


class _Ball(RowSet):
    """A ball {|w - center| <= radius} whose projection needs whole rows."""

    _size_name = "radius"

    def __init__(
        self, radius: Scalar, center: Values | None = None, per_sample: bool = False
    ) -> None:
        self.per_sample = per_sample
        self._size = read_size(radius, "radius", per_sample, zero_allowed=True)
        self._center = _read_center(center)

    @property
    def radius(self) -> Scalar:
        """The radius, or that of each row."""
        return self._size

    @property
    def center(self) -> float | Tensor | list[Tensor] | None:
        """The center; None is the origin."""
        return self._center

    def __repr__(self) -> str:
        return _describe_ball(self, self._size, self._center)

    @abstractmethod
    def _norms(self, rows: Tensor) -> Tensor:
        """The norm of each row."""

    def _excess(self, rows: Tensor, size: Tensor) -> Tensor:
        return self._norms(rows) - size

    def _reach(self, size: Tensor, center: Tensor | None) -> Tensor:
        return size if center is None else size + self._norms(center)

    def _is_outside(self, rows: Tensor, excess: Tensor, tol: Tensor) -> Tensor:
        return excess > tol

    @abstractmethod
    def _sample_rows(
        self, shape: tuple[int, int], device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        """Random rows in float64, uniform in the ball of radius 1 around 0."""

    def _sample(self, like: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        shape, device = as_rows(like, self.per_sample).shape, like[0].device
        rows = self._sample_rows((shape[0], shape[1]), device, generator)
        rows *= self._sizes(shape[0], device)[:, None]
        if self._center is not None:
            rows += as_rows(broadcast(self._center, like), self.per_sample)
        return from_rows(rows, like, self.per_sample)


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
            self._project_blocks_(tensors)

    def _project_joint_(self, tensors: list[Tensor]) -> bool:
        """The formula, at the cost of one norm and one product; false if numbers are extreme."""
        radius, relative = float(self._size), tensors
        if self._center is not None:
            centers = broadcast(self._center, tensors)
            relative = difference(tensors, centers)
        norm = math.sqrt(squared_norm(relative))
        if norm <= radius:
            return radius > _SMALLEST_RADIUS
        scale = radius / norm
        if scale < _SMALLEST_SCALE:
            return False
        reach = radius if self._center is None else radius + math.sqrt(squared_norm(centers))
        num_entries = sum(tensor.numel() for tensor in tensors)
        if norm - radius <= reach * slack(tensors[0].dtype, num_entries):
            return True
        scale_(relative, scale)
        if self._center is not None:
            copy_(tensors, list(torch._foreach_add(relative, centers)))
        return True

    def _norms(self, rows: Tensor) -> Tensor:
        return row_norms(rows)

    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        # Divided first: radius / norm may underflow.
        return (rows / row_norms(rows)[:, None]).mul_(size[:, None])

    def _support(self, rows: Tensor, size: Tensor) -> Tensor:
        return size * row_norms(rows)

    def _sample_rows(
        self, shape: tuple[int, int], device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        directions = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
        fractions = torch.rand(shape[0], generator=generator, dtype=torch.float64, device=device)
        radii = fractions ** (1.0 / shape[1])
        return directions.mul_((radii / row_norms(directions))[:, None])


class L1Ball(_Ball):
    r"""The L1 ball of a radius :math:`r` around a center :math:`c`.

    .. math::
        P(v) = c + \mathrm{sign}(v - c)\,\max(|v - c| - \theta,\ 0)

    with :math:`\theta` such that the norm is the radius; a point inside stays.

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

    def _project_(self, tensors: list[Tensor]) -> None:
        self._project_blocks_(tensors)

    def _norms(self, rows: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(rows, 1, dim=1)
        return norms

    def _project_rows(self, rows: Tensor, size: Tensor) -> Tensor:
        return project_rows_onto_simplex(rows.abs(), size).mul_(rows.sign())

    def _support(self, rows: Tensor, size: Tensor) -> Tensor:
        return size * rows.abs().amax(1)

    def _sample_rows(
        self, shape: tuple[int, int], device: torch.device, generator: torch.Generator | None
    ) -> Tensor:
        # One more weight than entries: what it takes is the distance to the boundary.
        weights = torch.empty(shape[0], shape[1] + 1, dtype=torch.float64, device=device)
        weights.exponential_(generator=generator)
        signs = torch.randint(0, 2, shape, generator=generator, device=device) * 2 - 1
        return weights[:, :-1] / weights.sum(1, keepdim=True) * signs


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

    def __repr__(self) -> str:
        return _describe_ball(self, self.radius, self.center)

    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag:
        relative, inside = slack(tensors[0].dtype, 1), []
        for tensor, (center, radius) in zip(tensors, self._balls(tensors), strict=True):
            reach = radius + (relative * (radius + magnitude(center)) if tol is None else tol)
            inside.append(is_between(tensor, center - reach, center + reach))
        if not self.per_sample:
            return all(bool(entries.all()) for entries in inside)
        rows = [e.reshape(len(e), math.prod(e.shape[1:])).all(dim=1) for e in inside]
        return torch.stack(rows).all(dim=0)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        check_one_per_row(self.radius, "radius", tensors)
        if self.center is not None:
            check_values(self.center, "center", tensors)

    def _bounds(self, tensors: list[Tensor]) -> list[tuple[Bound, Bound]]:
        return [(center - radius, center + radius) for center, radius in self._balls(tensors)]

    def _balls(self, tensors: list[Tensor]) -> list[tuple[Bound, Bound]]:
        """The center and the radius for each tensor, as they broadcast to it."""
        centers = values_for(0.0 if self.center is None else self.center, tensors)
        radius = self.radius
        if isinstance(radius, float):
            return [(center, radius) for center in centers]
        return [
            (center, radius.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1)))
            for center, tensor in zip(centers, tensors, strict=True)
        ]


def _read_center(center: Values | None) -> float | Tensor | list[Tensor] | None:
    if center is None:
        return None
    values = read_values(center, "center")
    if not all(bool(part.isfinite().all()) for part in as_doubles(values)):
        raise ValueError("center has an infinite entry; give finite numbers")
    return values


def _describe_ball(ball: Set, radius: Scalar, center: float | Tensor | list[Tensor] | None) -> str:
    center_text = "" if center is None else f", center={describe(center)}"
    sample_text = ", per_sample=True" if ball.per_sample else ""
    return f"{type(ball).__name__}(radius={describe(radius)}{center_text}{sample_text})"


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

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        slopes = as_rows(gradients, per_sample=True)
        rows = as_rows(tensors, per_sample=True) - self._center
        reach = torch.where(slopes > 0.0, self._above, self._below).clamp(0.0, self.radius)
        farthest = _farthest_l2 if self.norm == "l2" else _farthest_l1
        lengths = farthest(slopes.abs(), reach, self.radius)
        return (lengths * slopes.abs() - rows * slopes).sum(1)

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


def _farthest_l2(slopes: Tensor, reach: Tensor, radius: float) -> Tensor:
    """The nonnegative entries within reach and the norm that have the largest product with slopes.

    They are proportional to the slopes up to their reach, with the largest factor of the norm: the
    projection of a point far out. Slopes below 1e-12 of the largest may not be far out.
    """
    largest = slopes.amax(1, keepdim=True)
    far = 1e12 * radius * slopes / torch.where(largest > 0.0, largest, 1.0)
    return _shortened_l2(far, reach, radius)


def _farthest_l1(slopes: Tensor, reach: Tensor, radius: float) -> Tensor:
    """The same for the sum: the steepest entries go to their reach, until nothing is left."""
    order = slopes.argsort(dim=1, descending=True)
    sizes = reach.gather(1, order)
    left = radius - (sizes.cumsum(1) - sizes)
    return torch.zeros_like(reach).scatter_(1, order, torch.minimum(left.clamp_min_(0.0), sizes))
