"""TiAda: time scales that separate by themselves (Li, Yang & He 2023, arXiv:2210.17478)."""

from collections.abc import Iterable
from typing import Literal, Unpack

import torch
from torch import Tensor

from neada import tensors
from neada.checks import check_choice, check_flags, check_number
from neada.scalars import Scalar, divide, maximum
from neada.steppers.base import Closure, Sets, Step
from neada.steppers.direct import TwoRates

__all__ = ["TiAda", "TiAdaAdam"]


def _check_exponents(alpha: float, beta: float) -> None:
    check_number("beta", beta)
    check_number("alpha", alpha, above=beta, below=1.0)


class TiAda(TwoRates):
    r"""AdaGrad for both players, where x also slows down by what y still has to do.

    .. math::
        v^x \mathrel{+}= \|\nabla_x f\|^2, \quad v^y \mathrel{+}= \|\nabla_y f\|^2, \quad
        x \leftarrow P\Bigl(x - \frac{\eta^x\,\nabla_x f}{\max(v^x, v^y)^{\alpha}}\Bigr), \quad
        y \leftarrow P\Bigl(y + \frac{\eta^y\,\nabla_y f}{(v^y)^{\beta}}\Bigr)

    With ``scope="coordinate"`` every coordinate has its own sum, and x is slowed down by the
    ratio of the total sums.

    Required problem constants: none.

    Guarantees (scalar, nonconvex-strongly-concave, y solution in the interior): deterministic
    :math:`\tilde O(\varepsilon^{-2})`; stochastic :math:`O(\varepsilon^{-4-\delta})` with bounded
    gradients. The constants can be large: the effective ratio must first grow to the square of
    the condition number.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        alpha: The exponent of x.
        beta: The exponent of y, smaller.
        scope: "player" for scalar sums, "coordinate" for one per coordinate.
        v0_x: Where x's sum starts; with "coordinate" the sums start at 0.
        v0_y: Where y's sum starts.
        eps: Added to the denominators of the coordinates.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        lr_x: Scalar = 1.0,
        lr_y: Scalar = 1.0,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        scope: Literal["player", "coordinate"] = "player",
        v0_x: float = 1e-8,
        v0_y: float = 1e-8,
        eps: float = 1e-10,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, lr_x, lr_y, **sets)
        _check_exponents(alpha, beta)
        check_choice("scope", scope, ("player", "coordinate"))
        check_number("v0_x", v0_x)
        check_number("v0_y", v0_y)
        self.alpha = alpha
        self.beta = beta
        self.scope = scope
        self.v0 = {"x": v0_x, "y": v0_y}
        self.eps = eps

    def _step(self, closure: Closure) -> Step:
        at_x, at_y = self.evaluate(closure)
        sum_x = self._memory.get("x_sum", self.v0["x"] * (self.scope == "player")) + at_x.grad_sq
        sum_y = self._memory.get("y_sum", self.v0["y"] * (self.scope == "player")) + at_y.grad_sq
        self._memory["x_sum"], self._memory["y_sum"] = sum_x, sum_y
        slowest = maximum(sum_x, sum_y)
        if self.scope == "player":
            self._put("y", self._grads("y"), self.lr_y * sum_y**-self.beta)
            self._put("x", self._grads("x"), -self.lr_x * slowest**-self.alpha)
        else:
            ratio = divide(sum_x, slowest) ** self.alpha
            self._put("y", self._scaled("y", self.beta), self.lr_y)
            self._put("x", self._scaled("x", self.alpha), -self.lr_x * ratio)
        return self._both_moved(at_x, at_y)

    def _scaled(self, player: Literal["x", "y"], exponent: float) -> list[Tensor]:
        """Gradients divided by a power of each coordinate's own sum of squares."""
        grads = self._gradients(player)
        sums = self._vectors(f"{player}_coordinate_sums", grads)
        torch._foreach_addcmul_(sums, grads, grads)
        scales = torch._foreach_pow(sums, exponent)
        torch._foreach_add_(scales, self.eps)
        return list(torch._foreach_div(grads, scales))


