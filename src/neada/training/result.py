"""What training reports: metrics, progress, and how the run ended."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

__all__ = ["METRICS", "Meter", "Progress", "Schedule", "TrainResult", "TrainStatus"]


class TrainStatus(enum.Enum):
    """How a training run ended."""

    FINISHED = "the gradient calls are spent, or the epochs are done"
    INTERRUPTED = "a signal stopped it; it can be resumed"
    NON_FINITE = "the loss, a gradient or the model is NaN or Inf"


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        part: The part of the run that is done, from 0 to 1.
        calls: Gradient calls so far.
        x_steps: Steps of the model so far.
        loss: The loss of the last batch at the perturbed inputs.
        inner_steps: The inner steps of the last batch.
        accuracy: The last clean test accuracy; None before the first evaluation.
    """

    part: float
    calls: int
    x_steps: int
    loss: float
    inner_steps: int
    accuracy: float | None

    @property
    def words(self) -> str:
        """The text of a progress bar."""
        accuracy = "" if self.accuracy is None else f", clean {self.accuracy:.1%}"
        return f"loss {self.loss:.3f}, {self.inner_steps} inner{accuracy}"


@dataclass(frozen=True, eq=False)
class TrainResult:
    """The result of training.

    Attributes:
        status: How it ended.
        message: The same in a sentence.
        model: The network; its state after NON_FINITE is unspecified.
        rows: The metrics, one dictionary per row; the last one of a finished run has all
            accuracies.
        calls: Gradient calls of both players, and values.
        x_steps: Steps of the model.
        seconds: The duration without interruptions.
        folder: The run folder, or None.
    """

    status: TrainStatus
    message: str
    model: nn.Module
    rows: list[dict[str, Any]]
    calls: int
    x_steps: int
    seconds: float
    folder: Path | None

    @property
    def accuracies(self) -> dict[str, float]:
        """The accuracies of the last row that has any, by name."""
        for row in reversed(self.rows):
            if "test_clean" in row:
                return {k: v for k, v in row.items() if k.startswith(("test_", "held_out_"))}
        return {}


METRICS = {
    "loss": "mean loss at the perturbed inputs, or with the worst group weights",
    "value": "the loss with the penalty or regularizer, which y maximizes",
    "perturbation": "distance of y from the clean point",
    "inner_steps": "steps of y per step of the model",
    "grad_sq_y": "squared norm of the last gradient mapping of y, as the stopping rule uses it",
}
"""Attributes of `RobustInfo`; a row has their means over the steps since the last row."""


class Meter:
    """Means of the metrics from one row to the next."""

    def __init__(self) -> None:
        self._num = 0
        self._sums = dict.fromkeys(METRICS, 0.0)
        self._last: dict[str, float] = {}

    def add(self, metrics: Sequence[float]) -> None:
        """Add the metrics of a step."""
        self._num += 1
        for name, number in zip(METRICS, metrics, strict=True):
            self._sums[name] += number

    def means(self) -> dict[str, float]:
        """Return the means since the last call; without a step since then, the same again."""
        if self._num > 0:
            self._last = {name: total / self._num for name, total in self._sums.items()}
            self._num, self._sums = 0, dict.fromkeys(METRICS, 0.0)
        return dict(self._last)

    def state_dict(self) -> dict[str, Any]:
        """Return sums and counts."""
        return {"num": self._num, "sums": dict(self._sums), "last": dict(self._last)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore saved sums and counts."""
        self._num = state_dict["num"]
        self._sums, self._last = dict(state_dict["sums"]), dict(state_dict["last"])


class Schedule:
    """An event every so many calls, or so many times in a whole run.

    Args:
        every: The number of calls between two events; None to use `in_all`.
        in_all: The number of events in the whole run.

    Example:
        >>> schedule = Schedule(every=10, in_all=5)
        >>> [schedule.is_due(calls, 0.0) for calls in (9, 12)]
        [False, True]
        >>> schedule.tick(12, 0.0)
        >>> schedule.is_due(19, 0.0), schedule.is_due(20, 0.0)
        (False, True)
    """

    def __init__(self, every: int | None, in_all: int) -> None:
        self.every = every
        self.in_all = in_all
        self.num_passed = 0

    def is_due(self, calls: int, part: float) -> bool:
        """Whether an event is due."""
        return self._passed(calls, part) > self.num_passed

    def tick(self, calls: int, part: float) -> None:
        """Mark the events until now as done."""
        self.num_passed = self._passed(calls, part)

    def _passed(self, calls: int, part: float) -> int:
        return int(part * self.in_all) if self.every is None else calls // self.every
