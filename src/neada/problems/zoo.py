"""The zoo: every problem by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from neada.checks import check_choice
from neada.problems import concave, couplings, domains, games, paper, quadratics, regression
from neada.problems.base import Problem

__all__ = ["make", "names"]

_Entry = tuple[Callable[..., Problem], dict[str, Any]]

_FIRST: dict[str, _Entry] = {
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

_SMALL, _LARGE = {"dim_x": 5, "dim_y": 5}, {"dim_x": 100, "dim_y": 100}
_SECOND: dict[str, _Entry] = {
    "nc_sc_quadratic_kappa1e4": (quadratics.nc_sc_quadratic, {**_SMALL, "kappa": 1e4}),
    "nc_sc_quadratic_kappa1e5": (quadratics.nc_sc_quadratic, {**_SMALL, "kappa": 1e5}),
    "gaussian_quadratic_kappa1e4": (quadratics.gaussian_quadratic, {"kappa": 1e4, "seed": 5}),
    "gaussian_quadratic_kappa1e5": (quadratics.gaussian_quadratic, {"kappa": 1e5, "seed": 1}),
    "nc_sc_quadratic_kappa1000_dim100": (quadratics.nc_sc_quadratic, {**_LARGE, "kappa": 1e3}),
    "mixed_units": (quadratics.mixed_units, {}),
    "box_constrained": (couplings.box_constrained, {}),
    "bilinear_game": (concave.bilinear_game, {}),
    "bilinear_game_plain": (concave.bilinear_game, {"regularization": 0.0}),
    "product": (concave.product, {}),
    "box_game": (concave.box_game, {}),
    "matrix_game": (concave.matrix_game, {}),
    "max_of_quadratics": (concave.max_of_quadratics, {}),
    "lagrangian": (concave.lagrangian, {}),
    "fair_logistic": (regression.fair_logistic, {}),
    "entropic": (domains.entropic, {}),
    "orthant_entropic": (domains.orthant_entropic, {}),
    "half_circle": (domains.half_circle, {}),
    "log_barrier": (domains.log_barrier, {}),
}

_ZOO = {**_FIRST, **_SECOND}


def names(*, hard: bool = True) -> list[str]:
    """The names of the problems of the zoo.

    Args:
        hard: Whether those are among them that are ill-conditioned, concave in y without strength,
            or defined only on a part of the space.
    """
    return list(_ZOO if hard else _FIRST)


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
    description = (factory.__doc__ or "").partition("\n")[0]
    return replace(factory(**{**defaults, **options}), name=name, description=description)
