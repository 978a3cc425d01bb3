"""The two players of a training run: an objective, the model's optimizer, and how they move."""

from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from neada import robust
from neada.data import Dataset
from neada.robust.counters import RobustInfo
from neada.training.config import Method, TrainConfig
from neada.training.optimizers import adversary, model_optimizer, rule

__all__ = [
    "MOST_INNER_STEPS",
    "STORE_FILE",
    "Game",
    "InputGame",
    "ObjectiveGame",
    "input_objective",
    "make_store",
]

STORE_FILE = "perturbations.npy"
MOST_INNER_STEPS = 1_000_000
"""The rule decides, not the cap that objectives have by default."""
_Objective = TypeVar("_Objective", bound=robust.WRM | robust.NormBall | robust.GroupDRO)


class Game(Protocol):
    """What the training loop needs of a pair of players."""

    @property
    def calls(self) -> int:
        """Gradients of both players and values so far."""

    @property
    def x_steps(self) -> int:
        """Steps of the model so far."""

    def open(self, folder: Path | None) -> None:
        """Open what is kept outside of the state, in the folder of the run or in memory."""

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move both players on a batch."""

    def commit(self) -> None:
        """Make permanent what is kept outside of the state."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, bit for bit; the model's own parameters aside."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""


class ObjectiveGame(Generic[_Objective]):
    """What games share whose objective moves y by itself, before the model's optimizer moves x.

    Args:
        config: What is asked for.
        model: The network.
        objective: With its own counters and state.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, objective: _Objective) -> None:
        self.objective = objective
        self.objective.max_calls = config.budget
        self.x_optimizer = model_optimizer(config, model.parameters())

    @property
    def calls(self) -> int:
        """Gradients of both players and values so far."""
        return self.objective.total_calls

    @property
    def x_steps(self) -> int:
        """Steps of the model so far."""
        return self.objective.outer_steps

    def state_dict(self) -> dict[str, Any]:
        """Counters, all that is kept of y, and the model's optimizer."""
        return {
            "objective": self.objective.state_dict(),
            "x_optimizer": self.x_optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.objective.load_state_dict(state_dict["objective"])
        self.x_optimizer.load_state_dict(state_dict["x_optimizer"])


class InputGame(ObjectiveGame[robust.WRM | robust.NormBall]):
    """The adversary perturbs the inputs: `WRM` or `NormBall`.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        super().__init__(config, model, input_objective(config, model, data))
        self._make_store = partial(make_store, config, data)

    def open(self, folder: Path | None) -> None:
        """Open the store of perturbations, if there is one."""
        self.objective.store = self._make_store(folder)

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Perturb the batch, then move the model."""
        known = None if self.objective.store is None else ids
        return self.objective.step(self.x_optimizer, inputs, targets, ids=known)

    def commit(self) -> None:
        """Make the stored perturbations permanent."""
        if self.objective.store is not None:
            self.objective.store.commit()


def input_objective(
    config: TrainConfig, model: nn.Module, data: Dataset
) -> robust.WRM | robust.NormBall:
    """The objective that a config speaks of, without a store."""
    released = config.stop == "released"
    loss = nn.functional.cross_entropy
    norm = config.norm or ("batch" if released else "frozen")
    keep_box = not released if config.box is None else config.box
    common: dict[str, Any] = {
        "y_optimizer": adversary(config),
        "stopping": rule(config),
        "measure": "batch" if released else "sample",
        "test": "last" if released else "current",
        "dropout": config.dropout or ("on" if released else "off"),
        "per_sample": config.per_sample,
        "box": data.valid_range if keep_box else None,
        "max_inner_steps": MOST_INNER_STEPS,
    }
    if config.objective == "wrm":
        return robust.WRM(model, loss, config.gamma, norm=norm, **common)
    if config.lr_y is None and Method.parse(config.method).optimizer == "adam":
        # A ball has a scale of its own, from which its default optimizer is made.
        common["y_optimizer"] = None
    generator = torch.Generator().manual_seed(config.seed) if config.random_start else None
    return robust.NormBall(
        model,
        loss,
        config.radius,
        config.ball_norm,
        random_start=config.random_start,
        generator=generator,
        norm_layers=norm,
        **common,
    )


def make_store(
    config: TrainConfig, data: Dataset, folder: Path | None
) -> robust.PerturbationStore | None:
    """The store of perturbations that a config speaks of; None if they do not persist."""
    if config.warm_start == "none" and config.method != "tiada":
        return None
    path = None
    if config.warm_start == "disk":
        assert folder is not None
        path = folder / STORE_FILE
    x = data.x_train
    return robust.PerturbationStore(len(x), x.shape[1:], x.dtype, path)
