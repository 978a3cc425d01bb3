"""Objectives whose y is the batch of perturbed inputs: what they share."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.checks import check_choice
from neada.optim.base import PlayerOptimizer
from neada.robust.counters import Counted, Perturbed, RobustInfo
from neada.robust.inner import InnerLoop, MakeOptimizer, Measure, StatePolicy, TestPolicy
from neada.robust.problem import (
    DropoutPolicy,
    Loss,
    NormPolicy,
    Problem,
    check_model,
    checked_inputs,
    inner_modes,
    no_parameter_gradients,
    sample_losses,
    unreduced,
)
from neada.robust.store import PerturbationStore
from neada.sets import Box, Set
from neada.steppers.base import check_descends
from neada.stopping import GradientMapping, InnerSteps, StoppingRule

__all__ = ["Bounds", "InputObjective"]

Bounds = tuple[float | Tensor, float | Tensor]


class InputObjective(Counted, ABC):
    """Train a network on the worst inputs near those of the batch."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        y_optimizer: MakeOptimizer,
        *,
        stopping: StoppingRule | None,
        measure: Measure,
        per_sample: bool,
        state: StatePolicy,
        store: PerturbationStore | None,
        norm: NormPolicy,
        dropout: DropoutPolicy,
        box: Bounds | None,
        min_inner_steps: int,
        max_inner_steps: int,
        test: TestPolicy,
    ) -> None:
        super().__init__()
        check_model(model)
        check_choice("norm", norm, ("frozen", "batch"))
        check_choice("dropout", dropout, ("off", "on"))
        if not callable(y_optimizer):
            raise TypeError(
                "y_optimizer must be a function that takes [y] and returns a torch optimizer, not "
                f"{type(y_optimizer).__name__}: y is made anew with every batch"
            )
        self.model = model
        self.loss_function = loss
        self.norm = norm
        self.dropout = dropout
        self.box = None if box is None else Box(*box)
        self.store = store
        self.grad_scaler: torch.amp.GradScaler | None = None
        self.inner = InnerLoop(
            y_optimizer,
            GradientMapping() | InnerSteps() if stopping is None else stopping,
            measure=measure,
            per_sample=per_sample,
            state=state,
            min_inner_steps=min_inner_steps,
            max_inner_steps=max_inner_steps,
            test=test,
        )
        self._sample_loss = unreduced(loss)

    # What the objectives differ in.

    @abstractmethod
    def _values(self, y: Tensor, losses: Tensor, clean: Tensor) -> Tensor:
        """What y maximizes, per sample."""

    @abstractmethod
    def _region(self, clean: Tensor) -> Set | None:
        """Where y lives."""

    def penalty(self, mean_distance_sq: float) -> float:
        """The mean price of a perturbation; 0 where there is none."""
        return 0.0

    def _cold_start(self, clean: Tensor, region: Set | None) -> Tensor:
        return clean.clone()

    # What people call.

    def step(
        self, x_optimizer: Optimizer, inputs: Tensor, targets: Any, ids: Tensor | None = None
    ) -> RobustInfo:
        """Make the batch worse, then take one step of the model's optimizer on it.

        Args:
            x_optimizer: Any torch optimizer of the model's parameters that takes one step with one
                gradient.
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
            ids: The samples' places in the perturbation store, if there is one.

        Returns:
            What the step saw and spent.

        Raises:
            NonFiniteGradient: The loss or a gradient is not finite; the parameters are untouched.
        """
        check_descends(x_optimizer)
        worst = self.perturb(inputs, targets, ids)
        params = [
            p for group in x_optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        if not params:
            raise ValueError("the x optimizer has no parameter that requires a gradient")
        x_optimizer.zero_grad()
        loss = self._mean_loss(worst)
        value = loss.item()
        if not math.isfinite(value):
            raise tensors.NonFiniteGradient(
                f"the loss is {value}; nothing was changed: lower the learning rate or check the "
                "data"
            )
        scaler = self.grad_scaler
        total = loss if scaler is None else scaler.scale(loss)
        torch.autograd.backward(total, inputs=params)
        gradients = [p.grad for p in params if p.grad is not None]
        if scaler is not None:
            torch._foreach_div_(gradients, scaler.get_scale())
        grad_sq_x = float(tensors.squared_norm(gradients))
        if not math.isfinite(grad_sq_x):
            tensors.raise_non_finite([p.grad for p in params])
        calls_value = self.calls_value
        if isinstance(x_optimizer, PlayerOptimizer):
            x_optimizer.step(lambda: self._trial_loss(worst), value=loss.detach())
        else:
            x_optimizer.step()
        self.outer_steps += 1
        return RobustInfo(
            loss=value,
            value=value - worst.penalty,
            perturbation=worst.perturbation,
            grad_sq_x=grad_sq_x,
            grad_sq_y=worst.grad_sq_y,
            calls_x=1,
            calls_y=worst.calls_y,
            calls_value=worst.calls_value + self.calls_value - calls_value,
            samples_x=len(worst.inputs),
            samples_y=worst.samples_y,
            inner_steps=worst.inner_steps,
            stop_reason=worst.stop_reason,
        )

    @torch.inference_mode(False)
    def perturb(self, inputs: Tensor, targets: Any, ids: Tensor | None = None) -> Perturbed:
        """Find inputs near these that are worse for the model.

        No parameter is touched, no gradient of one computed, and the modes of the layers are
        restored. The outer index t, by which the rule tightens, is `outer_steps`: it advances with
        `loss`, not here, so that perturbing for an evaluation does no harm.

        Args:
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
            ids: The samples' places in the perturbation store, if there is one.
        """
        problem = self.problem(inputs, targets)
        start = self.start(problem, ids)
        before = (self.calls_y, self.calls_value, self.samples_y)
        model = self._bare_model()
        losses = [self.loss_function] if isinstance(self.loss_function, nn.Module) else []
        with (
            inner_modes(model, self.norm, self.dropout),
            no_parameter_gradients([model, *losses]),
        ):
            found = self.inner.maximize(
                problem, start, self.outer_steps, self, grad_scaler=self.grad_scaler
            )
        if self.store is not None and ids is not None:
            self.store.put(ids, found.y - problem.clean)
        distance_sq = tensors.squared_distance([found.y], [problem.clean], rowwise=True)
        assert isinstance(distance_sq, Tensor)
        return Perturbed(
            found.y,
            targets,
            distance_sq.sqrt().mean().item(),
            self.penalty(distance_sq.mean().item()),
            found.mapping_sq,
            self.calls_y - before[0],
            self.calls_value - before[1],
            self.samples_y - before[2],
            found.inner_steps,
            found.stop_reason,
        )

    def problem(self, inputs: Tensor, targets: Any) -> Problem:
        """What y maximizes on a batch, and where it lives, for a method that moves y itself.

        Args:
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
        """
        clean = checked_inputs(inputs, self.box)
        model = self._bare_model()

        def values(y: Tensor, clean: Tensor, targets: Any) -> Tensor:
            return self._values(y, self._losses(model, y, targets), clean)

        return Problem(values, self._region, clean, targets, self._region(clean))

    def start(self, problem: Problem, ids: Tensor | None = None) -> Tensor:
        """Where y begins: as stored, or else near the clean inputs.

        Args:
            problem: Of the batch.
            ids: The samples' places in the perturbation store, if there is one.
        """
        if self.store is None:
            if ids is not None:
                raise ValueError(
                    "ids were given but the objective has no store: construct it with "
                    "store=PerturbationStore(...)"
                )
            return self._cold_start(problem.clean, problem.region)
        if ids is None:
            raise ValueError(
                "the objective has a perturbation store: pass ids=, the samples' places in it"
            )
        start = problem.moved(self.store.get(ids))
        return start if problem.region is None else problem.region.project_(start)

    def loss(self, worst: Perturbed, *, advance: bool = True) -> Tensor:
        """The mean loss of a perturbed batch, with its graph: call `backward` on it.

        The penalty is left out, since it does not depend on the parameters.

        Args:
            worst: What `perturb` returned.
            advance: Count this as an outer step. When several batches are accumulated for one step
                of the optimizer, pass False for all but the last.
        """
        loss = self._mean_loss(worst)
        self.outer_steps += int(advance)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Counters, t among them, what the inner loop carries on, and the store's state."""
        return {
            "counters": self.counts(),
            "inner": self.inner.state_dict(),
            "store": None if self.store is None else self.store.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        if (state_dict["store"] is None) != (self.store is None):
            has, lacks = ("state", "objective") if self.store is None else ("objective", "state")
            raise ValueError(
                f"the {has} has a perturbation store and the {lacks} has none: construct the "
                "objective as it was when the state was saved"
            )
        if self.store is not None:
            self.store.load_state_dict(state_dict["store"])
        self.load_counts(state_dict["counters"])
        self.inner.load_state_dict(state_dict["inner"])

    # How it is done.

    def _bare_model(self) -> nn.Module:
        """The network itself: y's gradients are not averaged over ranks."""
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def _losses(self, model: nn.Module, inputs: Tensor, targets: Any) -> Tensor:
        return sample_losses(self._sample_loss(model(inputs), targets), len(inputs))

    def _mean_loss(self, worst: Perturbed) -> Tensor:
        self.check_budget()
        self.calls_x += 1
        self.samples_x += len(worst.inputs)
        return self._losses(self.model, worst.inputs, worst.targets).mean()

    def _trial_loss(self, worst: Perturbed) -> Tensor:
        """The loss at a point that the model's optimizer only tries."""
        self.check_budget()
        self.calls_value += 1
        with torch.no_grad():
            return self._losses(self.model, worst.inputs, worst.targets).mean()
