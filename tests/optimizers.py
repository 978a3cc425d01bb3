"""The table of optimizers: a new one earns the batteries of the `test_optim*.py` by one row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import references as ref
from neada import optim

Bad = tuple[dict[str, Any], str]


@dataclass(frozen=True)
class Case:
    """An optimizer with arguments, the reference that judges it, and what it refuses."""

    name: str
    make: type[Any]
    kwargs: dict[str, Any]
    reference: type[Any]
    reference_kwargs: dict[str, Any] | None = None
    needs: Literal["gradient", "value", "closure"] = "gradient"
    bad: tuple[Bad, ...] = ()
    takes_sets: bool = True
    rowwise: bool = True
    accuracy: float | None = 1e-3
    """Distance to the solution after 2000 steps on the quadratic in a box; None: not promised."""
    answer: Literal["point", "averaged", "best"] = "point"

    @property
    def judged_kwargs(self) -> dict[str, Any]:
        return self.kwargs if self.reference_kwargs is None else self.reference_kwargs


_LR = ({"lr": 0.0}, "lr must be a number greater than 0")
_ALPHA = ({"alpha": 1.5}, "alpha must be a number greater than 0 and at most 1")
_AVERAGE = ({"average": -1.0}, "average must be a number at least 0")
_BOUND = ({"f_bound": float("nan")}, "f_bound must be a number")

CASES = [
    Case(
        "gd",
        optim.AdaptiveSGD,
        {"lr": 0.05, "psi": "none"},
        ref.AdaptiveSGD,
        bad=(_LR,),
        rowwise=False,
    ),
    Case(
        "gd-momentum",
        optim.AdaptiveSGD,
        {"lr": 0.05, "psi": "none", "beta": 0.5},
        ref.AdaptiveSGD,
        bad=(({"beta": 1.0}, "beta must be a number at least 0 and less than 1"),),
        rowwise=False,
    ),
    Case(
        "adagrad",
        optim.AdaptiveSGD,
        {"lr": 0.5, "psi": "adagrad", "v0": 0.1},
        ref.AdaptiveSGD,
        bad=(({"psi": "rmsprop"}, "psi must be one of 'none', 'adagrad'"),),
        rowwise=False,
    ),
    Case(
        "adam",
        optim.AdaptiveSGD,
        {"lr": 0.01, "psi": "adam", "gamma": 0.99},
        ref.AdaptiveSGD,
        bad=(({"gamma": 1.0}, "gamma must be a number at least 0"),),
        rowwise=False,
        accuracy=0.05,
    ),
    Case(
        "amsgrad",
        optim.AdaptiveSGD,
        {"lr": 0.1, "psi": "amsgrad", "gamma": 0.5},
        ref.AdaptiveSGD,
        bad=(({"v0": -1.0}, "v0 must be a number at least 0"),),
        rowwise=False,
    ),
    Case(
        "adagrad-norm",
        optim.GeneralizedAdaGrad,
        {"lr": 2.0, "average": 1.0},
        ref.GeneralizedAdaGrad,
        bad=(_LR, _ALPHA, _AVERAGE),
    ),
    Case(
        "gen-adagrad-0.25",
        optim.GeneralizedAdaGrad,
        {"alpha": 0.25},
        ref.GeneralizedAdaGrad,
        bad=(({"v0": 0.0}, "v0 must be a number greater than 0"),),
    ),
    Case(
        "gen-adagrad-0.75",
        optim.GeneralizedAdaGrad,
        {"alpha": 0.75, "lr": 5.0},
        ref.GeneralizedAdaGrad,
        bad=(({"v0": 1e-8}, "v0 must be at least 0.01 for alpha"),),
    ),
    Case(
        "gen-adagrad-1",
        optim.GeneralizedAdaGrad,
        {"alpha": 1.0, "lr": 50.0},
        ref.GeneralizedAdaGrad,
        bad=(({"scope": "row"}, "scope must be one of"),),
    ),
    Case(
        "adagrad-mapping",
        optim.GeneralizedAdaGrad,
        {"accumulate": "mapping"},
        ref.GeneralizedAdaGrad,
        bad=(({"accumulate": "x"}, "accumulate must be one of"),),
    ),
    Case(
        "adagrad-coordinate",
        optim.GeneralizedAdaGrad,
        {"scope": "coordinate"},
        ref.GeneralizedAdaGrad,
    ),
    Case(
        "backtracking-quad",
        optim.Backtracking,
        {},
        ref.Backtracking,
        needs="closure",
        bad=(
            _LR,
            ({"test": "wolfe"}, "test must be one of"),
            ({"grow": 0.5}, "grow must be a number at least 1"),
            ({"max_backtracks": 0}, "max_backtracks must be a whole number at least 1"),
        ),
        accuracy=1e-7,
    ),
    Case(
        "backtracking-armijo",
        optim.Backtracking,
        {"test": "armijo", "safe": False},
        ref.Backtracking,
        needs="closure",
        bad=(({"c": 1.0}, "c must be a number greater than 0 and less than 1"),),
    ),
    Case(
        "sls",
        optim.StochasticLineSearch,
        {"num_batches": 10},
        ref.StochasticLineSearch,
        needs="closure",
        bad=(
            ({"policy": "none"}, "policy must be one of"),
            ({"shrink": 1.0}, "shrink must be a number"),
            ({"num_batches": 0}, "num_batches must be a whole number at least 1"),
        ),
    ),
    Case(
        "sls-restart",
        optim.StochasticLineSearch,
        {"policy": "restart"},
        ref.StochasticLineSearch,
        {"policy": "restart", "num_batches": 1},
        needs="closure",
        bad=(({"growth": 0.5}, "growth must be a number at least 1"),),
    ),
    Case(
        "adgd-mm20",
        optim.AdGD,
        {"variant": "mm20", "lr": 1e-3},
        ref.AdGD,
        None,
        takes_sets=False,
        bad=(_LR, ({"variant": "mm21"}, "there is no variant .mm21.; did you mean .mm2")),
    ),
    Case(
        "adgd-mm20lin", optim.AdGD, {"variant": "mm20lin", "lr": 1e-3}, ref.AdGD, takes_sets=False
    ),
    Case(
        "adgd-mm23",
        optim.AdGD,
        {"variant": "mm23"},
        ref.AdGD,
        {"variant": "mm23", "lr": 1e-2},
        accuracy=1e-7,
    ),
    Case(
        "adgd-adapg",
        optim.AdGD,
        {"variant": "adapg"},
        ref.AdGD,
        {"variant": "adapg", "lr": 1e-2},
        accuracy=1e-7,
    ),
    Case(
        "polyak",
        optim.Polyak,
        {"f_bound": 0.0},
        ref.Polyak,
        needs="value",
        bad=(_BOUND, ({"c": 0.0}, "c must be a number greater than 0")),
        accuracy=0.05,
    ),
    Case(
        "sps",
        optim.SPS,
        {"max_step": 0.1},
        ref.SPS,
        needs="value",
        bad=(_BOUND, ({"max_step": 0.0}, "max_step must be a number")),
    ),
    Case(
        "sps-smooth",
        optim.SPS,
        {"growth": 1.1, "max_step": 0.05},
        ref.SPS,
        needs="value",
        bad=(({"growth": 0.9}, "growth must be a number at least 1"),),
        accuracy=None,
    ),
    Case(
        "decsps",
        optim.DecSPS,
        {"max_step": 0.2},
        ref.DecSPS,
        needs="value",
        bad=(_BOUND, ({"c0": -1.0}, "c0 must be a number")),
    ),
    Case(
        "hazan-kakade",
        optim.HazanKakade,
        {"f_bound": -5.0, "epoch_steps": 40},
        ref.HazanKakade,
        needs="value",
        answer="best",
        accuracy=0.1,
        bad=(_BOUND, ({"epoch_steps": 0}, "epoch_steps must be a whole number at least 1")),
    ),
    Case(
        "sc-adangd-1",
        optim.SCAdaNGD,
        {"strong_convexity": 1.0, "power": 1},
        ref.SCAdaNGD,
        {"strong_convexity": 1.0, "k": 1},
        answer="averaged",
        accuracy=0.05,
        bad=(({"strong_convexity": 0.0}, "strong_convexity must be a number"),),
    ),
    Case(
        "sc-adangd-2",
        optim.SCAdaNGD,
        {"strong_convexity": 1.0},
        ref.SCAdaNGD,
        answer="averaged",
        accuracy=0.05,
        bad=(({"power": 3}, "power must be one of 1, 2"),),
    ),
    Case(
        "strongly-convex-sgd",
        optim.StronglyConvexSGD,
        {"strong_convexity": 1.0, "average": 1.0},
        ref.StronglyConvexSGD,
        answer="averaged",
        accuracy=0.05,
        bad=(_LR, _AVERAGE, ({"strong_convexity": 0.0}, "strong_convexity must be a number")),
    ),
    Case(
        "kt",
        optim.KT,
        {"bound": 60.0, "average": 0.0},
        ref.KT,
        {"bound": 60.0},
        accuracy=0.3,
        answer="averaged",
        bad=(({"bound": 0.0}, "bound must be a number"), ({"wealth": 0}, "wealth must be")),
    ),
    Case(
        "cocob",
        optim.COCOB,
        {},
        ref.COCOB,
        rowwise=False,
        accuracy=0.05,
        bad=(({"alpha": 0.0}, "alpha must be a number"), ({"scale0": 0.0}, "scale0 must be")),
    ),
    Case(
        "coin",
        optim.CoinBetting,
        {"curvature": False},
        ref.CoinBetting,
        accuracy=0.05,
        bad=(({"reduction": "third"}, "reduction must be one of"),),
    ),
    Case(
        "coin-curvature",
        optim.CoinBetting,
        {"bound": 60.0, "reduction": "half"},
        ref.CoinBetting,
        {"bound": 60.0, "curvature": True, "reduction": "half"},
        accuracy=0.05,
        bad=(({"bound": -1.0}, "bound must be a number"), _AVERAGE),
    ),
    Case(
        "freerex",
        optim.FreeRex,
        {},
        ref.FreeRex,
        accuracy=0.2,
        bad=(({"k": 0.0}, "k must be a number"),),
    ),
    Case(
        "freerex-momentum",
        optim.FreeRex,
        {"momentum": True},
        ref.FreeRex,
        accuracy=0.5,
        bad=(({"momentum": 0.9}, "momentum must be one of True, False"),),
    ),
    Case(
        "dog",
        optim.DoG,
        {"r_eps": 1e-2, "average": 8.0},
        ref.DoG,
        {"r_eps": 1e-2},
        accuracy=0.05,
        bad=(_LR, ({"r_eps": 0.0}, "r_eps must be a number"), _AVERAGE),
    ),
    Case(
        "dowg",
        optim.DoWG,
        {"lr": 0.5},
        ref.DoWG,
        accuracy=0.05,
    ),
    Case(
        "spg",
        optim.SPG,
        {"lr": 0.05},
        ref.SPG,
        needs="value",
        answer="best",
        accuracy=1e-7,
        bad=(_LR, ({"safeguard": 2}, "safeguard must be one of True, False")),
    ),
    Case(
        "spg-probe",
        optim.SPG,
        {},
        ref.SPG,
        needs="value",
        answer="best",
        accuracy=1e-7,
    ),
    Case(
        "spg-first-move",
        optim.SPG,
        {"first_move": 2.0},
        ref.SPG,
        needs="value",
        answer="best",
        accuracy=1e-7,
        bad=(
            ({"first_move": 0.0}, "first_move must be a number greater than 0"),
            ({"first_move": 1.0, "lr": 1.0}, "give one of them"),
        ),
    ),
    Case(
        "spg-unguarded",
        optim.SPG,
        {"lr": 0.01, "safeguard": False},  # long steps would amplify rounding
        ref.SPG,
        accuracy=1e-7,
    ),
    Case(
        "lbfgs",
        optim.LBFGS,
        {"history": 5},
        ref.LBFGS,
        needs="value",
        takes_sets=False,
        bad=(_LR, ({"history": 0}, "history must be a whole number at least 1")),
    ),
]
NAMES = [case.name for case in CASES]

every_case = pytest.mark.parametrize("case", CASES, ids=NAMES)
with_rows = pytest.mark.parametrize(
    "case", [c for c in CASES if c.rowwise], ids=[c.name for c in CASES if c.rowwise]
)
with_sets = pytest.mark.parametrize(
    "case", [c for c in CASES if c.takes_sets], ids=[c.name for c in CASES if c.takes_sets]
)


class Problem:
    """A strongly convex quadratic 1/2 (w-c)' A (w-c), the same in torch and in numpy."""

    def __init__(self, dimension: int = 6, kappa: float = 20.0, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(generator.normal(size=(dimension, dimension)))
        self.matrix = basis @ np.diag(np.geomspace(1.0, kappa, dimension)) @ basis.T
        self.center = generator.normal(size=dimension)

    def value(self, w: np.ndarray) -> float:
        return 0.5 * float((w - self.center) @ self.matrix @ (w - self.center))

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.matrix @ (w - self.center)

    def torch_value(self, w: Tensor) -> Tensor:
        """Along the last dimension, so that rows may be many problems."""
        matrix = torch.as_tensor(self.matrix, dtype=w.dtype)
        moved = w - torch.as_tensor(self.center, dtype=w.dtype)
        return 0.5 * (moved * (moved @ matrix)).sum(-1)


def take_step(
    optimizer: torch.optim.Optimizer,
    case: Case,
    value: Callable[[], Tensor],
    sign: float = 1.0,
) -> None:
    """One step in the way a stepper does it: gradient in `.grad`, value handed over."""
    optimizer.zero_grad()
    result = sign * value()
    result.sum().backward()
    if case.needs == "gradient":
        optimizer.step()
    else:
        optimizer.step(lambda: sign * value(), value=result.detach())  # type: ignore[call-arg]


def vector(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def leaf(values: object, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(np.array(values), dtype=dtype).requires_grad_()


def make(case: Case, params: object, **kwargs: object) -> torch.optim.Optimizer:
    return case.make(params, **{**case.kwargs, **kwargs})


def run(case: Case, optimizer: torch.optim.Optimizer, w: torch.Tensor, num_steps: int) -> None:
    problem = Problem(dimension=w.shape[-1])
    for _ in range(num_steps):
        take_step(optimizer, case, lambda: problem.torch_value(w))


def feed(optimizer: torch.optim.Optimizer, params: list[torch.Tensor], gradient: object) -> None:
    """Put a flat gradient into the parameters, in order."""
    flat = torch.as_tensor(gradient)
    for p in params:
        p.grad = flat[: p.numel()].reshape(p.shape).to(p.dtype).clone()
        flat = flat[p.numel() :]
