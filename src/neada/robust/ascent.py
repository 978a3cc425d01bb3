"""One batch on its way up: gradient, step, and samples that leave when they are done."""

import math

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import distributed, tensors
from neada.optim.base import PlayerOptimizer, RememberingOptimizer
from neada.optim.constrain import constrain
from neada.robust.counters import Counted
from neada.robust.problem import Problem
from neada.robust.rows import cut_to_rows
from neada.scalars import Scalar, all_finite

__all__ = ["Ascent"]


class Ascent:
    """The samples that still move, and those that are done.

    Args:
        problem: What each row maximizes.
        y: The leaf that the optimizer moves.
        optimizer: It ascends.
        counted: Takes the counts.
        of_mean: y maximizes the mean over the batch, not each row its own objective.
        per_sample: Mappings are measured, and samples retired, one by one.
        grad_scaler: Scales the objective before its gradient is taken.

    Attributes:
        answer: The points of the samples that are done, in the order of the batch.
    """

    def __init__(
        self,
        problem: Problem,
        y: Tensor,
        optimizer: Optimizer,
        counted: Counted,
        *,
        of_mean: bool,
        per_sample: bool,
        grad_scaler: torch.amp.GradScaler | None,
    ) -> None:
        self.problem = problem
        self.y = y
        self.optimizer = optimizer
        self.of_mean = of_mean
        self.per_sample = per_sample
        self.counted = counted
        self.grad_scaler = grad_scaler
        self.answer = y
        if self.problem.region is not None:
            constrain(optimizer, self.problem.region)
        self._values = y.new_empty(0)
        self._mapping_sq: Scalar = torch.nan
        # With per_sample: the places in the batch of the samples that still move.
        self._places: Tensor | None = None
        self._num_samples = len(y)
        self._retired_sq = 0.0
        self._tally: dict[str, int] = {}

    def gradient(self) -> Scalar:
        """Leave the gradient in `y.grad`; the squared mapping, one per sample or for the batch."""
        self.counted.check_budget()
        with torch.enable_grad():
            values = self.problem.values(self.y)
            if not values.requires_grad:
                raise ValueError("the loss does not depend on the inputs, so nothing can be worse")
            total = values.mean() if self.of_mean else values.sum()
            if self.grad_scaler is not None:
                total = self.grad_scaler.scale(total)
            (gradient,) = torch.autograd.grad(total, self.y)
        if self.grad_scaler is not None:
            gradient.div_(self.grad_scaler.get_scale())
        self.y.grad = gradient
        self.counted.calls_y += 1
        self.counted.samples_y += len(self.y)
        self._values = values.detach()
        self._mapping_sq = self._measured(gradient)
        return self._mapping_sq

    def _measured(self, gradient: Tensor) -> Scalar:
        # A gradient that is not finite has no mapping; its own norm tells every rank.
        finite = self.problem.region is None or math.isfinite(gradient.sum().item())
        mapping = gradient
        if self.problem.region is not None and finite:
            mapping = self.problem.region.gradient_mapping(self.y, gradient)
        mapping_sq = tensors.squared_norm([mapping], rowwise=self.per_sample)
        if not self.per_sample:
            divisor = 1 if self.of_mean else self._num_samples
            mapping_sq = distributed.mean(mapping_sq / divisor, self.y)
        if not all_finite(mapping_sq):
            tensors.raise_non_finite([gradient])
        return mapping_sq

    def move(self) -> None:
        """One step of the optimizer with the gradient in `y.grad`."""
        if not isinstance(self.optimizer, PlayerOptimizer):
            self.optimizer.step()
            return
        by_row = bool(self.optimizer.param_groups[0]["rowwise"])

        def value(values: Tensor) -> Tensor:
            if by_row:
                return values / self._num_samples if self.of_mean else values
            return values.mean() if self.of_mean else values.sum()

        def evaluate() -> Tensor:
            self.counted.check_budget()
            self.counted.calls_value += 1
            with torch.no_grad():
                return value(self.problem.values(self.y))

        self.optimizer.step(evaluate, value=value(self._values))

    def retire(self, done: Tensor, reason: str) -> None:
        """Take finished samples out of everything that is evaluated and moved."""
        assert isinstance(self._mapping_sq, Tensor)
        if self._places is None:
            self._places = torch.arange(len(self.y), device=self.y.device)
            self.answer = torch.empty_like(self.y, requires_grad=False)
        gone, left = done.nonzero().squeeze(1), (~done).nonzero().squeeze(1)
        self.answer[self._places[gone]] = self._position()[gone]
        self._retired_sq += self._mapping_sq[gone].sum().item()
        self._count_reason(reason, len(gone))
        smaller = self.y.detach()[left].requires_grad_()
        smaller.grad = None if self.y.grad is None else self.y.grad[left]
        cut_to_rows(self.optimizer, self.y, smaller, left)
        self.y = smaller
        self.problem = self.problem.take(left)
        if self.problem.region is not None:
            constrain(self.optimizer, self.problem.region)
        self._places, self._values = self._places[left], self._values[left]
        self._mapping_sq = self._mapping_sq[left]

    def retire_all(self, reason: str) -> None:
        """The rest of the samples are done."""
        if self._places is None:
            self.answer = self._position()
        else:
            self.answer[self._places] = self._position()
        self._count_reason(reason, len(self.y))

    def last_mapping_sq(self) -> float:
        """The squared mapping that the rule saw last; over samples their mean."""
        if isinstance(self._mapping_sq, Tensor):
            return (self._retired_sq + self._mapping_sq.sum().item()) / self._num_samples
        return self._mapping_sq

    def reason(self) -> str:
        """Why the samples stopped, with numbers where the reasons differ."""
        if len(self._tally) == 1:
            return next(iter(self._tally))
        return ", ".join(f"{reason} ({num})" for reason, num in self._tally.items())

    def _count_reason(self, reason: str, num_samples: int) -> None:
        self._tally[reason] = self._tally.get(reason, 0) + num_samples

    def _position(self) -> Tensor:
        """Where y is, or its average where the optimizer keeps one."""
        optimizer = self.optimizer
        if isinstance(optimizer, RememberingOptimizer) and optimizer._keeps_average():
            with optimizer.averaged():
                return self.y.detach().clone()
        return self.y.detach()
