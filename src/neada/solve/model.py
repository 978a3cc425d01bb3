"""The quadratic model of f, and its min-max step: no function is evaluated here."""

import math
from dataclasses import dataclass

import numpy as np

from neada.solve.geometry import (
    Array,
    Mask,
    Side,
    dot,
    norm,
    solve,
    solve_many,
    times,
    trust_region,
)

__all__ = ["Model", "definite_update", "least_curvature"]

_MOST_FACES = 30  # steps from face to face for one point; a face is met rarely more than once
_EPS = np.finfo(np.float64).eps
_ENOUGH = 0.1  # share of the decrease so far that a further face must add to be worth another one


def face_step(side: Side, point: Array, gradient: Array, hessian: Array, radius: Array) -> Array:
    """A Newton step that descends in the face which the projected gradient step reaches.

    Args:
        side: The player.
        point: Where it is.
        gradient: The gradient there.
        hessian: The Hessian there, which may be indefinite.
        radius: The longest step along the face.

    Returns:
        The step, which may leave the set.
    """
    if side.home is None:
        return _reduced(gradient, hessian, radius)
    length = np.minimum(
        1.0 / np.maximum(np.linalg.norm(hessian, axis=(-2, -1)), 1e-300),
        radius / np.maximum(norm(gradient), 1e-300),
    )
    target = point - length[:, None] * gradient
    near = side.project(target)
    face, to_face = side.face(target, near), near - point
    if face.derivative is None:
        across = np.where(face.free, 0.0, to_face)
        along = gradient + times(hessian, across)
        return across + _masked(along, hessian, face.free, radius)
    vectors, free, bend = face.basis(length)
    turned = vectors.swapaxes(1, 2)
    across = times(vectors, np.where(free, 0.0, times(turned, to_face)))
    along = times(turned, gradient) * (1.0 + length[:, None] * bend)
    along = along + times(turned, times(hessian, across))
    bent = turned @ hessian @ vectors + np.eye(side.size) * bend[:, None, :]
    return across + times(vectors, _masked(along, bent, free, radius))


def _masked(gradient: Array, hessian: Array, free: Mask, radius: Array) -> Array:
    """The minimizer of a quadratic in a ball of the free coordinates."""
    if free.all():
        return _reduced(gradient, hessian, radius)
    both = free[:, :, None] & free[:, None, :]
    hessian = np.where(both, hessian, np.eye(hessian.shape[-1]))
    return _reduced(np.where(free, gradient, 0.0), hessian, radius)


def _reduced(gradient: Array, hessian: Array, radius: Array) -> Array:
    """The minimizer of a quadratic in a ball."""
    try:
        np.linalg.cholesky(hessian)
        step: Array = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
    except np.linalg.LinAlgError:
        return trust_region(gradient, hessian, radius)
    if bool((norm(step) <= radius).all()):
        return step
    return trust_region(gradient, hessian, radius)


