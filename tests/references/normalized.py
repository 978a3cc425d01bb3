"""Spec A4: SC-AdaNGD_2, normalized gradient descent for a known strong-convexity modulus."""

from __future__ import annotations

from .base import Objective, Reference, Vector, norm_sq


class SCAdaNGD(Reference):
    """Spec A4: Q += |g|^-2, w = P(w - g/(H Q |g|^2))."""

    strong_convexity: float

    def setup(self) -> None:
        self.q = 0.0

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.q = self.q + 1.0 / norm_sq(g)
        self.w = self.project(self.w - g / (self.strong_convexity * self.q * norm_sq(g)))
