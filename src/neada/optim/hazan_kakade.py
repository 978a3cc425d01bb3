"""The adaptive Polyak step of Hazan & Kakade 2019: any lower bound is enough, at a price."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from neada import tensors
from neada.optim.arguments import check_number
from neada.optim.objective import Objective
from neada.optim.player import Active, Group, PlayerOptimizer
from neada.optim.polyak import Bound, check_bound, lower_bound
from neada.scalars import Scalar, divide, maximum, minimum, where
from neada.sets import Set

__all__ = ["HazanKakade"]


class HazanKakade(PlayerOptimizer):
    r"""Polyak steps with a guessed optimal value, restarted with a better guess.

    Epoch :math:`e` takes `epoch_steps` steps from the starting point with

    .. math::
        w_{k+1} = P\Bigl(w_k - \frac{\varphi(w_k)-\ell_e}{2\|g_k\|^2}\, g_k\Bigr)

    and then sets :math:`\ell_{e+1} = (\text{best value of the epoch} + \ell_e)/2`. After the last
    step of an epoch the parameters are back at the start, so read the answer inside `best()`.

    Needs to know: any bound on the optimal value; values at every step.

    Guarantees: the rate of `Polyak` with the true optimal value, up to a factor 2 and
    :math:`\log((\varphi(w_0)-\ell_0)/\varepsilon)` epochs, at the best point seen.

    Args:
        params: Tensors or parameter groups.
        f_bound: A bound on the optimal value, or a function of no arguments that returns it at
            the start: from below, or from above for a maximising player.
        epoch_steps: Steps of one epoch.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors of a group.
        rowwise: Every row is its own problem; values then come one per row.

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

    needs_to_know: ClassVar[str] = "any bound on the optimal value"
    shared: ClassVar[tuple[str, ...]] = ("f_bound", "epoch_steps", "maximize")

    def __init__(
        self,
        params: ParamsT,
        f_bound: Bound,
        *,
        epoch_steps: int = 50,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        defaults = {"f_bound": f_bound, "epoch_steps": epoch_steps}
        super().__init__(
            params, defaults, maximize=maximize, constraint=constraint, rowwise=rowwise
        )

    def _rests_at_zero_gradient(self) -> bool:
        return False  # such a point is the best of all and has to be recorded as such

    def _check(self, group: Group) -> None:
        check_bound(group["f_bound"])
        check_number("epoch_steps", group["epoch_steps"], above=1, strict=False, whole=True)

    @contextmanager
    def best(self) -> Iterator[None]:
        """Inside the block the parameters hold the best point seen; afterwards their own again."""
        with self._shown("best"):
            yield

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        head = self.param_groups[0]
        return {
            "bound": lower_bound(head["f_bound"], head["maximize"]),
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