@dataclass
class Model:
    r"""f around a point: :math:`a d + b s + (d f_{xx} d + 2 s f_{yx} d - s C s)/2`.

    d is the step of x and s that of y, which stay in their sets.

    Attributes:
        concavity: C, which may be indefinite.
        definite: C, lifted to be definite outside of the face of y; the identity where it is not
            definite in the face.
        is_concave: Whether C is definite in the face of y.
    """

    x: Side
    y: Side
    at_x: Array
    at_y: Array
    a: Array
    b: Array
    f_xx: Array
    f_yx: Array
    concavity: Array

    def __post_init__(self) -> None:
        self._examine(self.b, self.at_y)

    def _examine(self, slope: Array, at_y: Array) -> None:
        """Make the matrix of y definite where it is not."""
        size = np.linalg.norm(self.concavity, axis=(1, 2))
        self.length = 1.0 / np.maximum(size, 1e-300)
        least = least_curvature(self.concavity, 1e-14 * size)
        self.is_concave, self.definite = least > 0.0, self.concavity
        if self.is_concave.all():
            return
        identity = np.eye(self.y.size)
        lift = np.where(self.is_concave, 0.0, 1e-3 * size - least)[:, None, None]
        if self.y.home is not None:
            face = self.y.face(at_y + self.length[:, None] * slope)
            self.is_concave = face.curvature(self.concavity, self.length) > 0.0
        lifted = self.concavity + lift * identity
        self.definite = np.where(self.is_concave[:, None, None], lifted, identity)

    def rise(self, slope: Array, at_y: Array, radius: Array) -> tuple[Array, Array, Array]:
        """A step of y from a point where f has this slope.

        Returns:
            The step, what it gains by the model, and what the best one would gain without a trust
            region; infinite where f is not concave.
        """
        self._examine(slope, at_y)
        step, gain = self.answer(slope, at_y)
        gap = np.where(self.is_concave, gain, math.inf)
        # Where f is concave, a part of the best step rises, too.
        step = np.minimum(1.0, radius / np.maximum(norm(step), 1e-300))[:, None] * step
        upwards = ~self.is_concave
        if upwards.any():
            near = face_step(self.y, at_y, -slope, self.concavity, radius)
            near = self.y.project(at_y + near) - at_y
            step = np.where(upwards[:, None], near, step)
        gain = dot(slope, step) - 0.5 * dot(step, times(self.concavity, step))
        return step, gain, gap

    def learn(self, rows: Mask, moved: Array, changed: Array) -> None:
        """Update C by a step of y alone and the change of the slope, where f curves downwards."""
        rows = rows & (dot(moved, changed) < 0.0)
        new = definite_update(self.concavity, moved, -changed)
        self.concavity = np.where(rows[:, None, None], new, self.concavity)

    def move(self, x: Array, y: Array) -> None:
        """The Hessian stays the same."""

    def answer(self, slope: Array, at_y: Array, start: Array | None = None) -> tuple[Array, Array]:
        """The best step of y from a point where f has this slope, and its gain by the model."""
        if self.y.home is None:
            step = solve(self.definite, slope)
            return step, 0.5 * dot(slope, step)
        step = np.zeros_like(slope) if start is None else start
        gain = self._gain(slope, step)
        rounding = _EPS * dot(np.abs(slope), np.abs(at_y))
        for _ in range(_MOST_FACES):
            gradient = times(self.definite, step) - slope
            target = at_y + step - self.length[:, None] * gradient
            near = self.y.project(target)
            residual = near - at_y - step
            if (norm(residual) <= 1e-13 * norm(near)).all():
                break
            system = self.y.face(target, near).system(self.definite, self.length)
            newton = solve(system, residual)
            before = gain
            # A projected gradient step, where the Newton step in the face gains nothing.
            for new in (self.y.project(at_y + step + newton) - at_y, near - at_y):
                new_gain = self._gain(slope, new)
                better = new_gain > gain - rounding
                step = np.where(better[:, None], new, step)
                gain = np.where(better, new_gain, gain)
                if better.all():
                    break
            if (gain - before <= 1e-13 * np.abs(gain)).all():
                break
        return step, gain

    def _gain(self, slope: Array, step: Array) -> Array:
        return dot(slope, step) - 0.5 * dot(step, times(self.definite, step))

    def value(self, d: Array, start: Array | None = None) -> tuple[Array, Array]:
        """The model's maximum over y after a step of x, and the step of y that attains it."""
        s, gain = self.answer(self.b + times(self.f_yx, d), self.at_y, start)
        return dot(self.a, d) + 0.5 * dot(d, times(self.f_xx, d)) + gain, s

    def curvature(self, d: Array, s: Array) -> Array:
        """The Hessian of the model's maximum over y after these steps."""
        if self.y.home is None:
            follows = solve_many(self.definite, self.f_yx)
            reduced: Array = self.f_xx + self.f_yx.swapaxes(1, 2) @ follows
            return reduced
        gradient = times(self.definite, s) - self.b - times(self.f_yx, d)
        face = self.y.face(self.at_y + s - self.length[:, None] * gradient)
        follows = solve_many(
            face.system(self.definite, self.length),
            self.length[:, None, None] * face.along(self.f_yx),
        )
        hessian = self.f_xx + self.f_yx.swapaxes(1, 2) @ follows
        both: Array = 0.5 * (hessian + hessian.swapaxes(1, 2))
        return both

    def step(self, radius: Array) -> tuple[Array, Array, Array, Array]:
        """Steps of both players, the decrease of the maximum over y, and what y gains without x.

        Without sets the first step is exact. With sets the maximum is quadratic in pieces, and the
        step goes from piece to piece.
        """
        d = np.zeros_like(self.a)
        start, s = self.value(d)
        value, local, active = start, radius, radius > 0.0
        rounding = _EPS * dot(np.abs(self.a), np.abs(self.at_x))
        for _ in range(_MOST_FACES):
            gradient = self.a + times(self.f_xx, d) + times(self.f_yx.swapaxes(-1, -2), s)
            move = face_step(self.x, self.at_x + d, gradient, self.curvature(d, s), local)
            new = self.x.project(self.at_x + d + move) - self.at_x
            new = new * np.minimum(1.0, radius / np.maximum(norm(new), 1e-300))[:, None]
            new_value, new_s = self.value(new, s)
            better = active & (new_value < value + rounding)
            local = np.where(better, local, 0.25 * np.minimum(local, norm(new - d)))
            gain = np.where(better, value - new_value, 0.0)
            d = np.where(better[:, None], new, d)
            s = np.where(better[:, None], new_s, s)
            value = np.where(better, new_value, value)
            smooth = self.x.home is None and self.y.home is None
            active &= ~(better & (gain <= _ENOUGH * (start - value))) & (local > 1e-12 * radius)
            if smooth or not active.any():
                break
        return d, s, start - value, start


def least_curvature(matrix: Array, floor: Array) -> Array:
    """By how much the least eigenvalues exceed a floor; infinite if all of them do."""
    shifted = matrix - floor[:, None, None] * np.eye(matrix.shape[1])
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        least: Array = np.linalg.eigvalsh(shifted)[:, 0]
        return least
    return np.full(len(matrix), math.inf)


def definite_update(matrix: Array, moved: Array, changed: Array) -> Array:
    """Make a matrix map `moved` to `changed`: by BFGS, or by the least change (Powell)."""
    image = times(matrix, moved)
    bend, along = dot(moved, image)[:, None, None], dot(moved, changed)[:, None, None]
    size = np.maximum(dot(moved, moved), 1e-300)[:, None, None]
    missed = changed - image
    cross = missed[:, :, None] * moved[:, None, :]
    inner = dot(missed, moved)[:, None, None] / size
    least = (cross + cross.swapaxes(1, 2) - inner * moved[:, :, None] * moved[:, None, :]) / size
    bfgs = (
        changed[:, :, None] * changed[:, None, :] / along
        - image[:, :, None] * image[:, None, :] / bend
    )
    updated: Array = matrix + np.where((along > 1e-8 * bend) & (bend > 0.0), bfgs, least)
    return updated
