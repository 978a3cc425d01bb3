"""Test problems that carry their constants, sets, starts and, where known, their solution.

>>> from neada import problems
>>> problem = problems.make("mccormick")
>>> problem.solution[0]
tensor([-0.2899, -1.0899], dtype=torch.float64)
>>> problem.condition_number
4.192582403567252

`names()` lists the zoo, `make(name, **options)` builds one of it, and every problem is also a
function here. All are deterministic functions of their options: data come from a seeded generator
of their own.
"""

from neada.problems.base import Problem
from neada.problems.concave import (
    bilinear_game,
    box_game,
    lagrangian,
    matrix_game,
    max_of_quadratics,
    product,
)
from neada.problems.couplings import (
    ball_constrained,
    bilinear,
    bounded_nonconvex,
    box_constrained,
    simplex_constrained,
)
from neada.problems.domains import entropic, half_circle, log_barrier, orthant_entropic
from neada.problems.games import dirac_gan, nonconvex_pl, stackelberg
from neada.problems.paper import mccormick, quadratic
from neada.problems.quadratics import gaussian_quadratic, mixed_units, nc_sc_quadratic
from neada.problems.regression import (
    auc_maximization,
    fair_logistic,
    robust_least_squares,
    robust_logistic,
    wrm_logistic,
)
from neada.problems.zoo import make, names

__all__ = [
    "Problem",
    "auc_maximization",
    "ball_constrained",
    "bilinear",
    "bilinear_game",
    "bounded_nonconvex",
    "box_constrained",
    "box_game",
    "dirac_gan",
    "entropic",
    "fair_logistic",
    "gaussian_quadratic",
    "half_circle",
    "lagrangian",
    "log_barrier",
    "make",
    "matrix_game",
    "max_of_quadratics",
    "mccormick",
    "mixed_units",
    "names",
    "nc_sc_quadratic",
    "nonconvex_pl",
    "orthant_entropic",
    "product",
    "quadratic",
    "robust_least_squares",
    "robust_logistic",
    "simplex_constrained",
    "stackelberg",
    "wrm_logistic",
]
