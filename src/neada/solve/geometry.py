"""One player of a second-order method: its flat vector, its set and the faces of the set.

All arrays are float64 with one row per problem; a single problem is one row.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neada.sets import HalfSpace, L1Ball, L2Ball, Product, Set, Simplex

__all__ = [
    "Array",
    "Face",
    "Mask",
    "Side",
    "dot",
    "norm",
    "solve",
    "solve_many",
    "times",
    "trust_region",
]

Array = NDArray[Any]  # of float64
Mask = NDArray[np.bool_]
_FLAT = 1e-3  # eigenvalues of a projection's derivative below this are directions out of the face
_MOST_NEWTON = 50  # iterations for the multiplier of a trust region, which converges in about 5


def times(matrix: Array, vector: Array) -> Array:
    """Matrix times vector, row by row."""
    product: Array = (matrix @ vector[..., None])[..., 0]
    return product


def solve(matrix: Array, vector: Array) -> Array:
    """The solutions of linear systems, row by row."""
    return solve_many(matrix, vector[..., None])[..., 0]


def solve_many(matrix: Array, right: Array) -> Array:
    """The solutions for several right sides, the shortest ones if a matrix is singular."""
    try:
        solutions: Array = np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        solutions = np.linalg.pinv(matrix) @ right
    return solutions


def dot(left: Array, right: Array) -> Array:
    """Inner products, row by row."""
    products: Array = np.einsum("...i,...i->...", left, right)
    return products


def norm(vector: Array) -> Array:
    """Euclidean norms, row by row."""
    norms: Array = np.sqrt(dot(vector, vector))
    return norms


class Face(NamedTuple):
    """The face of a set that holds the projection of a point, as the projection's derivative.

    Attributes:
        free: Where the set is a box, which coordinates can move: the derivative's diagonal.
        derivative: The derivative on other sets: symmetric, with eigenvalues between 0, across the
            face, and 1, along it where the border is flat.
    """

    free: Mask
    derivative: Array | None = None

    def matrix(self) -> Array:
        """The derivative as a matrix."""
        identity = np.eye(self.free.shape[1])
        return self.along(np.broadcast_to(identity, (len(self.free), *identity.shape)))

    def along(self, matrix: Array) -> Array:
        """The derivative times a matrix."""
        if self.derivative is None:
            return np.where(self.free[..., None], matrix, 0.0)
        return self.derivative @ matrix

    def system(self, matrix: Array, length: Array) -> Array:
        """The derivative of a point's residual v - P(v - length * slope), for a slope's matrix."""
        identity = np.eye(matrix.shape[-1])
        return identity + self.along(length[:, None, None] * matrix - identity)

    def curvature(self, matrix: Array, length: Array) -> Array:
        """The least eigenvalue of a matrix along the face; infinite where the face is a point."""
        if self.derivative is None and self.free.all():
            least: Array = np.linalg.eigvalsh(matrix)[:, 0]
            return least
        _, free, inside = self.inside(matrix, length)
        least = np.linalg.eigvalsh(inside)[:, 0]
        return np.where(free.any(1), least, math.inf)

    def inside(self, matrix: Array, length: Array) -> tuple[Array, Mask, Array]:
        """A matrix along the face, with the curvature of the border.

        Returns:
            Orthogonal coordinates, which of them are free, and the matrix in them; it is a large
            multiple of the identity where they are not.
        """
        vectors, free, bend = self.basis(length)
        both = free[:, :, None] & free[:, None, :]
        turned = vectors.swapaxes(1, 2) @ matrix @ vectors
        large = 1.0 + np.abs(turned).max((1, 2)) * len(turned[0])
        diagonal = np.where(free, bend, large[:, None])
        inside = np.where(both, turned, 0.0) + np.eye(matrix.shape[-1]) * diagonal[:, None, :]
        return vectors, free, inside

    def basis(self, length: Array) -> tuple[Array, Mask, Array]:
        """Orthogonal coordinates, which of them are free, and by how much the border bends along.

        Args:
            length: The step to the point along a gradient.
        """
        values, vectors = np.linalg.eigh(self.matrix())
        values = np.clip(values, 0.0, 1.0)
        free = values > _FLAT
        bend = (1.0 / np.where(free, values, 1.0) - 1.0) / length[:, None]
        return vectors, free, np.where(values > 1.0 - _FLAT**2, 0.0, bend)


class Side:
    """One player as rows of flat vectors.

    Args:
        params: The tensors.
        home: Their joint constraint set; None if they are unconstrained.
        num_rows: How many problems there are; their tensors are rows if there is more than one.
    """

    def __init__(self, params: Sequence[Tensor], home: Set | None, num_rows: int = 1) -> None:
        self.params = list(params)
        self.home = home
        self.num_rows = num_rows
        self.size = sum(p.numel() for p in params) // self.num_rows
        self.is_box = home is None or home.elementwise
        if home is not None and home.elementwise:
            infinite = np.full((self.num_rows, self.size), math.inf)
            self._bounds = self._project(-infinite), self._project(infinite)

    def read(self, tensors: Sequence[Tensor] | None = None) -> Array:
        """Tensors of the player's shapes as float64 rows; by default the player itself."""
        parts = [
            t.detach().reshape(self.num_rows, -1)
            for t in (self.params if tensors is None else tensors)
        ]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        flat: Array = joined.to("cpu", torch.float64).numpy()
        return flat.copy()

    def write(self, point: Array) -> None:
        """Move the player, unless it is there: a graph is valid until its tensors are written."""
        with torch.no_grad():
            for param, part in zip(self.params, self.split(point), strict=True):
                new = part.to(param.dtype)
                if not torch.equal(param, new):
                    param.copy_(new)

    def split(self, point: Array) -> list[Tensor]:
        """Rows as tensors of the player's shapes, in float64."""
        sizes = [p.numel() // self.num_rows for p in self.params]
        parts = torch.split(torch.from_numpy(point), sizes, 1)
        return [
            part.reshape(p.shape).to(p.device) for part, p in zip(parts, self.params, strict=True)
        ]

    def project(self, point: Array) -> Array:
        """The nearest points of the set."""
        if self.home is None:
            return point
        if self.is_box:
            return np.clip(point, *self._bounds)
        # A row that is NaN or Inf must not end the others.
        return self._project(np.where(np.isfinite(point), point, 0.0))

    def nearest(self, point: Array) -> Array:
        """The projection, rounded to the player's dtype."""
        inside = self.project(point)
        dtype = self.params[0].dtype
        if dtype == torch.float64:
            return inside
        rounded: Array = torch.from_numpy(inside).to(dtype).double().numpy()
        return rounded

    def _project(self, point: Array) -> Array:
        assert self.home is not None
        if isinstance(self.home, Simplex) and self._is_one_row(self.home):
            return onto_simplex(point, np.asarray(self.home.total).reshape(-1, 1))
        return self.read(self.home.project(self.split(point)))

    def mapping_norm(self, point: Array, gradient: Array) -> Array:
        """The norm of the gradient mapping, of a gradient that is descended."""
        if self.home is None:
            return norm(gradient)
        if self.is_box:
            lower, upper = self._bounds
            return norm(np.clip(gradient, point - upper, point - lower))
        safe = np.where(np.isfinite(gradient), gradient, 0.0)
        mapping = self.home.gradient_mapping(self.split(point), self.split(-safe))
        return norm(self.read(mapping))

    def face(self, point: Array, near: Array | None = None) -> Face:
        """The face that holds the projection of a point, which may be known."""
        if self.home is None:
            return Face(np.ones(point.shape, dtype=bool))
        if self.is_box:
            lower, upper = self._bounds
            return Face((point > lower) & (point < upper))
        homes = self.home.sets if isinstance(self.home, Product) else [self.home]
        here = self.project(point) if near is None else near
        if len(homes) == 1:
            parts = [(homes[0], slice(0, self.size))]
        else:
            ends = np.cumsum([0] + [p.numel() // self.num_rows for p in self.params])
            parts = [(h, slice(i, j)) for h, i, j in zip(homes, ends, ends[1:], strict=False)]
        derivative = np.zeros((*point.shape, self.size))
        for home, part in parts:
            derivative[:, part, part] = self._derivative(home, point, here, part)
        free: Mask = np.asarray(derivative.any(-1))
        return Face(free, derivative)

    def _derivative(self, home: Set, point: Array, here: Array, part: slice) -> Array:
        """The derivative of the projection of some coordinates, which have this set."""
        if not (home.elementwise or self._is_one_row(home)):
            return self._differences(point, here, part)
        out = point[:, part] - here[:, part]
        identity = np.eye(out.shape[1])
        distance = norm(out)[:, None]
        if isinstance(home, Simplex):
            active = here[:, part] > 0.0
            direction, kept = active / np.sqrt(active.sum(1, keepdims=True)), active
        elif isinstance(home, L1Ball):
            active = np.abs(out) >= (1.0 - 1e-9) * np.abs(out).max(1, keepdims=True)
            direction = np.sign(out) * active / np.sqrt(active.sum(1, keepdims=True))
            kept = active | (distance == 0.0)
        elif isinstance(home, L2Ball | HalfSpace):
            direction, kept = out / np.maximum(distance, 1e-300), np.ones(out.shape, dtype=bool)
        elif home.elementwise:
            kept = out == 0.0
            direction = np.zeros_like(out)
        else:
            return self._differences(point, here, part)
        derivative: Array = (
            identity * kept[:, None, :] - direction[:, :, None] * direction[:, None, :]
        )
        if isinstance(home, L2Ball):
            radius = np.asarray(home.radius).reshape(-1, 1)
            derivative *= (radius / np.maximum(radius + distance, 1e-300))[:, :, None]
        return derivative

    def _is_one_row(self, home: Set) -> bool:
        """Whether the set constrains rows of this player as a whole, not parts of them."""
        return self.num_rows > 1 or not home.per_sample

    def _differences(self, point: Array, here: Array, part: slice) -> Array:
        """The same for any set, by finite differences."""
        size = 1e-7 * (1.0 + norm(point))[:, None]
        columns = []
        for i in range(self.size)[part]:
            moved = point.copy()
            moved[:, i : i + 1] += size
            columns.append(((self._project(moved) - here) / size)[:, part])
        derivative = np.stack(columns, -1)
        return 0.5 * (derivative + derivative.swapaxes(1, 2))


def onto_simplex(point: Array, total: Array) -> Array:
    """The projections of rows onto simplices (Duchi et al. 2008)."""
    point = point - point.max(1, keepdims=True)
    decreasing = -np.sort(-point, 1)
    thresholds = (decreasing.cumsum(1) - total) / np.arange(1, point.shape[1] + 1)
    last = np.maximum((decreasing > thresholds).sum(1, keepdims=True), 1) - 1
    inside = np.maximum(point - np.take_along_axis(thresholds, last, 1), 0.0)
    # The rounding error of the threshold counts once for every active entry: spread it.
    active = inside > 0.0
    error = (inside.sum(1, keepdims=True) - total) / np.maximum(active.sum(1, keepdims=True), 1)
    spread: Array = np.maximum(inside - active * error, 0.0)
    return spread


def trust_region(gradient: Array, hessian: Array, radius: Array) -> Array:
    r"""The minimizer of :math:`g \cdot p + p \cdot Hp/2` over :math:`|p| \le` radius.

    By an eigendecomposition and Newton's method for the multiplier (More & Sorensen 1983), which
    ends when the length is that of the radius to one percent.

    Args:
        gradient: g.
        hessian: H, which may be indefinite.
        radius: One for every row.
    """
    values, vectors = np.linalg.eigh(hessian)
    along = times(vectors.swapaxes(-1, -2), gradient)
    least = values[:, 0]
    scale = np.abs(values).max(-1) + norm(gradient) / radius
    tiny = np.finfo(np.float64).eps * scale
    # In the hard case the gradient has no part along the negative curvature: give it a small one.
    nudge = 1e-8 * (norm(gradient) + tiny * radius)
    hard = (least < -tiny) & (np.abs(along[:, 0]) < nudge)
    along[:, 0] = np.where(hard, np.copysign(nudge, along[:, 0]), along[:, 0])
    low = np.maximum(-least, 0.0) + tiny
    shift = np.where(least > tiny, 0.0, low)
    step = -along / (values + shift[:, None])
    length = norm(step)
    outside = length > radius
    # Where the curvature is negative the minimizer is on the border.
    rest = np.sqrt(np.maximum(radius**2 - dot(step[:, 1:], step[:, 1:]), 0.0))
    to_border = np.where((least < -tiny) & ~outside, np.copysign(rest, step[:, 0]), step[:, 0])
    step[:, 0] = to_border
    if outside.any():
        # The multiplier is at most |g| / radius above the smallest admissible one.
        lower, upper, pending = shift.copy(), low + norm(along) / radius, outside
        for _ in range(_MOST_NEWTON):
            slope = dot(step, step / (values + shift[:, None]))
            better = shift + (length / radius - 1.0) * length**2 / slope
            lower = np.where(length > radius, shift, lower)
            upper = np.where(length > radius, upper, shift)
            middle = 0.5 * (lower + upper)
            valid = (better > lower) & (better < upper)
            new = np.where(valid, better, middle)
            shift = np.where(pending, new, shift)
            step = -along / (values + shift[:, None])
            length = norm(step)
            pending = outside & (np.abs(length - radius) > 1e-2 * radius)
            if not pending.any():
                break
        step = np.where((length > radius)[:, None], step * (radius / length)[:, None], step)
    # Without gradient and curvature there is no step.
    return times(vectors, np.where(np.isfinite(step), step, 0.0))
