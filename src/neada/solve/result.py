"""What a solve ends with: the point, whether it is a solution, and why not if it is none."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["History", "MinimaxResult", "Status", "plain", "worst"]


class Status(Enum):
    """How a solve ended; the value is the sentence for the user."""

    CONVERGED = "both players are stationary within the tolerance"
    BUDGET = (
        "the budget of calls is used up: raise max_calls, or loosen tol if the norms have settled"
    )
    DIVERGED = (
        "the iterates run away: f may be unbounded in y or x, or the learning rates have the wrong "
        "ratio; bound the players with sets, or try the default method"
    )
    NON_FINITE = (
        "the objective or a gradient is not finite: the last good point is returned; check the "
        "objective there, or keep the players in sets where it is defined"
    )
    STALLED = (
        "no progress any more above the tolerance: f may not be smooth, or not concave enough in y "
        "to be solved, or the learning rates have the wrong ratio; the best point is returned"
    )
    TOLERANCE = (
        "the tolerance is below what the precision of the point can reach: use float64, or a "
        "larger tol"
    )
    IGNORES_X = (
        "f does not depend on x: nothing to minimize; check that fun uses its first argument"
    )
    IGNORES_Y = (
        "f does not depend on y: nothing to maximize; check that fun uses its second argument"
    )
    NOT_A_MAXIMUM = (
        "both gradients vanish, but f curves upwards in y, so y is no maximum: f is not concave in "
        "y there; bound y with y_set, or start elsewhere"
    )
    INTERRUPTED = "interrupted; the best point so far is returned"


@dataclass
class History:
    """One entry per outer step."""

    calls: list[int] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)
    grad_norm_x: list[Any] = field(default_factory=list)
    grad_norm_y: list[Any] = field(default_factory=list)
    inner_steps: list[int] = field(default_factory=list)

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """The columns as arrays."""
        return {name: np.asarray(column) for name, column in vars(self).items()}


@dataclass(frozen=True)
class MinimaxResult:
    """The answer of `minimax`.

    Attributes:
        x, y: The point, in the form of the start.
        fun: f there.
        success: Whether both norms are at most the tolerance there, checked by a fresh
            evaluation; one flag per row if there are rows.
        status: How it ended.
        message: The same in words, with advice.
        grad_norm_x: The norm of the x gradient (of its mapping, with an `x_set`) there.
        grad_norm_y: The norm of y's gradient mapping there.
        calls_x, calls_y, calls_value: Evaluations of each kind.
        outer_steps, inner_steps: Steps of x and of y.
        history: One entry per outer step.
    """

    x: Any
    y: Any
    fun: Any
    success: Any
    status: Any
    message: str
    grad_norm_x: Any
    grad_norm_y: Any
    calls_x: int
    calls_y: int
    calls_value: int
    outer_steps: int
    inner_steps: int
    history: History

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.calls_x + self.calls_y + self.calls_value

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """The history as arrays."""
        return self.history.to_numpy()

    def plot(self, tol: float | None = None) -> Any:
        """A matplotlib figure of both norms against the calls; save it with `savefig`.

        Args:
            tol: Where the tolerance is drawn, if anywhere.
        """
        from neada.plots import history_figure  # upwards, so that solving needs no matplotlib

        return history_figure(self.to_numpy(), tol)


def plain(number: Any) -> Any:
    """A float, or an array with one entry per row."""
    if isinstance(number, Tensor):
        return number.item() if number.dim() == 0 else number.detach().cpu().numpy()
    return number


def worst(number: Any) -> float:
    """The largest of the rows' numbers."""
    return float(number if isinstance(number, float) else number.max())
