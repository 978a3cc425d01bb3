"""Spec A5: Polyak step sizes. All need a lower bound f_bound of the optimal value."""

from __future__ import annotations

import math

from .base import Objective, Reference, Vector, needed, norm_sq


class Polyak(Reference):
    """Spec A5, first row: s = max(phi - f_bound, 0)/(c |g|^2)."""

    f_bound: float
    c = 1.0

    def setup(self) -> None:
        self.s = 0.0

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        gap = max(needed(value) - self.f_bound, 0.0)
        self.s = gap / (self.c * norm_sq(g))
        self.w = self.project(self.w - self.s * g)


class SPS(Reference):
    """Spec A5, SPS_max: s = min(gap/(c |g|^2), max_step).

    With `growth` = tau^(b/n) the smooth form: the cap is growth * s_{k-1} and s_{-1} = max_step.
    """

    f_bound = 0.0
    c = 0.5
    max_step = 1.0
    growth: float | None = None

    def setup(self) -> None:
        self.s = self.max_step

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        gap = max(needed(value) - self.f_bound, 0.0)
        cap = self.max_step if self.growth is None else self.growth * self.s
        self.s = min(gap / (self.c * norm_sq(g)), cap)
        self.w = self.project(self.w - self.s * g)


class DecSPS(Reference):
    """Spec A5: s_k = min(gap/|g|^2, c_{k-1} s_{k-1})/c_k, c_k = c0 sqrt(k + 1), c_{-1} = c0."""

    f_bound = 0.0
    c0 = 1.0
    max_step = 10.0

    def setup(self) -> None:
        self.k = 0
        self.c = self.c0
        self.s = self.max_step

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        gap = max(needed(value) - self.f_bound, 0.0)
        c_new = self.c0 * math.sqrt(self.k + 1.0)
        self.s = min(gap / norm_sq(g), self.c * self.s) / c_new
        self.c = c_new
        self.k += 1
        self.w = self.project(self.w - self.s * g)


class HazanKakade(Reference):
    """Spec A5, last row: epochs of `epoch_steps` steps gap/(2 |g|^2), each started at w_0.

    The epoch's last step leads back to w_0 and sets l <- (best value of the epoch + l)/2; the
    point which that last step would have reached is never evaluated, so it is not formed.
    """

    f_bound: float
    epoch_steps = 50

    def setup(self) -> None:
        self.k = 0  # steps done in this epoch
        self.s = 0.0
        self.epoch_best = math.inf

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        value = needed(value)
        self.epoch_best = min(self.epoch_best, value)
        self.s = max(value - self.f_bound, 0.0) / (2.0 * norm_sq(g))
        self.k += 1
        if self.k < self.epoch_steps:
            self.w = self.project(self.w - self.s * g)
        else:
            self.f_bound = (self.epoch_best + self.f_bound) / 2.0
            self.epoch_best = math.inf
            self.k = 0
            self.w = self.w0.copy()
