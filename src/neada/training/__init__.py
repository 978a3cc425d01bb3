"""Robust training from a config: epochs or a number of calls, evaluation, checkpoints, resume.

>>> from neada import training
>>> config = training.TrainConfig(data="synthetic", max_calls=60, eval_eps=(0.5,))
>>> result = training.train(config)
>>> result.status.name, result.calls
('FINISHED', 60)

The command line reads `neada.training.config` without torch, so names load when first used.
"""

from typing import TYPE_CHECKING

from neada.lazy import lazy_names

if TYPE_CHECKING:
    from neada.training.config import TrainConfig
    from neada.training.evaluation import accuracy_names, evaluations
    from neada.training.loop import train
    from neada.training.opening import TrainedRun, load_data, open_run
    from neada.training.result import Progress, TrainResult, TrainStatus

__all__ = [
    "Progress",
    "TrainConfig",
    "TrainResult",
    "TrainStatus",
    "TrainedRun",
    "accuracy_names",
    "evaluations",
    "load_data",
    "open_run",
    "train",
]

__getattr__, __dir__ = lazy_names(
    "neada.training",
    __all__,
    [
        f"neada.training.{module}"
        for module in ("config", "result", "evaluation", "opening", "loop")
    ],
)
