"""Spec B8 (TiAda, three flavours) and spec B9 (AdaGDA, VR-AdaGDA)."""

from __future__ import annotations

import numpy as np

from .base import Vector, norm, norm_sq
from .minimax import Minimax


def scaled(lr: float, g: Vector, denominator: float) -> Vector:
    """lr g / denominator, where 0/0 means no step (spec 0, Numerics)."""
    return np.zeros_like(g) if denominator == 0.0 else lr * g / denominator


def ratio(sum_x: float, sum_y: float, alpha: float) -> float:
    """Spec B8: R = S_x^a / max(S_x, S_y)^a, 1 if both are zero (then nothing moves)."""
    largest = max(sum_x, sum_y)
    return 1.0 if largest == 0.0 else sum_x**alpha / largest**alpha


class TiAda(Minimax):
    """Spec B8, scalar: both sums include the current gradients before either player moves."""

    alpha, beta = 0.6, 0.4
    v_x, v_y = 1e-8, 1e-8

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        self.v_x = self.v_x + norm_sq(gx)
        self.v_y = self.v_y + norm_sq(gy)
        denominator_x = max(self.v_x, self.v_y) ** self.alpha
        denominator_y = self.v_y**self.beta
        self.x = self.project_x(self.x - scaled(self.lr_x, gx, denominator_x))
        self.y = self.project_y(self.y + scaled(self.lr_y, gy, denominator_y))


class TiAdaCoordinate(Minimax):
    """Spec B8, coordinate-wise AdaGrad flavour: accumulators start at 0."""

    alpha, beta = 0.6, 0.4
    eps = 1e-10

    def setup(self) -> None:
        self.v_x = np.zeros_like(self.x)
        self.v_y = np.zeros_like(self.y)

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        self.v_x = self.v_x + gx * gx
        self.v_y = self.v_y + gy * gy
        share = ratio(float(np.sum(self.v_x)), float(np.sum(self.v_y)), self.alpha)
        step_x = self.lr_x * share * gx / (self.v_x**self.alpha + self.eps)
        step_y = self.lr_y * gy / (self.v_y**self.beta + self.eps)
        self.x = self.project_x(self.x - step_x)
        self.y = self.project_y(self.y + step_y)


class TiAdaAdam(Minimax):
    """Spec B8, Adam and AMSGrad flavour.

    `bias="power"` divides v^a by (1 - beta2^s)^a and v^b by (1 - beta2^s)^b; `"sqrt"` divides both
    by sqrt(1 - beta2^s), as the public code does. R comes from the uncorrected v (or maximum).
    """

    alpha, beta = 0.6, 0.4
    beta1, beta2 = 0.9, 0.999
    eps = 1e-8
    amsgrad = False
    bias = "power"

    def setup(self) -> None:
        self.s = 0
        self.m_x, self.m_y = np.zeros_like(self.x), np.zeros_like(self.y)
        self.v_x, self.v_y = np.zeros_like(self.x), np.zeros_like(self.y)
        self.max_x, self.max_y = np.zeros_like(self.x), np.zeros_like(self.y)

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        self.s += 1
        self.m_x = self.beta1 * self.m_x + (1.0 - self.beta1) * gx
        self.m_y = self.beta1 * self.m_y + (1.0 - self.beta1) * gy
        self.v_x = self.beta2 * self.v_x + (1.0 - self.beta2) * gx * gx
        self.v_y = self.beta2 * self.v_y + (1.0 - self.beta2) * gy * gy
        self.max_x = np.maximum(self.max_x, self.v_x)
        self.max_y = np.maximum(self.max_y, self.v_y)
        used_x = self.max_x if self.amsgrad else self.v_x
        used_y = self.max_y if self.amsgrad else self.v_y

        share = ratio(float(np.sum(used_x)), float(np.sum(used_y)), self.alpha)
        correction1 = 1.0 - self.beta1**self.s
        correction2 = 1.0 - self.beta2**self.s
        c_x = correction2 ** (self.alpha if self.bias == "power" else 0.5)
        c_y = correction2 ** (self.beta if self.bias == "power" else 0.5)
        denominator_x = used_x**self.alpha / c_x + self.eps
        denominator_y = used_y**self.beta / c_y + self.eps
        step_x = (self.lr_x / correction1) * share * self.m_x / denominator_x
        step_y = (self.lr_y / correction1) * self.m_y / denominator_y
        self.x = self.project_x(self.x - step_x)
        self.y = self.project_y(self.y + step_y)


class AdaGDA(Minimax):
    """Spec B9. t = 1, 2, ...; the first step evaluates an extra pair at the start.

    a and b take the newest gradient at z_t (not the estimators) before the step; the estimators are
    renewed after it, with the eta of the step just made. `gam` and `lam` are gamma_x and lambda.
    """

    power = 0.5  # eta_t = k / (m + t)^power

    gam: float
    lam: float
    k, m = 1.0, 8.0
    c1, c2 = 1.0, 1.0
    rho, tau = 1e-3, 0.9

    def setup(self) -> None:
        self.t = 0
        self.a = np.zeros_like(self.x)
        self.b = 0.0
        self.v = np.zeros_like(self.x)  # estimator of the x gradient
        self.w = np.zeros_like(self.y)  # estimator of the y gradient
        self.gx = np.zeros_like(self.x)  # the newest gradients, at (x, y)
        self.gy = np.zeros_like(self.y)

    def iterate(self) -> None:
        if self.t == 0:
            self.gx = self.grad_x(self.x, self.y)
            self.gy = self.grad_y(self.x, self.y)
            self.v, self.w = self.gx, self.gy
        self.t += 1
        eta = min(1.0, self.k / (self.m + self.t) ** self.power)

        self.a = self.tau * self.a + (1.0 - self.tau) * self.gx * self.gx
        self.b = self.tau * self.b + (1.0 - self.tau) * norm(self.gy)
        target_x = self.project_x(self.x - self.gam * self.v / (np.sqrt(self.a) + self.rho))
        target_y = self.project_y(self.y + self.lam * self.w / (self.b + self.rho))
        x = self.x + eta * (target_x - self.x)
        y = self.y + eta * (target_y - self.y)

        self.renew(x, y, eta)
        self.x, self.y = x, y

    def renew(self, x: Vector, y: Vector, eta: float) -> None:
        """v = alpha g + (1 - alpha) v, alpha = min(1, c_1 eta); likewise w."""
        alpha = min(1.0, self.c1 * eta)
        beta = min(1.0, self.c2 * eta)
        self.gx = self.grad_x(x, y)
        self.gy = self.grad_y(x, y)
        self.v = alpha * self.gx + (1.0 - alpha) * self.v
        self.w = beta * self.gy + (1.0 - beta) * self.w


class VRAdaGDA(AdaGDA):
    """Spec B9, variance reduced: the new sample is evaluated at the new and at the old point."""

    power = 1.0 / 3.0

    def renew(self, x: Vector, y: Vector, eta: float) -> None:
        """v = g(new) + (1 - alpha) (v - g(old)), alpha = min(1, c_1 eta^2); likewise w."""
        alpha = min(1.0, self.c1 * eta**2)
        beta = min(1.0, self.c2 * eta**2)
        self.gx = self.grad_x(x, y)
        self.gy = self.grad_y(x, y)
        old_gx = self.grad_x(self.x, self.y)
        old_gy = self.grad_y(self.x, self.y)
        self.v = self.gx + (1.0 - alpha) * (self.v - old_gx)
        self.w = self.gy + (1.0 - beta) * (self.w - old_gy)
