"""SGD with 1/(mu k) steps (Rakhlin et al. 2012), averaged by Lacoste-Julien et al. 2012."""

from __future__ import annotations

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
    ) -> None:
        super().__init__(w0, project)
        self.strong_convexity = strong_convexity
        self.lr = lr
        self.k = 0

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.k = self.k + 1
        self.w = self.project(self.w - self.lr / (self.strong_convexity * self.k) * g)
