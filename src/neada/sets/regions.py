"""The inputs within a distance of clean ones: the sets of adversarial training."""

from typing import Literal

import torch
from torch import Tensor

from neada.scalars import Flag
from neada.sets.balls import L1Ball, L2Ball
from neada.sets.base import Set, broadcast
from neada.sets.boxes import Box
from neada.sets.rows import as_rows, copy_rows_, row_norms

__all__ = ["Region"]


class Region(Set):
    """The points within a distance of the rows of a tensor and within bounds.

    It also provides random points and the Frank-Wolfe gap.

    Args:
        center: One center per row, inside the bounds.
        radius: The largest distance.
        norm: The norm of the distance.
        bounds: The bounds of all points, or None.
    """

    per_sample = True

    def __init__(
        self,
        center: Tensor,
        radius: float,
        norm: Literal["linf", "l2", "l1"],
        bounds: Box | None = None,
    ) -> None:
        self.center, self.radius, self.norm, self.bounds = center, radius, norm, bounds
        self._set: Box | L2Ball | L1Ball | _BallInBox
        if norm == "linf":
            lower, upper = center - radius, center + radius
            if bounds is not None:
                lower, upper = bounds.project(lower), bounds.project(upper)
            self._set = Box(lower, upper)
        elif bounds is None:
            ball = L2Ball if norm == "l2" else L1Ball
            self._set = ball(radius, center=center, per_sample=True)
        else:
            self._set = _BallInBox(center, radius, norm, bounds)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A random point: uniform in a box or ball, and projected where bounds cut the ball."""
        if isinstance(self._set, Box):
            ((lower, upper),) = self._set._bounds([self.center])
            fraction = torch.empty_like(self.center).uniform_(generator=generator)
            # Not lower + fraction * (upper - lower): the difference may overflow.
            uniform: Tensor = lower * (1.0 - fraction) + upper * fraction
            return uniform.clamp(lower, upper)
        rows = as_rows([self.center], per_sample=True)
        draw = _uniform_in_l2_ball if self.norm == "l2" else _uniform_in_l1_ball
        point = torch.empty_like(self.center)
        copy_rows_([point], self.radius * draw(rows, generator) + rows, per_sample=True)
        return point if self.bounds is None else self.project_(point)

    def linear_gap(self, point: Tensor, gradient: Tensor) -> Tensor:
        r"""The most that a linear function can gain from a point, for each row.

        .. math::
            \max_{w \in \text{region}} \langle w - \text{point},\ \text{gradient} \rangle

        This is the Frank-Wolfe gap (for norm balls also FOSC, Wang et al. 2019). For a point of
        the region it is at least 0, and 0 exactly where the point is stationary for ascent along
        the gradient.
        """
        rows, slopes = (as_rows([tensor], per_sample=True) for tensor in (point, gradient))
        if isinstance(self._set, Box):
            ((lower, upper),) = self._set._bounds([point])
            farthest = torch.where(gradient > 0.0, upper, lower)
            gaps = ((as_rows([farthest], per_sample=True) - rows) * slopes).sum(1)
        else:
            offsets = rows - as_rows([self.center], per_sample=True)
            if isinstance(self._set, _BallInBox):
                reached = self._set.farthest(slopes)
                gaps = (reached * slopes.abs() - offsets * slopes).sum(1)
            else:
                dual = row_norms(slopes) if self.norm == "l2" else slopes.abs().amax(1)
                gaps = self.radius * dual - (offsets * slopes).sum(1)
        return gaps.clamp_min(0.0)

    def _project_(self, tensors: list[Tensor]) -> None:
        self._set._project_(tensors)

    def _contains(self, tensors: list[Tensor]) -> Flag:
        if isinstance(self._set, Box):
            (inside,) = self._set._entries_inside(tensors)
            return inside.flatten(1).all(dim=1)
        return self._set._contains(tensors)

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return self._set._mapping(tensors, gradients)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        self._set._check_fit(tensors)


def _uniform_in_l2_ball(like: Tensor, generator: torch.Generator | None) -> Tensor:
    directions = torch.empty_like(like).normal_(generator=generator)
    fractions = like.new_empty(len(like)).uniform_(generator=generator)
    radii = fractions ** (1.0 / like.shape[1])
    return directions.mul_((radii / row_norms(directions))[:, None])


def _uniform_in_l1_ball(like: Tensor, generator: torch.Generator | None) -> Tensor:
    # One weight more than entries: its share is the distance to the boundary.
    weights = like.new_empty(len(like), like.shape[1] + 1).exponential_(generator=generator)
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device) * 2 - 1
    return weights[:, :-1] / weights.sum(1, keepdim=True) * signs


class _BallInBox(Set):
    r"""Balls around points of a box, intersected with the box.

    With :math:`d = v - c` and :math:`b` the distance from the center to the bounds in the direction
    of each entry of :math:`d`, the projection of :math:`v` has the entries

    .. math::
        c + \mathrm{sign}(d)\,\min(s\,|d|,\ b) \quad (L_2), \qquad
        c + \mathrm{sign}(d)\,\min(\max(|d| - \theta,\ 0),\ b) \quad (L_1)

    with the largest :math:`s \le 1`, or smallest :math:`\theta \ge 0`, that is inside the ball.
    """

    per_sample = True

    def __init__(self, center: Tensor, radius: float, norm: Literal["l2", "l1"], box: Box) -> None:
        self.radius, self.norm, self.box = radius, norm, box
        self.ball = (L2Ball if norm == "l2" else L1Ball)(radius, center=center, per_sample=True)
        lower = broadcast(box.lower, "lower", [center])
        upper = broadcast(box.upper, "upper", [center])
        self._center = as_rows([center], per_sample=True)
        self._below = self._center - as_rows(lower, per_sample=True)
        self._above = as_rows(upper, per_sample=True) - self._center

    def _project_(self, tensors: list[Tensor]) -> None:
        rows = as_rows(tensors, per_sample=True)
        offsets = rows - self._center
        reach = torch.where(offsets > 0.0, self._above, self._below).clamp_min_(0.0)
        shorten = _shortened_l2 if self.norm == "l2" else _shortened_l1
        lengths = shorten(offsets.abs(), reach, self.radius)
        projected = lengths.mul_(offsets.sign()).add_(self._center)
        # Rows inside are unchanged bit for bit.
        inside = torch.as_tensor(self._contains(tensors))[:, None]
        copy_rows_(tensors, torch.where(inside, rows, projected), per_sample=True)
        self.box._project_(tensors)  # the last bit

    def _contains(self, tensors: list[Tensor]) -> Flag:
        offsets = as_rows(tensors, per_sample=True) - self._center
        excess = torch.maximum(offsets - self._above, -offsets - self._below)
        rounding = 4.0 * torch.finfo(tensors[0].dtype).eps * self._center.abs()
        in_box: Tensor = (excess <= rounding).all(dim=1)
        return in_box & self.ball._contains(tensors)

    def _check_fit(self, tensors: list[Tensor]) -> None:
        self.ball._check_fit(tensors)
        self.box._check_fit(tensors)

    def farthest(self, slopes: Tensor) -> Tensor:
        """The lengths of the entries at which a linear function is largest, for each row."""
        reach = torch.where(slopes > 0.0, self._above, self._below).clamp(0.0, self.radius)
        farthest = _farthest_l2 if self.norm == "l2" else _farthest_l1
        return farthest(slopes.abs(), reach, self.radius)


def _shortened_l2(lengths: Tensor, reach: Tensor, radius: float) -> Tensor:
    """`min(s * lengths, reach)` with the largest s <= 1 such that each row has at most the norm.

    In u = s^2 the squared norm is piecewise linear, increasing and concave, so Newton's method
    from u = 0 increases to the solution and ends when no other entry meets its reach.
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
    """`min(max(lengths - theta, 0), reach)` with the least theta >= 0 within the norm.

    The norm decreases piecewise linearly in theta. Its kinks in decreasing order, with the slope
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
    # The rounding error of theta counts once for every free entry: correct each by its share.
    free = ((shortened > 0.0) & (shortened < reach)).to(shortened.dtype)
    error = (shortened.sum(1, keepdim=True) - radius) / free.sum(1, keepdim=True).clamp_min_(1.0)
    whole[outside] = torch.minimum(shortened.sub_(free * error).clamp_min_(0.0), reach)
    return whole


def _farthest_l2(slopes: Tensor, reach: Tensor, radius: float) -> Tensor:
    """The nonnegative entries within reach and the norm that have the largest product with slopes.

    They are proportional to the slopes up to their reach, with the largest factor of the norm: the
    projection of a point far away. Slopes below 1e-12 of the largest may be too small.
    """
    largest = slopes.amax(1, keepdim=True)
    far = 1e12 * radius * slopes / torch.where(largest > 0.0, largest, 1.0)
    return _shortened_l2(far, reach, radius)


def _farthest_l1(slopes: Tensor, reach: Tensor, radius: float) -> Tensor:
    """The same for the sum: the steepest entries are set to their reach, up to the radius."""
    order = slopes.argsort(dim=1, descending=True)
    sizes = reach.gather(1, order)
    left = radius - (sizes.cumsum(1) - sizes)
    return torch.zeros_like(reach).scatter_(1, order, torch.minimum(left.clamp_min_(0.0), sizes))
