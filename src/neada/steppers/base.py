"""What all min-max algorithms share: one verb, exact counters, complete state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from neada import distributed, tensors
from neada.checks import check_flags, check_origin
from neada.inner import Counted, Counters, Player, backward
from neada.scalars import Flag, Scalar, all_finite, any_true, is_finite, negate, where
from neada.sets import Set
from neada.transactions import Undo, put_back, saved_tensors

__all__ = ["Closure", "Evaluation", "StepInfo", "Stepper"]


Closure = Callable[[], Tensor]
Groups = Sequence[tuple[Sequence[Tensor], Set | None]]


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
            are unscaled before anything looks at them. An overflow raises `NonFiniteGradient` with
            the players untouched: lower the scale with `grad_scaler.update(...)` and step again.
        calls_x, calls_y, calls_value: Evaluations so far.
        samples_x, samples_y: The same times the batch size.
        outer_steps, inner_steps: Steps of x and of y so far.
        counters: All of these; two steppers may share one.
        row_calls: With `rowwise`, the calls that each row has paid for; rows at rest pay nothing.
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "start"
    """Where the norms of `StepInfo` belong: to both players before the step, to the x before and
    the y after it ("middle"), or to both players after it."""
    y_on_ranks: Literal["shared", "same", "local"] = "shared"
    """With a process group: every rank holds the same y and evaluates it on data of its own, so
    gradients are averaged ("shared"); or its gradient is the same on all ranks already ("same"); or
    every rank has a part of y ("local"). The gradient of x is that of all ranks in any case."""
    _squared: str = ""
    """The players of whose gradient squares of single entries are kept, in their own dtype: a
    squared norm that the dtype does not hold is refused as one that is not finite."""
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
        self._wrapped: set[int] | None = None  # parameters that DDP averages; not yet known
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
            NonFiniteGradient: A gradient is not finite; nothing was changed, see there.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self._batch_size = batch_size
        counters = self.counters
        attributes, counts = vars(self).copy(), vars(counters).copy()
        saved = self._saved()
        try:
            value, grad_sq_x, grad_sq_y, reason = self._step(closure)
            self._accept()
        except FloatingPointError as error:
            if isinstance(error, tensors.NonFiniteGradient):
                error.point = tensors.clone(self._players["x"] + self._players["y"])
            put_back(vars(self), attributes)
            put_back(vars(counters), counts)
            for undo in saved:
                undo()
            raise
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
    def _step(self, closure: Closure) -> tuple[Tensor, Scalar, Scalar, str]:
        """One step; returns the value, both squared norms, and why an inner loop stopped."""

    def _accept(self) -> None:
        """Raise NonFiniteGradient where the points that a step has reached are not to be kept."""

    def _saved(self) -> list[Undo]:
        """What puts back all that is changed in place before the last number of a step is known.

        Attributes need no mention: they are put back as the objects they were.
        """
        return [saved_tensors([self.row_calls])] if self.rowwise else []

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
        value = self._evaluate(closure, "xy")
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

    def leave_to_wrapper(self, model: nn.Module) -> None:
        """Do not average the gradients of parameters that `DistributedDataParallel` averages.

        A wrapper that the closure itself evaluates is found without being told.
        """
        self._wrapped = distributed.wrapped_parameters([model])

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
        """Let the tensors of these groups be a player.

        The dictionaries are new ones: a step that fails goes back to those of before.
        """
        self._groups = {**self._groups, player: groups}
        self._players = {**self._players, player: [p for params, _ in groups for p in params]}
        has_set = any(constraint is not None for _, constraint in groups)
        self._has_set = {**self._has_set, player: has_set}

    def _evaluate(self, closure: Closure, players: str) -> Tensor:
        """The value of the closure, whose gradients for some players are wanted next."""
        tensors.drop_cached_casts()
        if not distributed.is_active():
            return self._checked(closure())
        try:
            if self._wrapped is not None:
                return self._checked(closure())
            with distributed.watching_wrappers() as wrappers:
                value = self._checked(closure())
            self._wrapped = distributed.wrapped_parameters(wrappers)
            return value
        except Exception as error:
            if not distributed.is_of_all_ranks(error):
                self._averaged(self._no_value(), players, error)
            raise

    def _averaged(self, value: Tensor, players: str, error: Exception | None = None) -> Tensor:
        """The mean of a value over the ranks; the gradients of the players become theirs, too."""
        if not distributed.is_active() or (self.y_on_ranks == "same" and players == "y"):
            return value
        params = self._players["x"] if "x" in players else []
        if "y" in players and self.y_on_ranks == "shared":
            params = params + self._players["y"]
        wrapped = self._wrapped or set()
        params = [
            param
            for param in params
            if param.requires_grad and id(param) not in wrapped and not distributed.is_shard(param)
        ]
        for param in params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        if not params and self.y_on_ranks == "same":
            return value
        return distributed.average([_grad_of(param) for param in params], value.detach(), error)

    def _checked(self, value: Tensor) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the closure must return f(x, y) as a tensor, not {type(value).__name__}"
            )
        rows = len(self._players["x"][0]) if self.rowwise else None
        if rows is None and value.numel() != 1:
            raise ValueError(
                f"the closure must return one number, but its value has shape "
                f"{tuple(value.shape)}: take the mean or the sum, or use rowwise players"
            )
        if rows is not None and value.shape != (rows,):
            raise ValueError(
                f"rowwise players need one value per row, shape ({rows},), but the closure's "
                f"value has shape {tuple(value.shape)}"
            )
        if not value.requires_grad:
            raise ValueError(
                "the closure's value depends on neither player: compute it from the parameters, "
                "with gradients enabled"
            )
        return value

    def _gradient(self, closure: Closure, player: Player, keep_graph: bool = False) -> Evaluation:
        """Evaluate, and leave the gradient of one player in `.grad`."""
        self.counters.check_budget()
        value = self._evaluate(closure, player)
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
        backward(total, inputs, self.grad_scaler, keep_graph)

    def _count(self, player: Player) -> None:
        self.counters.count(player, self._batch_size)
        if self.rowwise:
            self.row_calls += self._paying

    def _measure(self, value: Tensor, player: Player) -> Evaluation:
        grad_sq = self._norm(self._grads(player), player)
        if player in self._squared:
            largest = torch.finfo(self._players[player][0].dtype).max
            grad_sq = where(grad_sq > largest, math.inf, grad_sq)
        unknown = None if all_finite(grad_sq) else self._rest_not_finite(player, grad_sq)
        if not self._has_set[player]:
            return Evaluation(value.detach(), grad_sq, grad_sq)
        ascent = 1.0 if player == "y" else -1.0
        mapping: list[Tensor] = []
        for params, constraint in self._groups[player]:
            direction = [ascent * _grad_of(p) for p in params]
            if constraint is None:
                mapping += direction
            else:
                mapping += constraint.gradient_mapping(list(params), direction)
        mapping_sq = self._norm(mapping, player)
        if unknown is not None:
            mapping_sq = where(unknown, math.nan, mapping_sq)
        return Evaluation(value.detach(), grad_sq, mapping_sq)

    def _rest_not_finite(self, player: Player, grad_sq: Scalar) -> Tensor:
        """Zero the gradients of rows at rest that are not finite; raise if others are not."""
        grads = [p.grad for p in self._players[player]]
        bad = negate(is_finite(grad_sq))
        if self._resting is None or any_true(bad & ~self._resting):
            dtype = self._players[player][0].dtype if player in self._squared else torch.float64
            tensors.raise_non_finite(grads, dtype)
        assert isinstance(bad, Tensor)
        for gradient in grads:
            if gradient is not None:
                gradient[bad] = 0.0
        return bad

    def _finite_at_rest(self, value: Tensor, resting: Tensor | None) -> Tensor:
        """Values, with zeros for rows at rest where f is not defined."""
        return value if resting is None else torch.where(resting & ~value.isfinite(), 0.0, value)

    def _norm(self, direction: list[Tensor], player: Player) -> Scalar:
        """The squared norm that all ranks decide by."""
        if any(map(distributed.is_shard, direction)):
            return distributed.squared_norm_of_shards(direction)
        norm = tensors.squared_norm(direction, self.rowwise)
        return norm if player == "x" else self._agreed(norm)

    def _agreed(self, number: Scalar) -> Scalar:
        """The sum over the ranks of a number about a y of which each of them has a part."""
        if self.y_on_ranks != "local" or not distributed.is_active():
            return number
        like = self._players["y"][0]
        own = torch.as_tensor(number, dtype=torch.float64, device=like.device)
        total = distributed.num_ranks() * distributed.average([], own)
        return total if isinstance(number, Tensor) else total.item()

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
            with torch.no_grad():
                value = self._finite_at_rest(self._trial(closure), self._resting)
            return value

        return evaluate

    def _trial(self, closure: Closure) -> Tensor:
        """The value of a closure at a point that is only tried, the mean over the ranks."""
        tensors.drop_cached_casts()
        if not distributed.is_active() or self.y_on_ranks == "same":
            return closure()
        try:
            value = closure()
        except Exception as error:
            if not distributed.is_of_all_ranks(error):
                distributed.average([], self._no_value(), error)
            raise
        return distributed.average([], value)

    def _no_value(self) -> Tensor:
        """A value of the right shape where there is none."""
        first = self._players["x"][0]
        return first.detach().new_zeros((len(first),) if self.rowwise else ())


def _grad_of(param: Tensor) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad
