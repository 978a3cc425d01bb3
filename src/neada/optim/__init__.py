"""Optimizers for one player: torch optimizers that can be used in any training loop.

The docstring of each optimizer lists the problem constants that it requires; a table in the
documentation compares them.
"""

from neada.optim.adagrad import GeneralizedAdaGrad, SCAdaNGD
from neada.optim.adaptive_sgd import AdaptiveSGD
from neada.optim.adgd import AdGD
from neada.optim.base import PlayerOptimizer
from neada.optim.betting import COCOB, KT, CoinBetting, FreeRex
from neada.optim.dog import DoG, DoWG
from neada.optim.lbfgs import LBFGS
from neada.optim.line_search import Backtracking, StochasticLineSearch
from neada.optim.parameter_free import ParameterFreeResult, parameter_free_sgd
from neada.optim.polyak import SPS, DecSPS, HazanKakade, Polyak
from neada.optim.spectral import SPG
from neada.optim.strongly_convex import StronglyConvexSGD
from neada.tensors import NonFiniteGradient

__all__ = [
    "COCOB",
    "KT",
    "LBFGS",
    "SPG",
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
    "NonFiniteGradient",
    "ParameterFreeResult",
    "PlayerOptimizer",
    "Polyak",
    "SCAdaNGD",
    "StochasticLineSearch",
    "StronglyConvexSGD",
    "parameter_free_sgd",
]
