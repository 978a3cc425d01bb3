"""The inner loop of robust training: one maximization per sample, for the whole batch at once.

The problem separates over the samples, so a batch may stop by one rule for all, or each sample by
its own; finished samples then leave the batch that is evaluated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada.checks import check_choice
from neada.optim.base import RememberingOptimizer
from neada.robust.ascent import Ascent
from neada.robust.counters import Counted
from neada.robust.problem import Problem
from neada.robust.rows import check_cuttable, check_inner_optimizer
from neada.scalars import all_true, any_true
from neada.steppers.base import check_rule
from neada.stopping import InnerState, StoppingRule

__all__ = ["InnerLoop", "InnerResult", "MakeOptimizer", "Measure", "StatePolicy", "TestPolicy"]

MakeOptimizer = Callable[[Sequence[Tensor]], Optimizer]
Measure = Literal["sample", "batch"]
StatePolicy = Literal["fresh", "step", "full"]
TestPolicy = Literal["current", "last"]


@dataclass(frozen=True)
class InnerResult:
    """Where the inner loop ended, and why."""

    y: Tensor
    mapping_sq: float
    inner_steps: int
    stop_reason: str


class InnerLoop:
    """Maximize over y until a rule says enough.

    Args:
        make_optimizer: Makes the optimizer of y from a list with the one tensor.
        stopping: The rule.
        measure: "sample" lets every sample maximize its own objective, and the rule looks at the
            mean of the squared mappings; "batch" is about the mean objective of the batch.
        per_sample: Each sample is stopped by its own mapping.
        state: What the optimizer keeps from batch to batch: "fresh" nothing, "step" its step size,
            "full" everything.
        min_inner_steps: Steps before the rule is asked.
        max_inner_steps: A cap.
        test: Whether the rule looks at the current gradient or at the one of the last step.
    """

    def __init__(
        self,
        make_optimizer: MakeOptimizer,
        stopping: StoppingRule,
        *,
        measure: Measure,
        per_sample: bool,
        state: StatePolicy,
        min_inner_steps: int,
        max_inner_steps: int,
        test: TestPolicy,
    ) -> None:
        check_choice("measure", measure, ("sample", "batch"))
        check_choice("state", state, ("fresh", "step", "full"))
        check_choice("test", test, ("current", "last"))
        if min_inner_steps < 0 or max_inner_steps < max(1, min_inner_steps):
            raise ValueError(
                "inner steps must satisfy 0 <= min_inner_steps <= max_inner_steps, got "
                f"{min_inner_steps} and {max_inner_steps}"
            )
        if per_sample and measure == "batch":
            raise ValueError(
                "per_sample=True stops each sample by its own gradient, and measure='batch' looks "
                "at the gradient of the mean: use measure='sample'"
            )
        if per_sample and state != "fresh":
            raise ValueError(
                f"state={state!r} cannot be carried on when samples leave the batch one by one: "
                "use state='fresh', or per_sample=False"
            )
        check_rule(stopping)
        if stopping.needs_x_gradient:
            raise ValueError(
                f"the rule '{stopping}' needs the x gradient, which is not known while y is moved: "
                "use GradientMapping, InnerSteps, FixedSteps or FixedAccuracy"
            )
        self.make_optimizer = make_optimizer
        self.stopping = stopping
        self.measure = measure
        self.per_sample = per_sample
        self.state = state
        self.min_inner_steps = min_inner_steps
        self.max_inner_steps = max_inner_steps
        self.test = test
        self._carried: tuple[Tensor, Optimizer] | None = None
        self._loaded: dict[str, Any] | None = None

    def maximize(
        self,
        problem: Problem,
        start: Tensor,
        t: int,
        counted: Counted,
        grad_scaler: torch.amp.GradScaler | None = None,
    ) -> InnerResult:
        """Move y from a start, which is given away, until the rule fires; counts what it spends."""
        y, optimizer = self._begin(start)
        ascent = Ascent(
            problem,
            y,
            optimizer,
            counted,
            of_mean=self.measure == "batch",
            per_sample=self.per_sample,
            grad_scaler=grad_scaler,
        )
        k = 0
        while True:
            may_stop = k >= self.min_inner_steps
            if may_stop and (reason := self._count_says(InnerState(t, k))):
                ascent.retire_all(reason)
                break
            mapping_sq = ascent.gradient()
            seen = InnerState(t, k, mapping_sq)
            if self.test == "current" and may_stop and self._retires_all(ascent, seen):
                break
            ascent.move()
            k += 1
            seen = InnerState(t, k, mapping_sq)
            may_stop = k >= self.min_inner_steps
            if self.test == "last" and may_stop and self._retires_all(ascent, seen):
                break
        counted.inner_steps += k
        # A leaf that is carried on is overwritten by the next batch.
        found = ascent.answer if self._carried is None else ascent.answer.clone()
        return InnerResult(found, ascent.last_mapping_sq(), k, ascent.reason())

    def _retires_all(self, ascent: Ascent, state: InnerState) -> bool:
        """Ask the rule, let finished samples go, and say whether none is left."""
        done = self.stopping(state)
        if all_true(done):
            ascent.retire_all(self.stopping.reason(state))
            return True
        if isinstance(done, Tensor) and any_true(done):
            assert isinstance(state.grad_sq_y, Tensor)
            about = replace(state, grad_sq_y=state.grad_sq_y[done])
            ascent.retire(done, self.stopping.reason(about))
        return False

    def _count_says(self, state: InnerState) -> str:
        """Why to stop without looking at a gradient; empty to go on."""
        if self.stopping(state):
            return self.stopping.reason(state)
        if state.k >= self.max_inner_steps:
            return f"the cap of {self.max_inner_steps} inner steps"
        return ""

    def _begin(self, start: Tensor) -> tuple[Tensor, Optimizer]:
        """The leaf and its optimizer for this batch, by the state policy."""
        if self._carried is not None:
            y, optimizer = self._carried
            _check_same_shape(tuple(y.shape), start)
            with torch.no_grad():
                y.copy_(start)
            if isinstance(optimizer, RememberingOptimizer):
                optimizer.reset(keep="step" if self.state == "step" else "everything")
            return y, optimizer
        y = start.requires_grad_()
        optimizer = self.make_optimizer([y])
        check_inner_optimizer(optimizer, y)
        if self.per_sample:
            check_cuttable(optimizer)
        if self.state != "fresh":
            has_step = isinstance(optimizer, RememberingOptimizer) and optimizer.step_numbers
            if self.state == "step" and not has_step:
                raise ValueError(
                    f"state='step' keeps a step size, and {type(optimizer).__name__} has none to "
                    "keep: use 'fresh' or 'full'"
                )
            if self._loaded is not None:
                _check_same_shape(tuple(self._loaded["shape"]), start)
                optimizer.load_state_dict(self._loaded["optimizer"])
                if isinstance(optimizer, RememberingOptimizer):
                    optimizer.reset(keep="step" if self.state == "step" else "everything")
                self._loaded = None
            self._carried = (y, optimizer)
        return y, optimizer

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers and what the optimizer carries on."""
        carried = self._loaded
        if self._carried is not None:
            y, optimizer = self._carried
            carried = {"shape": list(y.shape), "optimizer": optimizer.state_dict()}
        return {"stopping": self.stopping.state_dict(), "carried": carried}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; the optimizer takes its own with the next batch."""
        self.stopping.load_state_dict(state_dict["stopping"])
        self._carried, self._loaded = None, state_dict["carried"]


def _check_same_shape(shape: tuple[int, ...], start: Tensor) -> None:
    if shape != tuple(start.shape):
        raise ValueError(
            f"the y optimizer's state was left by a batch of shape {shape} and this one has shape "
            f"{tuple(start.shape)}: use state='fresh', or batches of one size (drop_last=True)"
        )
