"""The quadratic model of f, and its min-max step: no function is evaluated here."""

from dataclasses import dataclass

import numpy as np

from neada.solve.geometry import Array, Mask, Side, dot, norm, solve, times, trust_region

__all__ = ["Model", "face_step"]

_MOST_FACES = 30  # steps from face to face for one point; a face is met rarely more than once
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
    face = side.face(target)
    to_face = side.project(target) - point
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
        step = -solve(hessian, gradient)
    except np.linalg.LinAlgError:
        return trust_region(gradient, hessian, radius)
    if bool((norm(step) <= radius).all()):
        return step
    return trust_region(gradient, hessian, radius)


@dataclass
class Model:
    r"""f around a point: :math:`a d + b s + (d f_{xx} d + 2 s f_{yx} d - s C s)/2`.

    d is the step of x and s that of y, which stay in their sets; C, the concavity, is positive
    definite.
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
        self.length = 1.0 / np.linalg.norm(self.concavity, axis=(1, 2))

    def answer(self, slope: Array, at_y: Array, start: Array | None = None) -> tuple[Array, Array]:
        """The best step of y from a point where f has this slope, and its gain by the model."""
        if self.y.home is None:
            step = solve(self.concavity, slope)
            return step, 0.5 * dot(slope, step)
        step = np.zeros_like(slope) if start is None else start
        gain = self._gain(slope, step)
        for _ in range(_MOST_FACES):
            gradient = times(self.concavity, step) - slope
            target = at_y + step - self.length[:, None] * gradient
            near = self.y.project(target)
            residual = near - at_y - step
            if (norm(residual) <= 1e-13 * norm(near)).all():
                break
            system = self.y.face(target).system(self.concavity, self.length)
            newton = solve(system, residual)
            before = gain
            # A projected gradient step, where the Newton step in the face gains nothing.
            for new in (self.y.project(at_y + step + newton) - at_y, near - at_y):
                new_gain = self._gain(slope, new)
                better = new_gain > gain
                step = np.where(better[:, None], new, step)
                gain = np.where(better, new_gain, gain)
                if better.all():
                    break
            if (gain - before <= 1e-13 * np.abs(gain)).all():
                break
        return step, gain

    def _gain(self, slope: Array, step: Array) -> Array:
        return dot(slope, step) - 0.5 * dot(step, times(self.concavity, step))

    def value(self, d: Array, start: Array | None = None) -> tuple[Array, Array]:
        """The model's maximum over y after a step of x, and the step of y that attains it."""
        s, gain = self.answer(self.b + times(self.f_yx, d), self.at_y, start)
        return dot(self.a, d) + 0.5 * dot(d, times(self.f_xx, d)) + gain, s

    def curvature(self, d: Array, s: Array) -> Array:
        """The Hessian of the model's maximum over y after these steps."""
        if self.y.home is None:
            return self.f_xx + self.f_yx.swapaxes(-1, -2) @ np.linalg.solve(
                self.concavity, self.f_yx
            )
        gradient = times(self.concavity, s) - self.b - times(self.f_yx, d)
        face = self.y.face(self.at_y + s - self.length[:, None] * gradient)
        follows = np.linalg.solve(
            face.system(self.concavity, self.length),
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
        for _ in range(_MOST_FACES):
            gradient = self.a + times(self.f_xx, d) + times(self.f_yx.swapaxes(-1, -2), s)
            move = face_step(self.x, self.at_x + d, gradient, self.curvature(d, s), local)
            new = self.x.project(self.at_x + d + move) - self.at_x
            new = new * np.minimum(1.0, radius / np.maximum(norm(new), 1e-300))[:, None]
            new_value, new_s = self.value(new, s)
            better = active & (new_value < value)
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
