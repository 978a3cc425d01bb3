"""Spec B5, right column: the update formula of torch.optim.Adagrad, transcribed by hand."""

from __future__ import annotations

import numpy as np

from .base import Objective, Reference, Vector


class TorchAdagrad(Reference):
    """Spec B5: torch's Adagrad with its default `eps`, then the projection."""

    lr: float

    def setup(self) -> None:
        self.v = np.zeros_like(self.w)

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.v = self.v + g * g
        self.w = self.project(self.w - self.lr * g / (np.sqrt(self.v) + 1e-10))
