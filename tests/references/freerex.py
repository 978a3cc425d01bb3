"""Spec A6: FreeRex and FreeRexMomentum."""

from __future__ import annotations

import math

import numpy as np

from .base import Objective, Reference, Vector, norm, norm_sq
from .coins import surrogate_gradient


class FreeRex(Reference):
    """Spec A6. With a projection the learner is wrapped as a black box by A7c, block 3.

    It then sees the surrogate gradient, and its own unconstrained point stands for w in N.
    """

    momentum = False

    def setup(self) -> None:
        self.gradient_sum = np.zeros_like(self.w)  # G
        self.largest = 0.0  # L
        self.q = 0.0
        self.a = 0.0
        self.norm_sum = 0.0  # S
        self.weighted_offsets = np.zeros_like(self.w)  # N
        self.free: Vector = self.w.copy()

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        if self.constrained:
            g = surrogate_gradient(g, self.free, self.w)
            if not np.any(g):
                return  # a zero surrogate tells the learner nothing
        size = norm(g)
        self.norm_sum = self.norm_sum + size
        self.weighted_offsets = self.weighted_offsets + size * (self.free - self.w0)
        self.largest = max(self.largest, size)
        self.gradient_sum = self.gradient_sum + g
        total = norm(self.gradient_sum)
        self.q = max(self.q + 2.0 * norm_sq(g), self.largest * total)
        self.a = max(self.a, self.q / self.largest**2)
        offset = np.zeros_like(self.w)
        if total > 0.0:
            length = math.expm1(total / (math.sqrt(5.0) * math.sqrt(self.q))) / self.a
            offset = -(self.gradient_sum / total) * length
        self.free = self.w0 + offset
        if self.momentum:
            self.free = self.free + self.weighted_offsets / self.norm_sum
        self.w = self.project(self.free)
