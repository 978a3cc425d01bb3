"""Stopping rules of an inner loop: functions of the state of the loop.

Rules are joined with `|` (either is enough) and `&` (both are needed). A rule that uses the
gradient returns False while it is unknown, so that a count can stop the loop before evaluating one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from neada.checks import check_number
from neada.scalars import Flag, Scalar, maximum, where

__all__ = [
    "FixedAccuracy",
    "FixedSteps",
    "GradientMapping",
    "InnerState",
    "InnerSteps",
    "RelativeAccuracy",
    "StoppingRule",
]


@dataclass(frozen=True)
class InnerState:
    """The state of an inner loop, on which a rule is evaluated.

    Attributes:
        t: The outer index, from 0.
        k: Inner steps done in this loop.
        grad_sq_y: The squared norm of y's gradient mapping, one per row if there are rows;
            None while it has not been evaluated.
        grad_sq_x: The squared norm of the last x gradient; None before there was one.
    """

    t: int
    k: int
    grad_sq_y: Scalar | None = None
    grad_sq_x: Scalar | None = None


class StoppingRule(ABC):
    """Whether an inner loop may stop: `rule(state)`, one flag per row if there are rows."""

    @abstractmethod
    def __call__(self, state: InnerState) -> Flag:
        """Whether to stop."""

    @abstractmethod
    def __str__(self) -> str:
        """The rule in a few words, as a reason for having stopped."""

    @property
    def needs_x_gradient(self) -> bool:
        """Whether the rule uses the x gradient, so that there must be one at the start."""
        return False

    def reason(self, state: InnerState) -> str:
        """Which part of the rule fired, in words."""
        return str(self)

    def observe_x_gradient(self, grad_sq_x: Scalar) -> None:  # noqa: B027 (optional)
        """Store the x gradient at the end of an outer step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rule; empty for most."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: B027 (optional)
        """Continue from a saved state."""

    def __or__(self, other: "StoppingRule") -> "StoppingRule":
        """Stop when either rule fires."""
        return _Joined("or", self, other)

    def __and__(self, other: "StoppingRule") -> "StoppingRule":
        """Stop when both rules fire."""
        return _Joined("and", self, other)


class GradientMapping(StoppingRule):
    r"""Criterion I: the squared gradient mapping is at most :math:`c/(t+1)^p`.

    The theory's criterion has c = p = 1. The text of the paper's experiments, which compares the
    norm itself with a multiple of 1/(t+1), is p = 2. It is not invariant to the scale of the
    objective; `scale` compensates for that.

    Args:
        scale: The constant :math:`c`.
        power: The exponent :math:`p`.

    Example:
        >>> rule = GradientMapping()
        >>> rule(InnerState(t=3, k=0, grad_sq_y=0.25)), rule(InnerState(t=3, k=0, grad_sq_y=0.3))
        (True, False)
    """

    def __init__(self, scale: float = 1.0, power: float = 1.0) -> None:
        check_number("scale", scale)
        check_number("power", power)
        self.scale = scale
        self.power = power

    def __call__(self, state: InnerState) -> Flag:
        """Whether the mapping is small enough for this outer index."""
        if state.grad_sq_y is None:
            return False
        bound: float = self.scale / (state.t + 1) ** self.power
        return state.grad_sq_y <= bound

    def __str__(self) -> str:
        power = "" if self.power == 1.0 else f"^{self.power:g}"
        return f"squared gradient mapping <= {self.scale:g}/(t+1){power}"


class InnerSteps(StoppingRule):
    r"""Criterion II: a number of inner steps that grows with the outer index.

    Args:
        count: "linear" for :math:`t+1` steps; ``("log", p)`` for
            :math:`\lceil t\log^p t\rceil + 1`; ``("power", a)`` for :math:`\lceil(t+1)^a\rceil`; or
            any function of :math:`t`.

    Example:
        >>> [InnerSteps(("log", 2)).limit(t) for t in range(5)]
        [1.0, 1.0, 2.0, 5.0, 9.0]
        >>> rule = InnerSteps()
        >>> rule(InnerState(t=2, k=2)), rule(InnerState(t=2, k=3))
        (False, True)
    """

    def __init__(
        self,
        count: Literal["linear"] | tuple[str, float] | Callable[[int], float] = "linear",
    ) -> None:
        if callable(count):
            self.limit, self._words = count, "a function of t"
        elif count == "linear":
            self.limit, self._words = lambda t: float(t + 1), "t+1"
        elif isinstance(count, tuple) and len(count) == 2 and count[0] == "log":
            power = float(count[1])
            check_number("the power of the logarithm", power)
            self.limit = lambda t: math.ceil(t * math.log(t) ** power) + 1.0 if t > 0 else 1.0
            self._words = f"ceil(t log^{power:g} t) + 1"
        elif isinstance(count, tuple) and len(count) == 2 and count[0] == "power":
            exponent = float(count[1])
            check_number("the exponent", exponent)
            self.limit = lambda t: float(math.ceil((t + 1) ** exponent))
            self._words = f"ceil((t+1)^{exponent:g})"
        else:
            raise ValueError(
                "count must be 'linear', ('log', p), ('power', a) or a function of t, got "
                f"{count!r}"
            )

    def __call__(self, state: InnerState) -> Flag:
        """Whether enough steps are done for this outer index."""
        return state.k >= self.limit(state.t)

    def __str__(self) -> str:
        return f"{self._words} inner steps"


