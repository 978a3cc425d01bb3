"""neada: minimax optimization that asks nobody for the problem's constants.

Names load when they are first used: `import neada` alone imports neither torch nor anything heavy.
"""

from typing import TYPE_CHECKING

from neada.lazy import lazy_names

if TYPE_CHECKING:
    from neada import (
        attacks,
        data,
        estimators,
        inner,
        models,
        optim,
        plots,
        problems,
        robust,
        runs,
        sets,
        steppers,
        stopping,
        testing,
        training,
    )
    from neada.inner import BudgetExhausted
    from neada.optim.constrain import constrain
    from neada.solve.constrained import minimize
    from neada.solve.lagrangian import Lagrangian
    from neada.solve.methods import Players, make_stepper, methods
    from neada.solve.minimax import minimax
    from neada.solve.result import MinimaxResult, MinimizeResult, Status
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
    from neada.tensors import NonFiniteGradient

__all__ = [
    "AdaGDA",
    "AdaptiveExtragradient",
    "Alternating",
    "BudgetExhausted",
    "Extragradient",
    "Lagrangian",
    "MinimaxResult",
    "MinimizeResult",
    "NeAda",
    "NonFiniteGradient",
    "OptimisticGDA",
    "PastExtragradient",
    "Players",
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
    "attacks",
    "constrain",
    "data",
    "estimators",
    "inner",
    "make_stepper",
    "methods",
    "minimax",
    "minimize",
    "models",
    "optim",
    "plots",
    "problems",
    "robust",
    "runs",
    "sets",
    "steppers",
    "stopping",
    "testing",
    "training",
]

__version__ = "0.2.0"

__getattr__, __dir__ = lazy_names(
    "neada",
    __all__,
    ("neada.steppers", "neada.solve", "neada.inner", "neada.tensors", "neada.optim.constrain"),
)
