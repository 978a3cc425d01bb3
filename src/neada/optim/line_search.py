"""Line searches: gradient descent whose step shrinks until a test of values holds.

`Backtracking`: Armijo 1966; Beck & Teboulle 2009 for the quadratic test with projections.
`StochasticLineSearch`: Vaswani et al. 2019.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Active, Common, Group, PlayerOptimizer
from neada.optim.objective import Objective, restore_on_error
from neada.scalars import Flag, Scalar, all_true, any_true, is_finite, maximum, negate, where

__all__ = ["Backtracking", "LineSearch", "StochasticLineSearch"]


class LineSearch(PlayerOptimizer):
    """Shrink the step until an acceptance test holds; each row has its own step."""

    tries_points: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("lr",)
    step_numbers: ClassVar[tuple[str, ...]] = ("step",)
    max_trials: ClassVar[int]
    """How many steps are tried."""

    @abstractmethod
    def _decrease(self, active: Active, displacement: list[Tensor], step: Scalar) -> Scalar:
        """The largest accepted change of the value."""

    def _check(self, group: Group) -> None:
        check_number("c", group["c"], below=1.0)
        check_number("shrink", group["shrink"], below=1.0)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"step": self.param_groups[0]["lr"]}

    def _search(
        self,
        active: Active,
        objective: Objective,
        step: Scalar,
        slack: Scalar = 0.0,
        untested: Flag = False,
    ) -> tuple[Scalar, Flag]:
        """Shrink `step` until the test holds or `max_trials` steps have been tried.

        Args:
            active: The player and its gradient.
            objective: Values at the current and at trial points.
            step: The first step to try.
            slack: The rounding error of a value, added to the bound of the test.
            untested: Where the first step is taken without a test.

        Returns:
            The last step tried, which was taken, and where it passed the test.
        """
        value = objective.value(type(self).__name__)
        passed = untested
        with restore_on_error(active.touched) as start:
            for trial_number in range(self.max_trials):
                if trial_number > 0:
                    step = where(passed, step, step * self.param_groups[0]["shrink"])
                displacement = self._try(active, start, step)
                if all_true(passed):
                    return step, passed
                trial = objective.evaluate()
                bound = value + self._decrease(active, displacement, step) + slack
                passed = passed | ((trial <= bound) & is_finite(trial))
                if all_true(passed):
                    return step, passed
            bad = negate(passed | is_finite(trial))
            if any_true(bad):
                raise tensors.NonFiniteGradient(
                    "the objective is NaN or Inf at every trial point; nothing was changed", bad
                )
        return step, passed

    def _try(self, active: Active, start: list[Tensor], step: Scalar) -> list[Tensor]:
        """Move to P(w - step g) from the start; returns the displacement."""
        tensors.copy_(active.touched, start)
        before = tensors.clone(active.params)
        self._descend(active, step)
        return tensors.difference(active.params, before)


class Backtracking(LineSearch):
    r"""Projected gradient descent with a backtracking line search.

    With :math:`w^+ = P(w - s g)` and :math:`d = w^+ - w`, the step :math:`s` is shrunk until

    .. math::
        \varphi(w^+) &\le \varphi(w) + \langle g, d\rangle + \|d\|^2/(2s) &&\text{(quad)} \\
        \varphi(w^+) &\le \varphi(w) - (c/s)\,\|d\|^2 &&\text{(armijo)}

    or 60 times. The next step first tries `grow` times the last one. Near a solution the decrease
    is smaller than the rounding error of the values; with `safe`, the last accepted step is then
    taken without a test.

    Required problem constants: none. Requires values: about two per gradient.

    Guarantees: on a :math:`\mu`-strongly convex, :math:`l`-smooth function over any closed convex
    set, ``"quad"`` accepts some :math:`s \ge \min(s_0, \beta/l)` and contracts:
    :math:`\|w_{k+1}-w_*\|^2 \le (1-\mu s_k)\|w_k-w_*\|^2`. Not for noisy values.

    Args:
        params: Tensors or parameter groups.
        lr: The first step to try, :math:`s_0`.
        test: The acceptance test, "quad" or "armijo".
        c: The constant of the Armijo test.
        shrink: The factor :math:`\beta` after a failed test.
        grow: The factor before the first trial of every later step.
        safe: Reuse the last accepted step where the decrease is below rounding.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem; the closure then returns one value per row.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = Backtracking([w])
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2 * torch.tensor([1.0, 10.0])).sum()
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(60):
        ...     _ = optimizer.step(closure)
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    step_numbers: ClassVar[tuple[str, ...]] = ("step", "accepted")
    max_trials: ClassVar[int] = 61

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        test: Literal["quad", "armijo"] = "quad",
        c: float = 0.5,
        shrink: float = 0.5,
        grow: float = 2.0,
        safe: bool = True,
        **common: Unpack[Common],
    ) -> None:
        defaults = {"lr": lr, "test": test, "c": c, "shrink": shrink, "grow": grow, "safe": safe}
        super().__init__(params, defaults, **common)

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_choice("test", group["test"], ("quad", "armijo"))
        check_number("grow", group["grow"], above=1.0, strict=False)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"step": self.param_groups[0]["lr"], "accepted": 0.0, "last_size": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        value = objective.value("Backtracking")
        size = maximum(value, -value)
        accepted = numbers["accepted"] > 0.0
        trial = where(accepted, head["grow"] * numbers["step"], numbers["step"])
        rounding: Scalar = 0.0
        below_rounding: Flag = False
        if head["safe"]:
            rounding = 10.0 * objective.precision * maximum(numbers["last_size"], size)
            below_rounding = accepted & self._is_below_rounding(active, trial, 10.0 * rounding)
            trial = where(below_rounding, numbers["step"], trial)
        step, passed = self._search(active, objective, trial, rounding, below_rounding)
        numbers["step"] = step
        numbers["accepted"] = where(passed, 1.0, numbers["accepted"])
        numbers["last_size"] = size

    def _decrease(self, active: Active, displacement: list[Tensor], step: Scalar) -> Scalar:
        moved_sq = tensors.squared_norm(displacement, self._rowwise)
        if self.param_groups[0]["test"] == "armijo":
            c: float = self.param_groups[0]["c"]
            return -c * moved_sq / step
        slope = tensors.dot(active.grads, displacement, self._rowwise)
        return slope + moved_sq / (2.0 * step)

    def _is_below_rounding(self, active: Active, step: Scalar, tolerance: Scalar) -> Flag:
        """Whether the decrease |d|^2/(2s) of the test is less than the tolerance."""
        moved_sq = step * step * active.norm_sq
        if self._has_set(active) and not all_true(moved_sq <= 2.0 * step * tolerance):
            start = tensors.clone(active.touched)
            moved_sq = tensors.squared_norm(self._try(active, start, step), self._rowwise)
            tensors.copy_(active.touched, start)
        return moved_sq <= 2.0 * step * tolerance


