"""The inner loop: y moves until a stopping rule fires; and the counters of evaluations.

`InnerLoop.maximize` is the only place where a rule is evaluated. The problem is an oracle that
evaluates the gradient of y, moves y by one step, and releases the rows that are done: rows of a
batch of games are frozen until the slowest is done, samples of a training batch are removed.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Keep, PlayerOptimizer
from neada.optim.spectral import SPG
from neada.scalars import Flag, Scalar, all_true, any_true, negate, where
from neada.stopping import GradientMapping, InnerState, InnerSteps, StoppingRule

__all__ = [
    "BudgetExhausted",
    "Counted",
    "Counters",
    "InnerLoop",
    "InnerOptions",
    "InnerResult",
    "NoProgress",
    "Oracle",
    "Player",
    "backward",
    "go_to_average",
]


Player = Literal["x", "y"]


class BudgetExhausted(Exception):  # noqa: N818 (a signal, not an error)
    """The next evaluation would exceed `max_calls`; nothing has moved since the last step."""


@dataclass
class Counters:
    """What has been evaluated and taken so far, with an optional limit.

    Attributes:
        calls_x: Gradients with respect to x.
        calls_y: Gradients with respect to y.
        calls_value: Evaluations without a gradient.
        samples_x: Samples that the x gradients looked at.
        samples_y: Samples that the y gradients looked at.
        outer_steps: Steps of x; the outer index t.
        inner_steps: Steps of y.
        max_calls: Gradients and values that may be evaluated in all; None for no limit.

    Example:
        >>> counters = Counters(max_calls=2)
        >>> counters.count("y", num_samples=32)
        >>> counters.total_calls, counters.samples_y
        (1, 32)
    """

    calls_x: int = 0
    calls_y: int = 0
    calls_value: int = 0
    samples_x: int = 0
    samples_y: int = 0
    outer_steps: int = 0
    inner_steps: int = 0
    max_calls: int | None = None

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.calls_x + self.calls_y + self.calls_value

    def check_budget(self, num_calls: int = 1) -> None:
        """Raise `BudgetExhausted` if that many calls more would exceed the limit."""
        if self.max_calls is not None and self.total_calls + num_calls > self.max_calls:
            raise BudgetExhausted(f"max_calls = {self.max_calls} is used up")

    def count(self, player: Player, num_samples: int = 1) -> None:
        """Take note of a gradient of one player."""
        if player == "x":
            self.calls_x += 1
            self.samples_x += num_samples
        else:
            self.calls_y += 1
            self.samples_y += num_samples

    def state_dict(self) -> dict[str, int]:
        """The counts; the limit is not part of the state."""
        return {name: count for name, count in asdict(self).items() if name != "max_calls"}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from saved counts."""
        for name in self.state_dict():
            setattr(self, name, state_dict[name])


