"""Line searches: gradient descent whose step shrinks until a test of values holds.

`Backtracking`: Armijo 1966; Beck & Teboulle 2009 for the quadratic test with projections.
`StochasticLineSearch`: Vaswani et al. 2019.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_choice, check_number
from neada.optim.base import Active, Group, PlayerOptimizer
from neada.optim.objective import Objective, restore_on_error
from neada.scalars import (
    Flag,
    Scalar,
    all_true,
    any_true,
    is_finite,
    maximum,
    minimum,
    negate,
    where,
)
from neada.sets import Set

__all__ = ["Backtracking", "LineSearch", "StochasticLineSearch"]


class LineSearch(PlayerOptimizer):
    """Shrink the step until an acceptance test holds; each row has its own step."""

    tries_points: ClassVar[bool] = True
    step_numbers: ClassVar[tuple[str, ...]] = ("step",)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"step": self.param_groups[0]["lr"]}

    def _try(self, active: Active, start: list[Tensor], step: Scalar) -> list[Tensor]:
        """Put the player at P(w - step g) and return the displacement of what has a gradient."""
        tensors.copy_(active.touched, start)
        before = tensors.clone(active.params)
        self._descend(active, step)
        return tensors.difference(active.params, before)

    def _search(
        self,
        active: Active,
        objective: Objective,
        step: Scalar,
        slack: Scalar,
        num_trials: int,
        untested: Flag = False,
    ) -> tuple[Scalar, Flag]:
        """Shrink `step` until the test holds or the trials are used up.

        Args:
            active: The player and its gradient.
            objective: Values at the current and at trial points.
            step: The first step to try.
            slack: The rounding error of a value, forgiven by the test.
            num_trials: How many points may be tried.
            untested: Where the first step is taken without a test.

        Returns:
            The step taken, and where the test held.
        """
        value = objective.value(type(self).__name__)
        shrink = self.param_groups[0]["shrink"]
        objective.require_closure(type(self).__name__)
        passed: Flag = untested
        with restore_on_error(active.touched) as start:
            for trial_number in range(num_trials):
                if trial_number > 0:
                    step = where(passed, step, step * shrink)
                displacement = self._try(active, start, step)
                if all_true(passed):  # only where no row is tested at all
                    break
                trial = objective.evaluate()
                bound = value + self._decrease(active, displacement, step) + slack
                passed = passed | ((trial <= bound) & is_finite(trial))
                if all_true(passed):
                    break
            else:
                bad = negate(passed | is_finite(trial))
                if any_true(bad):
                    error = tensors.NonFiniteGradient(
                        "the objective is not finite at any trial point; nothing was changed"
                    )
                    error.rows = bad if isinstance(bad, Tensor) else None
                    raise error
        return step, passed

    @abstractmethod
    def _decrease(self, active: Active, displacement: list[Tensor], step: Scalar) -> Scalar:
        """How far above the value at the start (or below, if negative) a trial may lie."""


class Backtracking(LineSearch):
    r"""Projected gradient descent with a backtracking line search.

    With :math:`w^+ = P(w - s g)` and :math:`d = w^+ - w`, the step :math:`s` is shrunk until

    .. math::
        \varphi(w^+) &\le \varphi(w) + \langle g, d\rangle + \|d\|^2/(2s) &&\text{(quad)} \\
        \varphi(w^+) &\le \varphi(w) - (c/s)\,\|d\|^2 &&\text{(armijo)}

    The next step first tries `grow` times the last one. Near a solution the decrease drowns in
    rounding; with `safe`, once it is below that level and some step has been accepted, the last
    accepted step is taken without a test.

    Needs to know: nothing, but needs values: about two per gradient.

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
        max_step: An upper bound on the step.
        max_backtracks: How often a step may shrink before it is taken as it is.
        safe: Trust the last step where values are below rounding.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem; the closure then returns one value per row.

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
    shared: ClassVar[tuple[str, ...]] = (
        *("lr", "test", "c", "shrink", "grow", "max_step", "max_backtracks", "safe", "maximize"),
    )

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        test: Literal["quad", "armijo"] = "quad",
        c: float = 0.5,
        shrink: float = 0.5,
        grow: float = 2.0,
        max_step: float = math.inf,
        max_backtracks: int = 60,
        safe: bool = True,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "test": test,
            "c": c,
            "shrink": shrink,
            "grow": grow,
            "max_step": max_step,
            "max_backtracks": max_backtracks,
            "safe": safe,
        }
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        check_number("lr", group["lr"])
        check_choice("test", group["test"], ("quad", "armijo"))
        check_number("c", group["c"], below=1.0)
        check_number("shrink", group["shrink"], below=1.0)
        check_number("grow", group["grow"], above=1.0, strict=False)
        check_number("max_step", group["max_step"], most=math.inf)
        check_number("max_backtracks", group["max_backtracks"], above=1, strict=False, whole=True)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"step": self.param_groups[0]["lr"], "accepted": 0.0, "last_size": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        value = objective.value("Backtracking")
        size = maximum(value, -value)
        seen = maximum(numbers["last_size"], size)
        rounding = 10.0 * objective.precision * seen if head["safe"] else 0.0
        accepted = numbers["accepted"] > 0.0
        trial = where(accepted, head["grow"] * numbers["step"], numbers["step"])
        trial = minimum(trial, head["max_step"])
        below_rounding: Flag = False
        if head["safe"]:
            below_rounding = accepted & self._is_below_rounding(active, trial, 10.0 * rounding)
            trial = where(below_rounding, numbers["step"], trial)
        step, passed = self._search(
            active, objective, trial, rounding, head["max_backtracks"] + 1, below_rounding
        )
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
        """Whether the promised decrease |d|^2/(2s) is too small to be seen in values."""
        with_set = self._has_set(active)
        moved_sq = step * step * active.norm_sq
        if with_set and not all_true(moved_sq <= 2.0 * step * tolerance):
            start = tensors.clone(active.touched)
            moved_sq = tensors.squared_norm(self._try(active, start, step), self._rowwise)
            tensors.copy_(active.touched, start)
        return moved_sq <= 2.0 * step * tolerance