class StochasticLineSearch(LineSearch):
    r"""SGD with an Armijo line search on the mini-batch ("SLS").

    .. math::
        w_{k+1} = P(w_k - s g_k), \qquad
        \varphi_i(w_{k+1}) \le \varphi_i(w_k) - (c/s)\|w_{k+1}-w_k\|^2

    The search begins at the last step times growth^(1/num_batches). After 100 trials a step of 1e-6
    is taken. If the norm of the gradient is below 1e-8, the step is taken without a test. The
    closure must evaluate the *same* mini-batch, with the same randomness, at every trial.

    Required problem constants: none. Requires values.

    Guarantees: linear for strongly convex losses if all samples share a minimizer
    (interpolation) and c >= 1/2; otherwise it reaches a neighborhood whose size depends on the
    noise, so it is no valid inner solver for the stochastic theory.

    Args:
        params: Tensors or parameter groups.
        lr: The step before the first one, :math:`s_0`.
        c: The constant of the Armijo test.
        shrink: The factor after a failed test.
        growth: How much the step may grow in one epoch; 1 for a step that never grows.
        num_batches: The number of mini-batches in an epoch.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem; the closure then returns one value per row.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = StochasticLineSearch([w], num_batches=10)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2).sum()
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(100):
        ...     _ = optimizer.step(closure)
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    max_trials: ClassVar[int] = 100

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        c: float = 0.1,
        shrink: float = 0.9,
        growth: float = 2.0,
        num_batches: int = 1,
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "c": c,
            "shrink": shrink,
            "growth": growth,
            "num_batches": num_batches,
        }
        super().__init__(params, defaults, **common)

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_number("growth", group["growth"], above=1.0, strict=False)
        check_number("num_batches", group["num_batches"], above=1, strict=False, whole=True)

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        step = numbers["step"] * head["growth"] ** (1.0 / head["num_batches"])
        start = tensors.clone(active.touched)
        step, passed = self._search(active, objective, step, untested=active.norm_sq < 1e-16)
        if not all_true(passed):
            self._try(active, start, where(passed, step, 1e-6))
        numbers["step"] = step

    def _decrease(self, active: Active, displacement: list[Tensor], step: Scalar) -> Scalar:
        c: float = self.param_groups[0]["c"]
        return -c * tensors.squared_norm(displacement, self._rowwise) / step
