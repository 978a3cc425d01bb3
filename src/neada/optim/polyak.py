"""Polyak steps: the step size comes from the gap to the optimal value, known or estimated.

`Polyak`; `SPS` (Loizou et al. 2021); `DecSPS` (Orvieto et al. 2022); `HazanKakade` (Hazan & Kakade
2019), for which any lower bound is enough, at a price.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.checks import check_number
from neada.optim.base import Active, Common, Group, PlayerOptimizer
from neada.optim.objective import Objective
from neada.scalars import Scalar, divide, maximum, minimum, where

__all__ = ["SPS", "Bound", "DecSPS", "HazanKakade", "Polyak"]


Bound = float | Callable[[], "float | Tensor"]
"""A bound on the optimal value, or a function that gives the current one."""


class _BoundMethod(PlayerOptimizer):
    """The common part of these methods: the gap between the value and its bound."""

    def _check(self, group: Group) -> None:
        if not callable(group["f_bound"]):
            check_number("f_bound", group["f_bound"], above=-float("inf"))

    def _lower_bound(self) -> Scalar:
        """The current bound of what is minimized; one per row if the function returns rows."""
        head = self.param_groups[0]
        limit = head["f_bound"]() if callable(head["f_bound"]) else head["f_bound"]
        if isinstance(limit, Tensor):
            limit = limit.item() if limit.dim() == 0 else limit.detach().double()
        bound: Scalar = -limit if head["maximize"] else limit
        return bound

    def _gap(self, objective: Objective) -> Scalar:
        """How far the value is above its bound, at least 0."""
        return maximum(objective.value(type(self).__name__) - self._lower_bound(), 0.0)


class Polyak(_BoundMethod):
    r"""Polyak's step size, computed from the gap to the optimal value.

    .. math::
        w_{k+1} = P\Bigl(w_k - \frac{\varphi(w_k) - \varphi_*}{c\,\|g_k\|^2}\, g_k\Bigr)

    Required problem constants: the optimal value. Requires values at every step. With a loose bound
    the step explodes near the solution: use `SPS`, which has a cap.

    Guarantees: linear on smooth strongly convex functions, and the best rate of gradient descent
    on every class of convex functions. On a set whose solution has a nonzero gradient it is only
    sublinear.

    Args:
        params: Tensors or parameter groups.
        f_bound: The optimal value, or a function of no arguments that returns it: the minimum
            of the objective, or its maximum for a maximizing player.
        c: Divides the step.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem; values then come one per row.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = Polyak([w], f_bound=0.0)
        >>> for _ in range(40):
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2).sum()
        ...     loss.backward()
        ...     _ = optimizer.step(value=loss)
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    positive: ClassVar[tuple[str, ...]] = ("c",)

    def __init__(
        self,
        params: ParamsT,
        f_bound: Bound,
        *,
        c: float = 1.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"f_bound": f_bound, "c": c}, **common)

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        c = self.param_groups[0]["c"]
        self._descend(active, divide(self._gap(objective), c * active.norm_sq))


