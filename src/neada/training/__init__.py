"""Robust training from a config: epochs or a number of calls, evaluation, checkpoints, resume.

>>> from neada import training
>>> config = training.TrainConfig(data="synthetic", max_calls=60, eval_eps=(0.5,))
>>> result = training.train(config)
>>> result.status.name, result.calls
('FINISHED', 60)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neada.training.config import TrainConfig
    from neada.training.evaluation import accuracy_names
    from neada.training.loop import TrainedRun, load_data, open_run, train
    from neada.training.record import Progress, TrainResult, TrainStatus

__all__ = [
    "Progress",
    "TrainConfig",
    "TrainResult",
    "TrainStatus",
    "TrainedRun",
    "accuracy_names",
    "load_data",
    "open_run",
    "train",
]


def __getattr__(name: str) -> Any:
    # The command line reads `config` without torch, which all other modules import.
    if name in __all__:
        for module in ("config", "record", "loop", "evaluation"):
            found = getattr(importlib.import_module(f"neada.training.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
