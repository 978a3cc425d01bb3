"""The two players of a training run: an objective, the model's optimizer, and how they move."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import parallel, robust, stopping, tables
from neada.data import Dataset
from neada.inner import Counters, InnerOptions
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constrain
from neada.optim.tiada import TiAdaX, TiAdaY
from neada.robust import RobustInfo
from neada.robust.objective import InputObjective
from neada.sets import Simplex
from neada.training.config import TrainConfig

__all__ = [
    "Game",
    "Objective",
    "configured_players",
    "groups_of",
    "make_adversarial",
    "make_group",
    "make_trades",
    "make_wrm",
    "tiada_players",
]

# The rule decides, not the cap that objectives have by default.
_MOST_INNER_STEPS = 1_000_000
_TIADA_RATE = 0.1
Objective: TypeAlias = InputObjective | robust.GroupDRO
MakeY: TypeAlias = Callable[[Sequence[Tensor]], Optimizer] | None
"""A function that makes the optimizer of y; None for the objective's own."""
Players: TypeAlias = tuple[Optimizer, MakeY]


def configured_players(config: TrainConfig, model: nn.Module) -> Players:
    """The optimizers that the config names."""
    usual = tables.OPTIMIZERS[config.x_optimizer].lr_x
    lr = usual if config.lr_x is None else config.lr_x
    x_optimizer = _optimizer(config.x_optimizer, model.parameters(), lr, False)
    name = config.y_optimizer
    if name is None:
        return x_optimizer, None
    lr_y = tables.OPTIMIZERS[name].lr_y if config.lr_y is None else config.lr_y
    rowwise = bool(config.per_sample)
    return x_optimizer, lambda params: _optimizer(name, params, lr_y, True, rowwise=rowwise)


def tiada_players(config: TrainConfig, model: nn.Module) -> Players:
    """Two optimizers that share their sums of squared gradients."""
    lr_x, lr_y = (_TIADA_RATE if lr is None else lr for lr in (config.lr_x, config.lr_y))
    x_optimizer = TiAdaX(list(model.parameters()), lr_x)
    rowwise = not tables.OBJECTIVES[config.objective].has_groups
    return x_optimizer, lambda params: TiAdaY(params, lr_y, x_optimizer, rowwise=rowwise)


class Game:
    """An objective, whose inner loop moves y, and the optimizer of the model, which moves x.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        players = tables.resolve(tables.METHODS[config.method].function)
        make = tables.resolve(tables.OBJECTIVES[config.objective].function)
        self.x_optimizer, y_optimizer = players(config, model)
        self.objective: Objective = make(config, model, data, y_optimizer)
        self.objective.max_calls = config.max_calls

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move both players on a batch."""
        if isinstance(self.objective, robust.GroupDRO):
            return self.objective.step(self.x_optimizer, inputs, targets, groups)
        keeps = self.objective.adversary.start == "kept"
        return self.objective.step(self.x_optimizer, inputs, targets, ids if keeps else None)

    @property
    def counters(self) -> Counters:
        """What has been evaluated and taken so far."""
        return self.objective.counters

    @property
    def calls(self) -> int:
        """Gradients of both players and values so far."""
        return self.counters.total_calls

    @property
    def x_steps(self) -> int:
        """Steps of the model so far."""
        return self.counters.outer_steps

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit, except the model."""
        return {
            "objective": self.objective.state_dict(),
            "x_optimizer": self.x_optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        state = state_dict["objective"]
        if parallel.is_active() and "generator" in state:
            state = {**state, "generator": None}  # ranks draw from torch's own, each for itself
        self.objective.load_state_dict(state)
        self.x_optimizer.load_state_dict(state_dict["x_optimizer"])


def make_wrm(
    config: TrainConfig, model: nn.Module, data: Dataset, y_optimizer: MakeY
) -> robust.WRM:
    """The adversary pays for what it perturbs."""
    return robust.WRM(model, _loss, config.gamma, **_perturbing(config, data, y_optimizer))


def make_adversarial(
    config: TrainConfig, model: nn.Module, data: Dataset, y_optimizer: MakeY
) -> robust.AdversarialTraining:
    """The adversary perturbs within a distance."""
    objective = robust.AdversarialTraining(
        model, _loss, config.eps, config.norm, **_perturbing(config, data, y_optimizer)
    )
    if config.random_start and not parallel.is_active():
        objective.generator = torch.Generator().manual_seed(config.seed)
    return objective


def make_trades(
    config: TrainConfig, model: nn.Module, data: Dataset, y_optimizer: MakeY
) -> robust.TRADES:
    """The adversary perturbs within a distance so that the outputs change."""
    objective = robust.TRADES(
        model,
        _loss,
        config.eps,
        config.norm,
        beta=config.beta,
        **_perturbing(config, data, y_optimizer),
    )
    if not parallel.is_active():
        objective.generator = torch.Generator().manual_seed(config.seed)
    return objective


def make_group(
    config: TrainConfig, model: nn.Module, data: Dataset, y_optimizer: MakeY
) -> robust.GroupDRO:
    """The adversary shifts the mixture of groups."""
    num_groups = data.num_groups or data.num_classes
    sizes = torch.bincount(groups_of(data), minlength=num_groups)
    if int(sizes.min()) == 0:
        raise ValueError(
            f"group {int(sizes.argmin())} has no training samples: number the groups so that each "
            "has some"
        )
    return robust.GroupDRO(
        model,
        _loss,
        num_groups,
        regularizer=None if config.regularizer == "none" else config.regularizer,
        strength=config.strength,
        sizes=sizes,
        adjustment=config.adjustment,
        y_optimizer=None if y_optimizer is None else lambda y: constrain(y_optimizer(y), Simplex()),
        stopping=_rule(config),
        inner=InnerOptions(max_steps=_MOST_INNER_STEPS),
    )


def groups_of(data: Dataset, part: str = "train") -> Tensor:
    """The group ids of a part of the data; without any, the classes are the groups."""
    given = {"train": data.groups_train, "test": data.groups_test}.get(part)
    return data.splits[part][1] if given is None else given


def _loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy, in float32 also where the network was evaluated in half precision."""
    wide = torch.promote_types(outputs.dtype, torch.float32)
    return nn.functional.cross_entropy(outputs.to(wide), targets, reduction=reduction)


def _perturbing(config: TrainConfig, data: Dataset, y_optimizer: MakeY) -> dict[str, Any]:
    """What objectives with perturbed inputs share."""
    keeps = config.warm_start != "none" or not tables.METHODS[config.method].has_inner_loop
    start: Any = "kept" if keeps else "random" if config.random_start else "clean"
    return {
        "bounds": data.bounds,
        "adversary": robust.Adversary(
            optimizer=y_optimizer,
            stopping=_rule(config),
            start=start,
            per_sample=config.per_sample,
            max_steps=_MOST_INNER_STEPS,
        ),
    }


def _optimizer(
    name: str, params: Any, lr: float | None, maximize: bool, rowwise: bool = False
) -> Optimizer:
    entry = tables.OPTIMIZERS[name]
    make = tables.resolve(entry.function)
    arguments: dict[str, Any] = {"lr": lr, "maximize": maximize, **entry.arguments}
    if issubclass(make, PlayerOptimizer):
        arguments["rowwise"] = rowwise
    optimizer: Optimizer = make(list(params), **arguments)
    return optimizer


def _rule(config: TrainConfig) -> stopping.StoppingRule:
    """When the inner loop stops."""
    if config.num_inner_steps is not None:
        return stopping.FixedSteps(config.num_inner_steps)
    return stopping.GradientMapping(config.stop_scale) | stopping.InnerSteps()