class SPS(_BoundMethod):
    r"""The stochastic Polyak step size, capped.

    .. math::
        s_k = \min\Bigl\{\frac{\varphi_i(w_k)-\ell_i}{c\,\|g_k\|^2},\; s_b\Bigr\}, \qquad
        w_{k+1} = P(w_k - s_k g_k)

    With `growth` the cap moves: :math:`s_b = \text{growth}\cdot s_{k-1}`.

    Required problem constants: a lower bound of every sample's loss (0 for most losses) and a cap.

    Guarantees: smooth strongly convex: linear to a neighborhood in proportion to how much the
    bounds are missed at the solution; to the solution itself under interpolation. The moving cap
    is a heuristic.

    Args:
        params: Tensors or parameter groups.
        f_bound: The bound, or a function of no arguments that returns the batch's: from below,
            or from above for a maximizing player.
        c: Divides the step.
        max_step: The cap; with `growth`, the step before the first one.
        growth: None for a fixed cap, or the factor by which the step may grow from one step to
            the next; the authors use 2^(batch size / number of samples).
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem; values then come one per row.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = SPS([w])
        >>> for _ in range(60):
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2).sum()
        ...     loss.backward()
        ...     _ = optimizer.step(value=loss)
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    positive: ClassVar[tuple[str, ...]] = ("c", "max_step")
    step_numbers: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(
        self,
        params: ParamsT,
        f_bound: Bound = 0.0,
        *,
        c: float = 0.5,
        max_step: float = 1.0,
        growth: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        defaults = {"f_bound": f_bound, "c": c, "max_step": max_step, "growth": growth}
        super().__init__(params, defaults, **common)

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["growth"] is not None:
            check_number("growth", group["growth"], above=1.0, strict=False)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"step": self.param_groups[0]["max_step"]}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        growth = head["growth"]
        cap = head["max_step"] if growth is None else growth * numbers["step"]
        step = minimum(divide(self._gap(objective), head["c"] * active.norm_sq), cap)
        # A sample at its bound has step 0, which must not become the moving cap.
        numbers["step"] = where(step > 0.0, step, numbers["step"])
        self._descend(active, step)


class DecSPS(_BoundMethod):
    r"""The decreasing stochastic Polyak step size.

    .. math::
        s_k = \frac{1}{c_k}\min\Bigl\{\frac{\varphi_i(w_k)-\ell_i}{\|g_k\|^2},\;
        c_{k-1}s_{k-1}\Bigr\}, \qquad c_k = c_0\sqrt{k+1}

    Required problem constants: a lower bound of every sample's loss (0 for most losses) and a
    first cap.

    Guarantees: :math:`O(1/\sqrt K)` to the exact solution on convex functions, with noise and
    without interpolation; never more, because the step is made to decay. It is not linear on
    strongly convex functions, although the NeAda paper lists it among methods that are.

    Args:
        params: Tensors or parameter groups.
        f_bound: The bound, or a function of no arguments that returns the batch's: from below,
            or from above for a maximizing player.
        c0: Divides the step, growing with the square root of the step's number.
        max_step: The cap of the first step.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem; values then come one per row.

    Example:
        >>> import torch
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = DecSPS([w])
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2).sum()
        ...     loss.backward()
        ...     _ = optimizer.step(value=loss)
        >>> w.detach().round(decimals=3)
        tensor([1., 1.])
    """

    positive: ClassVar[tuple[str, ...]] = ("c0", "max_step")

    def __init__(
        self,
        params: ParamsT,
        f_bound: Bound = 0.0,
        *,
        c0: float = 1.0,
        max_step: float = 10.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"f_bound": f_bound, "c0": c0, "max_step": max_step}, **common)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        head = self.param_groups[0]
        return {"cap": head["c0"] * head["max_step"], "num_steps": 0.0}

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        head = self.param_groups[0]
        numbers["num_steps"] = numbers["num_steps"] + 1.0
        # The cap of the next step is c_k s_k, which is this minimum before division by c_k.
        ratio = divide(self._gap(objective), active.norm_sq)
        numbers["cap"] = numerator = minimum(ratio, numbers["cap"])
        self._descend(active, numerator / (head["c0"] * numbers["num_steps"] ** 0.5))


class HazanKakade(_BoundMethod):
    r"""Polyak steps with a guessed optimal value, restarted with a better guess.

    Epoch :math:`e` takes `epoch_steps` steps from the starting point with

    .. math::
        w_{k+1} = P\Bigl(w_k - \frac{\varphi(w_k)-\ell_e}{2\|g_k\|^2}\, g_k\Bigr)

    and then sets :math:`\ell_{e+1} = (\text{best value of the epoch} + \ell_e)/2`. After the last
    step of an epoch the parameters are back at the start, so read the answer inside `best()`.

    Required problem constants: a bound on the optimal value, and the condition number:
    `epoch_steps` must grow with it. Requires values at every step.

    Guarantees: if an epoch is long enough for `Polyak` to reach :math:`\varepsilon` from the start,
    :math:`\log((\varphi(w_0)-\ell_0)/\varepsilon)` epochs reach it, at the best point seen. With
    shorter epochs the error stalls: at condition number 10 the default epochs stop at a distance
    of 2e-4 from the minimizer.

    Args:
        params: Tensors or parameter groups.
        f_bound: A bound on the optimal value, or a function of no arguments that returns it at
            the start: from below, or from above for a maximizing player.
        epoch_steps: Steps of one epoch.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is a separate problem; values then come one per row.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = HazanKakade([w], f_bound=-1.0, epoch_steps=20)
        >>> for _ in range(400):
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1.0) ** 2).sum()
        ...     loss.backward()
        ...     _ = optimizer.step(value=loss)
        >>> with optimizer.best():
        ...     print(w.detach().round(decimals=2))
        tensor([1., 1.])
    """

    def __init__(
        self,
        params: ParamsT,
        f_bound: Bound,
        *,
        epoch_steps: int = 50,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, {"f_bound": f_bound, "epoch_steps": epoch_steps}, **common)

    def _rests_at_zero_gradient(self) -> bool:
        return False  # the point is recorded as the best

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_number("epoch_steps", group["epoch_steps"], above=1, strict=False, whole=True)

    @contextmanager
    def best(self) -> Iterator[None]:
        """Inside the block the parameters hold the best point seen."""
        with self._shown("best"):
            yield

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {
            "bound": self._lower_bound(),
            "steps_done": 0.0,
            "epoch_best": float("inf"),
            "best_value": float("inf"),
        }

    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        value = objective.value("HazanKakade")
        starts = self._vectors("start", active.params, torch.clone)
        best = self._vectors("best", active.params, torch.clone)
        improved = value < numbers["best_value"]
        tensors.interpolate_(best, active.params, where(improved, 1.0, 0.0))
        numbers["best_value"] = minimum(value, numbers["best_value"])
        numbers["epoch_best"] = minimum(value, numbers["epoch_best"])
        numbers["steps_done"] = numbers["steps_done"] + 1.0

        excess = where(active.norm_sq > 0.0, maximum(value - numbers["bound"], 0.0), 0.0)
        self._descend(active, divide(excess, 2.0 * active.norm_sq))

        ends = numbers["steps_done"] >= self.param_groups[0]["epoch_steps"]
        tensors.interpolate_(active.params, starts, where(ends, 1.0, 0.0))
        raised = (numbers["epoch_best"] + numbers["bound"]) / 2.0
        numbers["bound"] = where(ends, raised, numbers["bound"])
        numbers["epoch_best"] = where(ends, float("inf"), numbers["epoch_best"])
        numbers["steps_done"] = where(ends, 0.0, numbers["steps_done"])
