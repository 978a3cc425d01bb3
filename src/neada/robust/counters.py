"""What an objective has spent, and what it saw in one step."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neada.steppers.base import BudgetExhausted

__all__ = ["Counted", "Perturbed", "RobustInfo"]

_COUNTERS = (
    *("calls_x", "calls_y", "calls_value", "samples_x", "samples_y", "outer_steps"),
    "inner_steps",
)


@dataclass(frozen=True)
class RobustInfo:
    """What one step of robust training saw and spent.

    Attributes:
        loss: The mean loss of the batch at the worst y found.
        value: The same with the penalty or regularizer: what y maximizes.
        perturbation: How far y is from the clean point: the mean Euclidean distance over the
            samples, whatever the norm of a ball, or that of the group weights from the frequencies.
        grad_sq_x: The squared norm of the x gradient.
        grad_sq_y: The squared norm of the last gradient mapping of y, as the rule saw it; with
            `per_sample` the mean over the samples.
        calls_x: x gradients evaluated in this step.
        calls_y: y gradients evaluated in this step.
        calls_value: Evaluations without a gradient in this step.
        samples_x: Samples that the x gradients looked at.
        samples_y: Samples that the y gradients looked at.
        inner_steps: Steps of y.
        stop_reason: Why the inner loop stopped.
    """

    loss: float
    value: float
    perturbation: float
    grad_sq_x: float
    grad_sq_y: float
    calls_x: int
    calls_y: int
    calls_value: int
    samples_x: int
    samples_y: int
    inner_steps: int
    stop_reason: str


@dataclass(frozen=True)
class Perturbed:
    """A batch whose inputs have been made worse, and how.

    Attributes:
        inputs: The perturbed inputs, without graph.
        targets: The targets as they were given.
        perturbation: The mean Euclidean distance from the clean inputs.
        penalty: The mean penalty of the perturbation; 0 where there is none.
        grad_sq_y: The squared norm of the last gradient mapping, as the rule saw it.
        calls_y: Gradients with respect to the inputs that were evaluated.
        calls_value: Evaluations without a gradient.
        samples_y: Samples that those gradients looked at.
        inner_steps: Steps that were taken.
        stop_reason: Why there were no more.
    """

    inputs: Tensor
    targets: Any
    perturbation: float
    penalty: float
    grad_sq_y: float
    calls_y: int
    calls_value: int
    samples_y: int
    inner_steps: int
    stop_reason: str


class Counted:
    """Exact counters with an optional limit.

    Attributes:
        max_calls: Gradients and values that may be evaluated in all; None for no limit. The call
            that would exceed it is not made: `BudgetExhausted` is raised instead.
    """

    calls_x: int
    calls_y: int
    calls_value: int
    samples_x: int
    samples_y: int
    outer_steps: int
    inner_steps: int

    def __init__(self) -> None:
        self.max_calls: int | None = None
        for name in _COUNTERS:
            setattr(self, name, 0)

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.calls_x + self.calls_y + self.calls_value

    def check_budget(self, num_calls: int = 1) -> None:
        """Raise `BudgetExhausted` if that many calls more would exceed the limit."""
        if self.max_calls is not None and self.total_calls + num_calls > self.max_calls:
            raise BudgetExhausted

    def counts(self) -> dict[str, int]:
        """All counters by name."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def load_counts(self, counts: dict[str, Any]) -> None:
        """Go on from saved counters."""
        for name in _COUNTERS:
            setattr(self, name, counts[name])
