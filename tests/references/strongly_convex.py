"""SGD with 1/(mu k) steps (Rakhlin et al. 2012), averaged by Lacoste-Julien et al. 2012."""

from __future__ import annotations

from .base import Objective, Reference, Vector


class StronglyConvexSGD(Reference):
    """w_{k+1} = P(w_k - lr g_k/(mu k)); `average` weights the k-th new point by k."""

    strong_convexity: float
    lr = 1.0

    def setup(self) -> None:
        self.k = 0

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.k = self.k + 1
        self.w = self.project(self.w - self.lr / (self.strong_convexity * self.k) * g)