class _Count:
    """A counter as an attribute of the object that owns the counters."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: "Counted | None", kind: type) -> int:
        # Of the class itself, as documentation tools ask for it, the initial count.
        count: int = getattr(Counters if owner is None else owner.counters, self._name)
        return count

    def __set__(self, owner: "Counted", count: int) -> None:
        setattr(owner.counters, self._name, count)


class Counted:
    """Owns `counters` and shows them as its own attributes; assign `counters` to share them."""

    counters: Counters
    calls_x = _Count()
    calls_y = _Count()
    calls_value = _Count()
    samples_x = _Count()
    samples_y = _Count()
    outer_steps = _Count()
    inner_steps = _Count()

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.counters.total_calls

    @property
    def max_calls(self) -> int | None:
        """Gradients and values that may be evaluated in all; None for no limit."""
        return self.counters.max_calls

    @max_calls.setter
    def max_calls(self, max_calls: int | None) -> None:
        self.counters.max_calls = max_calls


class NoProgress(Exception):  # noqa: N818 (a signal, not an error)
    """A method has tried everything it knows; the sentence says what did not work.

    Attributes:
        kind: "stalled", or what was seen: f "curves up" in y, a player "runs away", or steps change
            f by less than "rounding" does.
    """

    def __init__(
        self,
        sentence: str,
        kind: Literal["stalled", "curves up", "runs away", "rounding"] = "stalled",
    ) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True)
class InnerOptions:
    """Options of an inner loop.

    Attributes:
        keep: What the y optimizer keeps from one loop to the next: "nothing", its "step" size, or
            "everything". "auto" is "step" where there is a step size to keep and "everything"
            elsewhere.
        min_steps: Steps before the rule is evaluated; 0 is the literal criterion I.
        max_steps: A cap, for rules that may never fire; None is 10,000 for `NeAda`, 100 for
            `GroupDRO`.
        test: "current" evaluates the rule at the current y; "last" on the gradient that the last
            step used, as the authors' released code does.
    """

    keep: Literal["auto"] | Keep = "auto"
    min_steps: int = 1
    max_steps: int | None = None
    test: Literal["current", "last"] = "current"

    def __post_init__(self) -> None:
        check_choice("keep", self.keep, ("auto", "nothing", "step", "everything"))
        check_choice("test", self.test, ("current", "last"))
        check_number("min_steps", self.min_steps, strict=False, whole=True)
        if self.max_steps is not None:
            check_number("max_steps", self.max_steps, above=1, strict=False, whole=True)
            _check_steps(self.min_steps, self.max_steps)


def _check_steps(min_steps: int, max_steps: int) -> None:
    if min_steps > max_steps:
        raise ValueError(
            f"min_steps must be at most max_steps, which is {max_steps}, got {min_steps}"
        )


@dataclass(frozen=True)
class InnerResult:
    """Where an inner loop ended, and why.

    Attributes:
        grad_sq: The squared norm of y's gradient mapping as the rule saw it last, one per row if
            there are rows; NaN if none was evaluated.
        steps: Steps of y.
        reason: Why there were no more.
        at_cap: Whether the rule had not fired when the cap was reached; one flag per row if there
            are rows.
    """

    grad_sq: Scalar
    steps: int
    reason: str
    at_cap: Flag = False


class Oracle(Protocol):
    """What is maximized over y, and what moves y.

    Attributes:
        rows_leave: Whether rows that are done leave what is evaluated, or stay in it at rest.
        trusts_first_step: Whether rows that fulfil the rule before their first step need not be
            looked at after it; only where rows leave.
    """

    rows_leave: bool
    trusts_first_step: bool

    def evaluate(self) -> Scalar:
        """Leave y's gradient in place; its squared mapping, for the rows that are evaluated."""

    def move(self) -> None:
        """One step of the y optimizer, for the rows that are still on their way."""

    def agree_to_stop(self, done: bool) -> bool:
        """Whether the loop ends, given whether all rows of this rank are done."""

    def release(self, done: Tensor, *, unseen: bool = False) -> None:
        """These of the evaluated rows are done: they rest, or they leave.

        Args:
            done: Which.
            unseen: They leave where the last step took them, which nobody has evaluated.
        """


