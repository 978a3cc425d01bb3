"""The two players of a training run: an objective, the model's optimizer, and how they move."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import parallel, robust, stopping
from neada.data import Dataset
from neada.inner import Counters, InnerOptions
from neada.optim import DoG, DoWG
from neada.optim.constrain import constrain
from neada.optim.tiada import TiAdaX, TiAdaY
from neada.robust import RobustInfo
from neada.robust.objective import InputObjective
from neada.sets import Simplex
from neada.training.config import TrainConfig

__all__ = ["Game", "Objective", "groups_of"]

# The rule decides, not the cap that objectives have by default.
_MOST_INNER_STEPS = 1_000_000
_TIADA_RATE = 0.1
Objective: TypeAlias = InputObjective | robust.GroupDRO
MakeY: TypeAlias = Callable[[Sequence[Tensor]], Optimizer] | None
"""A function that makes the optimizer of y; None for the objective's own."""


class _Named(NamedTuple):
    """An optimizer by name.

    Attributes:
        make: An optimizer of torch, or one with the same arguments.
        lr_x: The usual learning rate of a model.
        lr_y: The usual learning rate of an adversary, for inputs between 0 and 1.
    """

    make: Callable[..., Optimizer]
    lr_x: float
    lr_y: float


_OPTIMIZERS = {
    "adam": _Named(torch.optim.Adam, 1e-3, 1e-2),
    "amsgrad": _Named(partial(torch.optim.Adam, amsgrad=True), 1e-3, 1e-2),
    "sgd": _Named(torch.optim.SGD, 0.1, 0.1),
    "adagrad": _Named(torch.optim.Adagrad, 1e-2, 0.1),
    "dog": _Named(DoG, 1.0, 1.0),  # multipliers of the step
    "dowg": _Named(DoWG, 1.0, 1.0),
}


class Game:
    """An objective, whose inner loop moves y, and the optimizer of the model, which moves x.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        make_players = _configured_players if config.has_inner_loop else _tiada_players
        make_objective = _group_objective if config.has_groups else _perturbing_objective
        self.x_optimizer, y_optimizer = make_players(config, model)
        self.objective: Objective = make_objective(config, model, data, y_optimizer)
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


def _configured_players(config: TrainConfig, model: nn.Module) -> tuple[Optimizer, MakeY]:
    """The optimizers that the config names."""
    lr_x = _OPTIMIZERS[config.x_optimizer].lr_x if config.lr_x is None else config.lr_x
    x_optimizer = _OPTIMIZERS[config.x_optimizer].make(list(model.parameters()), lr=lr_x)
    if config.y_optimizer is None:
        return x_optimizer, None
    make, _, usual = _OPTIMIZERS[config.y_optimizer]
    lr_y = usual if config.lr_y is None else config.lr_y
    rows = {"rowwise": bool(config.per_sample)} if make in (DoG, DoWG) else {}
    return x_optimizer, partial(make, lr=lr_y, maximize=True, **rows)


def _tiada_players(config: TrainConfig, model: nn.Module) -> tuple[Optimizer, MakeY]:
    """Two optimizers that share their sums of squared gradients."""
    lr_x, lr_y = (_TIADA_RATE if lr is None else lr for lr in (config.lr_x, config.lr_y))
    x_optimizer = TiAdaX(list(model.parameters()), lr_x)
    rowwise = not config.has_groups
    return x_optimizer, lambda params: TiAdaY(params, lr_y, x_optimizer, rowwise=rowwise)


def _perturbing_objective(
    config: TrainConfig, model: nn.Module, data: Dataset, y_optimizer: MakeY
) -> InputObjective:
    """An objective whose adversary perturbs the inputs."""
    keeps = config.warm_start != "none" or not config.has_inner_loop
    adversary = robust.Adversary(
        optimizer=y_optimizer,
        stopping=_rule(config),
        start="kept" if keeps else "random" if config.random_start else "clean",
        per_sample=config.per_sample,
        max_steps=_MOST_INNER_STEPS,
    )
    shared: dict[str, Any] = {"bounds": data.bounds, "adversary": adversary}
    if config.objective == "wrm":
        return robust.WRM(model, _loss, config.gamma, **shared)
    objective = (
        robust.AdversarialTraining(model, _loss, config.eps, config.norm, **shared)
        if config.objective == "adversarial"
        else robust.TRADES(model, _loss, config.eps, config.norm, beta=config.beta, **shared)
    )
    if not parallel.is_active():  # ranks draw from torch's generator, each for itself
        objective.generator = torch.Generator().manual_seed(config.seed)
    return objective


def _group_objective(
    config: TrainConfig, model: nn.Module, data: Dataset, y_optimizer: MakeY
) -> robust.GroupDRO:
    """The objective whose adversary shifts the mixture of groups."""
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


def _rule(config: TrainConfig) -> stopping.StoppingRule:
    """When the inner loop stops."""
    if config.num_inner_steps is not None:
        return stopping.FixedSteps(config.num_inner_steps)
    return stopping.GradientMapping(config.stop_scale) | stopping.InnerSteps()
