"""neada: minimax optimisation that asks nobody for the problem's constants."""

from neada import optim, problems, sets, steppers, stopping
from neada.optim.constrain import constrain
from neada.solve import MinimaxResult, Status, methods, minimax
from neada.steppers import (
    AdaGDA,
    AdaptiveExtragradient,
    Alternating,
    Extragradient,
    NeAda,
    OptimisticGDA,
    PastExtragradient,
    Simultaneous,
    SmoothedAGDA,
    StepInfo,
    Stepper,
    TiAda,
    TiAdaAdam,
    UniversalMirrorProx,
    VRAdaGDA,
)

__all__ = [
    "AdaGDA",
    "AdaptiveExtragradient",
    "Alternating",
    "Extragradient",
    "MinimaxResult",
    "NeAda",
    "OptimisticGDA",
    "PastExtragradient",
    "Simultaneous",
    "SmoothedAGDA",
    "Status",
    "StepInfo",
    "Stepper",
    "TiAda",
    "TiAdaAdam",
    "UniversalMirrorProx",
    "VRAdaGDA",
    "__version__",
    "constrain",
    "methods",
    "minimax",
    "optim",
    "problems",
    "sets",
    "steppers",
    "stopping",
]

__version__ = "0.1.0"
