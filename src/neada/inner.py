"""The inner loop: y moves until a stopping rule fires; and the counters of evaluations.

`InnerLoop.maximize` is the only function that evaluates a rule. The problem is an oracle that
evaluates the gradient of y, moves y by one step, and retires the rows that are done: rows of a
batch of games are frozen until the slowest is done, samples of a training batch are removed.
Rows are frozen by the caller and done by the rule.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Keep, PlayerOptimizer
from neada.optim.spectral import SPG
from neada.scalars import Flag, Scalar, negate, where
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
    """The next evaluation would exceed `max_calls`; it was not made."""


@dataclass
class Counters:
    """What has been evaluated and taken so far, with an optional limit.

    Attributes:
        calls_x: Gradients with respect to x.
        calls_y: Gradients with respect to y.
        calls_value: Evaluations without a gradient.
        calls_hvp: Hessian-vector products of both players; each counts as four calls.
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
    calls_hvp: int = 0
    samples_x: int = 0
    samples_y: int = 0
    outer_steps: int = 0
    inner_steps: int = 0
    max_calls: int | None = None

    @property
    def total_calls(self) -> int:
        """Gradients of both players, values, and four for each Hessian-vector product."""
        return self.calls_x + self.calls_y + self.calls_value + 4 * self.calls_hvp

    def check_budget(self, num_calls: int = 1) -> None:
        """Raise `BudgetExhausted` if that many calls more would exceed the limit."""
        if self.max_calls is not None and self.total_calls + num_calls > self.max_calls:
            raise BudgetExhausted(f"max_calls = {self.max_calls} is used up")

    def count(self, player: Player, num_samples: int = 1) -> None:
        """Count one gradient of a player."""
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
        """Continue from saved counts."""
        for name in self.state_dict():
            setattr(self, name, state_dict[name])


def _forwarded(name: str) -> property:
    """A counter as an attribute of the object that owns the counters."""

    def read(owner: "Counted") -> Any:
        return getattr(owner.counters, name)

    def write(owner: "Counted", count: int | None) -> None:
        setattr(owner.counters, name, count)

    return property(read, write)


class Counted:
    """Owns `counters` and shows them as its own attributes; assign `counters` to share them."""

    counters: Counters
    calls_x = _forwarded("calls_x")
    calls_y = _forwarded("calls_y")
    calls_value = _forwarded("calls_value")
    calls_hvp = _forwarded("calls_hvp")
    samples_x = _forwarded("samples_x")
    samples_y = _forwarded("samples_y")
    outer_steps = _forwarded("outer_steps")
    inner_steps = _forwarded("inner_steps")
    max_calls = _forwarded("max_calls")

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.counters.total_calls


