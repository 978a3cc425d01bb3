"""AdaGDA and VR-AdaGDA (Huang, Wu & Hu 2023, arXiv:2106.16101): momentum and variance reduction.

Baselines: their constants depend on smoothness and modulus. The step schedules follow the paper's
form; their constants were not checked against its theorems.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Unpack

import torch
from torch import Tensor

from neada import tensors
from neada.checks import check_number
from neada.scalars import Scalar, sqrt
from neada.steppers.base import PLAYERS, Closure, Evaluation, Sets, Step
from neada.steppers.direct import TwoRates

__all__ = ["AdaGDA", "VRAdaGDA"]


class _MomentumGDA(TwoRates):
    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        lr_x: Scalar,
        lr_y: Scalar,
        *,
        decay: float = 0.9,
        rho: float = 1e-3,
        k: float = 1.0,
        m: float = 8.0,
        c_x: float = 1.0,
        c_y: float = 1.0,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, lr_x, lr_y, **sets)
        for name, number in {"rho": rho, "k": k, "m": m, "c_x": c_x, "c_y": c_y}.items():
            check_number(name, number)
        check_number("decay", decay, strict=False, below=1.0)
        self.decay = decay
        self.rho = rho
        self.k = k
        self.m = m
        self.c = {"x": c_x, "y": c_y}

    @abstractmethod
    def _schedule(self, count: int) -> tuple[float, float]:
        """The share of the way that is gone, and the factor of the momentum's weight."""

    @abstractmethod
    def _look_again(self, closure: Closure, weight: float) -> tuple[Evaluation, Evaluation]:
        """Bring the gradient estimates up to date at the new point."""

    def _step(self, closure: Closure) -> Step:
        if "x_estimate" not in self._memory:
            self._evaluate_pair(closure)
            self._memory["x_estimate"] = self._gradients("x")
            self._memory["y_estimate"] = self._gradients("y")
        count = self._memory.get("num_steps", 0) + 1
        share, weight = self._schedule(count)
        self._go(share)
        at_x, at_y = self._look_again(closure, weight)
        self._memory["num_steps"] = count
        return self._both_moved(at_x, at_y)

    def _evaluate_pair(self, closure: Closure) -> tuple[Evaluation, Evaluation]:
        """Both gradients here; they scale the next step."""
        at_x, at_y = self.evaluate(closure)
        grads = self._gradients("x")
        squares = self._vectors("x_squares", grads)
        torch._foreach_mul_(squares, self.decay)
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - self.decay)
        size = self._memory.get("y_size", 0.0)
        self._memory["y_size"] = self.decay * size + (1.0 - self.decay) * sqrt(at_y.grad_sq)
        return at_x, at_y

    def _go(self, share: float) -> None:
        """Go a share of the way to the scaled (and projected) gradient step."""
        scales = torch._foreach_sqrt(self._memory["x_squares"])
        torch._foreach_add_(scales, self.rho)
        direction = list(torch._foreach_div(self._memory["x_estimate"], scales))
        self._put("x", direction, -self.lr_x)
        step_y = self.lr_y / (self._memory["y_size"] + self.rho)
        self._put("y", self._memory["y_estimate"], step_y)
        with torch.no_grad():
            for player in PLAYERS:
                params = self._players[player]
                target = tensors.clone(params)
                tensors.copy_(params, self._start[player])
                tensors.interpolate_(params, target, share)


class AdaGDA(_MomentumGDA):
    r"""GDA with momentum estimates of both gradients and Adam-like scaling of x.

    .. math::
        z_{t+1} = z_t + \eta_t\,(\tilde z - z_t), \qquad
        v \leftarrow \alpha_t g + (1-\alpha_t) v, \qquad \eta_t = k/(m+t)^{1/2}, \quad
        \alpha_t = c\,\eta_t

    where :math:`\tilde z` is the projected step with the estimate :math:`v`, divided by
    :math:`\sqrt{a}+\rho` for x (a moving average of squares) and by :math:`b+\rho` for y (a moving
    average of norms).

    Required problem constants: smoothness and modulus.

    Guarantees: nonconvex-strongly-concave: :math:`\tilde O(\kappa^4\varepsilon^{-4})`.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        decay: Of both moving averages.
        rho: Added to both scales.
        k: Scales the share :math:`\eta_t`.
        m: Delays its decay.
        c_x: Weight of the x momentum.
        c_y: Weight of the y momentum.
        x_set: Constraint set of x; with the diagonal scaling a heuristic except for boxes.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def _schedule(self, count: int) -> tuple[float, float]:
        share = min(self.k / (self.m + count) ** 0.5, 1.0)
        return share, share

    def _look_again(self, closure: Closure, weight: float) -> tuple[Evaluation, Evaluation]:
        evaluations = self._evaluate_pair(closure)
        for player in PLAYERS:
            mix = min(self.c[player] * weight, 1.0)
            tensors.interpolate_(self._memory[f"{player}_estimate"], self._grads(player), mix)
        return evaluations


class VRAdaGDA(_MomentumGDA):
    r"""AdaGDA with the variance-reduced estimate of STORM.

    .. math::
        v \leftarrow g(z_{t+1};\xi) + (1-\alpha_t)\,(v - g(z_t;\xi)), \qquad
        \eta_t = k/(m+t)^{1/3}, \quad \alpha_t = c\,\eta_t^2

    The closure is called at both points in one step and must look at the same sample both times:
    draw the sample outside.

    Required problem constants: smoothness and modulus.

    Guarantees: nonconvex-strongly-concave: :math:`\tilde O(\kappa^{4.5}\varepsilon^{-3})`.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        decay: Of both moving averages.
        rho: Added to both scales.
        k: Scales the share :math:`\eta_t`.
        m: Delays its decay.
        c_x: Weight of the x momentum.
        c_y: Weight of the y momentum.
        x_set: Constraint set of x; with the diagonal scaling a heuristic except for boxes.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def _schedule(self, count: int) -> tuple[float, float]:
        share = min(self.k / (self.m + count) ** (1.0 / 3.0), 1.0)
        return share, share * share

    def _look_again(self, closure: Closure, weight: float) -> tuple[Evaluation, Evaluation]:
        end = {player: self._points(player) for player in PLAYERS}
        self._go_to(self._start)
        self.evaluate(closure)
        before = {player: self._gradients(player) for player in PLAYERS}
        self._go_to(end)
        evaluations = self._evaluate_pair(closure)
        for player in PLAYERS:
            keep = 1.0 - min(self.c[player] * weight, 1.0)
            estimate = self._memory[f"{player}_estimate"]
            tensors.add_scaled_(estimate, before[player], -1.0)
            tensors.scale_(estimate, keep)
            tensors.add_scaled_(estimate, self._grads(player), 1.0)
        return evaluations
