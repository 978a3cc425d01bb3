"""The inner loop's view of a training batch: one maximization problem per sample."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import parallel, tensors
from neada.inner import backward
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constrain, installed_sets
from neada.optim.spectral import SPG
from neada.robust.losses import Network, take_rows
from neada.scalars import Flag, Scalar
from neada.sets import Set
from neada.steppers.composed import check_ascends

if TYPE_CHECKING:
    from neada.robust.objective import InputObjective

__all__ = ["Samples", "check_y_optimizer", "cut_to_rows"]


class Samples:
    """The inner problem of a batch; samples that are done can be removed from it.

    Args:
        objective: The value of each sample, its region, and the adversary.
        model: The network as the inner loop evaluates it.
        y: Where the samples start; it requires a gradient.
        optimizer: What moves y.
        region: Where y may be.
        clean: The clean inputs.
        reference: What the value compares with.
    """

    def __init__(
        self,
        objective: "InputObjective",
        model: Network,
        y: Tensor,
        optimizer: Optimizer,
        region: Set | None,
        clean: Tensor,
        reference: Any,
    ) -> None:
        adversary = objective.adversary
        self._objective, self._model, self._counters = objective, model, objective.counters
        self._y, self._optimizer, self._region = y, optimizer, region
        self._clean, self._reference = clean, reference
        self._per_sample = adversary.stops_per_sample
        is_default = adversary.optimizer is None
        self.trusts_first_step = objective._first_step_fits and is_default and self._per_sample
        self._rowwise = optimizer.param_groups[0].get("rowwise", False)
        self._keeps_best = isinstance(optimizer, SPG) and optimizer.keeps_best
        self._num_samples = len(clean)
        # The values of the last evaluation, and whether y has moved since.
        self._values: Tensor | None = None
        self._values_are_stale = True
        self._is_finite = True  # the last evaluation
        self._all_ranks_done = False
        # The final points of the removed samples, None before any is removed; the positions in the
        # batch of the others.
        self._final_y: Tensor | None = None
        self._remaining = torch.arange(len(clean), device=clean.device)
        self._constrain()

    def evaluate(self) -> Scalar:
        """Put the gradient in `y.grad`; return its squared mapping, per sample or for the batch."""
        self._counters.check_budget()
        with torch.enable_grad():
            values = self._forward()
            if not values.requires_grad:
                raise ValueError(
                    "the loss does not depend on the inputs: there is nothing to perturb"
                )
            self._y.grad = None
            backward(values.sum(), [self._y], self._objective.grad_scaler)
        self._counters.count("y", len(self._y))
        measured = self._measure()
        # SPG returns from a value that is NaN or Inf to its best point, if the gradient is finite.
        can_go_back = self._keeps_best and self._values is not None
        checked = measured if can_go_back else measured + values.detach().double()
        self._is_finite = math.isfinite(torch.as_tensor(checked).sum().item())
        self._values, self._values_are_stale = values.detach(), False
        if not self._per_sample:
            return self._agreed(measured.sum().item() if isinstance(measured, Tensor) else measured)
        assert isinstance(measured, Tensor)
        if self._final_y is None:
            return measured
        full = measured.new_zeros(self._num_samples)
        full[self._remaining] = measured[: len(self._remaining)]
        return full

    def _measure(self) -> Scalar:
        """What the rule is evaluated on: one number for each sample that is left, or their sum."""
        y, gradient = self._y.detach(), self._y.grad
        assert gradient is not None
        # The sum of a half-precision gradient may overflow where no entry does.
        wide = torch.promote_types(gradient.dtype, torch.float32)
        by_sample = self._per_sample or self._rowwise
        measured: Scalar
        if self._region is None or not math.isfinite(gradient.sum(dtype=wide).item()):
            measured = tensors.squared_norm([gradient], by_sample)
        else:
            measured = self._objective._inaccuracy(y, gradient, self._region, by_sample)
        has_moved = self._values is not None
        if has_moved and isinstance(self._optimizer, SPG) and isinstance(measured, Tensor):
            # A sample whose steps gain too little counts as converged, whatever its gradient.
            measured = torch.where(self._optimizer.stalled & measured.isfinite(), 0.0, measured)
        return measured

    def _agreed(self, total: float) -> float:
        """The mean over the samples of all ranks, from the sum over those of this rank."""
        joint = parallel.agree(total / self._num_samples, weight=self._num_samples)
        self._is_finite &= math.isfinite(joint)
        return joint

    def retire(self, done: Flag, *, unevaluated: bool = False) -> bool:
        """Remove samples that are done; return whether the samples of all ranks are.

        The ranks agree on the share of ranks with samples left, which is NaN for all if the last
        evaluation of one was.
        """
        all_done = bool(done.all()) if isinstance(done, Tensor) else done
        left = parallel.agree(float(not all_done) if self._is_finite else math.nan)
        if math.isnan(left):
            tensors.raise_non_finite([self._y.grad], self._values)
        self._all_ranks_done = left == 0.0
        if isinstance(done, Tensor) and (unevaluated or not self._all_ranks_done):
            self._remove(done[self._remaining], unevaluated)
        return self._all_ranks_done

    def move(self) -> None:
        """Take one step of the optimizer with the gradient in `y.grad`."""
        self._values_are_stale = True
        if not isinstance(self._optimizer, PlayerOptimizer):
            self._optimizer.step()
            return
        assert self._values is not None
        self._optimizer.step(
            lambda: self._for_optimizer(self._forward_no_grad()),
            value=self._for_optimizer(self._values),
        )

    def _forward(self) -> Tensor:
        tensors.drop_cached_casts()
        return self._objective._values(self._model, self._y, self._clean, self._reference)

    def _forward_no_grad(self) -> Tensor:
        self._counters.check_budget()
        self._counters.calls_value += 1
        with torch.no_grad():
            return self._forward()

    def _for_optimizer(self, values: Tensor) -> Tensor:
        """What the optimizer maximizes: one number, or one per sample."""
        return values if self._rowwise else values.sum()

    def _remove(self, done: Tensor, unevaluated: bool) -> None:
        """Remove some of the samples that are left from what is evaluated and moved.

        One sample always remains, so that a rank whose samples are done evaluates as often as the
        others.
        """
        gone, left = done.nonzero().squeeze(1), (~done).nonzero().squeeze(1)
        if len(gone) == 0:
            return
        if self._final_y is None:
            self._final_y = torch.empty_like(self._y, requires_grad=False)
        position = self._y.detach() if unevaluated else self._position()
        self._final_y[self._remaining[gone]] = position[gone]
        self._remaining = self._remaining[left]
        if self._all_ranks_done:
            return  # nothing more is evaluated
        if len(left) == 0:
            left = gone[:1]
        self._y = cut_to_rows(self._optimizer, self._y, left)
        self._clean, self._reference = self._clean[left], take_rows(self._reference, left)
        self._values = None if self._values is None else self._values[left]
        self._region = self._objective._region(self._clean)
        self._constrain()

    def answer(self) -> Tensor:
        """Where the samples are, in the order of the batch; a new tensor.

        Where the optimizer keeps its best point, the last move is compared with it, by one
        evaluation without a gradient.
        """
        if self._final_y is None:
            return self._position().clone()
        # A rank without samples evaluates its last move too while the others do.
        if len(self._remaining) or not self._all_ranks_done:
            self._final_y[self._remaining] = self._position()[: len(self._remaining)]
        return self._final_y

    def _position(self) -> Tensor:
        """Where y is, or its average or best point where the optimizer keeps one."""
        optimizer = self._optimizer
        if isinstance(optimizer, PlayerOptimizer) and optimizer.keeps_average:
            with optimizer.averaged():
                return self._y.detach().clone()
        if isinstance(optimizer, SPG) and optimizer.keeps_best:
            if self._values_are_stale or self._values is None:
                self._values, self._values_are_stale = self._forward_no_grad(), False
            with optimizer.best(self._for_optimizer(self._values)):
                return self._y.detach().clone()
        return self._y.detach()

    def _constrain(self) -> None:
        """Give the optimizer the region of the samples that are left."""
        if self._region is not None:
            constrain(self._optimizer, self._region)


_ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop),
    *(torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.Rprop, torch.optim.ASGD),
)


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
    if any(constraint is not None for constraint in installed_sets(optimizer)):
        raise ValueError(
            "the adversary's optimizer has a set: pass the valid range as bounds=(low, high) to "
            "the objective instead, or use AdversarialTraining"
        )
    if isinstance(optimizer, PlayerOptimizer):
        is_coupled = optimizer.uses_gradient_norm and not optimizer.param_groups[0]["rowwise"]
    else:
        is_coupled = not isinstance(optimizer, _ELEMENTWISE)
    if per_sample and is_coupled:
        raise ValueError(
            f"per_sample=True removes samples one by one, and this {type(optimizer).__name__} "
            "couples them: use Adam, SGD or an optimizer of neada.optim with rowwise=True"
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
