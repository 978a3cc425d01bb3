"""Solve `min_x max_y f(x, y)` for a function, or minimize one under constraints."""

from neada.solve.constrained import minimize
from neada.solve.lagrangian import Lagrangian
from neada.solve.methods import MethodInfo, Players, make_stepper, methods
from neada.solve.minimax import minimax
from neada.solve.result import KKT, History, MinimaxResult, MinimizeResult, Multipliers, Status

__all__ = [
    "KKT",
    "History",
    "Lagrangian",
    "MethodInfo",
    "MinimaxResult",
    "MinimizeResult",
    "Multipliers",
    "Players",
    "Status",
    "make_stepper",
    "methods",
    "minimax",
    "minimize",
]
