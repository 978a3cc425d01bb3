"""The two players of a training run: an objective, the model's optimizer, and how they move."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import robust, stopping, tensors
from neada.data import Dataset
from neada.optim.constrain import constrain
from neada.robust.counters import RobustInfo
from neada.sets import Set, Simplex
from neada.steppers import StepInfo, TiAda
from neada.training.config import Method, TrainConfig

__all__ = [
    "MOST_INNER_STEPS",
    "STORE_FILE",
    "Game",
    "GroupGame",
    "InputGame",
    "ObjectiveGame",
    "TiAdaGroupGame",
    "TiAdaInputGame",
    "adversary",
    "group_objective",
    "groups_of",
    "input_objective",
    "make_store",
    "model_optimizer",
    "rate_x",
    "rate_y",
    "rule",
]


# Usual learning rates of x and of y, for inputs between 0 and 1.
_RATES = {
    "adam": (1e-3, 1e-2),
    "amsgrad": (1e-3, 1e-2),
    "sgd": (0.1, 0.1),
    "adagrad": (1e-2, 0.1),
    "tiada": (0.1, 0.1),
}


def rate_x(config: TrainConfig) -> float:
    """The model's learning rate."""
    usual = _RATES[Method.parse(config.method).optimizer][0]
    return usual if config.lr_x is None else config.lr_x


def rate_y(config: TrainConfig) -> float:
    """The adversary's learning rate."""
    usual = _RATES[Method.parse(config.method).optimizer][1]
    return usual if config.lr_y is None else config.lr_y


def model_optimizer(config: TrainConfig, params: Iterable[Tensor]) -> Optimizer:
    """The optimizer of x."""
    return _make(Method.parse(config.method).optimizer, list(params), rate_x(config), False)


def adversary(config: TrainConfig) -> Callable[[Sequence[Tensor]], Optimizer]:
    """A function that makes the optimizer of y."""
    name, rate = Method.parse(config.method).optimizer, rate_y(config)
    return lambda params: _make(name, list(params), rate, True)


def rule(config: TrainConfig) -> stopping.StoppingRule:
    """When the inner loop stops."""
    num_inner_steps = Method.parse(config.method).num_inner_steps
    if num_inner_steps is not None:
        return stopping.FixedSteps(num_inner_steps)
    count = stopping.InnerSteps(float) if config.stop == "released" else stopping.InnerSteps()
    return stopping.GradientMapping(config.stop_scale) | count


def _make(name: str, params: list[Tensor], lr: float, maximize: bool) -> Optimizer:
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr, maximize=maximize)
    if name == "adagrad":
        return torch.optim.Adagrad(params, lr=lr, maximize=maximize)
    return torch.optim.Adam(params, lr=lr, amsgrad=name == "amsgrad", maximize=maximize)


STORE_FILE = "perturbations.npy"
MOST_INNER_STEPS = 1_000_000
"""The rule decides, not the cap that objectives have by default."""
_Objective = TypeVar("_Objective", bound=robust.WRM | robust.AdversarialTraining | robust.GroupDRO)


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


