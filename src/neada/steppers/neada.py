"""NeAda: nest the adaptive algorithm (Yang, Li & He 2022, Algorithms 2 and 3)."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.optim.base import RememberingOptimizer
from neada.scalars import Flag, Scalar, all_true, where
from neada.steppers.base import (
    Closure,
    ComposedStepper,
    Evaluation,
    check_ascends,
    check_rule,
    groups_of,
)
from neada.stopping import GradientMapping, InnerState, InnerSteps, StoppingRule

__all__ = ["NeAda"]

StatePolicy = Literal["auto", "fresh", "step", "full"]
_KEEP = {"fresh": "nothing", "step": "step", "full": "everything"}


class NeAda(ComposedStepper):
    r"""Maximize over y until a rule that tightens with time is satisfied, then move x once.

    .. math::
        y_t \approx \arg\max_y f(x_t, y) \text{ from } y_{t-1} \text{ until the rule fires},
        \qquad x_{t+1} = \text{x step}(\nabla_x f(x_t, y_t))

    Algorithm 2 is `NeAda` with `AdaptiveSGD` (or a torch optimizer) for both players; Algorithm 3
    is `NeAda` with `GeneralizedAdaGrad` for x. With a fixed rule it is GDmax: ``FixedSteps(15)``,
    or ``FixedAccuracy(tol)``.

    Needs to know: nothing.

    Guarantees (nonconvex-strongly-concave, AdaGrad-Norm for x): deterministic, criterion I and a
    linearly convergent y optimizer: :math:`\tilde O(\varepsilon^{-2})` gradients; stochastic,
    criterion II, a y optimizer with error O(1/k) and M = :math:`\varepsilon^{-2}` or growing:
    :math:`\tilde O(\varepsilon^{-4})`; for any learning rate.

    Args:
        x_optimizer: Any torch optimizer that minimizes.
        y_optimizer: Any torch optimizer constructed with ``maximize=True``, or a function of no
            arguments that makes a new one for every outer step.
        stopping: The rule; by default criterion I or criterion II, whichever fires first.
        state: What the y optimizer keeps from one outer step to the next: "fresh" nothing, "step"
            only its step size, "full" everything; "auto" is "step" where there is one to keep and
            "full" elsewhere.
        min_inner_steps: Steps of y before the rule is asked; 0 is the literal criterion I.
        max_inner_steps: A cap, for rules that may never fire.
        x_samples: How many calls of the closure are averaged for the x gradient: a number, or a
            function of t such as ``lambda t: t + 1``.
        deterministic: The closure gives the same value at the same point, so the x gradient may
            be taken from the graph of the evaluation that ended the inner loop.
        test: "current" asks the rule at the current y; "last" asks it about the gradient that the
            last step used, as the authors' scripts do.
        rowwise: Every row of both players is its own game with its own stop.

    Example:
        >>> x = torch.tensor([1.0], requires_grad=True)
        >>> y = torch.tensor([0.0], requires_grad=True)
        >>> from neada.optim import AdGD, GeneralizedAdaGrad
        >>> stepper = NeAda(GeneralizedAdaGrad([x]), AdGD([y], maximize=True))
        >>> for _ in range(30):
        ...     info = stepper.step(lambda: (x**2 / (1 + x**2) + x * y - y**2 / 2).sum())
        >>> bool(x.abs() < 1e-2)
        True
    """

    def __init__(
        self,
        x_optimizer: Optimizer,
        y_optimizer: Optimizer | Callable[[], Optimizer],
        stopping: StoppingRule | None = None,
        *,
        state: StatePolicy = "auto",
        min_inner_steps: int = 1,
        max_inner_steps: int = 10_000,
        x_samples: int | Callable[[int], int] = 1,
        deterministic: bool = False,
        test: Literal["current", "last"] = "current",
        rowwise: bool = False,
    ) -> None:
        self._make_y = None if isinstance(y_optimizer, Optimizer) else y_optimizer
        first = y_optimizer if isinstance(y_optimizer, Optimizer) else y_optimizer()
        super().__init__(x_optimizer, first, rowwise=rowwise)
        if test not in ("current", "last"):
            raise ValueError(f"test must be 'current' or 'last', got {test!r}")
        if min_inner_steps < 0 or max_inner_steps < max(1, min_inner_steps):
            raise ValueError(
                "inner steps must satisfy 0 <= min_inner_steps <= max_inner_steps, got "
                f"{min_inner_steps} and {max_inner_steps}"
            )
        if not callable(x_samples) and x_samples < 1:
            raise ValueError(f"x_samples must be at least 1, got {x_samples}")
        self.stopping = GradientMapping() | InnerSteps() if stopping is None else stopping
        check_rule(self.stopping)
        self.state = _checked_policy(state, first)
        self.min_inner_steps = min_inner_steps
        self.max_inner_steps = max_inner_steps
        self.x_samples = x_samples
        self.deterministic = deterministic
        self.test = test
        self._x_grad_sq: Scalar | None = None

    def _step(self, closure: Closure) -> tuple[Tensor, Scalar, Scalar, str]:
        t = self.outer_steps
        if t > 0:
            self._renew_y_optimizer()
        elif self.stopping.needs_x_gradient:
            self._x_grad_sq = self._gradient(closure, "x").mapping_sq
        at_y, graph, reason = self._maximize(closure, t)
        if self._warm_start_from_average():
            graph = None  # it was made at the last iterate, not at the average
        at_x = self._x_gradient(closure, t, graph)
        self.stopping.observe_x_gradient(at_x.mapping_sq)
        self._x_grad_sq = at_x.mapping_sq
        self._move(self.x_optimizer, closure, at_x)
        return at_x.value, at_x.mapping_sq, at_y, reason

    def _maximize(self, closure: Closure, t: int) -> tuple[Scalar, Tensor | None, str]:
        """The inner loop: the last mapping, the graph at the accepted y if it is still valid."""
        mapping_sq: Scalar | None = None
        done: Flag = False if self.resting is None else self.resting
        k = 0
        while True:
            state = InnerState(t, k, None, self._x_grad_sq)
            if k >= self.min_inner_steps and (reason := self._count_says(state)):
                return _known(mapping_sq), None, reason
            self._spend(1)
            value = self._evaluate(closure)
            at_y = self._backward(value, "y", keep_graph=self.deterministic)
            mapping_sq = (
                at_y.mapping_sq if mapping_sq is None else where(done, mapping_sq, at_y.mapping_sq)
            )
            seen = InnerState(t, k, at_y.mapping_sq, self._x_grad_sq)
            if self.test == "current" and all_true(done := self._asked(seen, done)):
                graph = value if self.deterministic else None
                return mapping_sq, graph, self.stopping.reason(seen)
            self._move(self.y_optimizer, closure, at_y, done if isinstance(done, Tensor) else None)
            self.inner_steps += 1
            k += 1
            seen = InnerState(t, k, at_y.mapping_sq, self._x_grad_sq)
            if self.test == "last" and all_true(done := self._asked(seen, done)):
                return mapping_sq, None, self.stopping.reason(seen)

    def _asked(self, state: InnerState, done: Flag) -> Flag:
        """Which rows are done after the rule was asked, or whether the one game is."""
        return done | self.stopping(state) if state.k >= self.min_inner_steps else done

    def _count_says(self, state: InnerState) -> str:
        """Why to stop without looking at a gradient; empty to go on."""
        if self.stopping(state):
            return self.stopping.reason(state)
        if state.k >= self.max_inner_steps:
            return f"the cap of {self.max_inner_steps} inner steps"
        return ""

    def _x_gradient(self, closure: Closure, t: int, graph: Tensor | None) -> Evaluation:
        """The gradient of x, averaged over the samples of this outer step."""
        num_samples = self.x_samples(t) if callable(self.x_samples) else self.x_samples
        if num_samples < 1:
            raise ValueError(f"x_samples must be at least 1, got {num_samples} at t = {t}")
        if graph is not None and num_samples == 1:
            self._spend(1)
            return self._backward(graph, "x")
        at_x = self._gradient(closure, "x")
        if num_samples == 1:
            return at_x
        total = tensors.clone(self._grads("x"))
        for _ in range(num_samples - 1):
            at_x = self._gradient(closure, "x")
            tensors.add_scaled_(total, self._grads("x"), 1.0)
        tensors.scale_(total, 1.0 / num_samples)
        for param, gradient in zip(self._players["x"], total, strict=True):
            param.grad = gradient
        return self._measure(at_x.value, "x")

    def _renew_y_optimizer(self) -> None:
        """Apply the state policy, or make the next optimizer."""
        if self._make_y is not None:
            optimizer = self._make_y()
            check_ascends(optimizer)
            self._groups["y"] = groups_of(optimizer)
            self._players["y"] = [p for params, _ in self._groups["y"] for p in params]
            self.y_optimizer = optimizer
        elif isinstance(self.y_optimizer, RememberingOptimizer):
            self.y_optimizer.reset(keep=_KEEP[self.state])  # type: ignore[arg-type]
        elif self.state == "fresh":
            self.y_optimizer.state.clear()

    def _warm_start_from_average(self) -> bool:
        """Where the y optimizer keeps an average, that is the answer of the inner loop."""
        optimizer = self.y_optimizer
        if not (isinstance(optimizer, RememberingOptimizer) and optimizer._keeps_average()):
            return False
        with optimizer.averaged():
            answer = tensors.clone(self._players["y"])
        with torch.no_grad():
            tensors.copy_(self._players["y"], answer)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Counters, both optimizers, and what the rule remembers."""
        return {
            **super().state_dict(),
            "stopping": self.stopping.state_dict(),
            "grad_sq_x": self._x_grad_sq,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state_dict)
        self.stopping.load_state_dict(state_dict["stopping"])
        self._x_grad_sq = state_dict["grad_sq_x"]


def _known(mapping_sq: Scalar | None) -> Scalar:
    return float("nan") if mapping_sq is None else mapping_sq


def _checked_policy(policy: StatePolicy, optimizer: Optimizer) -> str:
    if policy not in ("auto", *_KEEP):
        raise ValueError(f"state must be one of 'auto', 'fresh', 'step', 'full', got {policy!r}")
    has_step = isinstance(optimizer, RememberingOptimizer) and bool(optimizer.step_numbers)
    if policy == "step" and not has_step:
        raise ValueError(
            f"state='step' keeps a step size, and {type(optimizer).__name__} has none to keep: use "
            "'fresh' or 'full'"
        )
    if policy == "auto":
        return "step" if has_step else "full"
    return policy
