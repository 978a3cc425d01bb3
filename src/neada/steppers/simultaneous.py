"""Non-nested methods: both players move once per step (the paper's Algorithm 1)."""

from typing import Literal

import torch
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.checks import check_choice
from neada.optim.base import PlayerOptimizer
from neada.optim.objective import restore_on_error
from neada.steppers.base import Closure, Evaluation, Step
from neada.steppers.composed import ComposedStepper

__all__ = ["Alternating", "Simultaneous"]


class Simultaneous(ComposedStepper):
    r"""Both players step with their gradients at the same point and the same sample.

    .. math::
        x_{t+1} = \text{x step}(\nabla_x f(x_t, y_t)), \qquad
        y_{t+1} = \text{y step}(\nabla_y f(x_t, y_t))

    With SGD for both it is gradient descent ascent (GDA); with `AdaptiveSGD` the paper's
    Algorithm 1. One call of the closure, two gradient calls.

    Required learning rates: their ratio must suit the condition number.

    Guarantees: nonconvex-strongly-concave GDA with :math:`\eta^y = \Theta(1/l)`,
    :math:`\eta^x = \Theta(1/(\kappa^2 l))`: :math:`O(\kappa^2 l\varepsilon^{-2})`. With the ratio
    wrong it need not converge: on the paper's quadratic GDA does not for
    :math:`\eta^y/\eta^x \le L^2`, AdaGrad and Adam do not for a ratio of at most :math:`L`.

    Args:
        x_optimizer: Any torch optimizer that minimizes.
        y_optimizer: Any torch optimizer constructed with ``maximize=True``.
        rowwise: Every row of both players is its own game.

    Example:
        >>> x = torch.tensor([1.0], requires_grad=True)
        >>> y = torch.tensor([0.0], requires_grad=True)
        >>> stepper = Simultaneous(
        ...     torch.optim.SGD([x], lr=0.05), torch.optim.SGD([y], lr=0.3, maximize=True)
        ... )
        >>> info = stepper.step(lambda: (x * x / 2 + x * y - y * y / 2).sum())
        >>> info.calls_x, info.calls_y
        (1, 1)
    """

    def __init__(
        self, x_optimizer: Optimizer, y_optimizer: Optimizer, *, rowwise: bool = False
    ) -> None:
        super().__init__(x_optimizer, y_optimizer, rowwise=rowwise)
        self._tries_points = any(
            isinstance(optimizer, PlayerOptimizer) and optimizer.tries_points
            for optimizer in (x_optimizer, y_optimizer)
        )

    def _step(self, closure: Closure) -> Step:
        at_x, at_y = self.evaluate(closure)
        if self._tries_points:
            self._move_separately(closure, at_x, at_y)
        else:
            self._move("y", closure, at_y)
            self._move("x", closure, at_x)
        return self._both_moved(at_x, at_y)

    @torch.no_grad()
    def _move_separately(self, closure: Closure, at_x: Evaluation, at_y: Evaluation) -> None:
        """Move each player while the other one is at the start of the step."""
        with restore_on_error(self._players["x"]) as start:
            self._move("x", closure, at_x)
            end = tensors.clone(self._players["x"])
            tensors.copy_(self._players["x"], start)
            self._move("y", closure, at_y)
            tensors.copy_(self._players["x"], end)


class Alternating(ComposedStepper):
    r"""One player steps, then the other answers at the new point.

    .. math::
        x_{t+1} = \text{x step}(\nabla_x f(x_t, y_t)), \qquad
        y_{t+1} = \text{y step}(\nabla_y f(x_{t+1}, y_t))

    With ``order="yx"`` the other way round; that is `NeAda` with one inner step.

    Required learning rates: as `Simultaneous`.

    Guarantees: as `Simultaneous`, with better constants.

    Args:
        x_optimizer: Any torch optimizer that minimizes.
        y_optimizer: Any torch optimizer constructed with ``maximize=True``.
        order: Who moves first, "xy" or "yx".
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x_optimizer: Optimizer,
        y_optimizer: Optimizer,
        *,
        order: Literal["xy", "yx"] = "xy",
        rowwise: bool = False,
    ) -> None:
        check_choice("order", order, ("xy", "yx"))
        super().__init__(x_optimizer, y_optimizer, rowwise=rowwise)
        self.order = order

    def _step(self, closure: Closure) -> Step:
        if self.order == "yx":
            at_y = self._gradient(closure, "y")
            self._move("y", closure, at_y)
            at_x = self._gradient(closure, "x")
            self._move("x", closure, at_x)
        else:
            at_x = self._gradient(closure, "x")
            with restore_on_error(self._players["x"], FloatingPointError):
                self._move("x", closure, at_x)
                at_y = self._gradient(closure, "y")
            self._move("y", closure, at_y)
        return self._both_moved(at_x, at_y)
