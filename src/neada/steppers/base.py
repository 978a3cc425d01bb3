"""The base class of min-max algorithms: `step(closure)`, counters and state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from neada import parallel, tensors
from neada.checks import check_flags, check_origin
from neada.inner import Counted, Counters, NoProgress, Player, backward
from neada.scalars import Flag, Scalar, all_finite, all_true, any_true, negate, where
from neada.sets import Set

__all__ = ["PLAYERS", "Closure", "Evaluation", "Sets", "Step", "StepInfo", "Stepper"]


Closure = Callable[[], Tensor]
Step = tuple[Tensor, Scalar, Scalar, str]
"""The value, both squared norms, and why the inner loop stopped."""
Groups = Sequence[tuple[Sequence[Tensor], Set | None]]
PLAYERS: tuple[Player, Player] = ("x", "y")


class Sets(TypedDict, total=False):
    """The keyword arguments of every stepper that owns its players."""

    x_set: Set | None
    y_set: Set | None
    rowwise: bool


class StepInfo(NamedTuple):
    """What one step of a stepper saw and spent.

    Attributes:
        value: f at the last point where a gradient was evaluated, one per row if there are rows.
        grad_sq_x: The squared norm of the last x gradient; of its gradient mapping, if x has a set.
        grad_sq_y: The squared norm of the last y gradient; of its gradient mapping, if y has a set.
        calls_x: x gradients evaluated in this step.
        calls_y: y gradients evaluated in this step.
        calls_value: Evaluations without a gradient in this step.
        inner_steps: Steps of y.
        stop_reason: Why the inner loop stopped, or the proximal weight of the default of `minimax`;
            else empty.
        calls_hvp: Hessian-vector products in this step; each counts as four calls.
    """

    value: Tensor
    grad_sq_x: Scalar
    grad_sq_y: Scalar
    calls_x: int
    calls_y: int
    calls_value: int
    inner_steps: int
    stop_reason: str = ""
    calls_hvp: int = 0


class Evaluation(NamedTuple):
    """What is known about a gradient of one player, which is in `.grad`.

    Attributes:
        value: f at this point, averaged over the ranks.
        grad_sq: The squared norm of the gradient.
        mapping_sq: The squared norm of the gradient mapping.
        graph: f with its graph.
    """

    value: Tensor
    grad_sq: Scalar
    mapping_sq: Scalar
    graph: Tensor


class Stepper(Counted, ABC):
    """A min-max algorithm for a player x that minimizes and a player y that maximizes.

    A subclass implements `_step`. It evaluates gradients with `evaluate`, `_gradient` or `_call`,
    which count them.

    Attributes:
        max_calls: Gradients and values that may be evaluated in total; None for no limit.
        grad_scaler: A `torch.amp.GradScaler` whose scale protects half-precision gradients; they
            are unscaled before they are used. An overflow raises `NonFiniteGradient`, with x
            unchanged: lower the scale with `grad_scaler.update(...)` and step again.
        calls_x, calls_y, calls_value: Evaluations so far.
        samples_x, samples_y: The same times the batch size.
        outer_steps, inner_steps: Steps of x and of y so far.
        counters: All of these; two steppers may share one.
        ended: With `rowwise`, the rows in which the method cannot continue, and why.
        row_calls: With `rowwise`, the calls of each row; frozen rows have none.
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "start"
    """The point of the norms of `StepInfo`: both players before the step, x before and y after it
    ("middle"), or both players after it."""
    max_inner_steps: int | None = None
    """The cap of the inner loop, if there is one."""
    at_cap: Flag = False
    """Whether the last inner loop ended at its cap; one flag per row if there are rows."""

    def __init__(self, x_groups: Groups, y_groups: Groups, rowwise: bool) -> None:
        check_flags(rowwise=rowwise)
        self._groups = {"x": x_groups, "y": y_groups}
        self._players = {
            player: [p for params, _ in groups for p in params]
            for player, groups in self._groups.items()
        }
        self._has_set = {
            player: any(constraint is not None for _, constraint in groups)
            for player, groups in self._groups.items()
        }
        self.rowwise = rowwise
        self._sharded = parallel.any_shard(self._players["x"] + self._players["y"])
        self._on_ranks = parallel.is_active()
        for name, params in self._players.items():
            if not params:
                raise ValueError(f"the {name} player has no parameters")
        if {id(p) for p in self._players["x"]} & {id(p) for p in self._players["y"]}:
            raise ValueError(
                "x and y share a parameter: every tensor belongs to one player, the one that "
                "minimizes or the one that maximizes"
            )
        self.counters = Counters()
        self.grad_scaler: torch.amp.GradScaler | None = None
        self._batch_size = 1
        self._frozen: Tensor | None = None
        first = self._players["x"][0]
        num_rows = len(first) if rowwise else 0
        self.ended: dict[int, NoProgress] = {}
        self.row_calls = torch.zeros(num_rows, dtype=torch.int64, device=first.device)
        self._counted_rows = torch.ones(num_rows, dtype=torch.bool, device=first.device)

    def step(self, closure: Closure, batch_size: int = 1) -> StepInfo:
        """Take one step of the algorithm.

        Args:
            closure: Evaluates f(x, y) and returns it with its graph; one value per row with
                rowwise players.
            batch_size: The number of samples in one call of the closure, for the counters.

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
        self._on_ranks = parallel.is_active()
        counters, before = self.counters, vars(self.counters).copy()
        try:
            value, grad_sq_x, grad_sq_y, reason = self._step(closure)
        finally:
            tensors.drop_cached_casts()
        counters.outer_steps += 1
        return StepInfo(
            value,
            grad_sq_x,
            grad_sq_y,
            counters.calls_x - before["calls_x"],
            counters.calls_y - before["calls_y"],
            counters.calls_value - before["calls_value"],
            counters.inner_steps - before["inner_steps"],
            reason,
            counters.calls_hvp - before["calls_hvp"],
        )

    @abstractmethod
    def _step(self, closure: Closure) -> Step:
        """One step of the algorithm: the value, both squared norms, why the inner loop stopped."""

    def evaluate(
        self, closure: Closure, *, within_budget: bool = True
    ) -> tuple[Evaluation, Evaluation]:
        """Evaluate the gradients of both players by one backward pass; counts two calls.

        Args:
            closure: Evaluates f(x, y) and returns it with its graph.
            within_budget: Whether `max_calls` is respected.

        Returns:
            What is known about the gradient of x, and about that of y.
        """
        graph = self._call(closure, "xy", within_budget)
        value = self._fill_gradients(graph, self._players["x"] + self._players["y"])
        return self._measure(value, graph, "x"), self._measure(value, graph, "y")

    def sets(self, player: Player) -> list[tuple[Tensor, Set | None]]:
        """The tensors of a player with their sets; a set may be joint over several tensors."""
        return [(p, constraint) for params, constraint in self._groups[player] for p in params]

    def groups(self, player: Player) -> list[tuple[list[Tensor], Set | None]]:
        """The tensors of a player in groups, each with its set, which is joint over the group."""
        return [(list(params), constraint) for params, constraint in self._groups[player]]

    def freeze(self, rows: Tensor | None) -> None:
        """Freeze rows: they no longer move, and no calls are counted for them.

        Args:
            rows: One flag per row; None for no row.
        """
        self._frozen = rows
        self._counted_rows = torch.ones_like(self._counted_rows) if rows is None else ~rows

    def state_dict(self) -> dict[str, Any]:
        """The complete state; resuming from it is bit for bit."""
        return {
            "class": type(self).__name__,
            "counters": self.counters.state_dict(),
            "row_calls": self.row_calls.clone(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state.

        Raises:
            ValueError: Another algorithm saved the state, or the number of rows differs.
        """
        check_origin(self, state_dict)
        if state_dict["row_calls"].shape != self.row_calls.shape:
            raise ValueError(
                f"this state was saved for {len(state_dict['row_calls'])} rows, but the players "
                f"have {len(self.row_calls)}"
            )
        self.counters.load_state_dict(state_dict["counters"])
        self.row_calls.copy_(state_dict["row_calls"])

    # For subclasses.

    def _call(self, closure: Closure, players: str, within_budget: bool = True) -> Tensor:
        """Evaluate f with its graph; counted as one gradient of each of these players."""
        if within_budget:
            self.counters.check_budget(len(players))
        tensors.drop_cached_casts()
        value = closure()
        if not isinstance(value, Tensor):
            raise TypeError(
                f"f(x, y) must be a tensor computed with torch, not {type(value).__name__}"
            )
        if not self.rowwise and value.numel() != 1:
            raise ValueError(
                f"f(x, y) must be one number, but has shape {tuple(value.shape)}: take the mean or "
                "the sum, or use rowwise=True"
            )
        if self.rowwise and value.shape != self.row_calls.shape:
            raise ValueError(
                "with rowwise=True f(x, y) must be one number per row, shape "
                f"{tuple(self.row_calls.shape)}, but has shape {tuple(value.shape)}"
            )
        if not value.requires_grad:
            raise ValueError(
                "f(x, y) depends on neither player: compute it with torch from both, without "
                "detach, item or numpy"
            )
        self._count(players)
        return value

    def _count(self, players: str) -> None:
        """Count one gradient of each of these players."""
        counters = self.counters
        counters.calls_x += "x" in players
        counters.calls_y += "y" in players
        counters.samples_x += self._batch_size * ("x" in players)
        counters.samples_y += self._batch_size * ("y" in players)
        if self.rowwise:
            self.row_calls.add_(self._counted_rows, alpha=len(players))

    def _gradient(self, closure: Closure, player: Player, keep_graph: bool = False) -> Evaluation:
        """Evaluate f, and leave the gradient of one player in `.grad`."""
        return self._backward(self._call(closure, player), player, keep_graph)

    def _backward(self, graph: Tensor, player: Player, keep_graph: bool = False) -> Evaluation:
        """Leave the gradient of one player in `.grad`."""
        value = self._fill_gradients(graph, self._players[player], keep_graph)
        return self._measure(value, graph, player)

    def _fill_gradients(
        self, graph: Tensor, params: list[Tensor], keep_graph: bool = False
    ) -> Tensor:
        """Backward for these tensors only; returns the value. Both are averaged over the ranks."""
        for param in params:
            param.grad = None
        inputs = [param for param in params if param.requires_grad]
        if not inputs:
            raise ValueError("a player has no tensor that requires a gradient: unfreeze one")
        total = graph if graph.dim() == 0 else graph.sum()
        sharded = self._sharded and parallel.any_shard(inputs)
        backward(total, inputs, self.grad_scaler, keep_graph, sharded)
        value = graph.detach()
        if self._on_ranks:
            value = value.clone()
            parallel.average_gradients_(params, value)
        return value

    def _measure(self, value: Tensor, graph: Tensor, player: Player) -> Evaluation:
        """Check value and gradient, and compute the norms of the gradient and of its mapping."""
        grad_sq = self._norm(self._grads(player))
        largest = torch.finfo(self._players[player][0].dtype).max
        in_range = grad_sq <= largest
        finite: Flag
        if self.rowwise:
            finite = all_finite(value) and all_true(in_range)
        else:  # Python numbers, which launch no kernel
            finite = math.isfinite(value.item()) and bool(in_range)
        if not finite:
            if self.rowwise:
                finite = value.isfinite() & in_range
            self._clear_non_finite(player, value, negate(finite))
        if not self._has_set[player]:
            return Evaluation(value, grad_sq, grad_sq, graph)
        ascent = 1.0 if player == "y" else -1.0
        directions = iter([ascent * gradient for gradient in self._grads(player)])
        mapping: list[Tensor] = []
        for params, constraint in self._groups[player]:
            direction = list(islice(directions, len(params)))
            if constraint is not None:
                direction = constraint.gradient_mapping(list(params), direction)
            mapping += direction
        mapping_sq = where(finite, self._norm(mapping), math.nan)
        return Evaluation(value, grad_sq, mapping_sq, graph)

    def _clear_non_finite(self, player: Player, value: Tensor, bad: Flag) -> None:
        """Raise, unless only frozen rows are affected: their gradients become zero."""
        grads = [p.grad for p in self._players[player]]
        if self._frozen is None or any_true(bad & ~self._frozen):
            tensors.raise_non_finite(grads, value, bad)
        for gradient in grads:
            if gradient is not None:
                gradient[bad] = 0.0

    def _norm(self, direction: list[Tensor]) -> Scalar:
        if self._sharded and parallel.any_shard(direction):
            return parallel.squared_norm_of_shards(direction)
        return tensors.squared_norm(direction, self.rowwise)

    def _grads(self, player: Player) -> list[Tensor]:
        params = self._players[player]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]

    def _both_moved(self, at_x: Evaluation, at_y: Evaluation) -> Step:
        """The result of a step in which y moved once."""
        self.counters.inner_steps += 1
        return at_x.value, at_x.mapping_sq, at_y.mapping_sq, ""
