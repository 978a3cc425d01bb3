"""The inner solvers and the numbers of inner steps of Theorem 3's experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor

from neada.optim import CoinBetting, DoG, FreeRex, GeneralizedAdaGrad, PlayerOptimizer
from neada.sets import Box
from neada.stopping import InnerSteps
from reproduction.experiment import Scale

__all__ = ["COUNTS", "SOLVERS", "Count", "Solver", "StronglyConvexSGD"]


class StronglyConvexSGD(PlayerOptimizer):
    """Steps 1 / (mu k) with the modulus mu = 1: the reference, which requires it."""

    def __init__(self, params: list[Tensor], **options: Any) -> None:
        super().__init__(params, {}, **options)

    def _initial_numbers(self, active: Any) -> dict[str, Any]:
        return {"count": 0.0}

    def _update(self, active: Any, numbers: dict[str, Any], objective: Any) -> None:
        numbers["count"] = numbers["count"] + 1.0
        self._descend(active, 1.0 / numbers["count"])


@dataclass(frozen=True)
class Solver:
    """An inner solver.

    Attributes:
        optimizer: Makes the optimizer from a list of tensors.
        keep: What it keeps from one inner loop to the next.
    """

    optimizer: Callable[..., PlayerOptimizer]
    keep: Literal["nothing", "step", "everything"] = "nothing"

    def make(self, y: Tensor, radius: float) -> PlayerOptimizer:
        """Return the optimizer of y in [-radius, radius], whose rows are runs."""
        return self.optimizer([y], maximize=True, rowwise=True, constraint=Box(-radius, radius))


_AVERAGED = partial(GeneralizedAdaGrad, average=1.0)
SOLVERS = {
    "SGD 1/(mu k)": Solver(StronglyConvexSGD),
    "AdaGrad averaged": Solver(_AVERAGED),
    "AdaGrad averaged, lr 0.1": Solver(partial(_AVERAGED, lr=0.1)),
    "AdaGrad averaged, lr 10": Solver(partial(_AVERAGED, lr=10.0)),
    "AdaGrad carried": Solver(GeneralizedAdaGrad, "everything"),
    "AdaGrad carried, lr 0.1": Solver(partial(GeneralizedAdaGrad, lr=0.1), "everything"),
    "AdaGrad alpha 1/2": Solver(GeneralizedAdaGrad),
    "AdaGrad alpha 3/4": Solver(partial(GeneralizedAdaGrad, alpha=0.75)),
    "AdaGrad alpha 1": Solver(partial(GeneralizedAdaGrad, alpha=1.0)),
    "AdaGrad alpha 1, lr 1/4": Solver(partial(GeneralizedAdaGrad, alpha=1.0, lr=0.25)),
    "coin betting": Solver(partial(CoinBetting, average=1.0)),
    "FreeRexMomentum": Solver(partial(FreeRex, momentum=True, average=0.0)),
    "DoG": Solver(partial(DoG, r_eps=1e-2, average=8.0), "step"),
}
"""The solvers of the experiment, by name."""


@dataclass(frozen=True)
class Count:
    """A number of inner steps for every t.

    Attributes:
        limit: The number.
        power: All samples of T outer steps are about T to this power.
        outer_steps: How many are affordable.
    """

    limit: Callable[[int], float]
    power: float
    outer_steps: dict[Scale, int]


_MANY: dict[Scale, int] = {"quick": 120, "standard": 600, "paper": 1500}
_SOME: dict[Scale, int] = {"quick": 40, "standard": 250, "paper": 400}
_FEW: dict[Scale, int] = {"quick": 30, "standard": 120, "paper": 220}
COUNTS = {
    "t+1": Count(InnerSteps().limit, 2.0, _MANY),
    "t log^2 t": Count(InnerSteps(("log", 2)).limit, 2.0, _SOME),
    "(t+1)^4/3": Count(InnerSteps(("power", 4.0 / 3.0)).limit, 7.0 / 3.0, _SOME),
    "(t+1)^2": Count(InnerSteps(("power", 2.0)).limit, 3.0, _FEW),
    "5": Count(lambda t: 5.0, 2.0, _MANY),
}
"""The numbers of inner steps of the experiment, by formula."""
