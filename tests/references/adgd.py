"""Spec A9: adaptive gradient descent without line search."""

from __future__ import annotations

import math

from .base import Objective, Reference, Vector, dot, norm, norm_sq


def inverse(x: float) -> float:
    """1/x with 1/0 := inf."""
    return math.inf if x == 0.0 else 1.0 / x


class AdGD(Reference):
    """Spec A9. w = P(w - lambda_k g_k), lambda_0 = lr, theta_k = lambda_k/lambda_{k-1}.

    If w_k = w_{k-1}, lambda and theta stay as they are; if both bounds are infinite lambda stays
    (and theta = 1).
    """

    variant: str
    lr: float

    def setup(self) -> None:
        self.lam = self.lr
        self.theta = 1.0 / 3.0 if self.variant in ("mm23", "adapg") else math.inf
        self.lipschitz = math.nan  # L_k
        self.w_previous: Vector | None = None
        self.g_previous: Vector | None = None

    def second_bound(self, dw: Vector, dg: Vector) -> float:
        lam, lip = self.lam, self.lipschitz
        if self.variant in ("mm20", "mm20lin"):
            return inverse(2.0 * lip)
        inside = 2.0 * lam**2 * lip**2 - 1.0
        if self.variant == "adapg":
            inside = inside - lam * dot(dg, dw) / norm_sq(dw)
        return lam * inverse(math.sqrt(max(inside, 0.0)))

    def adapt(self, g: Vector) -> None:
        """lambda_k and theta_k for k >= 1."""
        if self.w_previous is None or self.g_previous is None:
            return
        dw = self.w - self.w_previous
        dg = g - self.g_previous
        if norm(dw) == 0.0:
            return
        self.lipschitz = norm(dg) / norm(dw)

        if self.variant == "mm20":
            factor = math.sqrt(1.0 + self.theta)
        elif self.variant == "mm20lin":
            factor = math.sqrt(1.0 + self.theta / 2.0)
        else:
            factor = math.sqrt(2.0 / 3.0 + self.theta)
        lam = min(factor * self.lam, self.second_bound(dw, dg))
        if math.isinf(lam):
            lam = self.lam
        self.theta = lam / self.lam
        self.lam = lam

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.adapt(g)
        self.w_previous = self.w.copy()
        self.g_previous = g.copy()
        self.w = self.project(self.w - self.lam * g)
