"""What a solve ends with: the point, whether it is a solution, and why not if it is none."""

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from neada.solve.points import is_numeric

__all__ = [
    "KKT",
    "History",
    "MinimaxResult",
    "MinimizeResult",
    "Multipliers",
    "Status",
]


class Status(Enum):
    """How a solve ended; the value is the sentence for the user."""

    CONVERGED = "both players are stationary within the tolerance"
    BUDGET = (
        "the budget of calls is used up: raise max_calls, or loosen tol if the norms have settled"
    )
    DIVERGED = (
        "the iterates run away: f may be unbounded, above in y or below in x; bound the players "
        "with sets"
    )
    NON_FINITE = (
        "the objective or a gradient is not finite: the last good point is returned; check the "
        "objective there, or keep the players in sets where it is defined"
    )
    STALLED = (
        "no progress any more above the tolerance: f may not be smooth, or not concave enough in y "
        "to be solved; the best point is returned"
    )
    TOLERANCE = "the tolerance is below what the precision of the point can reach: use a larger tol"
    IGNORES_X = (
        "f does not depend on x: nothing to minimize; check that fun uses its first argument"
    )
    IGNORES_Y = (
        "f does not depend on y: nothing to maximize; check that fun uses its second argument"
    )
    NOT_A_MAXIMUM = (
        "f curves upwards in y, so y is no maximum: f is not concave in y there; bound y with "
        "y_set, or start elsewhere"
    )
    INFEASIBLE = (
        "no point near here satisfies the constraints: their violation is as small as it gets; "
        "check signs (inequality(x) <= 0), loosen a constraint, or start elsewhere"
    )
    UNBOUNDED = (
        "the objective falls without end where the constraints hold: check its sign, or bound x "
        "with x_set or a constraint"
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

    def __repr__(self) -> str:
        calls = self.calls[-1] if self.calls else 0
        return f"History({len(self.calls)} steps, {calls} calls)"

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
        status: How it ended: a `Status`, or an array of them with rows.
        message: The same in words, with advice; a list with one sentence per row if there are rows.
        grad_norm_x: The norm of the x gradient (of its mapping, with an `x_set`) there.
        grad_norm_y: The norm of y's gradient mapping there.
        calls_x, calls_y, calls_value: Evaluations of each kind.
        calls_hvp: Hessian-vector products of both players; each counts as four calls.
        outer_steps, inner_steps: Steps of x and of y.
        history: One entry per outer step.
        tol: The requested tolerance.
        kind: "strict local minimax" if y is a strict local maximum and x a strict local minimum of
            the maximum over y (with active bounds that have multipliers), "stationary" if that is
            not so or not certain, "unknown" without second derivatives or with more than 1000
            coordinates.
        curvature_x: The least curvature of the maximum over y, along directions that are free.
        curvature_y: The least curvature of -f in y, along directions that are free.
        condition: The condition number of the maximum over y: an error of the gradient is
            magnified by up to this factor in x, relative to the largest curvature.
        duality_gap: A bound of the duality gap if f is convex in x and concave in y, on bounded
            sets; None otherwise, and with rows.
    """

    x: Any
    y: Any
    fun: Any
    success: Any
    status: Any
    message: Any
    grad_norm_x: Any
    grad_norm_y: Any
    calls_x: int
    calls_y: int
    calls_value: int
    calls_hvp: int
    outer_steps: int
    inner_steps: int
    history: History
    tol: float
    kind: Any
    curvature_x: Any
    curvature_y: Any
    condition: Any
    duality_gap: float | None

    def __repr__(self) -> str:
        rows = {
            "status": _status_words(self.status),
            "success": _success_words(self.success),
            "kind": _kind_words(self.kind),
            "message": _wrapped(self.message),
            "fun": _short(self.fun),
            "x": _short(self.x),
            "y": _short(self.y),
            "grad_norm_x": _short(self.grad_norm_x),
            "grad_norm_y": _short(self.grad_norm_y),
            "calls": f"{self.total_calls} ({self.calls_x} of x, {self.calls_y} of y, "
            f"{self.calls_value} values, {self.calls_hvp} Hessian-vector products)",
            "steps": f"{self.outer_steps} of x, {self.inner_steps} of y",
        }
        return _table(rows)

    @property
    def total_calls(self) -> int:
        """Gradients of both players, values, and four for each Hessian-vector product."""
        return self.calls_x + self.calls_y + self.calls_value + 4 * self.calls_hvp

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """The history as arrays."""
        return self.history.to_numpy()

    def plot(self, tol: float | None = None, title: str = "") -> Any:
        """A matplotlib figure of both norms against the calls; save it with `savefig`.

        Above it stands how the solve ended and after how many calls, below it what that means.

        Args:
            tol: The tolerance that is drawn; by default the requested one.
            title: A line above that, such as the name of the problem or of the method.
        """
        from neada.plots import history_figure  # upwards, so that solving needs no matplotlib

        end = f"{_status_words(self.status)} after {self.total_calls} calls"
        return history_figure(
            self.to_numpy(),
            self.tol if tol is None else tol,
            f"{title}\n{end}" if title else end,
            self.message if isinstance(self.message, str) else "",
        )


class Multipliers(NamedTuple):
    """The multipliers of both kinds of constraints, in the constraints' shapes; None without."""

    inequality: Tensor | None
    equality: Tensor | None


class KKT(NamedTuple):
    """How far a point is from the conditions of Karush, Kuhn and Tucker.

    Attributes:
        stationarity: The norm of the Lagrangian's x gradient (of its mapping, with an `x_set`).
        violation: The largest of the violations of single constraints.
        complementarity: The largest product of a multiplier with its inequality, absolutely.
    """

    stationarity: float
    violation: float
    complementarity: float


@dataclass(frozen=True)
class MinimizeResult:
    """The answer of `minimize`.

    Attributes:
        x: The point, in the form of the start.
        fun: The objective there.
        success: Whether all three numbers of `kkt` are at most the tolerance.
        status: How it ended.
        message: The same in words, with advice.
        multipliers: Of the inequalities (not negative) and of the equations.
        violation: The largest violation of a constraint.
        kkt: Stationarity, violation and complementarity, by a fresh evaluation.
        calls: Gradients of both players of the Lagrangian that were evaluated.
        history: One entry per step of x; the norm of y is that of the constraints.
        tol: The requested tolerance.

    Example:
        >>> from neada import minimize
        >>> result = minimize(lambda x: x @ x, [3.0, 0.0], equality=lambda x: x.sum() - 1)
        >>> result.success, [round(v, 4) for v in result.x]
        (True, [0.5, 0.5])
    """

    x: Any
    fun: float
    success: bool
    status: Status
    message: str
    multipliers: Multipliers
    violation: float
    kkt: KKT
    calls: int
    history: History
    tol: float

    def __repr__(self) -> str:
        rows = {
            "status": self.status.name,
            "success": str(self.success),
            "message": _wrapped(self.message),
            "fun": _short(self.fun),
            "x": _short(self.x),
            **{
                f"multipliers.{kind}": _short(values)
                for kind, values in self.multipliers._asdict().items()
                if values is not None
            },
            **{name: _short(number) for name, number in self.kkt._asdict().items()},
            "calls": str(self.calls),
        }
        return _table(rows)


_WIDTH = 80  # of a message in the table
_SHOWN = 10  # numbers of a point that are shown in full, and parts of a collection


def _table(rows: dict[str, str]) -> str:
    """Aligned lines `name: text`; a text of several lines stays in its column."""
    width = max(map(len, rows), default=0)
    lines = (
        f"{name:>{width}}: {text.replace(chr(10), chr(10) + ' ' * (width + 2))}"
        for name, text in rows.items()
    )
    return "\n".join(lines)


def _short(point: Any) -> str:
    """A number or a point in any form, in a few words if it is long."""
    if isinstance(point, dict) or (isinstance(point, list | tuple) and not is_numeric(list(point))):
        parts = point if isinstance(point, dict) else dict(enumerate(point))
        shown = {str(key): _short(parts[key]) for key in list(parts)[:_SHOWN]}
        more = f"\n... {len(parts)} parts" if len(parts) > _SHOWN else ""
        return _table(shown) + more
    if isinstance(point, Tensor):
        point = point.detach().double().cpu()
    numbers = np.asarray(point)
    long = numbers.size > _SHOWN
    text = np.array2string(
        numbers.ravel() if long else numbers,
        separator=", ",
        threshold=_SHOWN,
        edgeitems=2,
        formatter={"float_kind": "{:.6g}".format},
    )
    return f"{text}, shape {numbers.shape}" if long else text


def _status_words(status: Any) -> str:
    """The name of a status, or how often each occurs among the rows."""
    if isinstance(status, Status):
        return status.name
    counts = Counter(one.name for one in np.ravel(status))
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


def _kind_words(kind: Any) -> str:
    """The kind, or how often each occurs among the rows."""
    counts = Counter(np.atleast_1d(kind).tolist())
    return (
        next(iter(counts))
        if np.ndim(kind) == 0
        else ", ".join(f"{number} {name}" for name, number in counts.most_common())
    )


def _success_words(success: Any) -> str:
    if np.ndim(success) == 0:
        return str(bool(success))
    return f"{np.count_nonzero(success)} of {len(success)} rows"


def _wrapped(message: Any) -> str:
    """One sentence over several lines, or every different sentence of the rows."""
    sentences = [message] if isinstance(message, str) else dict.fromkeys(message)
    return "\n".join(textwrap.fill(sentence, _WIDTH) for sentence in sentences)
