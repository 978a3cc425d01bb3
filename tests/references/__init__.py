"""Slow numpy references of the one-player optimizers; they share no code with the library."""

from .adaptive import AdaptiveSGD, GeneralizedAdaGrad
from .adgd import AdGD
from .base import PolynomialAverage, Reference
from .coins import COCOB, KT, CoinBetting
from .distance import DoG, DoWG, parameter_free_sgd
from .freerex import FreeRex
from .line_search import Backtracking, StochasticLineSearch
from .normalised import SCAdaNGD
from .polyak import SPS, DecSPS, HazanKakade, Polyak
from .projections import (
    project_box,
    project_half_space,
    project_hyperplane,
    project_l1_ball,
    project_l2_ball,
    project_linf_ball,
    project_nonnegative,
    project_simplex_bisection,
    project_simplex_pivot,
)

__all__ = [
    "COCOB",
    "KT",
    "SPS",
    "AdGD",
    "AdaptiveSGD",
    "Backtracking",
    "CoinBetting",
    "DecSPS",
    "DoG",
    "DoWG",
    "FreeRex",
    "GeneralizedAdaGrad",
    "HazanKakade",
    "Polyak",
    "PolynomialAverage",
    "Reference",
    "SCAdaNGD",
    "StochasticLineSearch",
    "parameter_free_sgd",
    "project_box",
    "project_half_space",
    "project_hyperplane",
    "project_l1_ball",
    "project_l2_ball",
    "project_linf_ball",
    "project_nonnegative",
    "project_simplex_bisection",
    "project_simplex_pivot",
]
