"""Theorem 2: how the cost of an accuracy depends on the condition number and on v_0.

f(x, y) = (1 + x^2)^(-1/20) + x (y_1 + y_2) - y_1^2 / (2 kappa) - y_2^2 / 2, so that the modulus in
y is 1/kappa and Phi curves like kappa + 1. NeAda-AdaGrad with criterion I runs until the root of
the mean, over the outer steps so far, of the squared x gradient plus the squared error of y is 1/2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from neada.inner import InnerOptions
from neada.optim import LBFGS, Backtracking, GeneralizedAdaGrad
from neada.runs import RunFolder
from neada.steppers import NeAda
from neada.stopping import GradientMapping
from reproduction import figures
from reproduction.experiment import Array, Claim, Record, Scale, Seeds
from reproduction.rates import claim_about_all, rate_panel, slope

TITLE = "The condition number and v_0 in the cost of an accuracy"
WHERE = "Theorem 2"
PAPER = (
    "NeAda-AdaGrad needs neither the condition number kappa nor a good v_0, but the bound contains "
    "both: B grows like kappa, and the outer steps for an accuracy like B^2 + sqrt(v_0) B."
)

_EPSILON = 0.5
_KAPPA = 10.0
_SOLVERS: dict[str, Callable[..., Any]] = {"Backtracking": Backtracking, "L-BFGS": LBFGS}
_KAPPAS: dict[Scale, tuple[float, ...]] = {
    "quick": (1.0, 3.0, 10.0),
    "standard": (1.0, 3.0, 10.0, 30.0, 60.0),
    "paper": (1.0, 3.0, 10.0, 30.0, 100.0),
}
_V0S: dict[Scale, tuple[float, ...]] = {
    "quick": (1e-2, 1.0, 1e3, 1e4),
    "standard": (1e-4, 1e-2, 1.0, 1e2, 1e3, 1e4, 1e5, 1e6),
    "paper": (1e-4, 1e-2, 1.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7),
}
_LARGE_V0 = 1e3
"""From here on v_0 is larger than the squared gradients."""


@dataclass(frozen=True)
class Config:
    """One inner solver, one condition number and one v_0.

    Attributes:
        solver: The inner solver, by name.
        kappa: The condition number.
        v0: The initial sum of x's AdaGrad.
        max_outer: The most outer steps.
    """

    solver: str
    kappa: float
    v0: float
    max_outer: int = 200_000

    @property
    def label(self) -> str:
        """Solver, condition number and v_0."""
        return f"{self.solver}, kappa {self.kappa:g}, v0 {self.v0:g}"


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Every solver over kappa at v_0 = 1, and over v_0 at kappa = 10; nothing is random."""
    cells = [(kappa, 1.0) for kappa in _KAPPAS[scale]] + [(_KAPPA, v0) for v0 in _V0S[scale]]
    return [Config(solver, *cell) for solver in _SOLVERS for cell in dict.fromkeys(cells)]


def run(config: Config, run: RunFolder) -> None:
    """Run until the accuracy is reached, and write what it cost."""
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    best = torch.tensor([config.kappa, 1.0], dtype=torch.float64)
    half = 0.5 / best

    def value() -> Tensor:
        return ((1.0 + x * x) ** -0.05).sum() + (x * y - half * y * y).sum()

    stepper = NeAda(
        GeneralizedAdaGrad([x], v0=config.v0),
        _SOLVERS[config.solver]([y], maximize=True),
        GradientMapping(),
        inner=InnerOptions(keep="step"),
        deterministic=True,
    )
    total, mean = 0.0, math.inf
    while mean > _EPSILON**2 and stepper.outer_steps < config.max_outer:
        before = x.detach().clone()
        info = stepper.step(value)
        total += float(info.grad_sq_x) + (y.detach() - before * best).square().sum().item()
        mean = total / stepper.outer_steps
    outer_steps = stepper.outer_steps if mean <= _EPSILON**2 else math.inf
    run.append([{"outer_steps": outer_steps, "error": math.sqrt(mean)}])


def claims(records: Sequence[Record]) -> list[Claim]:
    """The exponents of the outer steps in kappa and in v_0."""
    over_kappa, over_v0 = _sweeps(records, "kappa"), _sweeps(records, "v0")
    large = {s: (v0[v0 >= _LARGE_V0], t[v0 >= _LARGE_V0]) for s, (v0, t) in over_v0.items()}
    small = {s: (v0[v0 <= 1.0], t[v0 <= 1.0]) for s, (v0, t) in over_v0.items()}
    return [
        _exponent("kappa", "kappa^p at v_0 = 1 (theory 2)", over_kappa, 2.5),
        _exponent("large-v0", "v_0^p for v_0 from 1000 on (theory 1/2)", large, 0.625),
        _exponent("small-v0", "v_0^p for v_0 up to 1 (theory 0 up to logarithms)", small, 0.1),
    ]


def _sweeps(records: Sequence[Record], name: str) -> dict[str, tuple[Array, Array]]:
    """For every solver the values of kappa or v_0, and the outer steps of the accuracy."""
    other, fixed = ("v0", 1.0) if name == "kappa" else ("kappa", _KAPPA)
    found = {}
    for solver in _SOLVERS:
        rows = sorted(
            (getattr(r.config, name), float(r.column("outer_steps")[0]))
            for r in records
            if r.config.solver == solver and getattr(r.config, other) == fixed
        )
        if len(rows) > 1:
            values, costs = np.array(rows).T
            found[solver] = values, costs
    return found


def _exponent(name: str, words: str, sweeps: dict[str, tuple[Array, Array]], limit: float) -> Claim:
    found = {solver: slope(values, costs) for solver, (values, costs) in sweeps.items()}
    sentence = (
        f"the outer steps for an error of {_EPSILON:g} grow at most like {words}: largest p over "
        "the inner solvers, consistent with the bound"
    )
    return claim_about_all(f"constants/{name}", sentence, found, "<=", limit)


def figure(records: Sequence[Record]) -> Figure | None:
    """Outer steps over kappa and over v_0."""
    laws: list[tuple[str, str, str, Callable[[Array], Array]]] = [
        ("kappa", "outer steps grow like kappa²", "kappa²", np.square),
        ("v0", "a large v_0 costs its root", "sqrt(v_0)", np.sqrt),
    ]
    panels = []
    for name, title, law, values in laws:
        curves = [(solver, *sweep) for solver, sweep in _sweeps(records, name).items()]
        if curves:
            panel = rate_panel(title, law, values, curves)
            panels.append(replace(panel, x_label=name.replace("v0", "v_0")))
    if not panels:
        return None
    return figures.curves_figure(
        panels,
        num_columns=2,
        y_label="outer steps",
        x_scale="log",
        legends="own",
        legend_columns=1,
        panel_size=(3.4, 3.0),
        note=f"cost of an error of {_EPSILON:g}; v_0 = 1 on the left, kappa = {_KAPPA:g} on the "
        "right; the dotted lines have the slopes of the bound; their heights are free",
    )
