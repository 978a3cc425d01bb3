"""The default method of `minimax` for many coordinates: the same steps from products alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from neada.solve.geometry import Array, Mask, Side, dot, norm
from neada.solve.newton import DOUBT, Newton

__all__ = ["KrylovModel", "NewtonKrylov"]

_MOST_PRODUCTS = 500  # for one linear system; a worse conditioning needs preconditioning
_INNER, _OUTER = 1e-4, 1e-2  # relative residuals of the systems of y and of x
_MOST_FACES = 20  # for one step of y
_HALVINGS = 10  # of a move that the projection has bent
_LEVEL = 1e-9  # a smaller curvature of y needs a proximal term
_FLAT = 1e-12  # a curvature along a direction, relative to the product's length, that may be zero

Product = Callable[[Array, Array], tuple[Array, Array]]


@dataclass
class KrylovModel:
    """The quadratic model of f at a point; see `Model`. Bounds that are active stay so.

    Attributes:
        product_at: The product of the Hessian of f at a point with steps of x and of y.
        prox: The proximal weight of y.
        best: The best step of y, and its gain.
        free_y: The coordinates of y that can move.
        upwards: A direction of y along which f does not curve downwards, and its curvature, if one
            was met.
    """

    x: Side
    y: Side
    at_x: Array
    at_y: Array
    a: Array
    b: Array
    product_at: Callable[[Array, Array], Product]
    prox: Array

    def __post_init__(self) -> None:
        self.move(self.at_x, self.at_y)
        self.best = self.answer(self.b, self.at_y)

    def move(self, x: Array, y: Array) -> None:
        """Take the Hessian at another point."""
        self.product = self.product_at(x, y)
        self.free_y = np.ones(y.shape, dtype=bool)
        self.upwards: tuple[Array, Array] | None = None

    @property
    def is_concave(self) -> Mask:
        """Whether f curves downwards in y, as far as was seen."""
        return np.array([self.upwards is None])

    def rise(self, slope: Array, at_y: Array, radius: Array) -> tuple[Array, Array, Array]:
        """A step of y from a point where f has this slope; see `Model.rise`."""
        step, gain = self.answer(slope, at_y)
        gap = gain
        if self.upwards is not None:
            direction, gap = self.upwards[0], np.full(1, np.inf)
            up = np.where(dot(slope, direction) < 0.0, -1.0, 1.0) * radius
            step = self.y.project(at_y + up[:, None] * direction) - at_y
        step = np.minimum(1.0, radius / np.maximum(norm(step), 1e-300))[:, None] * step
        gain = dot(slope, step) - 0.5 * dot(step, self._concavity(step))
        return step, gain, gap

    def answer(self, slope: Array, at_y: Array) -> tuple[Array, Array]:
        """The best step of y from a point where f has this slope, and its gain by the model.

        Projected gradient steps find the face, conjugate gradients the step in it (More & Toraldo
        1991).
        """
        found = (np.zeros_like(slope), slope, np.zeros(1))
        if self.y.home is None:
            return self._climb(*found, self._follow(slope), slope, at_y)[0::2]
        goal = _INNER * self.y.mapping_norm(at_y, -slope)
        for _ in range(_MOST_FACES):
            step, rest, gain = found
            bend = dot(rest, self._concavity(rest))
            length = np.where(bend > 0.0, dot(rest, rest) / bend, 1.0)[:, None]
            found = self._climb(*found, length * rest, slope, at_y)
            point = at_y + found[0]
            pushed = self.y.project(point + 1e-6 * length * found[1])
            self.free_y = self.y.face(point).free | (pushed != point)
            newton = self._follow(np.where(self.free_y, found[1], 0.0))
            found = self._climb(*found, newton, slope, at_y)
            step, rest, after = found
            at_rest = self.y.mapping_norm(at_y + step, -rest) <= goal
            if (at_rest | (after - gain <= _INNER**2 * after)).all():
                break
        return step, after

    def _climb(
        self, step: Array, rest: Array, gain: Array, move: Array, slope: Array, at_y: Array
    ) -> tuple[Array, Array, Array]:
        """The step after a move, which is halved until the model gains, with its slope and gain."""
        for _ in range(_HALVINGS):
            new = self.y.project(at_y + step + move) - at_y
            image = self._concavity(new)
            new_gain = dot(slope, new) - 0.5 * dot(new, image)
            if (new_gain > gain).all():
                return new, slope - image, new_gain
            move = 0.5 * move
        return step, rest, gain

    def step(self, radius: Array) -> tuple[Array, Array, Array, Array]:
        """Steps of both players, the decrease that they promise, and what y gains without x."""
        s, gap = self.best
        slope = self.a + self.product(np.zeros_like(self.a), s)[0]
        target = self.at_x - np.minimum(radius / norm(slope), 1.0)[:, None] * slope
        free = self.x.face(target).free
        across = np.where(free, 0.0, self.x.project(target) - self.at_x)
        inside = slope + self._reduced(across) if across.any() else slope
        along = conjugate_gradients(
            lambda d: np.where(free, self._reduced(d), 0.0),
            np.where(free, -inside, 0.0),
            radius,
            _OUTER,
        )[0]
        d = self.x.project(self.at_x + across + along) - self.at_x
        promised = -dot(slope, d) - 0.5 * dot(d, self._reduced(d))
        while (promised < 0.0).any():  # the projection has bent the step: a gradient step does not
            radius = 0.25 * np.minimum(radius, norm(d))
            d = self.x.project(self.at_x - (radius / norm(slope))[:, None] * slope) - self.at_x
            promised = -dot(slope, d) - 0.5 * dot(d, self._reduced(d))
        coupled = self.product(d, np.zeros_like(s))[1]
        return d, self.answer(self.b + coupled, self.at_y)[0], promised, gap

    def _follow(self, slope: Array) -> Array:
        solution, upwards = conjugate_gradients(
            lambda s: np.where(self.free_y, self._concavity(s), 0.0),
            *(slope, np.full(1, np.inf), _INNER),
        )
        if upwards is not None:
            self.upwards = upwards
        return solution

    def _concavity(self, s: Array) -> Array:
        image: Array = self.prox * s - self.product(np.zeros_like(self.a), s)[1]
        return image

    def _reduced(self, d: Array) -> Array:
        """The Hessian of the maximum over y times a step of x."""
        along, coupled = self.product(d, np.zeros_like(self.b))
        s = self._follow(np.where(self.free_y, coupled, 0.0))
        image: Array = along + self.product(np.zeros_like(d), s)[0]
        return image


def conjugate_gradients(
    times: Callable[[Array], Array], right: Array, radius: Array, accuracy: float
) -> tuple[Array, tuple[Array, Array] | None]:
    """Solve a symmetric system, up to the border of a ball (Steihaug 1983).

    Returns:
        The solution, or where the way to it leaves the ball; and a direction along which the matrix
        does not curve upwards with that curvature, if it was met.
    """
    solution, residual = np.zeros_like(right), right.copy()
    direction, goal = residual.copy(), accuracy * norm(right)
    for _ in range(_MOST_PRODUCTS):
        if not (norm(residual) > goal).any():
            break
        image = times(direction)
        curvature = dot(direction, image)
        size = norm(direction)
        downwards = (curvature <= _FLAT * size * norm(image)).any()
        with np.errstate(all="ignore"):
            length = dot(residual, residual) / curvature
        if downwards or (norm(solution + length[:, None] * direction) > radius).any():
            border = _to_border(solution, direction, radius) if np.isfinite(radius).all() else 0.0
            found = (direction / size[:, None], curvature / size**2) if downwards else None
            return solution + np.reshape(border, (-1, 1)) * direction, found
        solution = solution + length[:, None] * direction
        new = residual - length[:, None] * image
        direction = new + (dot(new, new) / dot(residual, residual))[:, None] * direction
        residual = new
    return solution, None


def _to_border(point: Array, direction: Array, radius: Array) -> Array:
    """How far it is along a direction from a point to the border of a ball."""
    half, size = dot(point, direction), dot(direction, direction)
    lengths: Array = (
        np.sqrt(half**2 + size * np.maximum(radius**2 - dot(point, point), 0.0)) - half
    ) / size
    return lengths


class NewtonKrylov(Newton):
    r"""`Newton` from Hessian-vector products, for unconstrained players and boxes.

    The linear systems of y and the trust-region problem of x are solved by conjugate gradients, so
    that time and memory grow linearly with the dimension at a fixed conditioning. Without second
    derivatives products are differences of gradients.

    Required problem constants: none.

    Guarantees: those of `Newton`.
    """

    _has_matrix: ClassVar[bool] = False

    def _model(self) -> Any:
        state = self._state
        b = self._pulled(state["slope_y"], state["y"])
        players = (self._x, self._y, state["x"], state["y"])
        model = KrylovModel(*players, state["slope_x"], b, self._f.product, state["prox"])
        is_flat = model.upwards is not None and abs(model.upwards[1][0]) <= _LEVEL
        if is_flat and state["prox"][0] == 0.0:
            self._hold(np.ones(1, dtype=bool))
            return self._model()
        return model

    def _update_prox(self, moving: Mask) -> None:
        self._move_centers(moving, np.zeros(1))

    def _refresh_hessian(self, moving: Mask) -> None:
        """Use differences of gradients after several failed steps; else products are exact."""
        self._state["is_exact"] = np.ones(1, dtype=bool)
        if not self._is_checked and self._state["failures"][0] >= DOUBT:
            self._is_checked = True
            self._f.are_second = False
