"""Optimizers for one player: any torch user can drop them in.

They know nothing of min-max. What each needs to know about the problem stands in its docstring
and in one table of the documentation.
"""

from neada.optim.adagrad import GeneralizedAdaGrad
from neada.optim.adaptive_sgd import AdaptiveSGD
from neada.optim.adgd import AdGD
from neada.optim.backtracking import Backtracking
from neada.optim.cocob import COCOB
from neada.optim.coin_betting import CoinBetting
from neada.optim.dog import DoG, DoWG
from neada.optim.freerex import FreeRex
from neada.optim.hazan_kakade import HazanKakade
from neada.optim.kt import KT
from neada.optim.lbfgs import LBFGS
from neada.optim.parameter_free import ParameterFreeResult, parameter_free_sgd
from neada.optim.player import PlayerOptimizer
from neada.optim.polyak import SPS, DecSPS, Polyak
from neada.optim.sc_adangd import SCAdaNGD
from neada.optim.stochastic_line_search import StochasticLineSearch
from neada.tensors import NonFiniteGradient

__all__ = [
    "COCOB",
    "KT",
    "LBFGS",
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
    "parameter_free_sgd",
]
