"""The players of training for the worst mixture of groups."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from neada import robust, tensors
from neada.data import Dataset
from neada.optim.constrain import constrain
from neada.robust.counters import RobustInfo
from neada.sets import Simplex
from neada.steppers import TiAda
from neada.training.config import TrainConfig
from neada.training.game import ObjectiveGame
from neada.training.optimizers import adversary, rate_x, rate_y, rule

__all__ = ["GroupGame", "TiAdaGame", "groups_of"]


def groups_of(data: Dataset, part: str = "train") -> Tensor:
    """The group ids of a part of the data; without any, the classes are the groups."""
    given = {"train": data.groups_train, "test": data.groups_test}.get(part)
    return data.splits[part][1] if given is None else given


class GroupGame(ObjectiveGame[robust.GroupDRO]):
    """`GroupDRO` with an optimizer of the model.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        super().__init__(config, model, _objective(config, model, data))

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move the weights of the groups, then the model."""
        return self.objective.step(self.x_optimizer, inputs, targets, groups)

    def commit(self) -> None:
        """Nothing is kept outside of the state."""


class TiAdaGame:
    """`GroupDRO` with `TiAda` for both players at once.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        self.objective = _objective(config, model, data)
        self.stepper = TiAda(
            [p for p in model.parameters() if p.requires_grad],
            [self.objective.weights],
            rate_x(config),
            rate_y(config),
            y_set=Simplex(),
        )
        self.stepper.max_calls = config.budget

    @property
    def calls(self) -> int:
        """Gradients of both players and values so far."""
        return self.stepper.total_calls

    @property
    def x_steps(self) -> int:
        """Steps of the model so far."""
        return self.stepper.outer_steps

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move both players from the same point."""
        info = self.stepper.step(self.objective.closure(inputs, targets, groups), len(inputs))
        value = info.value.item()
        with torch.no_grad():
            moved = tensors.squared_distance([self.objective.weights], [self.objective.frequencies])
        return RobustInfo(
            loss=value,
            value=value,
            perturbation=math.sqrt(float(moved)),
            x_grad_sq=float(info.x_grad_sq),
            y_mapping_sq=float(info.y_mapping_sq),
            calls_x=info.calls_x,
            calls_y=info.calls_y,
            calls_value=info.calls_value,
            samples_x=info.calls_x * len(inputs),
            samples_y=info.calls_y * len(inputs),
            inner_steps=1,
            stop_reason="one step with every batch",
        )

    def commit(self) -> None:
        """Nothing is kept outside of the state."""

    def state_dict(self) -> dict[str, Any]:
        """The weights of the groups, and what the stepper remembers."""
        return {"objective": self.objective.state_dict(), "stepper": self.stepper.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.objective.load_state_dict(state_dict["objective"])
        self.stepper.load_state_dict(state_dict["stepper"])


def _objective(config: TrainConfig, model: nn.Module, data: Dataset) -> robust.GroupDRO:
    num_groups = data.num_groups or data.num_classes
    sizes = torch.bincount(groups_of(data), minlength=num_groups)
    if int(sizes.min()) == 0:
        raise ValueError(
            f"group {int(sizes.argmin())} has no training samples: number the groups so that each "
            "has some"
        )
    # Without a rate the objective chooses its optimizer: for "kl" one whose step is exact.
    given_rate = config.lr_y is not None and config.method != "tiada"
    make = adversary(config)
    return robust.GroupDRO(
        model,
        nn.functional.cross_entropy,
        num_groups,
        regulariser=None if config.regulariser == "none" else config.regulariser,
        strength=config.strength,
        sizes=sizes,
        adjustment=config.adjustment,
        y_optimizer=(lambda params: constrain(make(params), Simplex())) if given_rate else None,
        stopping=rule(config),
        max_inner_steps=1_000_000,
    )
