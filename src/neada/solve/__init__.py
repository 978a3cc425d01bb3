"""Solve `min_x max_y f(x, y)` for a function: `minimax`, its result and its methods."""

from neada.solve.methods import MethodInfo, Players, make_stepper, methods
from neada.solve.minimax import minimax
from neada.solve.result import History, MinimaxResult, Status

__all__ = [
    "History",
    "MethodInfo",
    "MinimaxResult",
    "Players",
    "Status",
    "make_stepper",
    "methods",
    "minimax",
]
