"""SGD with a line search on the mini-batch (Vaswani et al. 2019, arXiv:1905.09997)."""

from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.arguments import check_choice, check_number
from neada.optim.line_search import LineSearch
from neada.optim.objective import Objective
from neada.optim.player import Active, Group
from neada.scalars import Scalar, all_true, where
from neada.sets import Set

__all__ = ["StochasticLineSearch"]


class StochasticLineSearch(LineSearch):
    r"""SGD with an Armijo line search on the mini-batch ("SLS").

    .. math::
        w_{k+1} = P(w_k - s g_k), \qquad
        \varphi_i(w_{k+1}) \le \varphi_i(w_k) - (c/s)\|w_{k+1}-w_k\|^2

    The closure must evaluate the *same* mini-batch, with the same randomness, at every trial.
    Below a gradient norm of 1e-8 the step is
    taken without a test.

    Needs to know: nothing, but needs values.

    Guarantees: linear for strongly convex losses if all samples share a minimiser
    (interpolation) and c >= 1/2; otherwise it reaches a neighbourhood that the noise sets, so it
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

    needs_to_know: ClassVar[str] = "nothing (values)"
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