class NoProgress(Exception):  # noqa: N818 (a signal, not an error)
    """A method cannot continue; the message explains why.

    Attributes:
        kind: "stalled", or what was observed: f "curves up" in y, a player "runs away", or steps
            change f by less than "rounding" does, or f is "not finite".
    """

    def __init__(
        self,
        sentence: str,
        kind: Literal["stalled", "curves up", "runs away", "rounding", "not finite"] = "stalled",
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
    """

    keep: Literal["auto"] | Keep = "auto"
    min_steps: int = 1
    max_steps: int | None = None

    def __post_init__(self) -> None:
        check_choice("keep", self.keep, ("auto", "nothing", "step", "everything"))
        check_number("min_steps", self.min_steps, strict=False, whole=True)
        if self.max_steps is not None:
            check_number("max_steps", self.max_steps, above=1, strict=False, whole=True)
            if self.min_steps > self.max_steps:
                raise ValueError(
                    f"min_steps must be at most max_steps, which is {self.max_steps}, got "
                    f"{self.min_steps}"
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
        trusts_first_step: Whether rows that satisfy the rule before their first step need no
            evaluation after it.
    """

    trusts_first_step: bool

    def evaluate(self) -> Scalar:
        """Put y's gradient in place and return its squared mapping, one per row if there are rows.

        Entries of rows that are done are not used.
        """

    def move(self) -> None:
        """Take one step of the y optimizer for the rows that are not done."""

    def retire(self, done: Flag, *, unevaluated: bool = False) -> bool:
        """Freeze or remove the rows that are done; return whether all rows of all ranks are.

        Args:
            done: Whether y is done, one flag per row if there are rows.
            unevaluated: Rows that became done end at the point after the last move, at which f has
                not been evaluated.

        Raises:
            NonFiniteGradient: The last evaluation gave NaN or Inf on some rank.
        """


class InnerLoop:
    """Move y until the rule fires, and keep what is kept from one loop to the next.

    Args:
        stopping: The rule; None for criterion I or II, whichever fires first.
        options: How many steps, and what is kept.
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
        self.options = options
        default = max(max_steps, options.min_steps)
        self.max_steps = default if options.max_steps is None else options.max_steps
        self.grad_sq_x: Scalar | None = None

    def maximize(
        self, oracle: Oracle, t: int, counters: Counters, frozen: Tensor | None = None
    ) -> InnerResult:
        """Let the oracle move y until the rule fires.

        Args:
            oracle: What is maximized, and how y moves.
            t: The outer index, by which rules tighten.
            counters: `inner_steps` is incremented.
            frozen: Rows that take no part; they count as done.
        """
        min_steps = self.options.min_steps
        progress = _Progress(self.stopping, frozen)
        at_cap: Flag = False
        k = 0
        while True:
            # First, rules that only count: they need no gradient.
            state = InnerState(t, k, None, self.grad_sq_x)
            if k >= min_steps and self.stopping(state):
                progress.end_remaining(self.stopping.reason(state))
                break
            if k >= self.max_steps:
                at_cap = negate(progress.done)
                progress.end_remaining(f"the cap of {self.max_steps} inner steps")
                break
            # Then the rule at the current point, with the gradient that the next step uses.
            state = progress.record(state, oracle.evaluate())
            if k >= min_steps:
                progress.apply_rule(state)
            if oracle.retire(progress.done):
                break
            oracle.move()
            k += 1
            counters.inner_steps += 1
            if oracle.trusts_first_step and k == min_steps == 1:
                # Rows that satisfied the rule before their only required step need no evaluation
                # after it.
                progress.apply_rule(state)
                if oracle.retire(progress.done, unevaluated=True):
                    break
        return InnerResult(progress.grad_sq, k, progress.reason(), at_cap)

    # What is kept from one loop to the next.

    def resolve_keep(self, optimizer: Optimizer) -> Keep:
        """Return what this optimizer keeps between loops; "auto" depends on the optimizer."""
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
        keep = self.resolve_keep(optimizer)
        if isinstance(optimizer, PlayerOptimizer):
            optimizer.reset(keep=keep)
        elif keep == "nothing":
            optimizer.state.clear()

    def observe_x_gradient(self, grad_sq_x: Scalar) -> None:
        """Store the x gradient at the end of an outer step."""
        self.stopping.observe_x_gradient(grad_sq_x)
        self.grad_sq_x = grad_sq_x

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers, and the last x gradient."""
        return {"stopping": self.stopping.state_dict(), "grad_sq_x": self.grad_sq_x}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.stopping.load_state_dict(state_dict["stopping"])
        self.grad_sq_x = state_dict["grad_sq_x"]


class _Progress:
    """Which rows are done, why, and what their gradients were when the rule last saw them.

    Attributes:
        grad_sq: One number, or one per row; those of rows that are done do not change.
        done: Whether y is done, one flag per row once the rule has been evaluated for rows.
    """

    def __init__(self, rule: StoppingRule, frozen: Tensor | None) -> None:
        self.grad_sq: Scalar = torch.nan
        self.done: Flag = False if frozen is None else frozen
        self._rule = rule
        self._reasons: dict[str, int] = {}

    def record(self, state: InnerState, grad_sq: Scalar) -> InnerState:
        """Store the gradients that were evaluated; return the state with them."""
        is_first = not isinstance(self.grad_sq, Tensor)
        self.grad_sq = grad_sq if is_first else where(self.done, self.grad_sq, grad_sq)
        return replace(state, grad_sq_y=self.grad_sq)

    def apply_rule(self, state: InnerState) -> None:
        """Evaluate the rule; rows for which it fires are done from now on."""
        fired = self._rule(state)
        if isinstance(self.done, Tensor):
            fired = fired & ~self.done
        if not isinstance(fired, Tensor):
            if fired:
                self._reasons[self._rule.reason(state)] = 1
        elif num_fired := int(fired.sum()):
            about_them = replace(state, grad_sq_y=torch.where(fired, self.grad_sq, math.inf))
            reason = self._rule.reason(about_them)
            self._reasons[reason] = self._reasons.get(reason, 0) + num_fired
        self.done = self.done | fired

    def end_remaining(self, reason: str) -> None:
        """Give a reason for the rows that the rule has not ended."""
        left = int((~self.done).sum()) if isinstance(self.done, Tensor) else 1
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
    """Move to the average of the iterates; return False if the optimizer keeps none."""
    if not (isinstance(optimizer, PlayerOptimizer) and optimizer.keeps_average):
        return False
    params = [param for group in optimizer.param_groups for param in group["params"]]
    with optimizer.averaged():
        answer = tensors.clone(params)
    with torch.no_grad():
        tensors.copy_(params, answer)
    return True
