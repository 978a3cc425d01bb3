"""Extragradient methods: look ahead, then move with the gradient seen there.

Korpelevich 1976; Popov 1980 (past extragradient); Daskalakis et al. 2018 (optimistic GDA);
Antonakopoulos, Belmega & Mertikopoulos 2021 (adaptive); Bach & Levy 2019 (universal mirror-prox).
Built for monotone problems; on nonconvex-strongly-concave ones they need the same separation of
time scales as GDA.
"""

from collections.abc import Iterable
from typing import Unpack

from torch import Tensor

from neada import tensors
from neada.checks import check_number
from neada.scalars import sqrt
from neada.steppers.base import PLAYERS, Closure, Sets, Step
from neada.steppers.direct import DirectStepper, TwoRates

__all__ = [
    "AdaptiveExtragradient",
    "Extragradient",
    "OptimisticGDA",
    "PastExtragradient",
    "UniversalMirrorProx",
]


class Extragradient(TwoRates):
    r"""A gradient step to look ahead, then a step from the start with the gradient found there.

    .. math::
        z_h = P(z_t - \eta F(z_t)), \qquad z_{t+1} = P(z_t - \eta F(z_h)), \qquad
        F = (\nabla_x f, -\nabla_y f)

    Four gradient calls a step.

    Required problem constants: the smoothness, :math:`\eta < 1/l`; the ratio of the learning rates
    in nonconvex problems.

    Guarantees: monotone: O(1/T) for the average, linear if strongly monotone.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def _step(self, closure: Closure) -> Step:
        at_x, at_y = self.evaluate(closure)
        self._descend_ascend(self.lr_x, self.lr_y)
        self.evaluate(closure)
        self._descend_ascend(self.lr_x, self.lr_y)
        return self._both_moved(at_x, at_y)


class PastExtragradient(TwoRates):
    r"""Extragradient that looks ahead with the gradient it remembers: two calls a step.

    .. math::
        z_h = P(z_t - \eta F_{t-1}), \qquad F_t = F(z_h), \qquad z_{t+1} = P(z_t - \eta F_t)

    with :math:`F_{-1} = F(z_0)`, which costs one more pair at the start.

    Required problem constants: the smoothness, :math:`\eta \le 1/(2l)`; the ratio of the learning
    rates in nonconvex problems.

    Guarantees: monotone: as `Extragradient`.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def _step(self, closure: Closure) -> Step:
        if "x_gradient" not in self._memory:
            self.evaluate(closure)
            self._remember()
        self._put("x", self._memory["x_gradient"], -self.lr_x)
        self._put("y", self._memory["y_gradient"], self.lr_y)
        at_x, at_y = self.evaluate(closure)
        self._remember()
        self._descend_ascend(self.lr_x, self.lr_y)
        return self._both_moved(at_x, at_y)

    def _remember(self) -> None:
        self._memory["x_gradient"] = self._gradients("x")
        self._memory["y_gradient"] = self._gradients("y")


class OptimisticGDA(TwoRates):
    r"""GDA with twice the new gradient minus the old one.

    .. math::
        z_{t+1} = P\bigl(z_t - \eta\,(2F(z_t) - F(z_{t-1}))\bigr), \qquad F(z_{-1}) = F(z_0)

    Required problem constants: the smoothness, :math:`\eta \le 1/(2l)`; the ratio of the learning
    rates in nonconvex problems.

    Guarantees: monotone: as `Extragradient`; without sets it is `PastExtragradient` in other
    variables.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def _step(self, closure: Closure) -> Step:
        at_x, at_y = self.evaluate(closure)
        for player, rate in zip(PLAYERS, (-self.lr_x, self.lr_y), strict=True):
            gradient = self._gradients(player)
            before = self._memory.get(f"{player}_gradient", gradient)
            direction = tensors.difference(gradient, before)
            tensors.add_scaled_(direction, gradient, 1.0)
            self._put(player, direction, rate)
            self._memory[f"{player}_gradient"] = gradient
        return self._both_moved(at_x, at_y)


class AdaptiveExtragradient(DirectStepper):
    r"""Extragradient with a step that shrinks with the operator's variation.

    .. math::
        \gamma_t = c\,\Bigl(1 + \sum_{s<t}\|F(z_{s,h}) - F(z_s)\|^2\Bigr)^{-1/2}

    for both players; four gradient calls a step.

    Required problem constants: none in monotone problems. It can diverge in nonconvex problems,
    such as the paper's quadratic, because its two step sizes are equal.

    Guarantees: monotone: the rate of extragradient with the right step, for the average.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        scale: The constant :math:`c`.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        scale: float = 1.0,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, **sets)
        check_number("scale", scale)
        self.scale = scale

    def _step(self, closure: Closure) -> Step:
        variation = self._memory.get("variation", 0.0)
        step = self.scale / sqrt(1.0 + variation)
        at_x, at_y = self.evaluate(closure)
        first = self._gradients("x") + self._gradients("y")
        self._descend_ascend(step, step)
        self.evaluate(closure)
        self._descend_ascend(step, step)
        second = self._grads("x") + self._grads("y")
        varied = tensors.squared_distance(second, first, self.rowwise)
        self._memory["variation"] = variation + varied
        return self._both_moved(at_x, at_y)


class UniversalMirrorProx(DirectStepper):
    r"""Extragradient whose step comes from a diameter and the movement so far.

    .. math::
        e_t = D\,\Bigl(G_0^2 + \sum_{s<t} Z_s^2\Bigr)^{-1/2}, \qquad
        Z_t^2 = \frac{\|z_h - z_{t+1}\|^2 + \|z_h - z_t\|^2}{5 e_t^2}

    Required problem constants: the diameter of the sets, and a guess of the gradient norm.

    Guarantees: monotone on bounded sets: optimal for smooth and nonsmooth problems, for the
    average. It diverges on the paper's quadratic.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        diameter: The diameter :math:`D`.
        gradient_guess: The guess :math:`G_0`.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        diameter: float = 1.0,
        gradient_guess: float = 1.0,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, **sets)
        check_number("diameter", diameter)
        check_number("gradient_guess", gradient_guess)
        self.diameter = diameter
        self.gradient_guess = gradient_guess

    def _step(self, closure: Closure) -> Step:
        movement = self._memory.get("movement", 0.0)
        step = self.diameter / sqrt(self.gradient_guess**2 + movement)
        at_x, at_y = self.evaluate(closure)
        self._descend_ascend(step, step)
        ahead = self._points("x") + self._points("y")
        self.evaluate(closure)
        self._descend_ascend(step, step)
        start, end = self._start["x"] + self._start["y"], self._points("x") + self._points("y")
        moved = tensors.squared_distance(ahead, end, self.rowwise)
        moved = moved + tensors.squared_distance(ahead, start, self.rowwise)
        self._memory["movement"] = movement + moved / (5.0 * step * step)
        return self._both_moved(at_x, at_y)
