"""What all min-max algorithms share: one verb, exact counters, complete state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from neada import parallel, tensors
from neada.checks import check_flags, check_origin
from neada.inner import Counted, Counters, Player, backward
from neada.scalars import Flag, Scalar, any_true, negate, where
from neada.sets import Set

__all__ = ["Closure", "Evaluation", "StepInfo", "Stepper"]


Closure = Callable[[], Tensor]
Step = tuple[Tensor, Scalar, Scalar, str]
"""The value, both squared norms, and why an inner loop stopped."""
Groups = Sequence[tuple[Sequence[Tensor], Set | None]]


class Sets(TypedDict, total=False):
    """The keyword arguments of every stepper that owns its players."""

    x_set: Set | None
    y_set: Set | None
    rowwise: bool


class StepInfo(NamedTuple):
    """What one step of a stepper saw and spent.

    Attributes:
        value: f at the last point where a gradient was taken, one per row if there are rows.
        grad_sq_x: The squared norm of the last x gradient; of its gradient mapping, if x has a set.
        grad_sq_y: The squared norm of the last y gradient; of its gradient mapping, if y has a set.
        calls_x: x gradients evaluated in this step.
        calls_y: y gradients evaluated in this step.
        calls_value: Evaluations without a gradient in this step.
        inner_steps: Steps of y.
        stop_reason: Why the inner loop stopped; empty without one.
    """

    value: Tensor
    grad_sq_x: Scalar
    grad_sq_y: Scalar
    calls_x: int
    calls_y: int
    calls_value: int
    inner_steps: int
    stop_reason: str = ""


class Evaluation(NamedTuple):
    """A gradient of one player, which is in `.grad`, and what is known about it."""

    value: Tensor
    grad_sq: Scalar
    mapping_sq: Scalar


class Stepper(Counted, ABC):
    """A min-max algorithm for a player x that descends and a player y that ascends.

    `step(closure)` is the one verb: the closure returns f(x, y) with its graph, on whatever
    sample it likes. Gradients are taken for one player at a time where the algorithm allows it,
    and always through one method, so that the counters are right by construction.

    Attributes:
        max_calls: Gradients and values that may be evaluated in all; None for no limit.
        grad_scaler: A `torch.amp.GradScaler` whose scale protects half-precision gradients; they
            are unscaled before they are used. An overflow raises `NonFiniteGradient`, with x
            unchanged: lower the scale with `grad_scaler.update(...)` and step again.
        calls_x, calls_y, calls_value: Evaluations so far.
        samples_x, samples_y: The same times the batch size.
        outer_steps, inner_steps: Steps of x and of y so far.
        counters: All of these; two steppers may share one.
        row_calls: With `rowwise`, the calls that each row has paid for; rows at rest pay nothing.
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "start"
    """Where the norms of `StepInfo` belong: to both players before the step, to the x before and
    the y after it ("middle"), or to both players after it."""
    max_inner_steps: int | None = None
    """The cap of the inner loop, where there is one."""
    at_cap: Flag = False
    """Whether the last inner loop ended at its cap; one flag per row if there are rows."""

    def __init__(
        self,
        x_groups: Groups,
        y_groups: Groups,
        rowwise: bool,
    ) -> None:
        check_flags(rowwise=rowwise)
        self._groups: dict[str, Groups] = {}
        self._players: dict[str, list[Tensor]] = {}
        self._has_set: dict[str, bool] = {}
        self._take_groups("x", x_groups)
        self._take_groups("y", y_groups)
        self.rowwise = rowwise
        self._sharded = parallel.any_shard(self._players["x"] + self._players["y"])
        for name, params in self._players.items():
            if not params:
                raise ValueError(f"the {name} player has no parameters")
        both = {id(p) for p in self._players["x"]} & {id(p) for p in self._players["y"]}
        if both:
            raise ValueError(
                "x and y share a parameter: every tensor belongs to one player, the one that "
                "minimizes or the one that maximizes"
            )
        self.counters = Counters()
        self.grad_scaler: torch.amp.GradScaler | None = None
        self._batch_size = 1
        self._resting: Tensor | None = None
        first = self._players["x"][0]
        num_rows = len(first) if rowwise else 0
        self.row_calls = torch.zeros(num_rows, dtype=torch.int64, device=first.device)
        self._paying = torch.ones(num_rows, dtype=torch.bool, device=first.device)

    def step(self, closure: Closure, batch_size: int = 1) -> StepInfo:
        """Take one step of the algorithm.

        Args:
            closure: Evaluates f(x, y) and returns it with its graph; one value per row with
                rowwise players.
            batch_size: How many samples one call of the closure looks at, for the counters.

        Returns:
            What the step saw and spent.

        Raises:
            NonFiniteGradient: A value or gradient is NaN or Inf; x is unchanged.
        """
        if callable(batch_size):
            raise TypeError("step takes one closure, f(x, y), for both players")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self._batch_size = batch_size
        counters, counts = self.counters, vars(self.counters).copy()
        try:
            value, grad_sq_x, grad_sq_y, reason = self._step(closure)
        finally:
            tensors.drop_cached_casts()
        counters.outer_steps += 1
        return StepInfo(
            value,
            grad_sq_x,
            grad_sq_y,
            counters.calls_x - counts["calls_x"],
            counters.calls_y - counts["calls_y"],
            counters.calls_value - counts["calls_value"],
            counters.inner_steps - counts["inner_steps"],
            reason,
        )

    @abstractmethod
    def _step(self, closure: Closure) -> Step:
        """One step; returns the value, both squared norms, and why an inner loop stopped."""

    def evaluate(
        self, closure: Closure, *, within_budget: bool = True
    ) -> tuple[Evaluation, Evaluation]:
        """Evaluate both players' gradients, which are then in `.grad`, by one pass; counts two.

        Args:
            closure: Evaluates f(x, y) and returns it with its graph.
            within_budget: Whether `max_calls` is respected.

        Returns:
            What is known about the gradient of x, and about that of y.
        """
        if within_budget:
            self.counters.check_budget(2)
        value = self._evaluate(closure)
        self._fill_gradients(value, self._players["x"] + self._players["y"])
        self._count("x")
        self._count("y")
        value = self._averaged(value, "xy")
        return self._measure(value, "x"), self._measure(value, "y")

    def sets(self, player: Player) -> list[tuple[Tensor, Set | None]]:
        """The tensors of a player, each with the set that it lives in (perhaps with others)."""
        return [(p, constraint) for params, constraint in self._groups[player] for p in params]

    def rest(self, rows: Tensor | None) -> None:
        """Let some rows take no step and pay nothing from now on, where the algorithm can.

        Args:
            rows: One flag per row, true for those that rest; None for none.
        """
        self._resting = rows
        self._paying = torch.ones_like(self._paying) if rows is None else ~rows

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, bit for bit."""
        return {
            "class": type(self).__name__,
            "counters": self.counters.state_dict(),
            "row_calls": self.row_calls.clone(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: The state is of another algorithm.
        """
        check_origin(self, state_dict)
        if state_dict["row_calls"].shape != self.row_calls.shape:
            raise ValueError(
                f"this state was saved for {len(state_dict['row_calls'])} rows, but the players "
                f"have {len(self.row_calls)}"
            )
        self.counters.load_state_dict(state_dict["counters"])
        self.row_calls.copy_(state_dict["row_calls"])

    # What the algorithms use.

    def _take_groups(self, player: Player, groups: Groups) -> None:
        """Make the tensors of these groups a player."""
        self._groups[player] = groups
        self._players[player] = [p for params, _ in groups for p in params]
        self._has_set[player] = any(constraint is not None for _, constraint in groups)

    def _evaluate(self, closure: Closure) -> Tensor:
        """The value of the closure, checked, with its graph."""
        tensors.drop_cached_casts()
        return self._checked(closure())

    def _averaged(self, value: Tensor, players: str) -> Tensor:
        """The mean of a value over the ranks; the gradients of the players are averaged too."""
        value = value.detach()
        if parallel.is_active():
            value = value.clone()
            params = [param for player in players for param in self._players[player]]
            parallel.average_gradients_(params, value)
        return value

    def _checked(self, value: Tensor) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"f(x, y) must be a tensor computed with torch, not {type(value).__name__}"
            )
        rows = len(self._players["x"][0]) if self.rowwise else None
        if rows is None and value.numel() != 1:
            raise ValueError(
                f"f(x, y) must be one number, but has shape {tuple(value.shape)}: take the mean or "
                "the sum, or use rowwise=True"
            )
        if rows is not None and value.shape != (rows,):
            raise ValueError(
                f"with rowwise=True f(x, y) must be one number per row, shape ({rows},), but has "
                f"shape {tuple(value.shape)}"
            )
        if not value.requires_grad:
            raise ValueError(
                "f(x, y) depends on neither player: compute it with torch from both, without "
                "detach, item or numpy"
            )
        return value

    def _gradient(self, closure: Closure, player: Player, keep_graph: bool = False) -> Evaluation:
        """Evaluate, and leave the gradient of one player in `.grad`."""
        self.counters.check_budget()
        value = self._evaluate(closure)
        return self._backward(value, player, keep_graph)

    def _backward(self, value: Tensor, player: Player, keep_graph: bool = False) -> Evaluation:
        self._fill_gradients(value, self._players[player], keep_graph)
        self._count(player)
        return self._measure(self._averaged(value, player), player)

    def _fill_gradients(
        self, value: Tensor, params: list[Tensor], keep_graph: bool = False
    ) -> None:
        """Backward for some tensors only; frozen ones keep no gradient."""
        for param in params:
            param.grad = None
        inputs = [param for param in params if param.requires_grad]
        if not inputs:
            raise ValueError("a player has no tensor that requires a gradient: unfreeze one")
        total = value if value.dim() == 0 else value.sum()
        sharded = self._sharded and parallel.any_shard(inputs)
        backward(total, inputs, self.grad_scaler, keep_graph, sharded)

    def _count(self, player: Player) -> None:
        self.counters.count(player, self._batch_size)
        if self.rowwise:
            self.row_calls += self._paying

    def _measure(self, value: Tensor, player: Player) -> Evaluation:
        """Check value and gradient, and compute the norms of the gradient and of its mapping."""
        grad_sq = self._norm(self._grads(player))
        largest = torch.finfo(self._players[player][0].dtype).max
        found = value.isfinite() & (grad_sq <= largest)
        finite: Flag = found if self.rowwise else bool(found)
        if not bool(found.all()):
            self._rest_not_finite(player, value, negate(finite))
        if not self._has_set[player]:
            return Evaluation(value, grad_sq, grad_sq)
        ascent = 1.0 if player == "y" else -1.0
        mapping: list[Tensor] = []
        for params, constraint in self._groups[player]:
            direction = [ascent * _grad_of(p) for p in params]
            if constraint is None:
                mapping += direction
            else:
                mapping += constraint.gradient_mapping(list(params), direction)
        return Evaluation(value, grad_sq, where(finite, self._norm(mapping), math.nan))

    def _rest_not_finite(self, player: Player, value: Tensor, bad: Flag) -> None:
        """Raise, unless only frozen rows are affected: their gradients become zero."""
        grads = [p.grad for p in self._players[player]]
        if self._resting is None or any_true(bad & ~self._resting):
            tensors.raise_non_finite(grads, value, bad)
        for gradient in grads:
            if gradient is not None:
                gradient[bad] = 0.0

    def _finite_at_rest(self, value: Tensor, resting: Tensor | None) -> Tensor:
        """Values, with zeros for rows at rest where f is not defined."""
        return value if resting is None else torch.where(resting & ~value.isfinite(), 0.0, value)

    def _norm(self, direction: list[Tensor]) -> Scalar:
        if self._sharded and parallel.any_shard(direction):
            return parallel.squared_norm_of_shards(direction)
        return tensors.squared_norm(direction, self.rowwise)

    def _grads(self, player: Player) -> list[Tensor]:
        params = self._players[player]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]

    def _value_closure(self, closure: Closure, player: Player) -> Closure:
        """The closure for an optimizer that tries points: evaluations only, and counted.

        A row pays for a trial only if it has moved since the one before: the others have found
        their step and wait.
        """
        params = self._players[player]
        before = tensors.clone(params) if self.rowwise else []

        def evaluate() -> Tensor:
            self.counters.check_budget()
            self.counters.calls_value += 1
            if self.rowwise:
                apart = tensors.squared_distance(params, before, rowwise=True)
                self.row_calls += self._paying & (apart != 0.0)
                tensors.copy_(before, [param.detach() for param in params])
            tensors.drop_cached_casts()
            with torch.no_grad():
                value = closure()
            parallel.average_([value])
            return self._finite_at_rest(value, self._resting)

        return evaluate


def _grad_of(param: Tensor) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad
