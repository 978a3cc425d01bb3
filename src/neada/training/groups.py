"""The players of training for the worst mixture of groups."""

from pathlib import Path

import torch
from torch import Tensor, nn

from neada import robust
from neada.data import Dataset
from neada.optim.constrain import constrain
from neada.robust.counters import RobustInfo
from neada.sets import Simplex
from neada.training.config import TrainConfig
from neada.training.game import MOST_INNER_STEPS, ObjectiveGame
from neada.training.optimizers import adversary, rule

__all__ = ["GroupGame", "group_objective", "groups_of"]


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
        super().__init__(config, model, group_objective(config, model, data))

    def open(self, folder: Path | None) -> None:
        """Nothing is kept outside of the state."""

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move the weights of the groups, then the model."""
        return self.objective.step(self.x_optimizer, inputs, targets, groups)

    def commit(self) -> None:
        """Nothing is kept outside of the state."""


def group_objective(config: TrainConfig, model: nn.Module, data: Dataset) -> robust.GroupDRO:
    """The objective that a config speaks of."""
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
        max_inner_steps=MOST_INNER_STEPS,
    )
