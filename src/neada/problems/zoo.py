"""The zoo: every problem by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from neada.checks import check_choice
from neada.problems.base import Problem
from neada.problems.couplings import (
    ball_constrained,
    bilinear,
    bounded_nonconvex,
    simplex_constrained,
)
from neada.problems.games import dirac_gan, nonconvex_pl, stackelberg
from neada.problems.paper import mccormick, quadratic
from neada.problems.quadratics import nc_sc_quadratic
from neada.problems.regression import (
    auc_maximization,
    robust_least_squares,
    robust_logistic,
    wrm_logistic,
)

__all__ = ["make", "names"]

_ZOO: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    "quadratic": (quadratic, {}),
    "mccormick": (mccormick, {}),
    "nc_sc_quadratic_kappa10": (nc_sc_quadratic, {"kappa": 10.0}),
    "nc_sc_quadratic_kappa100": (nc_sc_quadratic, {"kappa": 100.0}),
    "nc_sc_quadratic_kappa1000": (nc_sc_quadratic, {"kappa": 1000.0}),
    "bilinear": (bilinear, {}),
    "ball_constrained": (ball_constrained, {}),
    "simplex_constrained": (simplex_constrained, {}),
    "bounded_nonconvex": (bounded_nonconvex, {"mu": 0.5}),
    "bounded_nonconvex_mu0.05": (bounded_nonconvex, {"mu": 0.05}),
    "robust_least_squares": (robust_least_squares, {}),
    "robust_logistic": (robust_logistic, {}),
    "wrm_logistic": (wrm_logistic, {}),
    "auc_maximization": (auc_maximization, {}),
    "dirac_gan": (dirac_gan, {}),
    "nonconvex_pl": (nonconvex_pl, {}),
    "stackelberg": (stackelberg, {}),
}


def names() -> list[str]:
    """The names of all problems of the zoo."""
    return list(_ZOO)


def make(name: str, **options: Any) -> Problem:
    """The problem of that name.

    Args:
        name: One of `names()`.
        options: Keyword arguments of the factory, instead of the zoo's.

    Raises:
        ValueError: there is no such problem; the message says which name is nearest.
    """
    check_choice("problem", name, _ZOO)
    factory, defaults = _ZOO[name]
    return replace(factory(**{**defaults, **options}), name=name)
