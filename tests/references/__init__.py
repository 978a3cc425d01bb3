"""Slow numpy references of optimizers and minimax methods; they share no code with the library."""

from .adaptive import AdaptiveSGD, GeneralizedAdaGrad
from .adgd import AdGD
from .base import PolynomialAverage, Reference
from .coins import COCOB, KT, CoinBetting
from .distance import DoG, DoWG, parameter_free_sgd
from .extragradient import (
    AdaptiveExtragradient,
    Extragradient,
    OptimisticGDA,
    PastExtragradient,
    UniversalMirrorProx,
)
from .freerex import FreeRex
from .lbfgs import LBFGS
from .line_search import Backtracking, StochasticLineSearch
from .minimax import (
    AlternatingGDA,
    Minimax,
    NonNestedAdaptive,
    NonNestedTorch,
    SimultaneousGDA,
    SmoothedAGDA,
)
from .nested import GDmax, NeAda
from .normalized import SCAdaNGD
from .polyak import SPS, DecSPS, HazanKakade, Polyak
from .projections import (
    project_box,
    project_l2_ball,
)
from .spectral import SPG
from .stopping import (
    Count,
    Either,
    MappingNorm,
    SquaredMapping,
    Stop,
    criterion_two,
    log_steps,
)
from .strongly_convex import StronglyConvexSGD
from .torch_rules import TorchRule
from .two_scales import AdaGDA, TiAda, TiAdaAdam, TiAdaCoordinate, VRAdaGDA

__all__ = [
    "COCOB",
    "KT",
    "LBFGS",
    "SPG",
    "SPS",
    "AdGD",
    "AdaGDA",
    "AdaptiveExtragradient",
    "AdaptiveSGD",
    "AlternatingGDA",
    "Backtracking",
    "CoinBetting",
    "Count",
    "DecSPS",
    "DoG",
    "DoWG",
    "Either",
    "Extragradient",
    "FreeRex",
    "GDmax",
    "GeneralizedAdaGrad",
    "HazanKakade",
    "MappingNorm",
    "Minimax",
    "NeAda",
    "NonNestedAdaptive",
    "NonNestedTorch",
    "OptimisticGDA",
    "PastExtragradient",
    "Polyak",
    "PolynomialAverage",
    "Reference",
    "SCAdaNGD",
    "SimultaneousGDA",
    "SmoothedAGDA",
    "SquaredMapping",
    "StochasticLineSearch",
    "Stop",
    "StronglyConvexSGD",
    "TiAda",
    "TiAdaAdam",
    "TiAdaCoordinate",
    "TorchRule",
    "UniversalMirrorProx",
    "VRAdaGDA",
    "criterion_two",
    "log_steps",
    "parameter_free_sgd",
    "project_box",
    "project_l2_ball",
]
