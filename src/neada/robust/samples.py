"""The inner loop's view of a training batch: one problem per sample."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import distributed, tensors
from neada.inner import Counters, backward
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constrain, constraints
from neada.optim.spectral import SPG
from neada.robust.problem import Problem
from neada.scalars import Scalar, all_finite, is_finite, where
from neada.sets import Set
from neada.steppers.composed import check_ascends

__all__ = ["Gap", "Samples", "check_cuttable", "check_y_optimizer", "cut_to_rows"]

Gap = Callable[[Tensor, Tensor, Set], Tensor]


class Samples:
    """An oracle whose rows are the samples of a batch, which may leave it when they are done.

    Args:
        problem: What each sample maximizes.
        y: The tensor that the optimizer moves.
        optimizer: It ascends.
        counters: Take the counts.
        of_mean: y maximizes the mean over the batch, not each sample its own objective.
        per_sample: Gradients are measured, and samples released, one by one.
        trusts_first_step: The first step of a sample whose gradient is small needs no check.
        gap: What the rule looks at, per sample, from y, its gradient and where it lives; None for
            the squared gradient mapping.
        grad_scaler: Scales the objective before its gradient is taken.
        in_turns: The ranks gather the model's parameters with every evaluation, so all of them
            evaluate as often as the one that needs most.
    """

    def __init__(
        self,
        problem: Problem,
        y: Tensor,
        optimizer: Optimizer,
        counters: Counters,
        *,
        of_mean: bool,
        per_sample: bool,
        trusts_first_step: bool,
        gap: Gap | None,
        grad_scaler: torch.amp.GradScaler | None,
        in_turns: bool,
    ) -> None:
        self.rows_leave = per_sample
        self.trusts_first_step = per_sample and trusts_first_step
        self._problem = problem
        self._y = y
        self._optimizer = optimizer
        self._counters = counters
        self._of_mean = of_mean
        self._gap = gap
        self._grad_scaler = grad_scaler
        self._in_turns = in_turns
        self._whole = (problem, y)
        self._num_samples = len(y)
        # What the sum over the samples is divided by where y maximizes the mean of all ranks.
        self._num_joint: float = len(y)
        if of_mean and distributed.is_active():
            num_mean = distributed.mean(distributed.counted(len(y)), y)
            self._num_joint = num_mean * distributed.num_ranks()
        self._values = y.new_empty(0)
        self._moved = True  # since the values were evaluated
        # Once samples have left: where they ended, and the places of the others in the batch.
        self._ends: Tensor | None = None
        self._places = torch.empty(0)
        if problem.region is not None:
            constrain(optimizer, problem.region)

    def evaluate(self) -> Scalar:
        """Leave the gradient in `y.grad`; the squared mapping, per sample or for the batch."""
        self._counters.check_budget()
        self._take_turn()
        with torch.enable_grad():
            values = self._problem.values(self._y)
            if not values.requires_grad:
                raise ValueError("the loss does not depend on the inputs, so nothing can be worse")
            total = self._total(values)
            self._y.grad = None
            backward(total, [self._y], self._grad_scaler)
        return self.take(values.detach())

    @property
    def y(self) -> Tensor:
        """The samples that are still evaluated, as the leaf that the optimizer moves."""
        return self._y

    def take(self, values: Tensor) -> Scalar:
        """Count an evaluation that left its gradient in `y.grad`, and measure that.

        Args:
            values: The objective of each sample there.
        """
        self._counters.count("y", len(self._y))
        self._values, self._moved = values, False
        return self._measure()

    def _measure(self) -> Scalar:
        gradient = self._y.grad
        assert gradient is not None
        region = self._problem.region
        # A gradient that is not finite has no mapping.
        mapping = gradient
        # The sum of a half-precision gradient may overflow where no entry does.
        wide = torch.promote_types(gradient.dtype, torch.float32)
        finite = math.isfinite(gradient.sum(dtype=wide).item())
        stalled = self._optimizer.stalled if isinstance(self._optimizer, SPG) else False
        if region is not None and finite and self._gap is None:
            mapping = region.gradient_mapping(self._y, gradient)
        if region is not None and finite and self._gap is not None:
            measured: Scalar = self._gap(self._y.detach(), gradient, region)
            divisor = self._num_samples
        else:
            by_row = self.rows_leave or isinstance(stalled, Tensor)
            measured = tensors.squared_norm([mapping], rowwise=by_row)
            divisor = 1 if self._of_mean else self._num_samples
        if isinstance(measured, Tensor):
            # A sample that gains nothing any more is done, whatever its gradient.
            measured = where(stalled & is_finite(measured), 0.0, measured)
        if not self.rows_leave:
            total = measured.sum().item() if isinstance(measured, Tensor) else measured
            measured = total / divisor
        if not all_finite(measured):
            tensors.raise_non_finite([gradient])
        return measured

    def agreed(self, grad_sq: Scalar) -> Scalar:
        """That of the samples of all ranks, unless samples stop one by one."""
        if isinstance(grad_sq, Tensor) or not distributed.is_active():
            return grad_sq
        if self._of_mean:  # the squared norm of a gradient that is spread over the ranks
            own = grad_sq * distributed.counted(1)
            return distributed.num_ranks() * distributed.mean(own, self._y)
        num_counted = distributed.counted(self._num_samples)
        return distributed.mean(grad_sq, self._y, weight=num_counted)

    def weight(self, share: float) -> float:
        """The factor from y's gradient of this rank's share of the mean to the one that moves y."""
        if self._of_mean or share == 0.0:
            return 1.0 / distributed.num_ranks()
        return self._num_samples / share  # each sample maximizes its own value

    def move(self) -> None:
        """One step of the optimizer with the gradient in `y.grad`."""
        self._moved = True
        if not isinstance(self._optimizer, PlayerOptimizer):
            self._optimizer.step()
            return
        self._optimizer.step(
            lambda: self._objective(self._values_only()), value=self._objective(self._values)
        )

    def _objective(self, values: Tensor) -> Tensor:
        """What the optimizer maximizes, of the values of the samples: one number, or one each."""
        if self._optimizer.param_groups[0]["rowwise"]:
            return values / self._num_joint if self._of_mean else values
        return self._total(values)

    def _total(self, values: Tensor) -> Tensor:
        if not self._of_mean:
            return values.sum()
        return values.sum() / self._num_joint if distributed.is_active() else values.mean()

    def _values_only(self) -> Tensor:
        self._counters.check_budget()
        self._counters.calls_value += 1
        self._take_turn()
        if self._in_turns:  # others may take a gradient in this turn, which gathers once more
            return self._with_gradient(self._problem, self._y)
        with torch.no_grad():
            return self._problem.values(self._y)

    def _take_turn(self) -> None:
        if self._in_turns:
            distributed.any_rank(True, self._y)

    def wait(self) -> None:
        """Evaluate as often as the ranks do that are not done; what comes out is not used."""
        problem, y = self._whole
        row = torch.zeros(1, dtype=torch.int64, device=y.device)
        while self._in_turns and distributed.any_rank(False, y):
            self._with_gradient(problem.take(row), problem.clean[row])

    def _with_gradient(self, problem: Problem, y: Tensor) -> Tensor:
        """Values, whose gradient is computed for nobody."""
        with torch.enable_grad():
            leaf = y.detach().clone().requires_grad_()
            values = problem.values(leaf)
            torch.autograd.grad(values.sum(), leaf)
        return values.detach()

    def release(self, done: Tensor, *, unseen: bool = False) -> None:
        """Take some samples out of everything that is evaluated and moved."""
        if self._ends is None:
            self._places = torch.arange(len(self._y), device=self._y.device)
            self._ends = torch.empty_like(self._y, requires_grad=False)
        gone, left = done.nonzero().squeeze(1), (~done).nonzero().squeeze(1)
        position = self._y.detach() if unseen else self._position()
        self._ends[self._places[gone]] = position[gone]
        self._y = cut_to_rows(self._optimizer, self._y, left)
        self._problem = self._problem.take(left)
        if self._problem.region is not None:
            constrain(self._optimizer, self._problem.region)
        self._places, self._values = self._places[left], self._values[left]

    def answer(self) -> Tensor:
        """Where the samples are, in the order of the batch; a tensor of its own.

        Where the optimizer goes back from worse points, its last move is judged as well, by one
        evaluation without a gradient.
        """
        if self._ends is None:
            return self._position().clone()
        if len(self._places):
            self._ends[self._places] = self._position()
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


def check_y_optimizer(optimizer: object, y: Tensor) -> None:
    """Raise unless the optimizer maximizes over y, over nothing else, and has no set of its own."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "y_optimizer must be a function that takes [y] and returns a torch optimizer, but it "
            f"returned {type(optimizer).__name__}: use "
            "lambda params: torch.optim.Adam(params, lr=0.01, maximize=True), for example"
        )
    check_ascends(optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if len(params) != 1 or params[0] is not y:
        raise ValueError(
            "y_optimizer must return an optimizer of the tensors it is given and of no others"
        )
    if any(constraint is not None for constraint in constraints(optimizer)):
        raise ValueError(
            "the y optimizer has a set of its own: give the valid range as bounds=(low, high) to "
            "the objective instead, or use AdversarialTraining"
        )


# Rows that leave.

_ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop),
    *(torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.Rprop, torch.optim.ASGD),
)


def check_cuttable(optimizer: Optimizer) -> None:
    """Raise unless rows can leave the optimizer one by one."""
    name = type(optimizer).__name__
    if isinstance(optimizer, PlayerOptimizer):
        if optimizer.uses_gradient_norm and not optimizer.param_groups[0]["rowwise"]:
            raise ValueError(
                f"per_sample=True stops samples one by one, and this {name} ties them together: "
                "construct it with rowwise=True"
            )
    elif not isinstance(optimizer, _ELEMENTWISE):
        raise ValueError(
            f"per_sample=True takes finished samples out of the y optimizer, and {name} is not "
            "known to treat every entry by itself: use Adam, SGD or one of neada.optim with "
            "rowwise=True"
        )


def cut_to_rows(optimizer: Optimizer, y: Tensor, rows: Tensor) -> Tensor:
    """Some rows of y as a new leaf, and its optimizer with what it remembers about them."""
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
