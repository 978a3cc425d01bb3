"""Spec B5, right column: the update formulas of torch.optim, transcribed by hand."""

from __future__ import annotations

import math

import numpy as np

from .base import Objective, Projection, Reference, Vector

KINDS = ("sgd", "adagrad", "adam", "amsgrad")


class TorchRule(Reference):
    """Spec B5: SGD without momentum, Adagrad, Adam and Adam(amsgrad), then the projection.

    `eps` is torch's default unless it is given: 1e-10 for adagrad, 1e-8 for adam and amsgrad.
    s = 1, 2, ... counts the steps. All accumulators start at 0.
    """

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        lr: float,
        kind: str,
        eps: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:
        super().__init__(w0, project)
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}")
        if eps is None:
            eps = 1e-10 if kind == "adagrad" else 1e-8
        self.lr = lr
        self.kind = kind
        self.eps = eps
        self.beta1 = beta1
        self.beta2 = beta2
        self.s = 0
        self.m = np.zeros_like(self.w)
        self.v = np.zeros_like(self.w)
        self.v_max = np.zeros_like(self.w)

    @property
    def skips_zero_gradient(self) -> bool:
        return False  # torch follows the formulas

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.s += 1
        if self.kind == "sgd":
            change = self.lr * g
        elif self.kind == "adagrad":
            self.v = self.v + g * g
            change = self.lr * g / (np.sqrt(self.v) + self.eps)
        else:
            self.m = self.beta1 * self.m + (1.0 - self.beta1) * g
            self.v = self.beta2 * self.v + (1.0 - self.beta2) * g * g
            self.v_max = np.maximum(self.v_max, self.v)  # of the uncorrected v
            used = self.v if self.kind == "adam" else self.v_max
            step = self.lr / (1.0 - self.beta1**self.s)
            root = math.sqrt(1.0 - self.beta2**self.s)
            change = step * self.m / (np.sqrt(used) / root + self.eps)
        self.w = self.project(self.w - change)