class TiAdaAdam(TwoRates):
    r"""Adam (or AMSGrad) for both players with TiAda's exponents and ratio.

    With Adam's moments and :math:`S` the sum over all coordinates of the uncorrected second moment,

    .. math::
        x \leftarrow x - \frac{\eta^x}{1-\beta_1^s}\Bigl(\frac{S^x}{\max(S^x, S^y)}\Bigr)^{\alpha}
        \frac{m^x}{(v^x)^{\alpha}/c_x + \epsilon}, \qquad
        y \leftarrow y + \frac{\eta^y}{1-\beta_1^s}\,\frac{m^y}{(v^y)^{\beta}/c_y + \epsilon}

    Required learning rates: their ratio must suit the condition number. A moving average does
    not accumulate, so the time scales do not separate.

    Guarantees: none; it stays away from the solution on the paper's quadratic.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        lr_x: The learning rate of x; with `rowwise`, also a float64 tensor with one per row.
        lr_y: The learning rate of y, likewise.
        alpha: The exponent of x.
        beta: The exponent of y, smaller.
        betas: Decay of the first and of the second moment.
        amsgrad: Use the largest second moment so far.
        bias: How the second moment's bias is corrected: "power" with the exponents,
            :math:`c = (1-\beta_2^s)^{\alpha}`; "sqrt" with a square root for both, as the authors'
            code does.
        eps: Added to the denominators.
        x_set: Constraint set of x.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        lr_x: Scalar = 1e-3,
        lr_y: Scalar = 1e-3,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        betas: tuple[float, float] = (0.9, 0.999),
        amsgrad: bool = False,
        bias: Literal["power", "sqrt"] = "power",
        eps: float = 1e-8,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, lr_x, lr_y, **sets)
        _check_exponents(alpha, beta)
        for name, decay in zip(("betas[0]", "betas[1]"), betas, strict=True):
            check_number(name, decay, strict=False, below=1.0)
        check_choice("bias", bias, ("power", "sqrt"))
        check_flags(amsgrad=amsgrad)
        self.alpha = alpha
        self.beta = beta
        self.betas = betas
        self.amsgrad = amsgrad
        self.bias = bias
        self.eps = eps

    def _step(self, closure: Closure) -> Step:
        at_x, at_y = self.evaluate(closure)
        self._memory["num_steps"] = count = self._memory.get("num_steps", 0) + 1
        sum_x, sum_y = self._total_second_moment("x"), self._total_second_moment("y")
        ratio = divide(sum_x, maximum(sum_x, sum_y)) ** self.alpha
        rate = 1.0 / (1.0 - self.betas[0] ** count)
        self._put("y", self._direction("y", self.beta), self.lr_y * rate)
        step_x = -self.lr_x * rate * ratio
        self._put("x", self._direction("x", self.alpha), step_x)
        return self._both_moved(at_x, at_y)

    def _total_second_moment(self, player: Literal["x", "y"]) -> Scalar:
        """Bring the moments up to date and sum the second one over all coordinates."""
        grads = self._gradients(player)
        first = self._vectors(f"{player}_first", grads)
        second = self._vectors(f"{player}_second", grads)
        torch._foreach_lerp_(first, grads, 1.0 - self.betas[0])
        torch._foreach_mul_(second, self.betas[1])
        torch._foreach_addcmul_(second, grads, grads, value=1.0 - self.betas[1])
        if self.amsgrad:
            largest = self._vectors(f"{player}_largest", grads)
            torch._foreach_maximum_(largest, second)
        used = self._used_second_moment(player)
        if self.rowwise:
            return torch.stack([tensors.row_sums(v.double()) for v in used]).sum(0)
        return float(sum(v.sum(dtype=torch.float64).item() for v in used))

    def _used_second_moment(self, player: Literal["x", "y"]) -> list[Tensor]:
        moments: list[Tensor] = self._memory[f"{player}_{'largest' if self.amsgrad else 'second'}"]
        return moments

    def _direction(self, player: Literal["x", "y"], exponent: float) -> list[Tensor]:
        power = exponent if self.bias == "power" else 0.5
        correction = (1.0 - self.betas[1] ** self._memory["num_steps"]) ** power
        scales = torch._foreach_pow(self._used_second_moment(player), exponent)
        torch._foreach_div_(scales, correction)
        torch._foreach_add_(scales, self.eps)
        return list(torch._foreach_div(self._memory[f"{player}_first"], scales))
