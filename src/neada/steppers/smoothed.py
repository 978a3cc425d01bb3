"""Smoothed alternating GDA (Zhang et al. 2020; Yang, Orvieto, Lucchi & He 2022)."""

from collections.abc import Iterable
from typing import Unpack

from torch import Tensor

from neada import tensors
from neada.checks import check_number
from neada.scalars import Scalar
from neada.steppers.base import Closure, Sets, Step
from neada.steppers.direct import TwoRates

__all__ = ["SmoothedAGDA"]


class SmoothedAGDA(TwoRates):
    r"""Alternating GDA on f plus a pull towards a slowly moving center.

    .. math::
        x^+ = P\bigl(x - \tau_1[\nabla_x f(x, y) + p(x - z)]\bigr), \qquad
        y^+ = P\bigl(y + \tau_2\nabla_y f(x^+, y)\bigr), \qquad z^+ = z + b(x^+ - z)

    Required problem constants: smoothness and modulus. The theory has p = 2l,
    :math:`\tau_1 = 1/(3l)`, :math:`\tau_2 = 1/(144l)`, :math:`b = \tau_2\mu/1600`.

    Guarantees: nonconvex-strongly-concave (and PL): :math:`O(\kappa l\varepsilon^{-2})`, the best
    known of a single loop.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate :math:`\tau_1`; with `rowwise`, also a float64 tensor with one per
            row.
        lr_y: The learning rate :math:`\tau_2`, likewise.
        pull: The weight :math:`p` of the pull.
        follow: The share :math:`b` by which the center follows, in (0, 1].
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        lr_x: Scalar,
        lr_y: Scalar,
        *,
        pull: float = 1.0,
        follow: float = 0.1,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, lr_x, lr_y, **sets)
        check_number("pull", pull)
        check_number("follow", follow, most=1.0)
        self.pull = pull
        self.follow = follow

    def _step(self, closure: Closure) -> Step:
        start = self._start["x"]
        center = self._memory.setdefault("center", tensors.clone(start))
        at_x = self._gradient(closure, "x")
        direction = self._gradients("x")
        tensors.add_scaled_(direction, tensors.difference(start, center), self.pull)
        self._put("x", direction, -self.lr_x)
        at_y = self._gradient(closure, "y")
        self._put("y", self._grads("y"), self.lr_y)
        tensors.interpolate_(center, self._points("x"), self.follow)
        return self._both_moved(at_x, at_y)
