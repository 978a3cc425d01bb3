"""Spec A4: SC-AdaNGD_k, normalized gradient descent for a known strong-convexity modulus."""

from __future__ import annotations

import numpy as np

from .base import Objective, Projection, Reference, Vector, norm


class SCAdaNGD(Reference):
    """Spec A4: Q += |g|^-k, w = P(w - g/(H Q |g|^k)); `average` weights the w_i by |g_i|^-k."""

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        strong_convexity: float,
        k: int = 2,
    ) -> None:
        super().__init__(w0, project)
        if k not in (1, 2):
            raise ValueError("k is 1 or 2")
        self.strong_convexity = strong_convexity
        self.k = k
        self.q = 0.0
        self.s = 0.0
        self.weighted_sum = np.zeros_like(self.w)

    @property
    def average(self) -> Vector:
        return self.w0.copy() if self.q == 0.0 else self.weighted_sum / self.q

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        power = norm(g) ** self.k
        self.q = self.q + 1.0 / power
        self.weighted_sum = self.weighted_sum + self.w / power
        self.s = 1.0 / (self.strong_convexity * self.q * power)
        self.w = self.project(self.w - self.s * g)
