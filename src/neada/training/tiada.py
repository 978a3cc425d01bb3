"""Training without an inner loop: TiAda moves both players with every batch."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neada import robust, tensors
from neada.data import Dataset
from neada.robust.counters import RobustInfo
from neada.sets import Set, Simplex
from neada.steppers import StepInfo, TiAda
from neada.training.config import TrainConfig
from neada.training.game import input_objective, make_store
from neada.training.groups import group_objective
from neada.training.optimizers import rate_x, rate_y

__all__ = ["TiAdaGroupGame", "TiAdaInputGame"]


class _TiAdaGame:
    """What both games share: the stepper counts, and its sums are the state."""

    objective: robust.WRM | robust.NormBall | robust.GroupDRO
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
            x_grad_sq=float(info.x_grad_sq),
            y_mapping_sq=float(info.y_mapping_sq),
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
    r"""`WRM` or `NormBall` with `TiAda`, whose y is the perturbations of all samples.

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
        self.objective: robust.WRM | robust.NormBall = input_objective(config, model, data)
        self._make_store = partial(make_store, config, data)
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._rates = (rate_x(config), rate_y(config))
        self._budget = config.budget
        self.stepper = self._stepper(data.x_train[:1].clone(), None)

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
