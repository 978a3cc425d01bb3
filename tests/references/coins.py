"""Spec A7: coin betting (KT, COCOB, and the ONS construction with its reductions)."""

from __future__ import annotations

import math

import numpy as np

from .base import Objective, Reference, Vector, dot, norm, norm_sq


def surrogate_gradient(g: Vector, free: Vector, played: Vector) -> Vector:
    """Spec A7c, block 3 ("cut"): what the learner at `free` receives, `played` = P(free)."""
    distance = norm(free - played)
    e = np.zeros_like(g) if distance == 0.0 else (free - played) / distance
    return g - min(dot(g, e), 0.0) * e


class KT(Reference):
    """Spec A7a: R += -<g, w - w_0>, theta -= g, t += 1, w = P(w_0 + theta/t (wealth + R))."""

    bound: float
    wealth = 1.0

    def setup(self) -> None:
        self.reward = 0.0
        self.theta = np.zeros_like(self.w)
        self.t = 1

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        g = g / self.bound
        self.reward = self.reward - dot(g, self.w - self.w0)
        self.theta = self.theta - g
        self.t += 1
        self.w = self.project(self.w0 + (self.theta / self.t) * (self.wealth + self.reward))


class COCOB(Reference):
    """Spec A7b, per coordinate: w = P(w_0 + theta (L + R)/(L max(A + L, alpha L)))."""

    alpha = 100.0
    scale0 = 1e-8

    def setup(self) -> None:
        self.scale = np.full_like(self.w, self.scale0)  # L
        self.total = np.zeros_like(self.w)  # A
        self.reward = np.zeros_like(self.w)  # R
        self.theta = np.zeros_like(self.w)

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        w_new = np.zeros_like(g)
        for i in range(g.size):
            self.scale[i] = max(self.scale[i], abs(g[i]))
            self.total[i] += abs(g[i])
            self.reward[i] = max(self.reward[i] - g[i] * (self.w[i] - self.w0[i]), 0.0)
            self.theta[i] -= g[i]
            scale = self.scale[i]
            weight = scale * max(self.total[i] + scale, self.alpha * scale)
            w_new[i] = self.w0[i] + self.theta[i] * (scale + self.reward[i]) / weight
        self.w = self.project(w_new)


class OnsCoin:
    """Spec A7c, block 1: the 1-D bettor for outcomes s in [-1, 1]."""

    def __init__(self, wealth: float) -> None:
        self.wealth = wealth
        self.fraction = 0.0
        self.a = 1.0

    @property
    def bet(self) -> float:
        return self.fraction * self.wealth

    def update(self, s: float) -> None:
        self.wealth = self.wealth - s * self.bet
        zeta = s / (1.0 - s * self.fraction)
        self.a = self.a + zeta**2
        moved = self.fraction - (2.0 / (2.0 - math.log(3.0))) * zeta / self.a
        self.fraction = min(max(moved, -0.5), 0.5)


class BallDirection:
    """Spec A7c, block 2: u = P_{|u| <= 1}(u - sqrt(2) g / sqrt(sum |g_i|^2)), u_1 = 0."""

    def __init__(self, like: Vector) -> None:
        self.u: Vector = np.zeros_like(like)
        self.total = 0.0

    def update(self, g: Vector) -> None:
        self.total = self.total + norm_sq(g)
        if self.total == 0.0:
            return  # 0/0: no step
        moved = self.u - math.sqrt(2.0) * g / math.sqrt(self.total)
        self.u = moved / max(1.0, norm(moved))


class CoinBetting(Reference):
    """Spec A7c, all four blocks.

    Gradients are divided by `bound`, or by their largest norm so far (the current included). The
    surrogate of block 3 feeds blocks 1 and 2; the weights of block 4 are the norms of the scaled
    gradients themselves, at the points played. Without a projection there is no block 3.
    """

    bound: float | None = None
    wealth = 1.0
    curvature = False

    def setup(self) -> None:
        self.largest = 0.0
        self.coin = OnsCoin(self.wealth)
        self.direction = BallDirection(self.w)
        self.free: Vector = self.w.copy()  # z~, before the projection
        self.weight = 1.0
        self.weighted_sum: Vector = self.w0.copy()

    @property
    def center(self) -> Vector:
        return self.weighted_sum / self.weight if self.curvature else self.w0.copy()

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.largest = max(self.largest, norm(g))
        g = g / (self.largest if self.bound is None else self.bound)

        told = g
        if self.constrained:
            told = surrogate_gradient(g, self.free, self.w)

        s = dot(told, self.direction.u)
        self.coin.update(s)
        self.direction.update(told)
        self.weight = self.weight + norm(g)
        self.weighted_sum = self.weighted_sum + norm(g) * self.w

        self.free = self.center + self.coin.bet * self.direction.u
        self.w = self.project(self.free)
