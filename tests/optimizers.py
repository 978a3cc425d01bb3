"""The table of optimizers: every row is tested by the batteries of `test_optim*.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import references as ref
from neada import optim


@dataclass(frozen=True)
class Case:
    """An optimizer with arguments, and the reference that it is compared with."""

    name: str
    make: type[Any]
    kwargs: dict[str, Any]
    reference: type[Any]
    reference_kwargs: dict[str, Any] | None = None
    """Where they differ from `kwargs`."""
    needs: Literal["gradient", "value", "closure"] = "gradient"
    takes_sets: bool = True
    rowwise: bool = True
    answer: Literal["point", "averaged", "best"] = "point"

    @property
    def judged_kwargs(self) -> dict[str, Any]:
        return self.kwargs if self.reference_kwargs is None else self.reference_kwargs


def _adaptive(name: str, **kwargs: Any) -> Case:
    return Case(name, optim.AdaptiveSGD, kwargs, ref.AdaptiveSGD, rowwise=False)


def _adagrad(name: str, **kwargs: Any) -> Case:
    return Case(name, optim.GeneralizedAdaGrad, kwargs, ref.GeneralizedAdaGrad)


def _search(name: str, method: str, **kwargs: Any) -> Case:
    make, reference = getattr(optim, method), getattr(ref, method)
    return Case(name, make, kwargs, reference, needs="closure")


def _adgd(name: str, variant: str, lr: float | None = None) -> Case:
    kwargs = {"variant": variant} if lr is None else {"variant": variant, "lr": lr}
    reference = {"lr": 1e-2, **kwargs}
    takes_sets = variant in ("mm23", "adapg")
    return Case(name, optim.AdGD, kwargs, ref.AdGD, reference, takes_sets=takes_sets)


def _polyak(name: str, method: str, **kwargs: Any) -> Case:
    answer = "best" if method == "HazanKakade" else "point"
    make, reference = getattr(optim, method), getattr(ref, method)
    return Case(name, make, kwargs, reference, needs="value", answer=answer)


def _bound_free(name: str, method: str, reference: Any = None, **kwargs: Any) -> Case:
    make = getattr(optim, method)
    return Case(name, make, kwargs, getattr(ref, method), reference)


def _spg(name: str, **kwargs: Any) -> Case:
    return Case(name, optim.SPG, kwargs, ref.SPG, needs="value", answer="best")


CASES = [
    _adaptive("gd", lr=0.05, psi="none"),
    _adaptive("gd-momentum", lr=0.05, psi="none", beta=0.5),
    _adaptive("adagrad", lr=0.5, psi="adagrad", v0=0.1),
    _adaptive("adam", lr=0.01, psi="adam", gamma=0.99),
    _adaptive("amsgrad", lr=0.1, psi="amsgrad", gamma=0.5),
    _adagrad("adagrad-norm", lr=2.0, average=1.0),
    _adagrad("gen-adagrad-0.75", lr=5.0, alpha=0.75),
    _adagrad("adagrad-mapping", accumulate="mapping"),
    _search("backtracking-quad", "Backtracking"),
    _search("backtracking-armijo", "Backtracking", test="armijo", safe=False),
    _search("sls", "StochasticLineSearch", num_batches=10),
    _adgd("adgd-mm20", "mm20", lr=1e-3),
    _adgd("adgd-mm20lin", "mm20lin", lr=1e-3),
    _adgd("adgd-mm23", "mm23"),
    _adgd("adgd-adapg", "adapg"),
    _polyak("polyak", "Polyak", f_bound=0.0),
    _polyak("sps", "SPS", max_step=0.1),
    _polyak("sps-smooth", "SPS", growth=1.1, max_step=0.05),
    _polyak("decsps", "DecSPS", max_step=0.2),
    _polyak("hazan-kakade", "HazanKakade", f_bound=-5.0, epoch_steps=40),
    Case(
        "sc-adangd",
        optim.SCAdaNGD,
        {"strong_convexity": 1.0},
        ref.SCAdaNGD,
        answer="averaged",
    ),
    Case(
        "strongly-convex-sgd",
        optim.StronglyConvexSGD,
        {"strong_convexity": 0.5, "lr": 0.5, "average": 1.0},
        ref.StronglyConvexSGD,
        {"strong_convexity": 0.5, "lr": 0.5},
        answer="averaged",
    ),
    Case(
        "kt",
        optim.KT,
        {"bound": 60.0, "average": 0.0},
        ref.KT,
        {"bound": 60.0},
        answer="averaged",
    ),
    Case("cocob", optim.COCOB, {}, ref.COCOB, rowwise=False),
    _bound_free("coin", "CoinBetting", curvature=False),
    _bound_free("coin-curvature", "CoinBetting", bound=60.0, curvature=True),
    _bound_free("freerex", "FreeRex"),
    _bound_free("freerex-momentum", "FreeRex", momentum=True),
    _bound_free("dog", "DoG", r_eps=1e-2, average=8.0, reference={"r_eps": 1e-2}),
    _bound_free("dowg", "DoWG", lr=0.5),
    _spg("spg", lr=0.05),
    _spg("spg-probe"),
    _spg("spg-first-move", first_move=2.0),
    # Long steps would amplify rounding.
    Case("spg-unguarded", optim.SPG, {"lr": 0.01, "safeguard": False}, ref.SPG),
    Case("lbfgs", optim.LBFGS, {"history": 5}, ref.LBFGS, needs="value", takes_sets=False),
]


def cases(**wanted: Any) -> pytest.MarkDecorator:
    """Parametrize a test with the cases whose attributes have the given values."""
    chosen = [c for c in CASES if all(getattr(c, k) == v for k, v in wanted.items())]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


every_case = cases()
with_rows = cases(rowwise=True)
with_sets = cases(takes_sets=True)


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
