"""Slow numpy references of optimizers and minimax methods; they share no code with the library."""

from .adaptive import AdaptiveSGD, GeneralizedAdaGrad
from .adgd import AdGD
from .base import Reference
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
    NonNestedAdagrad,
    NonNestedAdaptive,
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
    SquaredMapping,
    Stop,
    criterion_two,
)
from .strongly_convex import StronglyConvexSGD
from .two_scales import AdaGDA, TiAda, TiAdaAdam, TiAdaCoordinate, VRAdaGDA
