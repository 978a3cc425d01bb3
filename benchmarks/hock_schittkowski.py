"""Problems of Hock and Schittkowski (1981), with inequalities turned to g <= 0, and scipy on them.

W. Hock and K. Schittkowski, Test Examples for Nonlinear Programming Codes, Springer 1981. Starts
and minima are theirs; `tests/test_constrained.py` checks the minima with SLSQP and trust-constr.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from neada import sets

__all__ = ["LATER", "PROBLEMS", "SEVERAL_MINIMA", "Problem", "by_scipy"]

Function = Callable[[Tensor], Tensor]


class Problem(NamedTuple):
    """A function to minimize under constraints, with a start and its minimum."""

    objective: Function
    start: list[float]
    optimum: float
    inequality: Function | None = None
    equality: Function | None = None
    bounds: tuple[list[float], list[float]] | None = None

    @property
    def x_set(self) -> sets.Set | None:
        """The bounds as a set."""
        if self.bounds is None:
            return None
        lower, upper = (torch.tensor(bound, dtype=torch.float64) for bound in self.bounds)
        return sets.Box(lower, upper)


def _each(*values: Tensor) -> Tensor:
    return torch.stack(values)


def _rosenbrock(x: Tensor) -> Tensor:
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def _three_equations(x: Tensor) -> Tensor:
    return _each(x @ x - 10, x[1] * x[2] - 5 * x[3] * x[4], x[0] ** 3 + x[1] ** 3 + 1)


def _two_roots(x: Tensor) -> Tensor:
    return _each(torch.exp(x[0]) - x[1], torch.exp(x[1]) - x[2])


_FREE = 1e20

PROBLEMS = {
    6: Problem(
        lambda x: (1 - x[0]) ** 2,
        [-1.2, 1.0],
        0.0,
        equality=lambda x: 10 * (x[1] - x[0] ** 2),
    ),
    7: Problem(
        lambda x: torch.log(1 + x[0] ** 2) - x[1],
        [2.0, 2.0],
        -math.sqrt(3),
        equality=lambda x: (1 + x[0] ** 2) ** 2 + x[1] ** 2 - 4,
    ),
    10: Problem(
        lambda x: x[0] - x[1],
        [-10.0, 10.0],
        -1.0,
        inequality=lambda x: 3 * x[0] ** 2 - 2 * x[0] * x[1] + x[1] ** 2 - 1,
    ),
    11: Problem(
        lambda x: (x[0] - 5) ** 2 + x[1] ** 2 - 25,
        [4.9, 0.1],
        -8.498464223,
        inequality=lambda x: x[0] ** 2 - x[1],
    ),
    12: Problem(
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        [0.0, 0.0],
        -30.0,
        inequality=lambda x: 4 * x[0] ** 2 + x[1] ** 2 - 25,
    ),
    21: Problem(
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2 - 100,
        [2.0, -1.0],
        -99.96,
        inequality=lambda x: 10 - 10 * x[0] + x[1],
        bounds=([2.0, -50.0], [50.0, 50.0]),
    ),
    22: Problem(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        [2.0, 2.0],
        1.0,
        inequality=lambda x: _each(x[0] + x[1] - 2, x[0] ** 2 - x[1]),
    ),
    26: Problem(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
        [-2.6, 2.0, 2.0],
        0.0,
        equality=lambda x: (1 + x[1] ** 2) * x[0] + x[2] ** 4 - 3,
    ),
    28: Problem(
        lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2,
        [-4.0, 1.0, 1.0],
        0.0,
        equality=lambda x: x[0] + 2 * x[1] + 3 * x[2] - 1,
    ),
    35: Problem(
        lambda x: (
            9
            - 8 * x[0]
            - 6 * x[1]
            - 4 * x[2]
            + 2 * (x[0] ** 2 + x[1] ** 2 + x[0] * x[1] + x[0] * x[2])
            + x[2] ** 2
        ),
        [0.5, 0.5, 0.5],
        1 / 9,
        inequality=lambda x: x[0] + x[1] + 2 * x[2] - 3,
        bounds=([0.0] * 3, [_FREE] * 3),
    ),
    39: Problem(
        lambda x: -x[0],
        [2.0] * 4,
        -1.0,
        equality=lambda x: _each(x[1] - x[0] ** 3 - x[2] ** 2, x[0] ** 2 - x[1] - x[3] ** 2),
    ),
    40: Problem(
        lambda x: -x.prod(),
        [0.8] * 4,
        -0.25,
        equality=lambda x: _each(
            x[0] ** 3 + x[1] ** 2 - 1, x[0] ** 2 * x[3] - x[2], x[3] ** 2 - x[1]
        ),
    ),
    43: Problem(
        lambda x: (
            x @ x + x[2] ** 2 - 5 * x[0] - 5 * x[1] - 21 * x[2] + 7 * x[3]  # Rosen and Suzuki
        ),
        [0.0] * 4,
        -44.0,
        inequality=lambda x: _each(
            x @ x + x[0] - x[1] + x[2] - x[3] - 8,
            x @ x + x[1] ** 2 + x[3] ** 2 - x[0] - x[3] - 10,
            2 * x[0] ** 2 + x[1] ** 2 + x[2] ** 2 + 2 * x[0] - x[1] - x[3] - 5,
        ),
    ),
    48: Problem(
        lambda x: (x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2,
        [3.0, 5.0, -3.0, 2.0, -2.0],
        0.0,
        equality=lambda x: _each(x.sum() - 5, x[2] - 2 * (x[3] + x[4]) + 3),
    ),
    65: Problem(
        lambda x: (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10) ** 2 / 9 + (x[2] - 5) ** 2,
        [-5.0, 5.0, 0.0],
        0.9535288567,
        inequality=lambda x: x @ x - 48,
        bounds=([-4.5, -4.5, -5.0], [4.5, 4.5, 5.0]),
    ),
    71: Problem(
        lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        [1.0, 5.0, 5.0, 1.0],
        17.0140173,
        inequality=lambda x: 25 - x.prod(),
        equality=lambda x: x @ x - 40,
        bounds=([1.0] * 4, [5.0] * 4),
    ),
}

# Other minima than the published one are found from the published start, by scipy as well.
SEVERAL_MINIMA = (15, 16, 20, 33)

# Held out from the first edition of `minimize`, which solved them all; the units that constraints
# are measured in were chosen on both.
LATER = {
    1: Problem(_rosenbrock, [-2.0, 1.0], 0.0, bounds=([-_FREE, -1.5], [_FREE] * 2)),
    4: Problem(
        lambda x: (x[0] + 1) ** 3 / 3 + x[1],
        [1.125, 0.125],
        8 / 3,
        bounds=([1.0, 0.0], [_FREE] * 2),
    ),
    5: Problem(
        lambda x: torch.sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1,
        [0.0, 0.0],
        -math.sqrt(3) / 2 - math.pi / 3,
        bounds=([-1.5, -3.0], [4.0, 3.0]),
    ),
    8: Problem(
        lambda x: 0 * x[0] - 1,
        [2.0, 1.0],
        -1.0,
        equality=lambda x: _each(x @ x - 25, x[0] * x[1] - 9),
    ),
    9: Problem(
        lambda x: torch.sin(math.pi * x[0] / 12) * torch.cos(math.pi * x[1] / 16),
        [0.0, 0.0],
        -0.5,
        equality=lambda x: 4 * x[0] - 3 * x[1],
    ),
    14: Problem(
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        [2.0, 2.0],
        9 - 2.875 * math.sqrt(7),
        inequality=lambda x: x[0] ** 2 / 4 + x[1] ** 2 - 1,
        equality=lambda x: x[0] - 2 * x[1] + 1,
    ),
    15: Problem(
        _rosenbrock,
        [-2.0, 1.0],
        306.5,
        inequality=lambda x: _each(1 - x[0] * x[1], -x[0] - x[1] ** 2),
        bounds=([-_FREE] * 2, [0.5, _FREE]),
    ),
    16: Problem(
        _rosenbrock,
        [-2.0, 1.0],
        0.25,
        inequality=lambda x: _each(-x[0] - x[1] ** 2, -(x[0] ** 2) - x[1]),
        bounds=([-0.5, -_FREE], [0.5, 1.0]),
    ),
    17: Problem(
        _rosenbrock,
        [-2.0, 1.0],
        1.0,
        inequality=lambda x: _each(x[0] - x[1] ** 2, x[1] - x[0] ** 2),
        bounds=([-0.5, -_FREE], [0.5, 1.0]),
    ),
    18: Problem(
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2,
        [2.0, 2.0],
        5.0,
        inequality=lambda x: _each(25 - x[0] * x[1], 25 - x @ x),
        bounds=([2.0, 0.0], [50.0, 50.0]),
    ),
    19: Problem(
        lambda x: (x[0] - 10) ** 3 + (x[1] - 20) ** 3,
        [20.1, 5.84],
        -6961.81381,
        inequality=lambda x: _each(
            100 - (x[0] - 5) ** 2 - (x[1] - 5) ** 2, (x[1] - 5) ** 2 + (x[0] - 6) ** 2 - 82.81
        ),
        bounds=([13.0, 0.0], [100.0, 100.0]),
    ),
    20: Problem(
        _rosenbrock,
        [-2.0, 1.0],
        81.5 - 25 * math.sqrt(3),
        inequality=lambda x: _each(-x[0] - x[1] ** 2, -(x[0] ** 2) - x[1], 1 - x @ x),
        bounds=([-0.5, -_FREE], [0.5, _FREE]),
    ),
    23: Problem(
        lambda x: x @ x,
        [3.0, 1.0],
        2.0,
        inequality=lambda x: _each(
            1 - x[0] - x[1],
            1 - x @ x,
            9 - 9 * x[0] ** 2 - x[1] ** 2,
            x[1] - x[0] ** 2,
            x[0] - x[1] ** 2,
        ),
        bounds=([-50.0] * 2, [50.0] * 2),
    ),
    24: Problem(
        lambda x: ((x[0] - 3) ** 2 - 9) * x[1] ** 3 / (27 * math.sqrt(3)),
        [1.0, 0.5],
        -1.0,
        inequality=lambda x: _each(
            x[1] - x[0] / math.sqrt(3),
            -x[0] - math.sqrt(3) * x[1],
            x[0] + math.sqrt(3) * x[1] - 6,
        ),
        bounds=([0.0] * 2, [_FREE] * 2),
    ),
    27: Problem(
        lambda x: 0.01 * (x[0] - 1) ** 2 + (x[1] - x[0] ** 2) ** 2,
        [2.0] * 3,
        0.04,
        equality=lambda x: x[0] + x[2] ** 2 + 1,
    ),
    29: Problem(
        lambda x: -x.prod(),
        [1.0] * 3,
        -16 * math.sqrt(2),
        inequality=lambda x: x[0] ** 2 + 2 * x[1] ** 2 + 4 * x[2] ** 2 - 48,
    ),
    30: Problem(
        lambda x: x @ x,
        [1.0] * 3,
        1.0,
        inequality=lambda x: 1 - x[0] ** 2 - x[1] ** 2,
        bounds=([1.0, -10.0, -10.0], [10.0] * 3),
    ),
    31: Problem(
        lambda x: 9 * x[0] ** 2 + x[1] ** 2 + 9 * x[2] ** 2,
        [1.0] * 3,
        6.0,
        inequality=lambda x: 1 - x[0] * x[1],
        bounds=([-10.0, 1.0, -10.0], [10.0, 10.0, 1.0]),
    ),
    32: Problem(
        lambda x: (x[0] + 3 * x[1] + x[2]) ** 2 + 4 * (x[0] - x[1]) ** 2,
        [0.1, 0.7, 0.2],
        1.0,
        inequality=lambda x: 3 + x[0] ** 3 - 6 * x[1] - 4 * x[2],
        equality=lambda x: 1 - x.sum(),
        bounds=([0.0] * 3, [_FREE] * 3),
    ),
    33: Problem(
        lambda x: (x[0] - 1) * (x[0] - 2) * (x[0] - 3) + x[2],
        [0.0, 0.0, 3.0],
        math.sqrt(2) - 6,
        inequality=lambda x: _each(x[0] ** 2 + x[1] ** 2 - x[2] ** 2, 4 - x @ x),
        bounds=([0.0] * 3, [_FREE, _FREE, 5.0]),
    ),
    34: Problem(
        lambda x: -x[0],
        [0.0, 1.05, 2.9],
        -math.log(math.log(10)),
        inequality=_two_roots,
        bounds=([0.0] * 3, [100.0, 100.0, 10.0]),
    ),
    36: Problem(
        lambda x: -x.prod(),
        [10.0] * 3,
        -3300.0,
        inequality=lambda x: x[0] + 2 * x[1] + 2 * x[2] - 72,
        bounds=([0.0] * 3, [20.0, 11.0, 42.0]),
    ),
    37: Problem(
        lambda x: -x.prod(),
        [10.0] * 3,
        -3456.0,
        inequality=lambda x: _each(x[0] + 2 * x[1] + 2 * x[2] - 72, -x[0] - 2 * x[1] - 2 * x[2]),
        bounds=([0.0] * 3, [42.0] * 3),
    ),
    42: Problem(
        lambda x: (x - torch.arange(1, 5)).square().sum(),
        [1.0] * 4,
        28 - 10 * math.sqrt(2),
        equality=lambda x: _each(x[0] - 2, x[2] ** 2 + x[3] ** 2 - 2),
    ),
    46: Problem(
        lambda x: (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
        [math.sqrt(2) / 2, 1.75, 0.5, 2.0, 2.0],
        0.0,
        equality=lambda x: _each(
            x[0] ** 2 * x[3] + torch.sin(x[3] - x[4]) - 1, x[1] + x[2] ** 4 * x[3] ** 2 - 2
        ),
    ),
    49: Problem(
        lambda x: (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6,
        [10.0, 7.0, 2.0, -3.0, 0.8],
        0.0,
        equality=lambda x: _each(x[0] + x[1] + x[2] + 4 * x[3] - 7, x[2] + 5 * x[4] - 6),
    ),
    51: Problem(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        [2.5, 0.5, 2.0, -1.0, 0.5],
        0.0,
        equality=lambda x: _each(x[0] + 3 * x[1] - 4, x[2] + x[3] - 2 * x[4], x[1] - x[4]),
    ),
    52: Problem(
        lambda x: (
            (4 * x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2
        ),
        [2.0] * 5,
        1859 / 349,
        equality=lambda x: _each(x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4]),
    ),
    53: Problem(
        lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        [2.0] * 5,
        176 / 43,
        equality=lambda x: _each(x[0] + 3 * x[1], x[2] + x[3] - 2 * x[4], x[1] - x[4]),
        bounds=([-10.0] * 5, [10.0] * 5),
    ),
    60: Problem(
        lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
        [2.0] * 3,
        0.03256820025,
        equality=lambda x: x[0] * (1 + x[1] ** 2) + x[2] ** 4 - 4 - 3 * math.sqrt(2),
        bounds=([-10.0] * 3, [10.0] * 3),
    ),
    63: Problem(
        lambda x: 1000 - x @ x - x[1] ** 2 - x[0] * x[1] - x[0] * x[2],
        [2.0] * 3,
        961.7151721,
        equality=lambda x: _each(8 * x[0] + 14 * x[1] + 7 * x[2] - 56, x @ x - 25),
        bounds=([0.0] * 3, [_FREE] * 3),
    ),
    66: Problem(
        lambda x: 0.2 * x[2] - 0.8 * x[0],
        [0.0, 1.05, 2.9],
        0.5181632741,
        inequality=_two_roots,
        bounds=([0.0] * 3, [100.0, 100.0, 10.0]),
    ),
    76: Problem(
        lambda x: (
            x[0] ** 2
            + 0.5 * x[1] ** 2
            + x[2] ** 2
            + 0.5 * x[3] ** 2
            - x[0] * x[2]
            + x[2] * x[3]
            - x[0]
            - 3 * x[1]
            + x[2]
            - x[3]
        ),
        [0.5] * 4,
        -4.681818181,
        inequality=lambda x: _each(
            x[0] + 2 * x[1] + x[2] + x[3] - 5,
            3 * x[0] + x[1] + 2 * x[2] - x[3] - 4,
            1.5 - x[1] - 4 * x[2],
        ),
        bounds=([0.0] * 4, [_FREE] * 4),
    ),
    77: Problem(
        lambda x: (
            (x[0] - 1) ** 2
            + (x[0] - x[1]) ** 2
            + (x[2] - 1) ** 2
            + (x[3] - 1) ** 4
            + (x[4] - 1) ** 6
        ),
        [2.0] * 5,
        0.24150513,
        equality=lambda x: _each(
            x[0] ** 2 * x[3] + torch.sin(x[3] - x[4]) - 2 * math.sqrt(2),
            x[1] + x[2] ** 4 * x[3] ** 2 - 8 - math.sqrt(2),
        ),
    ),
    78: Problem(
        lambda x: x.prod(),
        [-2.0, 1.5, 2.0, -1.0, -1.0],
        -2.91970041,
        equality=_three_equations,
    ),
    79: Problem(
        lambda x: (
            (x[0] - 1) ** 2
            + (x[0] - x[1]) ** 2
            + (x[1] - x[2]) ** 2
            + (x[2] - x[3]) ** 4
            + (x[3] - x[4]) ** 4
        ),
        [2.0] * 5,
        0.0787768209,
        equality=lambda x: _each(
            x[0] + x[1] ** 2 + x[2] ** 3 - 2 - 3 * math.sqrt(2),
            x[1] - x[2] ** 2 + x[3] + 2 - 2 * math.sqrt(2),
            x[0] * x[4] - 2,
        ),
    ),
    80: Problem(
        lambda x: torch.exp(x.prod()),
        [-2.0, 2.0, 2.0, -1.0, -1.0],
        0.0539498478,
        equality=_three_equations,
        bounds=([-2.3, -2.3, -3.2, -3.2, -3.2], [2.3, 2.3, 3.2, 3.2, 3.2]),
    ),
    81: Problem(
        lambda x: torch.exp(x.prod()) - 0.5 * (x[0] ** 3 + x[1] ** 3 + 1) ** 2,
        [-2.0, 2.0, 2.0, -1.0, -1.0],
        0.0539498478,
        equality=_three_equations,
        bounds=([-2.3, -2.3, -3.2, -3.2, -3.2], [2.3, 2.3, 3.2, 3.2, 3.2]),
    ),
    100: Problem(
        lambda x: (
            (x[0] - 10) ** 2
            + 5 * (x[1] - 12) ** 2
            + x[2] ** 4
            + 3 * (x[3] - 11) ** 2
            + 10 * x[4] ** 6
            + 7 * x[5] ** 2
            + x[6] ** 4
            - 4 * x[5] * x[6]
            - 10 * x[5]
            - 8 * x[6]
        ),
        [1.0, 2.0, 0.0, 4.0, 0.0, 1.0, 1.0],
        680.6300573,
        inequality=lambda x: _each(
            2 * x[0] ** 2 + 3 * x[1] ** 4 + x[2] + 4 * x[3] ** 2 + 5 * x[4] - 127,
            7 * x[0] + 3 * x[1] + 10 * x[2] ** 2 + x[3] - x[4] - 282,
            23 * x[0] + x[1] ** 2 + 6 * x[5] ** 2 - 8 * x[6] - 196,
            4 * x[0] ** 2 + x[1] ** 2 - 3 * x[0] * x[1] + 2 * x[2] ** 2 + 5 * x[5] - 11 * x[6],
        ),
    ),
    113: Problem(
        lambda x: (
            x[0] ** 2
            + x[1] ** 2
            + x[0] * x[1]
            - 14 * x[0]
            - 16 * x[1]
            + (x[2] - 10) ** 2
            + 4 * (x[3] - 5) ** 2
            + (x[4] - 3) ** 2
            + 2 * (x[5] - 1) ** 2
            + 5 * x[6] ** 2
            + 7 * (x[7] - 11) ** 2
            + 2 * (x[8] - 10) ** 2
            + (x[9] - 7) ** 2
            + 45
        ),
        [2.0, 3.0, 5.0, 5.0, 1.0, 2.0, 7.0, 3.0, 6.0, 10.0],
        24.3062091,
        inequality=lambda x: _each(
            4 * x[0] + 5 * x[1] - 3 * x[6] + 9 * x[7] - 105,
            10 * x[0] - 8 * x[1] - 17 * x[6] + 2 * x[7],
            -8 * x[0] + 2 * x[1] + 5 * x[8] - 2 * x[9] - 12,
            3 * (x[0] - 2) ** 2 + 4 * (x[1] - 3) ** 2 + 2 * x[2] ** 2 - 7 * x[3] - 120,
            5 * x[0] ** 2 + 8 * x[1] + (x[2] - 6) ** 2 - 2 * x[3] - 40,
            0.5 * (x[0] - 8) ** 2 + 2 * (x[1] - 4) ** 2 + 3 * x[4] ** 2 - x[5] - 30,
            x[0] ** 2 + 2 * (x[1] - 2) ** 2 - 2 * x[0] * x[1] + 14 * x[4] - 6 * x[5],
            -3 * x[0] + 6 * x[1] + 12 * (x[8] - 8) ** 2 - 7 * x[9],
        ),
    ),
}


def by_scipy(problem: Problem, method: str, **options: Any) -> Any:
    """A solve by `scipy.optimize.minimize` with exact gradients.

    Args:
        problem: What is solved.
        method: `SLSQP` or `trust-constr`.
        **options: Of scipy's method.
    """

    def value(function: Function) -> Callable[[Any], Any]:
        return lambda x: function(torch.as_tensor(x)).numpy()

    def slope(function: Function) -> Callable[[Any], Any]:
        return lambda x: torch.autograd.functional.jacobian(function, torch.tensor(x)).numpy()

    limits = ((problem.inequality, -np.inf), (problem.equality, 0.0))
    constraints = [
        scipy.optimize.NonlinearConstraint(value(function), low, 0.0, jac=slope(function))
        for function, low in limits
        if function is not None
    ]
    return scipy.optimize.minimize(
        value(problem.objective),
        problem.start,
        jac=slope(problem.objective),
        bounds=scipy.optimize.Bounds(*problem.bounds) if problem.bounds else None,
        constraints=constraints,
        method=method,
        options=options,
    )
