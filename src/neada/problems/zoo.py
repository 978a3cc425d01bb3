"""The zoo: every problem by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from neada.checks import check_choice
from neada.problems import couplings, games, paper, quadratics, regression
from neada.problems.base import Problem

__all__ = ["make", "names"]

_ZOO: dict[str, tuple[Callable[..., Problem], dict[str, Any]]] = {
    "quadratic": (paper.quadratic, {}),
    "mccormick": (paper.mccormick, {}),
    "nc_sc_quadratic_kappa10": (quadratics.nc_sc_quadratic, {"kappa": 10.0}),
    "nc_sc_quadratic_kappa100": (quadratics.nc_sc_quadratic, {"kappa": 100.0}),
    "nc_sc_quadratic_kappa1000": (quadratics.nc_sc_quadratic, {"kappa": 1000.0}),
    "bilinear": (couplings.bilinear, {}),
    "ball_constrained": (couplings.ball_constrained, {}),
    "simplex_constrained": (couplings.simplex_constrained, {}),
    "bounded_nonconvex": (couplings.bounded_nonconvex, {"mu": 0.5}),
    "bounded_nonconvex_mu0.05": (couplings.bounded_nonconvex, {"mu": 0.05}),
    "robust_least_squares": (regression.robust_least_squares, {}),
    "robust_logistic": (regression.robust_logistic, {}),
    "wrm_logistic": (regression.wrm_logistic, {}),
    "auc_maximization": (regression.auc_maximization, {}),
    "dirac_gan": (games.dirac_gan, {}),
    "nonconvex_pl": (games.nonconvex_pl, {}),
    "stackelberg": (games.stackelberg, {}),
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
