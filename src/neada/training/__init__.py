"""Robust training from a config: epochs or a budget, evaluation, metrics, checkpoints, resume.

>>> from neada import training
>>> config = training.TrainConfig(data="synthetic", method="neada-adam", budget=60, eval_eps=(0.5,))
>>> result = training.train(config)
>>> result.status.name, result.calls
('FINISHED', 60)
"""

from neada.training.config import TrainConfig
from neada.training.loop import TrainedRun, open_run, train
from neada.training.record import Progress, TrainResult, TrainStatus

__all__ = [
    "Progress",
    "TrainConfig",
    "TrainResult",
    "TrainStatus",
    "TrainedRun",
    "open_run",
    "train",
]
