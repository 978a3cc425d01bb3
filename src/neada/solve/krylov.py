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
_MOST_FACES = 20  # for one step of y
_FLAT = 1e-12  # a curvature along a direction, relative to the product's length, that may be zero

Product = Callable[[Array, Array], tuple[Array, Array]]


@dataclass
class KrylovModel:
    """The quadratic model of f at a point; see `Model`. Bounds that are active stay so.

    Attributes:
        product: The Hessian of f times steps of x and of y.
        free_y: The coordinates of y that can move.
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
    free_y: Mask
    prox: Array
    upwards: list[tuple[Array, Array]] = field(default_factory=list)

    def answer(self, slope: Array, at_y: Array) -> tuple[Array, Array]:
        """The best step of y from a point where f has this slope, and its gain by the model."""
        step, rest, gain = np.zeros_like(slope), slope, np.zeros(1)
        for _ in range(_MOST_FACES):
            bend = dot(rest, self._concavity(rest))
            length = np.where(bend > 0.0, dot(rest, rest) / bend, 1.0)[:, None]
            target = at_y + step + length * rest
            self.free_y = self.y.face(target).free
            across = np.where(self.free_y, 0.0, self.y.project(target) - at_y - step)
            inside = rest - self._concavity(across) if across.any() else rest
            before = gain
            newton = self._follow(np.where(self.free_y, inside, 0.0))
            for move in (across + newton, length * rest):
                new = self.y.project(at_y + step + move) - at_y
                image = self._concavity(new)
                new_gain = dot(slope, new) - 0.5 * dot(new, image)
                if (new_gain > gain).all():
                    step, gain, rest = new, new_gain, slope - image
                    break
            if self.y.home is None or (gain - before <= _INNER * gain).all():
                break
        return step, gain

    def step(self, radius: Array) -> tuple[Array, Array, Array, Array]:
        """Steps of both players, the decrease that they promise, and what y gains without x."""
        s, gap = self.answer(self.b, self.at_y)
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
            self.upwards.append(upwards)
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

    def _propose(self, moving: Mask) -> tuple[Any, Mask, Array, Array, Array, Array]:
        state = self._state
        self._move_centers(moving, np.zeros(1))
        b = state["slope_y"] - state["prox"][:, None] * (state["y"] - state["center"])
        product = self._f.product(state["x"], state["y"])
        model = KrylovModel(
            *(self._x, self._y, state["x"], state["y"], state["slope_x"], b, product),
            *(np.ones(b.shape, dtype=bool), state["prox"]),
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