class StochasticLineSearch(LineSearch):
    r"""SGD with an Armijo line search on the mini-batch ("SLS").

    .. math::
        w_{k+1} = P(w_k - s g_k), \qquad
        \varphi_i(w_{k+1}) \le \varphi_i(w_k) - (c/s)\|w_{k+1}-w_k\|^2

    The closure must evaluate the *same* mini-batch, with the same randomness, at every trial.
    Below a gradient norm of 1e-8 the step is
    taken without a test.

    Needs to know: nothing, but needs values.

    Guarantees: linear for strongly convex losses if all samples share a minimizer
    (interpolation) and c >= 1/2; otherwise it reaches a neighborhood that the noise sets, so it
    is no valid inner solver for the stochastic theory.

    Args:
        params: Tensors or parameter groups.
        lr: The first step to try, :math:`s_0`.
        c: The constant of the Armijo test.
        shrink: The factor after a failed test.
        growth: How much the step may grow in one epoch under the policy "grow".
        num_batches: The number of mini-batches in an epoch.
        policy: Where a search begins: "keep" at the last step, "grow" at the last step times
            growth^(1/num_batches), "restart" at `lr`.
        max_trials: How many steps to try before a step of 1e-6 is taken.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem; the closure then returns one value per row.

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

    shared: ClassVar[tuple[str, ...]] = (
        *("lr", "c", "shrink", "growth", "num_batches", "policy", "max_trials", "maximize"),
    )

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        c: float = 0.1,
        shrink: float = 0.9,
        growth: float = 2.0,
        num_batches: int = 1,
        policy: Literal["keep", "grow", "restart"] = "grow",
        max_trials: int = 100,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "c": c,
            "shrink": shrink,
            "growth": growth,
            "num_batches": num_batches,
            "policy": policy,
            "max_trials": max_trials,
        }
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _check(self, group: Group) -> None:
        check_number("lr", group["lr"])
        check_number("c", group["c"], below=1.0)
        check_number("shrink", group["shrink"], below=1.0)
        check_number("growth", group["growth"], above=1.0, strict=False)
        check_number("num_batches", group["num_batches"], above=1, strict=False, whole=True)
        check_choice("policy", group["policy"], ("keep", "grow", "restart"))
        check_number("max_trials", group["max_trials"], above=1, strict=False, whole=True)

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        step = numbers["step"]
        if head["policy"] == "grow":
            step = step * head["growth"] ** (1.0 / head["num_batches"])
        elif head["policy"] == "restart":
            step = self._per_row(head["lr"])
        start = tensors.clone(active.touched)
        tiny = active.norm_sq < 1e-16
        step, passed = self._search(active, objective, step, 0.0, head["max_trials"], tiny)
        if not all_true(passed):
            self._try(active, start, where(passed, step, 1e-6))
        numbers["step"] = step

    def _decrease(self, active: Active, displacement: list[Tensor], step: Scalar) -> Scalar:
        c: float = self.param_groups[0]["c"]
        return -c * tensors.squared_norm(displacement, self._rowwise) / step