class InnerLoop:
    """Move y until the rule fires, and keep what is kept from one loop to the next.

    Args:
        stopping: The rule; None for criterion I or II, whichever fires first.
        options: Where the rule is asked, how many steps, what is kept.
        max_steps: The cap where the options have none.

    Attributes:
        grad_sq_x: The squared norm of the last x gradient, for rules that compare with it.
    """

    def __init__(
        self, stopping: StoppingRule | None, options: InnerOptions, max_steps: int
    ) -> None:
        self.stopping = GradientMapping() | InnerSteps() if stopping is None else stopping
        if not isinstance(self.stopping, StoppingRule):
            raise TypeError(
                f"stopping must be a rule such as FixedSteps(15), not {type(stopping).__name__}"
            )
        if not isinstance(options, InnerOptions):
            raise TypeError(f"inner must be InnerOptions(...), not {type(options).__name__}")
        self.options = options
        self.max_steps = max_steps if options.max_steps is None else options.max_steps
        _check_steps(options.min_steps, self.max_steps)
        self.grad_sq_x: Scalar | None = None

    def maximize(
        self, oracle: Oracle, t: int, counters: Counters, resting: Tensor | None = None
    ) -> InnerResult:
        """Let the oracle move y until the rule fires.

        Args:
            oracle: What is maximized, and how y moves.
            t: The outer index, by which rules tighten.
            counters: Their inner steps are counted here.
            resting: Rows that take no part.
        """
        rows = _Rows(resting)
        at_cap: Flag = False
        k = 0
        while True:
            if reason := self._count_says(t, k):
                rows.finish(reason)
                break
            if k >= self.max_steps:
                rows.finish(f"the cap of {self.max_steps} inner steps")
                at_cap = negate(rows.at_rest)
                break
            grad_sq = oracle.evaluate()
            rows.see(grad_sq)
            if self.options.test == "last":
                oracle.agree_to_stop(False)  # raises for NaN and Inf, before y moves
            elif self._all_done(rows, oracle, t, k, grad_sq):
                break
            oracle.move()
            k += 1
            counters.inner_steps += 1
            if self.options.test == "last":
                if self._all_done(rows, oracle, t, k, grad_sq):
                    break
            elif k == 1 and oracle.trusts_first_step and self._all_left(rows, oracle, t, grad_sq):
                break
        return InnerResult(rows.grad_sq, k, rows.reason(), at_cap)

    def _count_says(self, t: int, k: int) -> str:
        """Why to stop without looking at a gradient; empty to go on."""
        if k < self.options.min_steps:
            return ""
        state = InnerState(t, k, None, self.grad_sq_x)
        return self.stopping.reason(state) if self.stopping(state) else ""

    def _all_done(self, rows: "_Rows", oracle: Oracle, t: int, k: int, grad_sq: Scalar) -> bool:
        """Evaluate the rule, release the rows that are done, and return whether the loop ends."""
        if k < self.options.min_steps:
            return oracle.agree_to_stop(False)
        state = InnerState(t, k, grad_sq, self.grad_sq_x)
        fired = self.stopping(state)
        if not oracle.rows_leave:
            fired = rows.at_rest | fired
            rows.at_rest = fired
            if isinstance(fired, Tensor):
                oracle.release(fired)
        if oracle.agree_to_stop(all_true(fired)):
            rows.finish(self.stopping.reason(state))
            return True
        if oracle.rows_leave and isinstance(fired, Tensor) and any_true(fired):
            self._release(rows, oracle, state, fired)
        return False

    def _all_left(self, rows: "_Rows", oracle: Oracle, t: int, grad_sq: Scalar) -> bool:
        """After the first step, release the rows that needed none; return whether the loop ends.

        They take it because of `min_steps`; the rule had fired for them already.
        """
        state = InnerState(t, 0, grad_sq, self.grad_sq_x)
        fired = self.stopping(state) if self.options.min_steps == 1 else False
        if isinstance(fired, Tensor) and any_true(fired):
            self._release(rows, oracle, state, fired, unseen=True)
        return oracle.agree_to_stop(isinstance(fired, Tensor) and all_true(fired))

    def _release(
        self,
        rows: "_Rows",
        oracle: Oracle,
        state: InnerState,
        fired: Tensor,
        *,
        unseen: bool = False,
    ) -> None:
        assert isinstance(state.grad_sq_y, Tensor)
        about = replace(state, grad_sq_y=state.grad_sq_y[fired])
        rows.leave(fired, self.stopping.reason(about))
        oracle.release(fired, unseen=unseen)

    # What is kept from one loop to the next.

    def check_keep(self, optimizer: Optimizer) -> Keep:
        """What this optimizer keeps, with "auto" resolved for a y that lives on."""
        has_step = isinstance(optimizer, PlayerOptimizer) and bool(optimizer.step_numbers)
        if self.options.keep == "auto":
            return "step" if has_step else "everything"
        if self.options.keep == "step" and not has_step:
            raise ValueError(
                f"keep='step' keeps a step size, and {type(optimizer).__name__} has none to keep: "
                "use 'nothing' or 'everything'"
            )
        if (
            self.options.keep == "everything"
            and isinstance(optimizer, SPG)
            and optimizer.keeps_best
        ):
            raise ValueError(
                "keep='everything' would let SPG go back to the best point of another problem: use "
                "'step' or 'nothing', or SPG(safeguard=False)"
            )
        return self.options.keep

    def renew(self, optimizer: Optimizer) -> None:
        """Let an optimizer forget what it does not keep, before the next loop."""
        keep = self.check_keep(optimizer)
        if isinstance(optimizer, PlayerOptimizer):
            optimizer.reset(keep=keep)
        elif keep == "nothing":
            optimizer.state.clear()

    def observe_x_gradient(self, grad_sq_x: Scalar) -> None:
        """Take note of the x gradient at the end of an outer step."""
        self.stopping.observe_x_gradient(grad_sq_x)
        self.grad_sq_x = grad_sq_x

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers, and the last x gradient."""
        return {"stopping": self.stopping.state_dict(), "grad_sq_x": self.grad_sq_x}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.stopping.load_state_dict(state_dict["stopping"])
        self.grad_sq_x = state_dict["grad_sq_x"]


class _Rows:
    """What the rows' gradients were when the rule last saw them, and why they stopped.

    Attributes:
        grad_sq: One number, or one per row; those of rows that are done stay as they were.
        at_rest: Which rows have stopped but are still evaluated.
    """

    def __init__(self, resting: Tensor | None) -> None:
        self.grad_sq: Scalar = torch.nan
        self.at_rest: Flag = False if resting is None else resting
        self._evaluated: Tensor | None = None  # their places in `grad_sq`, once some have left
        self._reasons: dict[str, int] = {}

    def see(self, grad_sq: Scalar) -> None:
        """Take note of the rows that were evaluated."""
        if self._evaluated is not None:
            assert isinstance(self.grad_sq, Tensor)
            self.grad_sq[self._evaluated] = grad_sq
        elif isinstance(self.at_rest, Tensor) and isinstance(self.grad_sq, Tensor):
            self.grad_sq = where(self.at_rest, self.grad_sq, grad_sq)
        else:
            self.grad_sq = grad_sq

    def leave(self, done: Tensor, reason: str) -> None:
        """Some of the evaluated rows are not evaluated any more."""
        if self._evaluated is None:
            self._evaluated = torch.arange(len(done), device=done.device)
        if len(self._evaluated) == 0:  # a rank that waits for the others
            return
        self._evaluated = self._evaluated[~done]
        self._reasons[reason] = self._reasons.get(reason, 0) + int(done.sum())

    def finish(self, reason: str) -> None:
        """The rest is done."""
        left = 1 if self._evaluated is None else len(self._evaluated)
        if left > 0:
            self._reasons[reason] = self._reasons.get(reason, 0) + left

    def reason(self) -> str:
        """Why the rows stopped, with numbers where the reasons differ."""
        if len(self._reasons) == 1:
            return next(iter(self._reasons))
        return ", ".join(f"{reason} ({num})" for reason, num in self._reasons.items())


# What the oracles share.


def backward(
    total: Tensor,
    inputs: list[Tensor],
    scaler: torch.amp.GradScaler | None = None,
    keep_graph: bool = False,
    sharded: bool = False,
) -> None:
    """Put the gradient of some tensors in `.grad`, which is None before, and of no others.

    With a scaler the gradient is unscaled. With `sharded` parameters all leaves get a gradient.
    """
    scaled = total if scaler is None else scaler.scale(total)
    # The leaves of a sharded network are its gathered parameters, which are not among the inputs.
    leaves = None if sharded else inputs
    try:
        torch.autograd.backward(scaled, inputs=leaves, retain_graph=keep_graph)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise ValueError(
            "the closure must return f(x, y) with its graph, but its graph is gone: do not call "
            "backward in it"
        ) from error
    if scaler is not None:
        gradients = [tensor.grad for tensor in inputs if tensor.grad is not None]
        torch._foreach_div_(gradients, scaler.get_scale())


def go_to_average(optimizer: Optimizer) -> bool:
    """Where an optimizer keeps an average, that is its answer: go there, and say whether."""
    if not (isinstance(optimizer, PlayerOptimizer) and optimizer.keeps_average):
        return False
    params = [param for group in optimizer.param_groups for param in group["params"]]
    with optimizer.averaged():
        answer = tensors.clone(params)
    with torch.no_grad():
        tensors.copy_(params, answer)
    return True
