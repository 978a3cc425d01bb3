"""What a training run reports: on its way, and at its end."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

__all__ = ["Progress", "TrainResult", "TrainStatus"]


class TrainStatus(enum.Enum):
    """How a training run ended."""

    FINISHED = "the budget is spent, or the epochs are done"
    INTERRUPTED = "a signal stopped it; it can be resumed"
    NON_FINITE = "the loss, a gradient or the model is not finite"


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        part: The part of it that is done, from 0 to 1.
        calls: Gradient calls so far.
        x_steps: Steps of the model so far.
        loss: Of the last batch, at the perturbed inputs.
        inner_steps: Of the last batch.
        accuracy: The last one measured, on the clean test set; None before there was one.
        seconds_left: An estimate, from the pace so far; None before the first step.
    """

    part: float
    calls: int
    x_steps: int
    loss: float
    inner_steps: int
    accuracy: float | None
    seconds_left: float | None


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What training came to.

    Attributes:
        status: How it ended.
        message: The same in a sentence.
        model: The network; after NON_FINITE in whatever state it was left.
        rows: The metrics, one dictionary per row; the last one of a finished run has all
            accuracies.
        calls: Gradient calls of both players, and values.
        x_steps: Steps of the model.
        seconds: How long it took, interruptions aside.
        folder: Where the run is, or None.
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
