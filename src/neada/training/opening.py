"""Data and model of a configuration, and trained runs."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from neada import data as datasets
from neada import devices, models
from neada.data import Dataset
from neada.runs import RunFolder
from neada.training.config import TrainConfig

__all__ = ["TrainedRun", "load_data", "make_model", "open_run"]


def load_data(config: TrainConfig, *, download: bool = False) -> Dataset:
    """Load the data of a configuration; they are downloaded only if the caller allows it."""
    return datasets.load(
        config.data, folder=config.data_folder, seed=config.data_seed, download=download
    )


def make_model(config: TrainConfig, data: Dataset) -> nn.Module:
    """Make the model of a configuration, freshly initialized."""
    name = config.model_name
    model = models.make(name, data.input_shape, data.num_classes, seed=config.seed)
    is_faster = name == "cnn"
    if is_faster if config.channels_last is None else config.channels_last:
        # The convolutions give their layout on to what follows them.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The content of a run folder.

    Attributes:
        config: The configuration.
        data: The data set.
        model: The network of the newest checkpoint, in evaluation mode.
        complete: Whether the run is complete.
        folder: The run folder.
    """

    config: TrainConfig
    data: Dataset
    model: nn.Module
    complete: bool
    folder: Path


def open_run(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    device: str = "cpu",
    download: bool = False,
) -> TrainedRun:
    """Open a folder that `train` wrote.

    Args:
        folder: The run folder.
        model: The network to load the weights into, if `train` was called with one.
        data: The data, if `train` was called with some; or others with such inputs and classes.
        device: The device of the model, as in `TrainConfig`.
        download: Whether the data of the run may be downloaded if they are missing.

    Raises:
        ValueError: The folder has no training run with a checkpoint, the weights do not fit the
            model, or there is no such device.
    """
    folder = Path(folder)
    run = RunFolder(folder)
    try:
        config = TrainConfig.from_dict(run.config())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} has no run: give a folder that `train` wrote") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder} has no training run: {error}") from None
    checkpoint = next(run.checkpoints(), None)
    if checkpoint is None:
        raise ValueError(f"{folder} has no checkpoint yet: train first")
    state = checkpoint.state
    data = load_data(config, download=download) if data is None else data
    if data.fingerprint() != state["data"]:
        warnings.warn(f"the data are not those that {folder} was trained on", stacklevel=2)
    model = make_model(config, data) if model is None else model
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {folder} do not fit a model for {data.name} (inputs of shape "
            f"{data.input_shape}, {data.num_classes} classes): give the data and the model of the "
            "training"
        ) from error
    model.to(devices.choose(device))
    return TrainedRun(config, data, model.eval(), state["complete"], folder)
