"""Spec B1, B2, B5/C1, B7, B11: what all minimax references share, and the simplest methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from .adaptive import AdaptiveSGD
from .base import Projection, Reference, Vector, assign
from .torch_rules import TorchAdagrad

PlayerGradient = Callable[[Vector, Vector], Vector]


def identity(v: Vector) -> Vector:
    return v.copy()


class Minimax(ABC):
    """min over x, max over y; `gy` is the ascent gradient. `step` is one iteration.

    Hyper-parameters are attributes, whose defaults are in the class; `setup` makes the state. n_gx
    and n_gy count gradients (spec 0). The non-nested methods assign x and y only after every
    gradient of the iteration is known.
    """

    lr_x: float
    lr_y: float

    def __init__(
        self,
        x0: Vector,
        y0: Vector,
        gx: PlayerGradient,
        gy: PlayerGradient,
        project_x: Projection | None = None,
        project_y: Projection | None = None,
        **hyper: Any,
    ) -> None:
        self.x: Vector = np.array(x0, dtype=np.float64)
        self.y: Vector = np.array(y0, dtype=np.float64)
        self.gradient_x = gx
        self.gradient_y = gy
        self.set_x = project_x  # None: no constraint
        self.set_y = project_y
        self.project_x: Projection = project_x or identity
        self.project_y: Projection = project_y or identity
        self.n_gx = 0
        self.n_gy = 0
        self.n_f = 0
        self.n_outer = 0
        self.n_inner = 0
        assign(self, hyper)
        self.setup()

    def setup(self) -> None:  # noqa: B027 (optional)
        """Make the state."""

    @abstractmethod
    def iterate(self) -> None:
        """The formulas of one iteration."""

    def step(self) -> None:
        self.iterate()
        self.n_outer += 1

    def grad_x(self, x: Vector, y: Vector) -> Vector:
        self.n_gx += 1
        return self.gradient_x(x, y)

    def grad_y(self, x: Vector, y: Vector) -> Vector:
        self.n_gy += 1
        return self.gradient_y(x, y)


class SimultaneousGDA(Minimax):
    """Spec B1."""

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        self.x = self.project_x(self.x - self.lr_x * gx)
        self.y = self.project_y(self.y + self.lr_y * gy)


class AlternatingGDA(Minimax):
    """Spec B2: the second player answers the first one's new point."""

    order = "xy"

    def iterate(self) -> None:
        if self.order == "xy":
            x = self.project_x(self.x - self.lr_x * self.grad_x(self.x, self.y))
            y = self.project_y(self.y + self.lr_y * self.grad_y(x, self.y))
        else:
            y = self.project_y(self.y + self.lr_y * self.grad_y(self.x, self.y))
            x = self.project_x(self.x - self.lr_x * self.grad_x(self.x, y))
        self.x, self.y = x, y


class TwoPlayers(Minimax):
    """Two one-player rules fed with both gradients at the same point."""

    player_x: Reference
    player_y: Reference

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y)
        gy = self.grad_y(self.x, self.y)
        self.player_x.step(gx)
        self.player_y.step(-gy)
        self.x, self.y = self.player_x.w, self.player_y.w


class NonNestedAdaptive(TwoPlayers):
    """Spec B5/C1 (Algorithm 1): no bias correction, no eps; psi none, adagrad, adam, amsgrad."""

    psi = "adam"
    v0 = 0.0

    def setup(self) -> None:
        common = {"psi": self.psi, "v0": self.v0}
        self.player_x = AdaptiveSGD(self.x, self.set_x, lr=self.lr_x, **common)
        self.player_y = AdaptiveSGD(self.y, self.set_y, lr=self.lr_y, **common)


class NonNestedAdagrad(TwoPlayers):
    """Spec B5, right column: Algorithm 1 with the formula of torch's Adagrad."""

    def setup(self) -> None:
        self.player_x = TorchAdagrad(self.x, self.set_x, lr=self.lr_x)
        self.player_y = TorchAdagrad(self.y, self.set_y, lr=self.lr_y)


class SmoothedAGDA(Minimax):
    """Spec B7: alternating, x with the proximal term p (x - z), z_0 = x_0; `beta` is spec b."""

    p: float
    beta: float

    def setup(self) -> None:
        self.z = self.x.copy()

    def iterate(self) -> None:
        gx = self.grad_x(self.x, self.y) + self.p * (self.x - self.z)
        x = self.project_x(self.x - self.lr_x * gx)
        gy = self.grad_y(x, self.y)
        self.x = x
        self.y = self.project_y(self.y + self.lr_y * gy)
        self.z = self.z + self.beta * (self.x - self.z)
