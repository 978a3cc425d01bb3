"""Spec B3, B4, B10: extragradient and its relatives."""

from __future__ import annotations

import math

from .base import Vector, norm_sq
from .minimax import Minimax


class Extragradient(Minimax):
    """Spec B3: both steps start at z, the second one takes the gradients at the half point."""

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        half_x = self.project_x(self.x - self.lr_x * gx)
        half_y = self.project_y(self.y + self.lr_y * gy)
        gx = self.grad_x(half_x, half_y)
        gy = self.grad_y(half_x, half_y)
        self.x = self.project_x(self.x - self.lr_x * gx)
        self.y = self.project_y(self.y + self.lr_y * gy)


class OptimisticGDA(Minimax):
    """Spec B4: z = P(z - lr (2 F(z_t) - F(z_{t-1}))), F(z_{-1}) := F(z_0)."""

    gx_previous: Vector | None = None
    gy_previous: Vector | None = None

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        if self.gx_previous is None or self.gy_previous is None:
            self.gx_previous, self.gy_previous = gx, gy
        self.x = self.project_x(self.x - self.lr_x * (2.0 * gx - self.gx_previous))
        self.y = self.project_y(self.y + self.lr_y * (2.0 * gy - self.gy_previous))
        self.gx_previous, self.gy_previous = gx, gy


class PastExtragradient(Minimax):
    """Spec B4 (Popov): the half step uses the gradients of the last half point, at first F(z_0)."""

    gx_memory: Vector | None = None
    gy_memory: Vector | None = None

    def iterate(self) -> None:
        if self.gx_memory is None or self.gy_memory is None:  # the one extra pair
            self.gx_memory = self.grad_x(self.x, self.y)
            self.gy_memory = self.grad_y(self.x, self.y)
        half_x = self.project_x(self.x - self.lr_x * self.gx_memory)
        half_y = self.project_y(self.y + self.lr_y * self.gy_memory)
        self.gx_memory = self.grad_x(half_x, half_y)
        self.gy_memory = self.grad_y(half_x, half_y)
        self.x = self.project_x(self.x - self.lr_x * self.gx_memory)
        self.y = self.project_y(self.y + self.lr_y * self.gy_memory)


class OneRate(Minimax):
    """Extragradient with one step size for both players."""

    def extragradient(self, step: float) -> tuple[Vector, ...]:
        """(half point, new point, difference of the gradients at the half point and at z)."""
        gx, gy = self.grad_x(self.x, self.y), self.grad_y(self.x, self.y)
        hx = self.project_x(self.x - step * gx)
        hy = self.project_y(self.y + step * gy)
        half_gx, half_gy = self.grad_x(hx, hy), self.grad_y(hx, hy)
        x = self.project_x(self.x - step * half_gx)
        y = self.project_y(self.y + step * half_gy)
        return hx, hy, x, y, half_gx - gx, half_gy - gy


class AdaptiveExtragradient(OneRate):
    """Spec B10 (AdaProx): step c / sqrt(1 + sum over the past of |F(z_h) - F(z)|^2)."""

    scale = 1.0
    total = 0.0  # the sum alone, without the 1

    def iterate(self) -> None:
        step = self.scale / math.sqrt(1.0 + self.total)
        _, _, self.x, self.y, dx, dy = self.extragradient(step)
        self.total = self.total + norm_sq(dx) + norm_sq(dy)


class UniversalMirrorProx(OneRate):
    """Spec B10: step D / sqrt(G_0^2 + sum over the past of Z^2), D the diameter of both jointly."""

    diameter: float
    g0: float

    def setup(self) -> None:
        self.total = self.g0**2

    def iterate(self) -> None:
        step = self.diameter / math.sqrt(self.total)
        hx, hy, x, y, _, _ = self.extragradient(step)
        forward = norm_sq(hx - x) + norm_sq(hy - y)
        backward = norm_sq(hx - self.x) + norm_sq(hy - self.y)
        self.total = self.total + (forward + backward) / (5.0 * step**2)
        self.x, self.y = x, y
