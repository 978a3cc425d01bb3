"""Objectives whose y is the batch of perturbed inputs: what they share."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import distributed, tensors
from neada.checks import check_choice, check_origin, check_pair
from neada.folding import folded
from neada.inner import Counted, Counters, InnerLoop, InnerOptions, InnerResult
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constraints
from neada.robust.problem import (
    BatchNorm,
    Bounds,
    Loss,
    MakeOptimizer,
    Network,
    Problem,
    check_loss,
    check_model,
    check_point,
    check_same_shape,
    check_stored,
    checked_inputs,
    checked_norm,
    checked_parameters,
    described,
    inner_modes,
    model_backward,
    no_parameter_gradients,
    sample_losses,
    unreduced,
    without_last_step,
)
from neada.robust.records import Joint, Perturbed, RobustInfo
from neada.robust.samples import Gap, Samples, check_cuttable, check_y_optimizer
from neada.robust.store import PerturbationStore
from neada.sets import Box, Set
from neada.steppers.composed import check_descends
from neada.stopping import StoppingRule
from neada.transactions import (
    Buffers,
    Undo,
    saved_attributes,
    saved_player,
    undone_unless_finite,
)

__all__ = ["MAX_INNER_STEPS", "InputObjective"]

MAX_INNER_STEPS = 100
"""The usual cap of an objective's inner loop."""


