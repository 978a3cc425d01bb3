"""What all references share: the iterate, the projection and the polynomial-decay average."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from inspect import get_annotations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Projection = Callable[[Vector], Vector]
Objective = Callable[[Vector], float]


def norm(v: Vector) -> float:
    """Euclidean norm."""
    return float(np.sqrt(np.sum(v * v)))


def norm_sq(v: Vector) -> float:
    """Squared Euclidean norm."""
    return float(np.sum(v * v))


def dot(u: Vector, v: Vector) -> float:
    """Euclidean inner product."""
    return float(np.sum(u * v))


def needed(value: float | None) -> float:
    """The value at the current point, for methods that cannot do without it."""
    assert value is not None
    return float(value)


def assign(method: object, hyper: dict[str, Any]) -> None:
    """Set hyper-parameters, which the class of the method declares."""
    for name, number in hyper.items():
        assert any(name in vars(c) or name in get_annotations(c) for c in type(method).__mro__), (
            name
        )
        setattr(method, name, number)


class PolynomialAverage:
    """Spec A0: a_j = (1 - c_j) a_{j-1} + c_j w_j, c_j = (1 + gamma)/(j + gamma), j = 1, 2, ..."""

    def __init__(self, start: Vector, gamma: float) -> None:
        self.gamma = gamma
        self.j = 0
        self.point = start.copy()  # the answer before the first step

    def add(self, w: Vector) -> None:
        self.j += 1
        c = (1.0 + self.gamma) / (self.j + self.gamma)
        self.point = (1.0 - c) * self.point + c * w


class Reference(ABC):
    """A minimizer: `step` takes the gradient at `w` (and the value there, where one is needed).

    Hyper-parameters are attributes, whose defaults are in the class; `setup` makes the state.
    """

    def __init__(self, w0: Vector, project: Projection | None = None, **hyper: Any) -> None:
        self.w: Vector = np.array(w0, dtype=np.float64)
        self.w0: Vector = self.w.copy()
        self._projection = project
        assign(self, hyper)
        self.setup()

    def setup(self) -> None:  # noqa: B027 (optional)
        """Make the state."""

    @property
    def constrained(self) -> bool:
        return self._projection is not None

    def project(self, v: Vector) -> Vector:
        """P(v); the identity without a constraint."""
        if self._projection is None:
            return v.copy()
        return np.array(self._projection(v), dtype=np.float64)

    def step(
        self, gradient: Vector, value: float | None = None, phi: Objective | None = None
    ) -> None:
        """One iteration; a gradient that is exactly zero changes nothing (spec 0, Numerics)."""
        g = np.array(gradient, dtype=np.float64)
        if self.skips_zero_gradient and not np.any(g):
            return
        self.update(g, value, phi)

    @property
    def skips_zero_gradient(self) -> bool:
        """Methods with momentum return False and follow their formula."""
        return True

    @abstractmethod
    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        """The formulas of one iteration, for a gradient worth a step."""