class InputGame(ObjectiveGame[robust.WRM | robust.AdversarialTraining]):
    """The adversary perturbs the inputs: `WRM` or `AdversarialTraining`.

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
) -> robust.WRM | robust.AdversarialTraining:
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
        "box": data.bounds if keep_box else None,
        "max_inner_steps": MOST_INNER_STEPS,
    }
    if config.objective == "wrm":
        return robust.WRM(model, loss, config.gamma, norm=norm, **common)
    if config.lr_y is None and Method.parse(config.method).optimizer == "adam":
        # A ball has a scale of its own, from which its default optimizer is made.
        common["y_optimizer"] = None
    generator = torch.Generator().manual_seed(config.seed) if config.random_start else None
    return robust.AdversarialTraining(
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
    x = data.inputs_train
    return robust.PerturbationStore(len(x), x.shape[1:], x.dtype, path)


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
        regularizer=None if config.regularizer == "none" else config.regularizer,
        strength=config.strength,
        sizes=sizes,
        adjustment=config.adjustment,
        y_optimizer=(lambda params: constrain(make(params), Simplex())) if given_rate else None,
        stopping=rule(config),
        max_inner_steps=MOST_INNER_STEPS,
    )


class _TiAdaGame:
    """What both games share: the stepper counts, and its sums are the state."""

    objective: robust.WRM | robust.AdversarialTraining | robust.GroupDRO
    stepper: TiAda

    @property
    def calls(self) -> int:
        """Gradients of both players and values so far."""
        return self.stepper.total_calls

    @property
    def x_steps(self) -> int:
        """Steps of the model so far."""
        return self.stepper.outer_steps

    def state_dict(self) -> dict[str, Any]:
        """All that is kept of y, and what the stepper remembers."""
        return {"objective": self.objective.state_dict(), "stepper": self.stepper.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.objective.load_state_dict(state_dict["objective"])
        self.stepper.load_state_dict(state_dict["stepper"])

    @staticmethod
    def _report(info: StepInfo, penalty: float, moved: float, num_samples: int) -> RobustInfo:
        value = info.value.item()
        return RobustInfo(
            loss=value + penalty,
            value=value,
            perturbation=moved,
            grad_sq_x=float(info.grad_sq_x),
            grad_sq_y=float(info.grad_sq_y),
            calls_x=info.calls_x,
            calls_y=info.calls_y,
            calls_value=info.calls_value,
            samples_x=info.calls_x * num_samples,
            samples_y=info.calls_y * num_samples,
            inner_steps=1,
            stop_reason="one step with every batch",
        )


class TiAdaGroupGame(_TiAdaGame):
    """`GroupDRO` with `TiAda`.

    Args:
        config: What is asked for.
        model: The network.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        self.objective: robust.GroupDRO = group_objective(config, model, data)
        self.stepper = TiAda(
            [p for p in model.parameters() if p.requires_grad],
            [self.objective.weights],
            rate_x(config),
            rate_y(config),
            y_set=Simplex(),
        )
        self.stepper.max_calls = config.budget

    def open(self, folder: Path | None) -> None:
        """Nothing is kept outside of the state."""

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move both players from the same point."""
        info = self.stepper.step(self.objective.closure(inputs, targets, groups), len(inputs))
        with torch.no_grad():
            moved = tensors.squared_distance([self.objective.weights], [self.objective.frequencies])
        return self._report(info, 0.0, math.sqrt(float(moved)), len(inputs))

    def commit(self) -> None:
        """Nothing is kept outside of the state."""


class TiAdaInputGame(_TiAdaGame):
    r"""`WRM` or `AdversarialTraining` with `TiAda`, whose y is the perturbations of all samples.

    They persist in the objective's store; with every batch its own samples take one step. The
    objective is a mean, so a gradient of y is measured, and a step taken, as if its :math:`n`
    samples were divided by :math:`\sqrt n`: then :math:`v^y` gathers the mean over the samples of
    their squared gradients, whatever the size of the batch.

    Args:
        config: What is asked for.
        model: The network; it is evaluated once per batch for both players, in the mode it is in.
        data: What it is trained on.
    """

    def __init__(self, config: TrainConfig, model: nn.Module, data: Dataset) -> None:
        self.objective: robust.WRM | robust.AdversarialTraining = input_objective(
            config, model, data
        )
        self._make_store = partial(make_store, config, data)
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._rates = (rate_x(config), rate_y(config))
        self._budget = config.budget
        self.stepper = self._stepper(data.inputs_train[:1].clone(), None)

    def open(self, folder: Path | None) -> None:
        """Open the store of perturbations."""
        self.objective.store = self._make_store(folder)

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor, groups: Tensor) -> RobustInfo:
        """Move the model and the samples of the batch from the same point."""
        problem = self.objective.problem(inputs, targets)
        y = self.objective.start(problem, ids).requires_grad_()
        start = y.detach().clone()
        scale = math.sqrt(len(y))

        def mean_value() -> Tensor:
            scaled = y * 1.0
            scaled.register_hook(lambda g: g * scale)  # type: ignore[no-untyped-call]
            return problem.values(scaled).mean()

        stepper = self._stepper(y, problem.region)
        stepper.load_state_dict(self.stepper.state_dict())
        info = stepper.step(mean_value, len(y))
        self.stepper = stepper
        assert self.objective.store is not None
        self.objective.store.put(ids, y.detach() - problem.clean)
        before, after = (
            tensors.squared_distance([point], [problem.clean], rowwise=True)
            for point in (start, y.detach())
        )
        assert isinstance(before, Tensor)
        assert isinstance(after, Tensor)
        penalty = self.objective.penalty(before.mean().item())
        return self._report(info, penalty, after.sqrt().mean().item(), len(y))

    def commit(self) -> None:
        """Make the stored perturbations permanent."""
        assert self.objective.store is not None
        self.objective.store.commit()

    def _stepper(self, y: Tensor, region: Set | None) -> TiAda:
        """One whose y is the samples of a batch."""
        lr_x, lr_y = self._rates
        stepper = TiAda(self._params, [y], lr_x, lr_y * math.sqrt(len(y)), y_set=region)
        stepper.max_calls = self._budget
        return stepper
