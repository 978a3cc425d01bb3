"""What one writes without a library for min-max: scipy's L-BFGS-B inside L-BFGS-B.

The inner one maximizes over y, from the last y, to a tolerance of 1e-9; the outer one minimizes the
maximum, whose gradient is that of f in x at the maximizer (Danskin). Boxes are bounds; it cannot
take any other set.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from neada.problems import Problem
from neada.sets import Box, NonNegative, Set

__all__ = ["nested_calls"]

Vector = NDArray[np.float64]
_INNER_TOL = 1e-9


class _EndError(Exception):
    """Solved, or out of calls."""


class _Nested:
    def __init__(self, problem: Problem, tol: float, max_calls: int) -> None:
        self.problem, self.tol, self.max_calls = problem, tol, max_calls
        self.x, self.y = problem.x0.numpy().copy(), problem.y0.numpy().copy()
        self.calls = 0

    def solve(self) -> None:
        bounds = _bounds(self.problem.x_set, self.problem.dim_x)
        try:
            _lbfgsb(self._outer, self.x, bounds, 1e-2 * self.tol)  # `_outer` ends it at tol
        except _EndError:
            return

    def _outer(self, x: Vector) -> tuple[float, Vector]:
        self.x = x.copy()
        bounds = _bounds(self.problem.y_set, self.problem.dim_y)
        found = _lbfgsb(self._inner, self.y, bounds, _INNER_TOL)
        if np.isfinite(found).all():
            self.y = found
        value, gradient = self._evaluate(self.x, self.y, of="x")
        small = self.problem.x_set is not None or np.linalg.norm(gradient) <= self.tol
        if small and self.is_solved():
            raise _EndError
        return value, gradient

    def _inner(self, y: Vector) -> tuple[float, Vector]:
        value, gradient = self._evaluate(self.x, y, of="y")
        return -value, -gradient

    def _evaluate(self, x: Vector, y: Vector, of: str) -> tuple[float, Vector]:
        """The value and the gradient of one player: one call."""
        if self.calls >= self.max_calls:
            raise _EndError
        self.calls += 1
        players = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
        player = players[of].requires_grad_()
        value = self.problem.fun(players["x"], players["y"])
        (gradient,) = torch.autograd.grad(value, player)
        return value.item(), gradient.numpy()

    def is_solved(self) -> bool:
        """By an evaluation of its own, which is not counted."""
        norms = self.problem.stationarity(torch.from_numpy(self.x), torch.from_numpy(self.y))
        return bool(max(norms) <= self.tol)  # False for NaN


def nested_calls(problem: Problem, tol: float, max_calls: int) -> int | None:
    """Gradients of y and of x until both norms are at most the tolerance; None if never.

    The evaluation that verifies the answer is not counted.
    """
    if not (_is_box(problem.x_set) and _is_box(problem.y_set)):
        return None
    nested = _Nested(problem, tol, max_calls)
    nested.solve()
    return nested.calls if nested.is_solved() else None


def _is_box(one: Set | None) -> bool:
    return one is None or isinstance(one, Box | NonNegative)


def _bounds(one: Set | None, size: int) -> list[tuple[float, float]] | None:
    if one is None:
        return None
    ends = torch.full((2, size), torch.inf, dtype=torch.float64)
    lower, upper = one.project(-ends[0]), one.project(ends[1])
    return list(zip(lower.tolist(), upper.tolist(), strict=True))


def _lbfgsb(fun: Any, start: Vector, bounds: Any, tol: float) -> Vector:
    options = {"gtol": tol, "ftol": 0.0, "maxfun": 10**6, "maxiter": 10**6}
    found = minimize(fun, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x, dtype=np.float64)
