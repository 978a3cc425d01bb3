"""L-BFGS with one evaluation per step, by dense matrices instead of the two-loop recursion."""

from __future__ import annotations

import numpy as np

from .base import Objective, Projection, Reference, Vector, dot, needed, norm, norm_sq


class LBFGS(Reference):
    """The inverse Hessian is written out: H <- (I - r s u') H (I - r u s') + r s s', oldest first.

    A proposed point is kept if its slope is at most 0.8 of the first slope upwards and its value
    rose by at most 0.1 of the predicted fall; otherwise the step goes to the minimizer of the
    parabola through both slopes, within [0.1, 0.5] of itself. After five rejections the present
    point becomes the base. Pairs with no positive product are dropped with all others, and the
    next step is twice as long as the last.
    """

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        lr: float = 1.0,
        history: int = 10,
    ) -> None:
        super().__init__(w0, project)
        self.lr = lr
        self.history = history
        self.pairs: list[tuple[Vector, Vector]] = []  # newest last
        self.scale = 0.0
        self.base: tuple[Vector, Vector, float] | None = None
        self.direction = np.zeros_like(self.w)
        self.alpha = 0.0
        self.rejected = 0

    def inverse_hessian(self, g: Vector) -> np.ndarray:
        scale = self.scale if self.scale > 0.0 else self.lr / max(1.0, norm(g))
        eye = np.eye(len(g))
        h = scale * eye
        for s, u in self.pairs:
            r = 1.0 / dot(s, u)
            h = (eye - r * np.outer(s, u)) @ h @ (eye - r * np.outer(u, s)) + r * np.outer(s, s)
        return h

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        value = needed(value)
        keep = self.base is None or self.rejected >= 5
        if self.base is not None:
            w0, g0, value0 = self.base
            first, last = dot(g0, self.direction), dot(g, self.direction)
            slack = 10.0 * float(np.finfo(np.float64).eps) * abs(value)
            low = value <= value0 - 0.1 * self.alpha * first + slack
            if last <= -0.8 * first and low:
                keep = True
                self.learn(self.w - w0, g - g0, g0)
        if keep:
            self.base = (self.w.copy(), g.copy(), value)
            self.direction = -self.inverse_hessian(g) @ g
            self.alpha = 1.0
            self.rejected = 0
        else:
            best = self.alpha * first / (first - max(last, 0.0))
            self.alpha = min(max(best, 0.1 * self.alpha), 0.5 * self.alpha)
            self.rejected += 1
        self.w = self.base[0] + self.alpha * self.direction

    def learn(self, s: Vector, u: Vector, g0: Vector) -> None:
        if dot(s, u) > 1e-10 * norm(s) * norm(u):
            self.pairs = [*self.pairs, (s, u)][-self.history :]
            self.scale = dot(s, u) / norm_sq(u)
        else:
            self.pairs = []
            self.scale = 2.0 * norm(s) / norm(g0)
