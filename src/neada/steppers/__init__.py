"""The min-max algorithms: who moves when."""

from neada.steppers.adagda import AdaGDA, VRAdaGDA
from neada.steppers.base import StepInfo, Stepper
from neada.steppers.extragradient import (
    AdaptiveExtragradient,
    Extragradient,
    OptimisticGDA,
    PastExtragradient,
    UniversalMirrorProx,
)
from neada.steppers.neada import NeAda
from neada.steppers.simultaneous import Alternating, Simultaneous
from neada.steppers.smoothed import SmoothedAGDA
from neada.steppers.tiada import TiAda, TiAdaAdam

__all__ = [
    "AdaGDA",
    "AdaptiveExtragradient",
    "Alternating",
    "Extragradient",
    "NeAda",
    "OptimisticGDA",
    "PastExtragradient",
    "Simultaneous",
    "SmoothedAGDA",
    "StepInfo",
    "Stepper",
    "TiAda",
    "TiAdaAdam",
    "UniversalMirrorProx",
    "VRAdaGDA",
]