class InputObjective(Counted, ABC):
    """Train a network on the worst inputs near those of the batch."""

    side: ClassVar[str] = "ids"
    """What `step` is told about each sample besides its target."""
    y_on_ranks: ClassVar[Literal["same", "local"]] = "local"
    """With a process group: every rank has perturbations of its own samples."""
    _shown: ClassVar[tuple[str, ...]]
    """The attributes that make the problem, for `repr`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        y_optimizer: MakeOptimizer | None,
        stopping: StoppingRule | None,
        per_sample: bool | None,
        store: PerturbationStore | None,
        batch_norm: BatchNorm,
        bounds: Bounds | None,
        inner: InnerOptions,
    ) -> None:
        check_model(model)
        check_choice("batch_norm", batch_norm, ("frozen", "batch"))
        check_choice("per_sample", per_sample, (True, False, None))
        self._is_default = y_optimizer is None
        y_optimizer = self._default_optimizer if y_optimizer is None else y_optimizer
        if not callable(y_optimizer):
            raise TypeError(
                "y_optimizer must be a function that takes [y] and returns a torch optimizer, not "
                f"{type(y_optimizer).__name__}: y is made anew with every batch"
            )
        if store is not None and not (hasattr(store, "get") and hasattr(store, "put")):
            raise TypeError(f"store must be a PerturbationStore, not {type(store).__name__}")
        self.counters = Counters()
        self.model = model
        self.loss_function = loss
        self.y_optimizer = y_optimizer
        self.batch_norm = batch_norm
        self.bounds = None if bounds is None else Box(*check_pair("bounds", bounds))
        self.store = store
        self.grad_scaler: torch.amp.GradScaler | None = None
        self.inner = InnerLoop(stopping, inner, MAX_INNER_STEPS)
        self._all_but_last = without_last_step(stopping, inner) if inner.reuse_last else None
        one_by_one = self._is_default and self._values_are_own and inner.keep in ("auto", "nothing")
        one_by_one = one_by_one and inner.measure != "batch"
        self.per_sample = one_by_one if per_sample is None else per_sample
        self._check_fit(inner)
        self._folds = batch_norm == "frozen" and inner.fold
        self._sample_loss = unreduced(loss)
        # The tensor and optimizer of y that live on from batch to batch, or their saved state.
        self._kept: tuple[Tensor, Optimizer] | None = None
        self._loaded: dict[str, Any] | None = None

    def __repr__(self) -> str:
        own = {name: getattr(self, name) for name in self._shown}
        rest = {"bounds": self.bounds, "store": self.store, "stopping": str(self.inner.stopping)}
        return described(self, self.model, self.loss_function, {**own, **rest})

    def _check_fit(self, inner: InnerOptions) -> None:
        """Raise where the parts do not fit together."""
        if self.per_sample and inner.measure == "batch":
            raise ValueError(
                "per_sample=True stops each sample by its own gradient, and measure='batch' looks "
                "at the gradient of the mean: use measure='sample'"
            )
        if self.per_sample and inner.keep not in ("auto", "nothing"):
            raise ValueError(
                f"keep={inner.keep!r} cannot be carried on when samples leave the batch one by "
                "one: use keep='nothing', or per_sample=False"
            )
        if self.inner.stopping.needs_x_gradient:
            raise ValueError(
                f"the rule '{self.inner.stopping}' needs the x gradient, which is not known while "
                "y is moved: use GradientMapping, InnerSteps, FixedSteps or FixedAccuracy"
            )

    # What the objectives differ in.

    @abstractmethod
    def _values(self, y: Tensor, losses: Tensor, clean: Tensor) -> Tensor:
        """What y maximizes, per sample."""

    @abstractmethod
    def _region(self, clean: Tensor) -> Set | None:
        """Where y lives."""

    @abstractmethod
    def _default_optimizer(self, params: Sequence[Tensor]) -> Optimizer:
        """What moves y unless something else is asked for; it has no learning rate to choose."""

    def _x_losses(self, model: Network, y: Tensor, clean: Tensor, targets: Any) -> Tensor:
        """What the model minimizes, per sample."""
        return self._losses(model, y, targets)

    def _y_losses(self, model: Network, y: Tensor, clean: Tensor, against: Any) -> Tensor:
        """The part of it that depends on y, per sample, when the model is at rest."""
        return self._losses(model, y, against)

    def _against(self, model: Network, clean: Tensor, targets: Any) -> Any:
        """What `_y_losses` compares with, found once for a batch and its inner loop."""
        return targets

    _gap: Gap | None = None
    """What the rule looks at in place of the squared gradient, where that is something else."""

    _first_step_fits = False
    """Whether the default's first step is right where the loss is nearly linear."""

    def _penalty(self, mean_distance_sq: float) -> float:
        """The mean price of a perturbation; 0 where there is none."""
        return 0.0

    def _cold_start(self, clean: Tensor, region: Set | None) -> Tensor:
        return clean.clone()

    @property
    def _values_are_own(self) -> bool:
        """Whether the value of a sample depends on it alone, and is the same when asked again."""
        options = self.inner.options
        return self.batch_norm == "frozen" and options.dropout == "off" and not options.reuse_last

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
            NonFiniteGradient: The loss or a gradient is not finite; nothing was changed.
        """
        check_descends(x_optimizer)
        constraints(x_optimizer)  # takes up sets in the groups
        params = checked_parameters(x_optimizer, [self.model, self.loss_function])
        with self.transaction() as buffers:
            if self._all_but_last is not None:
                worst, loss, end = self._both_gradients(
                    x_optimizer, params, inputs, targets, ids, buffers
                )
            else:
                with distributed.together(params[0], _num_samples(inputs)) as joint:
                    worst = self._worst_near(inputs, targets, ids)
                    self.counters.check_budget()
                    apart = self._communicates
                    if not apart:
                        loss = self._batch_loss(worst)
                        check_loss(loss)
                        buffers.check()
                worst = replace(worst, share=joint.share)
                if apart:
                    with distributed.together(params[0]):
                        loss = self._batch_loss(worst)
                        check_loss(loss)
                        buffers.check()
                x_optimizer.zero_grad()
                model_backward(self.model, loss, params, self.grad_scaler, worst.share)
                self.counters.count("x", len(worst.inputs))
                end = worst.inputs
            value = loss.item()
            grad_sq_x = checked_norm(params)
            calls_value = self.calls_value
            self._move_model(x_optimizer, worst, loss)
            self.outer_steps += 1
        self._keep(ids, end - worst.clean)
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

    def _move_model(self, x_optimizer: Optimizer, worst: Perturbed, loss: Tensor) -> None:
        """One step of the model's optimizer with the gradient in place, which is finite."""
        if not isinstance(x_optimizer, PlayerOptimizer):
            x_optimizer.step()
            tensors.drop_cached_casts()
            return
        mean = distributed.average([], worst.share * loss.detach())
        if not x_optimizer.tries_points:
            x_optimizer.step(lambda: self._trial_loss(worst), value=mean)
            return
        buffers = Buffers([self.model])
        with undone_unless_finite(saved_player(x_optimizer)):
            x_optimizer.step(lambda: self._trial_loss(worst), value=mean)
        if distributed.any_rank(not buffers.are_finite(), loss):
            buffers.undo()  # a trial that was refused has spoiled them

    @contextmanager
    def transaction(self) -> Iterator[Buffers]:
        """A block that is undone where a number in it is not finite, as `step` is.

        For a stepper of one's own on the batch that `joint` gives. What goes back are the buffers
        of the model, counters, the generator, and what y's optimizer keeps; the stepper does the
        same for both players. Stores are written after the block, by the joint batch's `finish`.

        Yields:
            The buffers of the model as they were.
        """
        losses = [self.loss_function] if isinstance(self.loss_function, nn.Module) else []
        buffers = Buffers([self.model, *losses])
        with undone_unless_finite(buffers.undo, *self._saved()):
            yield buffers

    def _saved(self) -> list[Undo]:
        """What puts back all that the inner loop changes."""
        rule = partial(self.inner.load_state_dict, self.inner.state_dict())
        saved: list[Undo] = [saved_attributes(self), saved_attributes(self.counters), rule]
        if self._kept is None:
            return saved
        _, optimizer = self._kept
        return [*saved, saved_player(optimizer)]

    def _check_kept(self, y: Tensor, clean: Tensor) -> None:
        """Raise NonFiniteGradient unless the store, if there is one, can hold what is put there."""
        if self.store is not None:
            check_stored(y - clean, getattr(self.store, "dtype", y.dtype))

    def _keep(self, ids: Tensor | None, delta: Tensor) -> None:
        """Write perturbations to the store, if there is one."""
        if self.store is not None and ids is not None:
            with distributed.together(delta):
                self.store.put(ids, delta)

    def perturb(self, inputs: Tensor, targets: Any, ids: Tensor | None = None) -> Perturbed:
        """Find inputs near these that are worse for the model.

        No parameter is touched, no gradient of one computed, and the modes of the layers are
        restored. The outer index t, by which the rule tightens, is `outer_steps`: it advances with
        `loss`, not here, so that perturbing for an evaluation does no harm. All ranks must call it.

        Args:
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
            ids: The samples' places in the perturbation store, if there is one.
        """
        with self.transaction():
            worst = self._worst_near(inputs, targets, ids)
        self._keep(ids, worst.inputs - worst.clean)
        return worst

    @torch.inference_mode(False)
    def _worst_near(self, inputs: Tensor, targets: Any, ids: Tensor | None) -> Perturbed:
        """What `perturb` finds, before it is kept."""
        before = (self.calls_y, self.calls_value, self.samples_y)
        like = inputs if isinstance(inputs, Tensor) else torch.zeros(())
        with (
            distributed.together(like, _num_samples(inputs)) as joint,
            self._climbed(inputs, targets, ids, self.inner) as (problem, samples, found),
        ):
            worst = samples.answer()
            check_point(worst)
            self._check_kept(worst, problem.clean)
        return self._perturbed(worst, problem, targets, found, before, joint.share)

    @contextmanager
    def _climbed(
        self, inputs: Tensor, targets: Any, ids: Tensor | None, loop: InnerLoop
    ) -> Iterator[tuple[Problem, Samples, InnerResult]]:
        """The samples of a batch after a loop over y; inside the block the model is as in there."""
        model = self._bare_model()
        losses = [self.loss_function] if isinstance(self.loss_function, nn.Module) else []
        with (
            inner_modes(model, self.batch_norm, self.inner.options.dropout),
            no_parameter_gradients([model, *losses]),
            folded(model) if self._folds else nullcontext(model) as fast,
        ):
            clean = checked_inputs(inputs, self.bounds)
            is_sharded = distributed.is_active() and distributed.communicates(model)
            if is_sharded:
                self.counters.check_budget()
                distributed.any_rank(False, clean)  # errors come before parameters are gathered
            tensors.drop_cached_casts()
            against = self._against(fast, clean, targets) if loop.max_steps > 0 else None
            problem = self._problem(clean, against, partial(self._y_losses, fast))
            y, optimizer = self._begin(self._start(problem, ids))
            tries_points = isinstance(optimizer, PlayerOptimizer) and optimizer.tries_points
            samples = Samples(
                problem,
                y,
                optimizer,
                self.counters,
                of_mean=self.inner.options.measure == "batch",
                per_sample=self.per_sample,
                trusts_first_step=self._is_default and self._first_step_fits,
                gap=self._gap,
                grad_scaler=self.grad_scaler,
                in_turns=is_sharded and (self.per_sample or tries_points),
            )
            yield problem, samples, loop.maximize(samples, self.outer_steps, self.counters)
            samples.wait()

    @torch.inference_mode(False)
    def _both_gradients(
        self,
        x_optimizer: Optimizer,
        params: list[Tensor],
        inputs: Tensor,
        targets: Any,
        ids: Tensor | None,
        buffers: Buffers,
    ) -> tuple[Perturbed, Tensor, Tensor]:
        """All inner steps but the last, then one evaluation for that one and for the model.

        The gradients of the model are in place. What is returned is the batch that was evaluated,
        its mean loss, and where the last step has taken y.
        """
        assert self._all_but_last is not None
        before = (self.calls_y, self.calls_value, self.samples_y)
        with (
            distributed.together(params[0], _num_samples(inputs)) as joint,
            self._climbed(inputs, targets, ids, self._all_but_last) as (problem, samples, found),
        ):
            self.counters.check_budget(2)
        y = samples.y
        with distributed.together(params[0]), torch.enable_grad():
            tensors.drop_cached_casts()
            losses = self._x_losses(self.model, y, problem.clean, targets)
            # The price is no function of the model: the mean value has the gradient of the loss.
            values = self._values(y, losses, problem.clean)
            mean = values.mean()
            check_loss(mean)
            buffers.check()
        x_optimizer.zero_grad()
        y.grad = None
        model_backward(self.model, mean, params, self.grad_scaler, joint.share, [y])
        self.counters.count("x", len(y))
        if y.grad is not None:
            y.grad *= samples.weight(joint.share)
        worst = y.detach().clone()
        grad_sq = samples.take(values.detach())
        samples.move()
        self.inner_steps += 1
        end = samples.y.detach()
        with distributed.together(params[0]):
            self._check_kept(end, problem.clean)
        found = InnerResult(grad_sq, found.steps + 1, str(self.inner.stopping))
        worse = self._perturbed(worst, problem, targets, found, before, joint.share)
        return worse, losses.mean().detach(), end

    def _perturbed(
        self,
        worst: Tensor,
        problem: Problem,
        targets: Any,
        found: InnerResult,
        before: tuple[int, int, int],
        share: float,
    ) -> Perturbed:
        """A perturbed batch with what it cost since the counters were as before."""
        distance_sq = problem.distances_sq(worst)
        grad_sq = found.grad_sq
        return Perturbed(
            worst,
            targets,
            problem.clean,
            distance_sq.sqrt().mean().item(),
            self._penalty(distance_sq.mean().item()),
            grad_sq.mean().item() if isinstance(grad_sq, Tensor) else grad_sq,
            self.calls_y - before[0],
            self.calls_value - before[1],
            self.samples_y - before[2],
            found.steps,
            found.reason,
            share,
        )

    def joint(self, inputs: Tensor, targets: Any, ids: Tensor | None = None) -> Joint:
        r"""The batch for a method that moves the model and the samples by one evaluation.

        The objective is a mean, so a gradient of y is measured, and a step taken, as if its
        :math:`n` samples were divided by :math:`\sqrt n`: a sum of squares over the steps then
        gathers the mean over the samples of their squared gradients, whatever the size of the
        batch. The model is evaluated in the mode it is in.

        Args:
            inputs: A batch, samples first; it is not modified.
            targets: What the loss compares with.
            ids: The samples' places in the perturbation store, if there is one.
        """
        like = next(self.model.parameters())
        with distributed.together(like, _num_samples(inputs)) as ranks:
            clean = checked_inputs(inputs, self.bounds)
            losses = partial(self._x_losses, self._bare_model())
            problem = self._problem(clean, targets, losses)
            y = self._start(problem, ids).requires_grad_()
        penalty = self._penalty(problem.distances_sq(y.detach()).mean().item())
        share, num_ranks = ranks.share, distributed.num_ranks()
        num_samples = num_ranks * len(y) / share if share > 0.0 else 1.0  # of all ranks
        scale = math.sqrt(num_samples)

        def mean_value() -> Tensor:
            scaled = y * 1.0
            # The mean over the ranks divides what is here by their number once more.
            factor = scale / num_ranks
            scaled.register_hook(lambda g: g * factor)  # type: ignore[no-untyped-call]
            value = problem.values(scaled).mean()
            return value if share == 1.0 else share * value

        def check() -> None:
            with distributed.together(like):
                self._check_kept(y.detach(), problem.clean)

        def finish() -> tuple[float, float]:
            if self.store is not None and ids is not None:
                self.store.put(ids, y.detach() - problem.clean)
            return penalty, problem.distances_sq(y.detach()).sqrt().mean().item()

        return Joint(y, problem.region, mean_value, scale, check, finish)

    def loss(self, worst: Perturbed, *, advance: bool = True) -> Tensor:
        """The mean loss of a perturbed batch, with its graph: call `backward` on it.

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
        self.outer_steps += int(advance)
        return loss if worst.share == 1.0 else worst.share * loss

    def state_dict(self) -> dict[str, Any]:
        """Counters, t among them, what the inner loop carries on, and the store's state."""
        kept = self._loaded
        if self._kept is not None:
            y, optimizer = self._kept
            kept = {"shape": list(y.shape), "optimizer": optimizer.state_dict()}
        return {
            "class": type(self).__name__,
            "counters": self.counters.state_dict(),
            "inner": self.inner.state_dict(),
            "y": kept,
            "store": None if self.store is None else self.store.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit; the y optimizer does so with the next batch."""
        check_origin(self, state_dict)
        if (state_dict["store"] is None) != (self.store is None):
            has, lacks = ("state", "objective") if self.store is None else ("objective", "state")
            raise ValueError(
                f"the {has} has a perturbation store and the {lacks} has none: construct the "
                "objective as it was when the state was saved"
            )
        if self.store is not None:
            self.store.load_state_dict(state_dict["store"])
        self.counters.load_state_dict(state_dict["counters"])
        self.inner.load_state_dict(state_dict["inner"])
        self._kept, self._loaded = None, state_dict["y"]

    # How it is done.

    def _problem(
        self, clean: Tensor, against: Any, losses: Callable[[Tensor, Tensor, Any], Tensor]
    ) -> Problem:
        """What y maximizes on a batch, and where it lives."""

        def values(y: Tensor, clean: Tensor, against: Any) -> Tensor:
            return self._values(y, losses(y, clean, against), clean)

        return Problem(values, self._region, clean, against, self._region(clean))

    def _start(self, problem: Problem, ids: Tensor | None) -> Tensor:
        """Where y begins: as stored, or else near the clean inputs."""
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

    def _begin(self, start: Tensor) -> tuple[Tensor, Optimizer]:
        """The tensor y and its optimizer for a batch: new ones, or those that were kept."""
        if self._kept is not None:
            y, optimizer = self._kept
            check_same_shape(tuple(y.shape), start)
            with torch.no_grad():
                y.copy_(start)
            self.inner.renew(optimizer)
            return y, optimizer
        y = start.requires_grad_()
        optimizer = self.y_optimizer([y])
        check_y_optimizer(optimizer, y)
        if self.per_sample:
            check_cuttable(optimizer)
        if self.inner.options.keep in ("auto", "nothing"):
            return y, optimizer
        self.inner.check_keep(optimizer)
        if self._loaded is not None:
            check_same_shape(tuple(self._loaded["shape"]), start)
            # A copy: torch takes over the tensors, which then change with every step.
            optimizer.load_state_dict(copy.deepcopy(self._loaded["optimizer"]))
            self.inner.renew(optimizer)
            self._loaded = None
        self._kept = (y, optimizer)
        return y, optimizer

    def _bare_model(self) -> nn.Module:
        """The network itself: y's gradients are not averaged over ranks."""
        return distributed.bare(self.model)

    @property
    def _communicates(self) -> bool:
        return distributed.is_active() and distributed.communicates(self.model)

    def _losses(self, model: Network, inputs: Tensor, targets: Any) -> Tensor:
        return sample_losses(self._sample_loss(model(inputs), targets), len(inputs))

    def _trial_loss(self, worst: Perturbed) -> Tensor:
        """The loss at a point that the model's optimizer only tries."""
        with distributed.together(worst.inputs):
            self.counters.check_budget()
        self.calls_value += 1
        with torch.no_grad():
            return distributed.average([], worst.share * self._batch_loss(worst))

    def _batch_loss(self, worst: Perturbed) -> Tensor:
        tensors.drop_cached_casts()
        return self._x_losses(self.model, worst.inputs, worst.clean, worst.targets).mean()


def _num_samples(inputs: object) -> int:
    """How many there are; what is wrong with them is said elsewhere."""
    return len(inputs) if isinstance(inputs, Tensor) and inputs.dim() > 0 else 1
