"""SGD with 1/(mu k) steps (Rakhlin et al. 2012), averaged by Lacoste-Julien et al. 2012."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Objective, Projection, Reference, Vector


class StronglyConvexSGD(Reference):
    """w_{k+1} = P(w_k - lr g_k/(mu k)); `average` weights the k-th new point by k."""

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        strong_convexity: float,
        lr: float = 1.0,
        average: float | None = None,
    ) -> None:
        super().__init__(w0, project)
        if average not in (None, 1.0):
            raise ValueError("the reference averages with weights proportional to k")
        self.strong_convexity = strong_convexity
        self.lr = lr
        self.k = 0
        self.weighted_sum = np.zeros_like(self.w)

    @property
    def average(self) -> Vector:
        return self.weighted_sum / (self.k * (self.k + 1) / 2)

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.k = self.k + 1
        self.w = self.project(self.w - self.lr / (self.strong_convexity * self.k) * g)
        self.weighted_sum = self.weighted_sum + self.k * self.w

    @property
    def state(self) -> dict[str, Any]:
        return {"k": self.k, "average": self.average}
