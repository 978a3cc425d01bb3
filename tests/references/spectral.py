"""Spec G1: spectral projected gradient with a safeguard by values, for minimizing one row."""

from __future__ import annotations

import math

import numpy as np

from .base import Objective, Projection, Reference, Vector, dot, needed, norm, norm_sq

EPS = float(np.finfo(np.float64).eps)


class SPG(Reference):
    """Spec G1 with the signs of minimization. (z*, v*, g*) is `kept`, s is `s`, s_0 is `first`.

    A result (z, v, g) is rejected if v is not finite or v > v* + 10 eps max(1, |v*|): back to z*
    and g*, s halved. Otherwise, with dz and dg against the point the move came from,
    s = |dz|^2/c with c = <dz, dg> if c > eps |dz| |dg|, else s_0; cut to [0.05, 20] s_0.
    The next point is P(z - s g).

    What G1 leaves open: a point that is as good as v* up to the tolerance becomes z*, and v* is
    the smallest value all the same, so every move comes from z*. If z = z*, its newer value counts.
    Without a given first step, a probe of length 1e-3 max(1, |z|) finds s_0 = |dz|/|dg|;
    where |dg| <= 100 eps |g*| there is nothing to be seen, and the next probe is ten times as long;
    where dz = 0 it begins anew. With `first_move`, s_0 is that length over the norm of the first
    gradient that is not zero.
    """

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        lr: float | None = None,
        first_move: float | None = None,
        safeguard: bool = True,
    ) -> None:
        super().__init__(w0, project)
        self.first = lr
        self.s = lr
        self.first_move = first_move
        self.safeguard = safeguard
        self.kept: tuple[Vector, Vector] | None = None
        self.best_value = math.inf
        self.rejected = 0

    @property
    def skips_zero_gradient(self) -> bool:
        return not self.safeguard

    def too_bad(self, value: float) -> bool:
        if self.kept is None or np.array_equal(self.w, self.kept[0]):
            return False
        if not math.isfinite(value):
            return True
        return value > self.best_value + 10.0 * EPS * max(1.0, abs(self.best_value))

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        if self.safeguard and self.too_bad(needed(value)):
            assert self.kept is not None
            assert self.s is not None
            self.s = self.s / 2.0
            self.rejected += 1
        else:
            if self.kept is not None:
                self.choose_step(self.w - self.kept[0], g - self.kept[1], self.kept[1])
            if self.safeguard:
                same = self.kept is not None and np.array_equal(self.w, self.kept[0])
                v = needed(value)
                self.best_value = v if same else min(self.best_value, v)
            self.kept = (self.w.copy(), g.copy())
        z, direction = self.kept
        if self.s is None and norm(direction) > 0.0:
            if self.first_move is not None:
                self.s = self.first = self.first_move / norm(direction)
            else:
                self.s = 1e-3 * max(1.0, norm(z)) / norm(direction)
        if self.s is not None:
            self.w = self.project(z - self.s * direction)

    def choose_step(self, dz: Vector, dg: Vector, g_before: Vector) -> None:
        if self.first is None:
            if norm(dz) == 0.0 or self.s is None:
                self.s = None
                return
            if norm(dg) <= 100.0 * EPS * norm(g_before):
                self.s = 10.0 * self.s
                return
            self.first = norm(dz) / norm(dg)
        c = dot(dz, dg)
        s = norm_sq(dz) / c if c > EPS * norm(dz) * norm(dg) else self.first
        self.s = min(max(s, 0.05 * self.first), 20.0 * self.first)
