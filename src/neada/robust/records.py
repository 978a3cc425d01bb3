"""What robust training reports: a step and a perturbed batch."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neada.steppers.base import StepInfo

__all__ = ["Perturbed", "RobustInfo"]


@dataclass(frozen=True)
class RobustInfo:
    """Loss, norms and counts of one step of robust training.

    The loss is the mean over all ranks; the other numbers are those of this rank.

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
        samples_x: Samples in the x gradients.
        samples_y: Samples in the y gradients.
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

    @classmethod
    def of_step(
        cls, info: StepInfo, num_samples: int, *, loss: float, value: float, perturbation: float
    ) -> "RobustInfo":
        """Convert the report of a stepper.

        Args:
            info: The report of a stepper that evaluated the whole batch every time.
            num_samples: The number of samples in the batch.
            loss: See the class.
            value: See the class.
            perturbation: See the class.
        """
        return cls(
            loss=loss,
            value=value,
            perturbation=perturbation,
            grad_sq_x=float(info.grad_sq_x),
            grad_sq_y=float(info.grad_sq_y),
            calls_x=info.calls_x,
            calls_y=info.calls_y,
            calls_value=info.calls_value,
            samples_x=info.calls_x * num_samples,
            samples_y=info.calls_y * num_samples,
            inner_steps=info.inner_steps,
            stop_reason=info.stop_reason or "one step with every batch",
        )


@dataclass(frozen=True)
class Perturbed:
    """A batch whose inputs have been made worse, and how.

    Attributes:
        inputs: The perturbed inputs, without graph.
        targets: The targets as they were given.
        clean: The inputs as they were given.
        perturbation: The mean Euclidean distance from the clean inputs.
        penalty: The mean penalty of the perturbation; 0 where there is none.
        grad_sq_y: The squared norm of the last gradient mapping, as the rule saw it.
        calls_y: Gradients with respect to the inputs that were evaluated.
        calls_value: Evaluations without a gradient.
        samples_y: Samples in those gradients.
        inner_steps: Steps that were taken.
        stop_reason: Why there were no more.
        share: With a process group the number of samples, divided by its mean over the ranks.
    """

    inputs: Tensor
    targets: Any
    clean: Tensor
    perturbation: float
    penalty: float
    grad_sq_y: float
    calls_y: int
    calls_value: int
    samples_y: int
    inner_steps: int
    stop_reason: str
    share: float = 1.0
