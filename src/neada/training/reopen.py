"""A trained run, opened again: its config, data and model."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from neada.data import Dataset
from neada.runs import Checkpoints, Run
from neada.training.config import TrainConfig
from neada.training.loop import load_data, make_model

__all__ = ["TrainedRun", "open_run"]


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What is in a run folder.

    Attributes:
        config: What was asked.
        data: What it was trained on.
        model: The network of the newest checkpoint, in evaluation mode.
        complete: Whether the run had ended.
        folder: Where it is.
    """

    config: TrainConfig
    data: Dataset
    model: nn.Module
    complete: bool
    folder: Path


def open_run(
    folder: Path | str, *, model: nn.Module | None = None, data: Dataset | None = None
) -> TrainedRun:
    """Open a folder that `train` wrote.

    Args:
        folder: The run.
        model: A network to load the weights into, if it was one's own.
        data: The data, if they were one's own.

    Raises:
        ValueError: The folder holds no training run, or none with a checkpoint.
    """
    folder = Path(folder)
    try:
        config = TrainConfig.from_dict(Run(folder).config())
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run: give a folder that training wrote") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder} holds no training run: {error}") from None
    state = Checkpoints(folder).load()
    if state is None:
        raise ValueError(f"{folder} has no checkpoint yet: train first")
    data = load_data(config) if data is None else data
    if dict(data.checksums) != state["data"]:
        warnings.warn(f"the data are not those that {folder} was trained on", stacklevel=2)
    model = make_model(config, data) if model is None else model
    try:
        model.load_state_dict(state["model"])
    except RuntimeError:
        raise ValueError(
            f"the weights in {folder} are of another model than its config and the data make: give "
            "the data and the model that it was trained with"
        ) from None
    return TrainedRun(config, data, model.eval(), state["complete"], folder)
