"""The default method of `minimax` for many coordinates: the same steps from products alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from neada.solve.geometry import Array, Mask, Side, dot, norm
from neada.solve.newton import Newton

__all__ = ["KrylovModel", "NewtonKrylov"]

_MOST_PRODUCTS = 500  # for one linear system; a worse conditioning needs preconditioning
_INNER, _OUTER = 1e-4, 1e-2  # relative residuals of the systems of y and of x
_FLAT = 1e-12  # a curvature along a direction, relative to the product's length, that may be zero

Product = Callable[[Array, Array], tuple[Array, Array]]


@dataclass
class KrylovModel:
    """The quadratic model of f at a point; see `Model`. Bounds that are active stay so.

    Attributes:
        product: The Hessian of f times steps of x and of y.
        free_x, free_y: The coordinates that can move.
        prox: The proximal weight of y.
        upwards: A direction of y along which f does not curve downwards, if one was met.
    """

    x: Side
    y: Side
    at_x: Array
    at_y: Array
    a: Array
    b: Array
    product: Product
    free_x: Mask
    free_y: Mask
    prox: Array
    upwards: list[tuple[Array, Array]] = field(default_factory=list)

    def answer(self, slope: Array, at_y: Array) -> tuple[Array, Array]:
        """The best step of y from a point where f has this slope, and its gain by the model."""
        slope = np.where(self.free_y, slope, 0.0)
        step = self.y.project(at_y + self._follow(slope)) - at_y
        return step, np.maximum(0.5 * dot(slope, step), 0.0)

    def step(self, radius: Array) -> tuple[Array, Array, Array, Array]:
        """Steps of both players, the decrease that they promise, and what y gains without x."""
        s, gap = self.answer(self.b, self.at_y)
        slope = np.where(self.free_x, self.a + self.product(np.zeros_like(self.a), s)[0], 0.0)
        d = conjugate_gradients(self._reduced, -slope, radius, _OUTER)[0]
        d = self.x.project(self.at_x + d) - self.at_x
        promised = -dot(slope, d) - 0.5 * dot(d, self._reduced(d))
        coupled = self.product(d, np.zeros_like(s))[1]
        return d, self.answer(self.b + coupled, self.at_y)[0], promised, gap

    def _follow(self, slope: Array) -> Array:
        solution, upwards = conjugate_gradients(
            self._concavity, slope, np.full(1, np.inf), _INNER
        )
        if upwards is not None:
            self.upwards.append(upwards)
        return solution

    def _concavity(self, s: Array) -> Array:
        image = self.prox * s - self.product(np.zeros_like(self.a), s)[1]
        return np.where(self.free_y, image, 0.0)

    def _reduced(self, d: Array) -> Array:
        """The Hessian of the maximum over y times a step of x."""
        along, coupled = self.product(d, np.zeros_like(self.b))
        s = self._follow(np.where(self.free_y, coupled, 0.0))
        return np.where(self.free_x, along + self.product(np.zeros_like(d), s)[0], 0.0)


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

    def _propose(
        self, moving: Mask
    ) -> tuple[Any, Mask, Array, Array, Array, Array]:
        state = self._state
        b = state["slope_y"] - state["prox"][:, None] * (state["y"] - state["center"])
        self._move_centers(moving, np.zeros(1))
        product = self._f.product(state["x"], state["y"])
        # With a step of the length of the trust region the face is the local one in the end.
        length = state["radius_x"] / np.maximum(norm(state["slope_x"]), 1e-300)
        free_x = self._x.face(state["x"] - np.minimum(length, 1.0)[:, None] * state["slope_x"]).free
        model = KrylovModel(
            *(self._x, self._y, state["x"], state["y"], state["slope_x"], b, product),
            *(free_x, self._y.face(state["y"] + b).free, state["prox"]),
        )
        d, s, promised, gap = model.step(state["radius_x"])
        self._concave = np.array([not model.upwards])
        alone = ~self._concave | state["y_first"] | (promised <= 0.1 * gap)
        if model.upwards:
            direction, curvature = model.upwards[0]
            if (state["prox"] == 0.0).all() and (np.abs(curvature) <= 1e-9).all():
                self._hold(moving)
                return self._propose(moving)
            up = np.where(dot(b, direction) < 0.0, -1.0, 1.0) * state["radius_y"]
            s, d = self._y.project(state["y"] + up[:, None] * direction) - state["y"], 0.0 * d
            promised = dot(b, s) - 0.5 * curvature * dot(s, s)
        elif alone.any():
            s, d = model.answer(b, state["y"])[0], 0.0 * d
            promised = gap
        return model, alone, d, s, promised, gap

    def _refresh_hessian(self, moving: Mask) -> None:
        """Products are always exact, unless f has no second derivatives."""
        self._state["is_exact"] = np.ones(1, dtype=bool)
        if not self._is_checked and self._state["failures"][0] >= 4.0:
            self._is_checked = True
            self._f.are_second = False

    def _renew(self, model: KrylovModel, x: Array, y: Array) -> None:
        """Products are those at the last evaluation; those of before are not valid any more."""
        model.product = self._f.product(x, y)
