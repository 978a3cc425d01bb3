"""NeAda: nest the adaptive algorithm (Yang, Li & He 2022, Algorithms 2 and 3)."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.checks import check_flags, check_number
from neada.inner import InnerLoop, InnerOptions, go_to_average
from neada.scalars import Flag, Scalar
from neada.steppers.base import Closure, Evaluation, Step
from neada.steppers.composed import ComposedStepper
from neada.stopping import StoppingRule

__all__ = ["NeAda"]

_MAX_INNER_STEPS = 10_000


class NeAda(ComposedStepper):
    r"""Maximize over y until a rule that tightens with time is satisfied, then move x once.

    .. math::
        y_t \approx \arg\max_y f(x_t, y) \text{ from } y_{t-1} \text{ until the rule fires},
        \qquad x_{t+1} = \text{x step}(\nabla_x f(x_t, y_t))

    Algorithm 2 is `NeAda` with `AdaptiveSGD` (or a torch optimizer) for both players; Algorithm 3
    is `NeAda` with `GeneralizedAdaGrad` for x. With a fixed rule it is GDmax: ``FixedSteps(15)``,
    or ``FixedAccuracy(tol)``.

    Required problem constants: those of the optimizer of y; none with a line search or AdaGrad.

    Guarantees (nonconvex-strongly-concave, AdaGrad-Norm for x): deterministic, criterion I and a
    linearly convergent y optimizer: :math:`\tilde O(\varepsilon^{-2})` gradients; stochastic,
    criterion II, a y optimizer with error O(1/k) and M = :math:`\varepsilon^{-2}` or growing:
    :math:`\tilde O(\varepsilon^{-4})`; for any learning rate.

    Args:
        x_optimizer: Any torch optimizer that minimizes.
        y_optimizer: Any torch optimizer constructed with ``maximize=True``.
        stopping: The rule; by default criterion I or criterion II, whichever fires first.
        inner: Options of the inner loop: what the y optimizer keeps from one outer step to the
            next, and the smallest and largest number of steps.
        x_samples: How many calls of the closure are averaged for the x gradient: a number, or a
            function of t such as ``lambda t: t + 1``.
        deterministic: The closure gives the same value at the same point, so the x gradient may
            be taken from the graph of the evaluation that ended the inner loop.
        rowwise: Every row of both players is its own game with its own stop.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0], requires_grad=True)
        >>> y = torch.tensor([0.0], requires_grad=True)
        >>> from neada.optim import AdGD, GeneralizedAdaGrad
        >>> stepper = NeAda(GeneralizedAdaGrad([x]), AdGD([y], maximize=True))
        >>> for _ in range(30):
        ...     info = stepper.step(lambda: (x**2 / (1 + x**2) + x * y - y**2 / 2).sum())
        >>> bool(x.abs() < 1e-2)
        True
    """

    measured_at: ClassVar[Literal["start", "middle", "end"]] = "middle"

    def __init__(
        self,
        x_optimizer: Optimizer,
        y_optimizer: Optimizer,
        stopping: StoppingRule | None = None,
        *,
        inner: InnerOptions = InnerOptions(),  # noqa: B008 (frozen)
        x_samples: int | Callable[[int], int] = 1,
        deterministic: bool = False,
        rowwise: bool = False,
    ) -> None:
        super().__init__(x_optimizer, y_optimizer, rowwise=rowwise)
        if not callable(x_samples):
            check_number("x_samples", x_samples, above=1, strict=False, whole=True)
        check_flags(deterministic=deterministic)
        self.inner = InnerLoop(stopping, inner, _MAX_INNER_STEPS)
        self.inner.resolve_keep(y_optimizer)
        self.max_inner_steps = self.inner.max_steps
        self.x_samples = x_samples
        self.deterministic = deterministic

    @property
    def stopping(self) -> StoppingRule:
        """The rule; another one may be assigned."""
        return self.inner.stopping

    @stopping.setter
    def stopping(self, rule: StoppingRule) -> None:
        self.inner.stopping = rule

    def _step(self, closure: Closure) -> Step:
        t = self.counters.outer_steps
        if t > 0:
            self.inner.renew(self.y_optimizer)
        if self.inner.grad_sq_x is None and self.stopping.needs_x_gradient:
            self.inner.grad_sq_x = self._gradient(closure, "x").mapping_sq
        game = _Game(self, closure)
        try:
            found = self.inner.maximize(game, t, self.counters, self._frozen)
        finally:
            if self.rowwise:
                self.freeze(self._frozen)  # resumes counting for rows that were done early
        self.at_cap = found.at_cap
        if go_to_average(self.y_optimizer):
            game.graph = None  # it belongs to the last iterate, not to the average
        at_x = self._x_gradient(closure, t, game.graph)
        self.inner.observe_x_gradient(at_x.mapping_sq)
        self._move("x", closure, at_x)
        return at_x.value, at_x.mapping_sq, found.grad_sq, found.reason

    def _x_gradient(self, closure: Closure, t: int, graph: Tensor | None) -> Evaluation:
        """The gradient of x, averaged over the samples of this outer step."""
        num_samples = self.x_samples(t) if callable(self.x_samples) else self.x_samples
        if num_samples < 1:
            raise ValueError(f"x_samples must be at least 1, got {num_samples} at t = {t}")
        if graph is not None and num_samples == 1:
            self.counters.check_budget()
            self._count("x")
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
        return self._measure(at_x.value, at_x.graph, "x")

    def state_dict(self) -> dict[str, Any]:
        """Counters, both optimizers, and what the inner loop remembers."""
        return {**super().state_dict(), "inner": self.inner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state."""
        super().load_state_dict(state_dict)
        self.inner.load_state_dict(state_dict["inner"])


class _Game:
    """f(x, y) as a function of y for the inner loop; rows that are done are frozen."""

    trusts_first_step = False

    def __init__(self, stepper: NeAda, closure: Closure) -> None:
        self.stepper = stepper
        self.closure = closure
        self.graph: Tensor | None = None  # of the value at the present y, where it may be reused
        self._at_y: Evaluation | None = None
        self._done: Tensor | None = None

    def evaluate(self) -> Scalar:
        keep_graph = self.stepper.deterministic
        self._at_y = self.stepper._gradient(self.closure, "y", keep_graph)
        self.graph = self._at_y.graph if keep_graph else None
        return self._at_y.mapping_sq

    def move(self) -> None:
        assert self._at_y is not None
        self.graph = None
        self.stepper._move("y", self.closure, self._at_y, self._done)

    def retire(self, done: Flag, *, unevaluated: bool = False) -> bool:
        if isinstance(done, Tensor):
            self._done = done
            self.stepper._counted_rows = ~done
            return bool(done.all())
        return done  # the same on all ranks, because gradients are averaged
