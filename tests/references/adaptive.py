"""Spec B5/C1 (paper-exact adaptive steps) and spec A1, A2 (scalar and generalized AdaGrad)."""

from __future__ import annotations

import numpy as np

from .base import Objective, PolynomialAverage, Reference, Vector, norm_sq


def quotient(m: Vector, denominator: Vector) -> Vector:
    """Elementwise m / denominator, zero ("no step") wherever the denominator is zero."""
    result = np.zeros_like(m)
    for i in range(m.size):
        if denominator[i] != 0.0:
            result[i] = m[i] / denominator[i]
    return result


class AdaptiveSGD(Reference):
    """Spec B5 and C1, coordinate-wise: no bias correction, no eps, 0/0 := 0.

    `beta` is 0.9 for adam and amsgrad and 0 otherwise unless it is given.
    """

    lr: float
    psi = "adam"
    beta: float | None = None
    gamma = 0.999
    v0 = 0.0

    def setup(self) -> None:
        if self.beta is None:
            self.beta = 0.9 if self.psi in ("adam", "amsgrad") else 0.0
        self.m = np.zeros_like(self.w)
        self.v = np.full_like(self.w, self.v0)
        self.v_max = np.zeros_like(self.w)  # over s = 1, 2, ...: v_0 is not in the maximum

    @property
    def skips_zero_gradient(self) -> bool:
        return False  # Adam-like methods follow their formula

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.m = self.beta * self.m + (1.0 - self.beta) * g
        if self.psi == "none":
            used = np.ones_like(g)
        elif self.psi == "adagrad":
            self.v = self.v + g * g
            used = self.v
        else:
            self.v = self.gamma * self.v + (1.0 - self.gamma) * g * g
            self.v_max = np.maximum(self.v_max, self.v)
            used = self.v if self.psi == "adam" else self.v_max
        self.w = self.project(self.w - self.lr * quotient(self.m, np.sqrt(used)))


class GeneralizedAdaGrad(Reference):
    """Spec A2 (alpha = 1/2 is A1): v += |g|^2, w = P(w - lr g / v^alpha).

    `accumulate="mapping"` adds |w - P(w - g)|^2 instead (A1, pitfall 3); `average=gamma` averages
    the points after each step (A0).
    """

    lr = 1.0
    alpha = 0.5
    v0 = 1.0
    accumulate = "gradient"
    average: float | None = None

    def setup(self) -> None:
        self.v = self.v0
        self._average = None if self.average is None else PolynomialAverage(self.w, self.average)

    @property
    def answer(self) -> Vector:
        return self.w if self._average is None else self._average.point

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        added = g if self.accumulate == "gradient" else self.w - self.project(self.w - g)
        self.v = self.v + norm_sq(added)
        self.w = self.project(self.w - self.lr * g / self.v**self.alpha)
        if self._average is not None:
            self._average.add(self.w)
