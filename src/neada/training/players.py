"""The two players of a training run: an objective, the model's optimizer, and how they move."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import devices, parallel, robust, stopping, tables
from neada.data import Dataset
from neada.inner import Counters, InnerOptions
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constrain
from neada.robust import RobustInfo
from neada.robust.objective import InputObjective
from neada.sets import Set, Simplex
from neada.steppers import TiAda
from neada.training.config import TrainConfig

__all__ = [
    "Game",
    "Nested",
    "Objective",
    "Together",
    "groups_of",
    "make_adversarial",
    "make_game",
    "make_group",
    "make_trades",
    "make_wrm",
]

# The rule decides, not the cap that objectives have by default.
_MOST_INNER_STEPS = 1_000_000
_TIADA_RATE = 0.1
Objective: TypeAlias = InputObjective | robust.GroupDRO


def make_game(config: TrainConfig, model: nn.Module, data: Dataset) -> "Game":
    """The players that a config speaks of."""
    game: Game = tables.resolve(tables.METHODS[config.method].function)(config, model, data)
    return game


class Game(ABC):
    """An objective and what moves its players, on one batch after the other.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        make = tables.resolve(tables.OBJECTIVES[config.objective].function)
        self.objective: Objective = make(config, model, data)
        self._config = config

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move both players on a batch."""
        if isinstance(self.objective, robust.GroupDRO):
            return self._step(inputs, targets, groups)
        keeps = self.objective.adversary.start == "kept"
        return self._step(inputs, targets, ids if keeps else None)

    def _load_objective(self, state: dict[str, Any]) -> None:
        if parallel.is_active() and "generator" in state:
            state = {**state, "generator": None}  # ranks draw from torch's own, each for itself
        self.objective.load_state_dict(state)

    @property
    def calls(self) -> int:
        """Gradients of both players and values so far."""
        return self.counters.total_calls

    @property
    def x_steps(self) -> int:
        """Steps of the model so far."""
        return self.counters.outer_steps

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """What has been evaluated and taken so far."""

    @abstractmethod
    def _step(self, inputs: Tensor, targets: Tensor, side: Any) -> RobustInfo: ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit, except the model."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""


class Nested(Game):
    """First the objective's inner loop moves y, then the optimizer of the model moves x.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        super().__init__(config, model, data)
        self.objective.max_calls = config.max_calls
        usual = tables.OPTIMIZERS[config.x_optimizer].lr_x
        lr = usual if config.lr_x is None else config.lr_x
        self.x_optimizer = _optimizer(config.x_optimizer, model.parameters(), lr, False)

    @property
    def counters(self) -> Counters:
        """Those of the objective."""
        return self.objective.counters

    def _step(self, inputs: Tensor, targets: Tensor, side: Any) -> RobustInfo:
        return self.objective.step(self.x_optimizer, inputs, targets, side)

    def state_dict(self) -> dict[str, Any]:
        """Counters, all that is kept of y, and the model's optimizer."""
        return {
            "objective": self.objective.state_dict(),
            "x_optimizer": self.x_optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._load_objective(state_dict["objective"])
        self.x_optimizer.load_state_dict(state_dict["x_optimizer"])


class Together(Game):
    """`TiAda`: one evaluation moves both players.

    Its y is the group weights, or the perturbations of all samples, which are kept: with every
    batch its own samples take one step.

    Args:
        config: What is asked for.
        model: The network; it is evaluated once per batch for both players, in the mode it is in.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        super().__init__(config, model, data)
        self._params = [p for p in model.parameters() if p.requires_grad]
        self.stepper = self._stepper(torch.zeros(1, device=devices.of_module(model)), None, 1.0)

    @property
    def counters(self) -> Counters:
        """Those of the stepper."""
        return self.stepper.counters

    def _step(self, inputs: Tensor, targets: Tensor, side: Any) -> RobustInfo:
        joint = self.objective.joint(inputs, targets, side)
        stepper = self._stepper(joint.y, joint.y_set, joint.lr_scale)
        stepper.load_state_dict(self.stepper.state_dict())
        stepper.counters = self.stepper.counters
        info = stepper.step(joint.closure, len(inputs))
        self.stepper = stepper
        penalty, perturbation = joint.finish()
        value = info.value.item()
        return RobustInfo.of_step(
            info, len(inputs), loss=value + penalty, value=value, perturbation=perturbation
        )

    def state_dict(self) -> dict[str, Any]:
        """All that is kept of y, and what the stepper remembers."""
        return {"objective": self.objective.state_dict(), "stepper": self.stepper.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._load_objective(state_dict["objective"])
        self.stepper.load_state_dict(state_dict["stepper"])

    def _stepper(self, y: Tensor, y_set: Set | None, lr_scale: float) -> TiAda:
        """One whose y is that of a batch."""
        lr_x, lr_y = (
            _TIADA_RATE if lr is None else lr for lr in (self._config.lr_x, self._config.lr_y)
        )
        stepper = TiAda(self._params, [y], lr_x, lr_y * lr_scale, y_set=y_set)
        stepper.max_calls = self._config.max_calls
        return stepper


def make_wrm(config: TrainConfig, model: nn.Module, data: Dataset) -> robust.WRM:
    """The adversary pays for what it perturbs."""
    return robust.WRM(model, _loss, config.gamma, **_perturbing(config, data))


def make_adversarial(
    config: TrainConfig, model: nn.Module, data: Dataset
) -> robust.AdversarialTraining:
    """The adversary perturbs within a distance."""
    objective = robust.AdversarialTraining(
        model, _loss, config.eps, config.norm, **_perturbing(config, data)
    )
    if config.random_start and not parallel.is_active():
        objective.generator = torch.Generator().manual_seed(config.seed)
    return objective


def make_trades(config: TrainConfig, model: nn.Module, data: Dataset) -> robust.TRADES:
    """The adversary perturbs within a distance so that the outputs change."""
    objective = robust.TRADES(
        model, _loss, config.eps, config.norm, beta=config.beta, **_perturbing(config, data)
    )
    if not parallel.is_active():
        objective.generator = torch.Generator().manual_seed(config.seed)
    return objective


def make_group(config: TrainConfig, model: nn.Module, data: Dataset) -> robust.GroupDRO:
    """The adversary shifts the mixture of groups."""
    num_groups = data.num_groups or data.num_classes
    sizes = torch.bincount(groups_of(data), minlength=num_groups)
    if int(sizes.min()) == 0:
        raise ValueError(
            f"group {int(sizes.argmin())} has no training samples: number the groups so that each "
            "has some"
        )
    make = _adversary(config)
    return robust.GroupDRO(
        model,
        _loss,
        num_groups,
        regularizer=None if config.regularizer == "none" else config.regularizer,
        strength=config.strength,
        sizes=sizes,
        adjustment=config.adjustment,
        y_optimizer=None if make is None else lambda y: constrain(make(y), Simplex()),
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


def _perturbing(config: TrainConfig, data: Dataset) -> dict[str, Any]:
    """What objectives with perturbed inputs share."""
    keeps = config.warm_start != "none" or not tables.METHODS[config.method].has_inner_loop
    start: Any = "kept" if keeps else "random" if config.random_start else "clean"
    return {
        "bounds": data.bounds,
        "adversary": robust.Adversary(
            optimizer=_adversary(config),
            stopping=_rule(config),
            start=start,
            per_sample=config.per_sample,
            max_steps=_MOST_INNER_STEPS,
        ),
    }


def _adversary(config: TrainConfig) -> Callable[[Sequence[Tensor]], Optimizer] | None:
    """A function that makes the optimizer of y; None for the objective's own."""
    name = config.y_optimizer
    if name is None:
        return None
    lr = tables.OPTIMIZERS[name].lr_y if config.lr_y is None else config.lr_y
    return lambda params: _optimizer(name, params, lr, True, rowwise=bool(config.per_sample))


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