class FixedSteps(StoppingRule):
    """The same number of steps in every loop; joined with `|`, a cap.

    Args:
        num_steps: How many.
    """

    def __init__(self, num_steps: int) -> None:
        check_number("num_steps", num_steps, above=0, strict=False, whole=True)
        self.num_steps = num_steps

    def __call__(self, state: InnerState) -> Flag:
        """Whether the steps are done."""
        return state.k >= self.num_steps

    def __str__(self) -> str:
        return f"{self.num_steps} inner steps"


class FixedAccuracy(StoppingRule):
    """The norm of the gradient mapping is at most a fixed tolerance (GDmax).

    Args:
        tol: The tolerance, on the norm itself.
    """

    def __init__(self, tol: float) -> None:
        check_number("tol", tol)
        self.tol = tol

    def __call__(self, state: InnerState) -> Flag:
        """Whether the mapping is within the tolerance."""
        return False if state.grad_sq_y is None else state.grad_sq_y <= self.tol**2

    def __str__(self) -> str:
        return f"gradient mapping <= {self.tol:g}"


class RelativeAccuracy(StoppingRule):
    r"""The squared mapping of y is at most a share of the last squared x gradient.

    .. math::
        \|G_y\|^2 \le \max(\theta\,\|\nabla_x f\|^2,\ \text{tol}^2)

    The share adapts: it is halved whenever the x gradient norm has not fallen by 10 % since the
    last outer step. This is a heuristic: descent is guaranteed only below :math:`1/\kappa^2`,
    which is unknown.

    Args:
        theta: The first share.
        tol: A norm below which y need not be solved.
    """

    def __init__(self, theta: float = 0.1, tol: float = 0.0) -> None:
        check_number("theta", theta)
        check_number("tol", tol, strict=False)
        self.theta: Scalar = theta
        self.tol = tol
        self._last_sq: Scalar = math.inf

    @property
    def needs_x_gradient(self) -> bool:
        """The first loop compares with the x gradient at the start."""
        return True

    def __call__(self, state: InnerState) -> Flag:
        """Whether y is accurate enough for the present x gradient."""
        if state.grad_sq_y is None or state.grad_sq_x is None:
            return False
        return state.grad_sq_y <= maximum(self.theta * state.grad_sq_x, self.tol**2)

    def observe_x_gradient(self, grad_sq_x: Scalar) -> None:
        """Halve the share where the gradient did not fall by 10 %."""
        stalled = grad_sq_x > 0.81 * self._last_sq
        self.theta = where(stalled, self.theta / 2.0, self.theta)
        self._last_sq = grad_sq_x

    def state_dict(self) -> dict[str, Any]:
        """The share and the last gradient."""
        return {"theta": self.theta, "last_sq": self._last_sq}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved share."""
        self.theta, self._last_sq = state_dict["theta"], state_dict["last_sq"]

    def __str__(self) -> str:
        return "squared gradient mapping <= a share of the squared x gradient"


class _Joined(StoppingRule):
    def __init__(self, word: Literal["or", "and"], left: StoppingRule, right: StoppingRule) -> None:
        if not isinstance(right, StoppingRule):
            raise TypeError(f"a stopping rule cannot be joined with {type(right).__name__}")
        self.word = word
        self.left = left
        self.right = right

    def __call__(self, state: InnerState) -> Flag:
        left, right = self.left(state), self.right(state)
        return left | right if self.word == "or" else left & right

    def reason(self, state: InnerState) -> str:
        if self.word == "and":
            return str(self)
        fired = [rule for rule in (self.left, self.right) if torch.as_tensor(rule(state)).any()]
        return " and ".join(rule.reason(state) for rule in fired) or str(self)

    @property
    def needs_x_gradient(self) -> bool:
        return self.left.needs_x_gradient or self.right.needs_x_gradient

    def observe_x_gradient(self, grad_sq_x: Scalar) -> None:
        self.left.observe_x_gradient(grad_sq_x)
        self.right.observe_x_gradient(grad_sq_x)

    def state_dict(self) -> dict[str, Any]:
        parts = {"left": self.left.state_dict(), "right": self.right.state_dict()}
        return {name: part for name, part in parts.items() if part}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.left.load_state_dict(state_dict.get("left", {}))
        self.right.load_state_dict(state_dict.get("right", {}))

    def __str__(self) -> str:
        return f"({self.left} {self.word} {self.right})"
