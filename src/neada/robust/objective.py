"""Objectives whose y is the batch of perturbed inputs: what they share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import parallel, tensors
from neada.checks import check_origin
from neada.inner import Counted, Counters, backward
from neada.optim.base import PlayerOptimizer
from neada.robust.adversary import Adversary, inner_model
from neada.robust.losses import (
    Loss,
    Network,
    check_model,
    check_x_optimizer,
    checked_ids,
    checked_inputs,
    sample_losses,
    unreduced,
)
from neada.robust.records import Perturbed, RobustInfo
from neada.robust.samples import Samples, check_y_optimizer
from neada.scalars import Scalar
from neada.sets import Box, Set

__all__ = ["Bounds", "InputObjective"]

Bounds = tuple[float | Tensor, float | Tensor]


class InputObjective(Counted, ABC):
    """Train a network on the worst inputs near those of the batch.

    A subclass defines the value that y maximizes (`_values`), the region of y (`_region`), and the
    loss that x minimizes (`_x_losses`).
    """

    gamma: float = 0.0
    """The price of a unit of squared distance."""
    _first_step_fits: ClassVar[bool] = False
    """Whether the first step of the default optimizer is right where the loss is nearly linear."""

    def __init__(
        self, model: nn.Module, loss: Loss, adversary: Adversary, bounds: Bounds | None
    ) -> None:
        check_model(model)
        if not isinstance(adversary, Adversary):
            raise TypeError(f"adversary must be Adversary(...), not {type(adversary).__name__}")
        self.counters = Counters()
        self.model = model
        self._module = parallel.unwrapped(model)
        self.loss_function = loss
        self.adversary = adversary
        self.bounds = None if bounds is None else Box(*bounds)
        self.grad_scaler: torch.amp.GradScaler | None = None
        self.generator: torch.Generator | None = None
        self.inner = adversary.inner_loop()
        self._sample_loss = unreduced(loss)
        self._kept: Tensor | None = None  # perturbations by sample id
        self._x_optimizer: Optimizer | None = None  # the one that has been checked
        self._is_sharded = False  # the model, as of that optimizer's first step

    # What the objectives differ in.

    def _values(self, model: Network, y: Tensor, clean: Tensor, reference: Any) -> Tensor:
        """What y maximizes, per sample."""
        return self._losses(model, y, reference)

    def _region(self, clean: Tensor) -> Set | None:
        """Where y may be."""
        return self.bounds

    @abstractmethod
    def _default_optimizer(self, params: Sequence[Tensor]) -> Optimizer:
        """The optimizer of y unless the adversary has one; it has no learning rate to choose."""

    def _x_losses(self, model: Network, y: Tensor, clean: Tensor, targets: Any) -> Tensor:
        """What the model minimizes, per sample."""
        return self._losses(model, y, targets)

    def _reference(self, model: Network, clean: Tensor, targets: Any) -> Any:
        """What `_values` compares with, computed once for a batch and its inner loop."""
        return targets

    def _inaccuracy(self, y: Tensor, gradient: Tensor, region: Set, by_sample: bool) -> Scalar:
        """What the rule is evaluated on: by default the squared gradient mapping."""
        return tensors.squared_norm([region.gradient_mapping(y, gradient)], by_sample)

    def _start(self, clean: Tensor, region: Set | None) -> Tensor:
        """Where y starts, unless perturbations are kept."""
        return clean.clone()

    def _losses(self, model: Network, inputs: Tensor, targets: Any) -> Tensor:
        return sample_losses(self._sample_loss(model(inputs), targets), len(inputs))

    # Public methods.

    def step(
        self, x_optimizer: Optimizer, inputs: Tensor, targets: Any, ids: Tensor | None = None
    ) -> RobustInfo:
        """Perturb the batch, then take one step of the model's optimizer on it.

        Args:
            x_optimizer: Any torch optimizer of the model's parameters that takes one step with one
                gradient.
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
            ids: One integer per sample, with ``Adversary(start="kept")``.

        Returns:
            Loss, norms and counts of this step.

        Raises:
            NonFiniteGradient: The loss or a gradient is NaN or Inf; the parameters are unchanged.
        """
        if x_optimizer is not self._x_optimizer:
            check_x_optimizer(x_optimizer, [self.model, self.loss_function])
            self._x_optimizer = x_optimizer
            self._is_sharded = parallel.any_shard(self.model.parameters())
        worst = self.perturb(inputs, targets, ids)
        loss, grad_sq_x = self._x_gradient(x_optimizer, worst)
        calls_value = self._move_model(x_optimizer, worst, loss)
        self.counters.outer_steps += 1
        return RobustInfo(
            loss=loss,
            value=loss - worst.penalty,
            perturbation=worst.perturbation,
            grad_sq_x=grad_sq_x,
            grad_sq_y=worst.grad_sq_y,
            calls_x=1,
            calls_y=worst.calls_y,
            calls_value=worst.calls_value + calls_value,
            samples_x=len(inputs),
            samples_y=worst.samples_y,
            inner_steps=worst.inner_steps,
            stop_reason=worst.stop_reason,
        )

    @torch.inference_mode(False)
    def perturb(self, inputs: Tensor, targets: Any, ids: Tensor | None = None) -> Perturbed:
        """Find inputs near these that are worse for the model.

        No parameter changes, no gradient of one is computed, and the modes of the layers are
        restored. The outer index t, by which the rule tightens, is `outer_steps`: it advances with
        `loss` or `step`, not here. All ranks must call it.

        Args:
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
            ids: One integer per sample, with ``Adversary(start="kept")``.
        """
        before = replace(self.counters)
        clean = checked_inputs(inputs, self.bounds)
        losses = [self.loss_function] if isinstance(self.loss_function, nn.Module) else []
        with inner_model(self._module, self.adversary, losses) as model:
            region = self._region(clean)
            reference = self._reference(model, clean, targets)
            y = self._started(clean, region, ids).requires_grad_()
            samples = Samples(self, model, y, self._y_optimizer(y), region, clean, reference)
            found = self.inner.maximize(samples, self.counters.outer_steps, self.counters)
            worst = samples.answer()
        distances_sq = torch.as_tensor(tensors.squared_distance([worst], [clean], rowwise=True))
        mean_distance_sq, grad_sq = distances_sq.mean().item(), found.grad_sq
        share = _checked_share(len(worst), math.isfinite(mean_distance_sq))
        self._keep(ids, worst, clean, share)
        return Perturbed(
            inputs=worst,
            targets=targets,
            clean=clean,
            perturbation=distances_sq.sqrt().mean().item(),
            penalty=self.gamma * mean_distance_sq,
            grad_sq_y=grad_sq.mean().item() if isinstance(grad_sq, Tensor) else grad_sq,
            calls_y=self.counters.calls_y - before.calls_y,
            calls_value=self.counters.calls_value - before.calls_value,
            samples_y=self.counters.samples_y - before.samples_y,
            inner_steps=found.steps,
            stop_reason=found.reason,
            share=share,
        )

    def loss(self, worst: Perturbed, *, advance: bool = True) -> Tensor:
        """Return the mean loss of a perturbed batch, with its graph: call `backward` on it.

        The penalty is left out, since it does not depend on the parameters. Where ranks have
        batches of different sizes, it is multiplied by the share of this rank: averaged over the
        ranks, gradients are then those of the joint batch.

        Args:
            worst: What `perturb` returned.
            advance: Count this as an outer step. When several batches are accumulated for one step
                of the optimizer, pass False for all but the last.
        """
        if not isinstance(worst, Perturbed):
            raise TypeError(
                f"loss takes what perturb returned, not {type(worst).__name__}: call "
                "loss(perturb(inputs, targets))"
            )
        self.counters.check_budget()
        self.counters.count("x", len(worst.inputs))
        loss = self._batch_loss(worst)
        self.counters.outer_steps += int(advance)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Counters, t among them, the rule's memory, kept perturbations, and the generator."""
        return {
            "class": type(self).__name__,
            "counters": self.counters.state_dict(),
            "inner": self.inner.state_dict(),
            "kept": None if self._kept is None else self._kept.clone(),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, bit for bit."""
        check_origin(self, state_dict)
        self.counters.load_state_dict(state_dict["counters"])
        self.inner.load_state_dict(state_dict["inner"])
        self._kept = None if state_dict["kept"] is None else state_dict["kept"].clone()
        if state_dict["generator"] is not None:
            if self.generator is None:
                self.generator = torch.Generator()
            self.generator.set_state(state_dict["generator"])

    # The model's part of a step.

    def _batch_loss(self, worst: Perturbed) -> Tensor:
        """The mean loss, scaled so that the mean over the ranks is that of the joint batch."""
        tensors.drop_cached_casts()
        losses = self._x_losses(self.model, worst.inputs, worst.clean, worst.targets)
        return losses.mean() if worst.share == 1.0 else worst.share * losses.mean()

    def _x_gradient(self, x_optimizer: Optimizer, worst: Perturbed) -> tuple[float, float]:
        """Put the model's gradient in `.grad`; return the loss and the squared norm, both finite.

        The loss is the mean over all ranks.
        """
        loss = self.loss(worst, advance=False)
        mean = parallel.agree(loss.item() / worst.share, weight=len(worst.inputs))
        params = [p for group in x_optimizer.param_groups for p in group["params"]]
        params = [p for p in params if p.requires_grad]
        x_optimizer.zero_grad()
        backward(loss, params, self.grad_scaler, sharded=self._is_sharded)
        if self._module is self.model:  # no wrapper has averaged the gradients
            parallel.average_gradients_(params)
        if not math.isfinite(mean):
            raise tensors.NonFiniteGradient(
                f"the loss is {mean}: lower the learning rate or check the data"
            )
        grads = [p.grad for p in params if p.grad is not None]
        norm = parallel.squared_norm_of_shards if self._is_sharded else tensors.squared_norm
        norm_sq = float(norm(grads))
        if not math.isfinite(norm_sq):
            tensors.raise_non_finite(grads)
        return mean, norm_sq

    def _move_model(self, x_optimizer: Optimizer, worst: Perturbed, loss: float) -> int:
        """Take one step with the gradients in place; return how many values it evaluated."""
        if not isinstance(x_optimizer, PlayerOptimizer):
            x_optimizer.step()
            tensors.drop_cached_casts()
            return 0
        before = self.counters.calls_value

        def trial_loss() -> Tensor:
            self.counters.check_budget()
            self.counters.calls_value += 1
            loss = self._batch_loss(worst)
            parallel.average_([loss])
            return loss

        x_optimizer.step(trial_loss, value=loss)
        return self.counters.calls_value - before

    # The inner problem of a batch.

    def _y_optimizer(self, y: Tensor) -> Optimizer:
        if self.adversary.optimizer is None:
            return self._default_optimizer([y])
        optimizer = self.adversary.optimizer([y])
        check_y_optimizer(optimizer, y, self.adversary.stops_per_sample)
        tries_points = isinstance(optimizer, PlayerOptimizer) and optimizer.tries_points
        if tries_points and parallel.any_shard(self.model.parameters()):
            raise ValueError(
                f"{type(optimizer).__name__} evaluates a different number of points on every rank, "
                "and the model is sharded: use the default optimizer"
            )
        return optimizer

    def _started(self, clean: Tensor, region: Set | None, ids: Tensor | None) -> Tensor:
        """Where y starts: at the clean inputs plus what was kept, or as the objective has it."""
        if self.adversary.start != "kept":
            if ids is not None:
                raise ValueError(
                    "ids were given but no perturbations are kept: construct the objective with "
                    "adversary=Adversary(start='kept')"
                )
            return self._start(clean, region)
        places = checked_ids("ids", ids, len(clean)).cpu()
        start = clean + self._kept_up_to(int(places.max()), clean)[places].to(clean)
        return start if region is None else region.project_(start)

    def _keep(self, ids: Tensor | None, worst: Tensor, clean: Tensor, share: float) -> None:
        """Keep perturbations by id; every rank keeps those of all ranks."""
        if ids is None:
            return
        if share != 1.0:
            raise ValueError(
                "kept perturbations need equally many samples on every rank: use drop_last=True, "
                "or a DistributedSampler"
            )
        places = parallel.gather_rows(torch.as_tensor(ids).long().cpu()).cpu()
        kept = self._kept_up_to(int(places.max()), worst)
        kept[places] = parallel.gather_rows((worst - clean).detach()).to(kept)

    def _kept_up_to(self, last_id: int, like: Tensor) -> Tensor:
        """The kept perturbations by sample id; zero for samples that have not been seen."""
        if self._kept is None:
            self._kept = torch.zeros((0, *like.shape[1:]), dtype=like.dtype)
        if self._kept.shape[1:] != like.shape[1:]:
            raise ValueError(
                f"the kept perturbations have shape {tuple(self._kept.shape[1:])} and the samples "
                f"{tuple(like.shape[1:])}: use one objective for each data set"
            )
        missing = last_id + 1 - len(self._kept)
        if missing > 0:
            new = self._kept.new_zeros((missing, *like.shape[1:]))
            self._kept = torch.cat([self._kept, new])
        return self._kept


def _checked_share(num_samples: int, is_finite: bool) -> float:
    """The share of this rank in the joint batch; raises on all ranks if y overflows on one."""
    mean_count = parallel.agree(float(num_samples) if is_finite else math.nan)
    if math.isnan(mean_count):
        raise tensors.NonFiniteGradient(
            "the perturbed inputs overflow: lower the adversary's learning rate"
        )
    return num_samples / mean_count
