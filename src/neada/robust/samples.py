"""The inner loop's view of a training batch: one maximization problem per sample."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import parallel, tensors
from neada.inner import Counters, backward
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constrain, constraints
from neada.optim.spectral import SPG
from neada.robust.losses import take_rows
from neada.scalars import Scalar, all_finite, is_finite, where
from neada.sets import Set
from neada.steppers.composed import check_ascends

__all__ = ["Gap", "Samples", "check_y_optimizer", "cut_to_rows"]

Gap = Callable[[Tensor, Tensor, Set], Tensor]


class Samples:
    """An oracle whose rows are the samples of a batch; those that are done can be removed.

    Args:
        value: The objective of each sample, with its graph, from y, clean inputs and `against`.
        region_around: The region of the samples, from their clean inputs.
        clean: The clean inputs.
        against: What the objective compares with: tensors with a row per sample.
        y: The tensor that the optimizer moves.
        optimizer: Its optimizer, which maximizes.
        counters: Where evaluations are counted.
        of_mean: y maximizes the mean over the batch, not each sample its own objective.
        per_sample: Gradients are measured, and samples removed, one by one.
        trusts_first_step: The first step of a sample whose gradient is small needs no check.
        gap: The number that the rule is evaluated on, per sample, from y, its gradient and its
            region; None for the squared gradient mapping.
        grad_scaler: Scales the objective before its gradient is taken.
    """

    def __init__(
        self,
        value: Callable[[Tensor, Tensor, Any], Tensor],
        region_around: Callable[[Tensor], Set | None],
        clean: Tensor,
        against: Any,
        y: Tensor,
        optimizer: Optimizer,
        counters: Counters,
        *,
        of_mean: bool,
        per_sample: bool,
        trusts_first_step: bool,
        gap: Gap | None,
        grad_scaler: torch.amp.GradScaler | None,
    ) -> None:
        self.rows_leave = per_sample
        self.trusts_first_step = per_sample and trusts_first_step
        self._value, self._region_around = value, region_around
        self._clean, self._against, self._y = clean, against, y
        self._optimizer = optimizer
        self._counters = counters
        self._of_mean = of_mean
        self._gap = gap
        self._grad_scaler = grad_scaler
        self._num_samples = len(y)
        self._num_joint = float(len(y))  # samples of all ranks
        if of_mean:
            self._num_joint = parallel.num_ranks() * parallel.agree(self._num_joint)
        self._values = y.new_empty(0)
        self._finite = True
        self._all_done = False  # on all ranks
        self._moved = True  # since the values were evaluated
        # Once samples were removed: where they ended, and the places of the others in the batch.
        self._ends: Tensor | None = None
        self._places = torch.empty(0)
        self._constrain()

    def evaluate(self) -> Scalar:
        """Leave the gradient in `y.grad`; the squared mapping, per sample or for the batch."""
        self._counters.check_budget()
        with torch.enable_grad():
            values = self._evaluated()
            if not values.requires_grad:
                raise ValueError("the loss does not depend on the inputs, so nothing can be worse")
            self._y.grad = None
            backward(self._total(values), [self._y], self._grad_scaler)
        self._counters.count("y", len(self._y))
        is_first, self._values, self._moved = len(self._values) == 0, values.detach(), False
        measured = self._measure()
        # An optimizer that keeps its best point goes back there from a value that is not finite.
        keeps_best = isinstance(self._optimizer, SPG) and self._optimizer.keeps_best
        if is_first or not keeps_best:
            self._finite &= all_finite(self._values)
        return measured

    def _measure(self) -> Scalar:
        gradient, region = self._y.grad, self._region
        assert gradient is not None
        # The sum of a half-precision gradient may overflow where no entry does.
        wide = torch.promote_types(gradient.dtype, torch.float32)
        self._finite = math.isfinite(gradient.sum(dtype=wide).item())
        stalled = self._optimizer.stalled if isinstance(self._optimizer, SPG) else False
        divisor = 1 if self._of_mean else self._num_samples
        if region is not None and self._finite and self._gap is not None:
            measured: Scalar = self._gap(self._y.detach(), gradient, region)
            divisor = self._num_samples
        else:
            mapping = gradient
            if region is not None and self._finite:
                mapping = region.gradient_mapping(self._y, gradient)
            by_row = self.rows_leave or isinstance(stalled, Tensor)
            measured = tensors.squared_norm([mapping], rowwise=by_row)
        if isinstance(measured, Tensor):
            # A sample that gains nothing any more is done, whatever its gradient.
            measured = where(stalled & is_finite(measured), 0.0, measured)
        if not self.rows_leave:
            total = measured.sum().item() if isinstance(measured, Tensor) else measured
            if self._of_mean:  # the squared norm of a gradient that is spread over the ranks
                measured = parallel.num_ranks() * parallel.agree(total / divisor)
            else:
                measured = parallel.agree(total / divisor, weight=self._num_samples)
        self._finite = all_finite(measured)
        return measured

    def agree_to_stop(self, done: bool) -> bool:
        """Whether all ranks are done; raises on all of them if one has NaN or Inf."""
        left = float(not (done or self._all_left)) if self._finite else math.nan
        left = parallel.agree(left)
        if math.isnan(left):
            tensors.raise_non_finite([self._y.grad], self._values)
        self._all_done = left == 0.0
        return self._all_done

    def move(self) -> None:
        """One step of the optimizer with the gradient in `y.grad`."""
        self._moved = True
        if not isinstance(self._optimizer, PlayerOptimizer):
            self._optimizer.step()
            return
        self._optimizer.step(
            lambda: self._objective(self._values_only()), value=self._objective(self._values)
        )

    def _evaluated(self) -> Tensor:
        tensors.drop_cached_casts()
        return self._value(self._y, self._clean, self._against)

    def _values_only(self) -> Tensor:
        self._counters.check_budget()
        self._counters.calls_value += 1
        with torch.no_grad():
            return self._evaluated()

    def _objective(self, values: Tensor) -> Tensor:
        """What the optimizer maximizes, of the values of the samples: one number, or one each."""
        if not self._optimizer.param_groups[0]["rowwise"]:
            return self._total(values)
        return values / self._num_joint if self._of_mean else values

    def _total(self, values: Tensor) -> Tensor:
        if not self._of_mean:
            return values.sum()
        return values.sum() / self._num_joint if parallel.is_active() else values.mean()

    def release(self, done: Tensor, *, unseen: bool = False) -> None:
        """Remove some samples from everything that is evaluated and moved.

        On several ranks one sample is always left, so that a rank whose samples are done evaluates
        as often as the others.
        """
        if self._ends is None:
            self._places = torch.arange(len(self._y), device=self._y.device)
            self._ends = torch.empty_like(self._y, requires_grad=False)
        if len(self._places) == 0:
            return
        gone, left = done.nonzero().squeeze(1), (~done).nonzero().squeeze(1)
        position = self._y.detach() if unseen else self._position()
        self._ends[self._places[gone]] = position[gone]
        self._places = self._places[left]
        if len(left) == 0:
            left = gone[:1]
        self._y = cut_to_rows(self._optimizer, self._y, left)
        self._clean, self._against = self._clean[left], take_rows(self._against, left)
        self._values = self._values[left]
        self._constrain()

    @property
    def _all_left(self) -> bool:
        """Whether all samples of this rank were removed."""
        return self._ends is not None and len(self._places) == 0

    def answer(self) -> Tensor:
        """Where the samples are, in the order of the batch; a new tensor.

        Where the optimizer keeps its best point, the last move takes part, by one evaluation
        without a gradient.
        """
        if self._ends is None:
            return self._position().clone()
        if len(self._places) or not self._all_done:  # other ranks evaluate their last move
            position = self._position()
            self._ends[self._places] = position[: len(self._places)]
        return self._ends

    def _position(self) -> Tensor:
        """Where y is, or its average or best point where the optimizer keeps one."""
        optimizer = self._optimizer
        if isinstance(optimizer, PlayerOptimizer) and optimizer.keeps_average:
            with optimizer.averaged():
                return self._y.detach().clone()
        if isinstance(optimizer, SPG) and optimizer.keeps_best:
            if self._moved:
                self._values, self._moved = self._values_only(), False
            with optimizer.best(self._objective(self._values)):
                return self._y.detach().clone()
        return self._y.detach()

    def _constrain(self) -> None:
        """Give the optimizer the region of the samples that are left."""
        self._region = self._region_around(self._clean)
        if self._region is not None:
            constrain(self._optimizer, self._region)


def check_y_optimizer(optimizer: object, y: Tensor, per_sample: bool) -> None:
    """Raise unless the optimizer maximizes over y alone, without a set, by rows if required."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "the adversary's optimizer must be a function that returns a torch optimizer, but it "
            f"returned {type(optimizer).__name__}: use "
            "lambda params: torch.optim.Adam(params, lr=0.01, maximize=True), for example"
        )
    check_ascends(optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if len(params) != 1 or params[0] is not y:
        raise ValueError("the adversary's optimizer must move the tensor it is given and no other")
    if any(constraint is not None for constraint in constraints(optimizer)):
        raise ValueError(
            "the adversary's optimizer has a set: pass the valid range as bounds=(low, high) to "
            "the objective instead, or use AdversarialTraining"
        )
    name = type(optimizer).__name__
    if not per_sample:
        return
    if isinstance(optimizer, PlayerOptimizer):
        if optimizer.uses_gradient_norm and not optimizer.param_groups[0]["rowwise"]:
            raise ValueError(
                f"per_sample=True stops samples one by one, and this {name} couples them: "
                "construct it with rowwise=True"
            )
    elif not isinstance(optimizer, _ELEMENTWISE):
        raise ValueError(
            f"per_sample=True removes finished samples from the optimizer, and {name} is not known "
            "to treat every entry independently: use Adam, SGD or one of neada.optim with "
            "rowwise=True"
        )


_ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop),
    *(torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.Rprop, torch.optim.ASGD),
)


def cut_to_rows(optimizer: Optimizer, y: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of y as a new leaf, and give it to the optimizer with its state."""
    smaller = y.detach()[rows].requires_grad_()
    smaller.grad = None if y.grad is None else y.grad[rows]
    optimizer.param_groups[0]["params"] = [smaller]
    memory = optimizer.state.pop(y, None)
    if memory is not None:
        optimizer.state[smaller] = {
            name: entry[rows] if getattr(entry, "shape", None) == y.shape else entry
            for name, entry in memory.items()
        }
    if isinstance(optimizer, PlayerOptimizer):
        optimizer.keep_rows(rows)
    return smaller
