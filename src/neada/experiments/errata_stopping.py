"""Errata about when the inner loop stops: units, and two tests under one name."""

import numpy as np
import torch
from torch import Tensor

from neada.experiments.erratum import Erratum, Rows, Statement, curve, measure
from neada.experiments.rules import Array
from neada.optim import AdaptiveSGD, GeneralizedAdaGrad
from neada.steppers import NeAda
from neada.stopping import GradientMapping

__all__ = ["ERRATA"]


def _inner_errors(num_outer: int, stopping: GradientMapping, unit: float) -> tuple[Array, Array]:
    """Squared y error at every x step, and the inner steps spent, when f is multiplied by `unit`.

    f = x^2/(1+x^2) + 2xy - y^2/2 in 40 coordinates from different starts. Both optimizers are
    told of the unit, so that only the stopping test can see it.
    """
    x = torch.linspace(0.5, 3.0, 40, dtype=torch.float64).requires_grad_()
    y = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    stepper = NeAda(
        GeneralizedAdaGrad([x], lr=1.0, v0=unit**2),
        AdaptiveSGD([y], lr=0.1 / unit, psi="none", maximize=True),
        stopping,
        min_inner_steps=0,
    )

    def value() -> Tensor:
        return unit * (x * x / (1.0 + x * x) + 2.0 * x * y - 0.5 * y * y).sum()

    errors, spent = [], []
    for _ in range(num_outer):
        before = x.detach().clone()
        info = stepper.step(value)
        errors.append((y.detach() - 2.0 * before).square().sum().item())
        spent.append(float(info.inner_steps))
    return np.array(errors), np.array(spent)


def _criterion_units(num_outer: int) -> Rows:
    steps = np.arange(1, num_outer + 1)
    rows: Rows = []
    plain, _ = _inner_errors(num_outer, GradientMapping(), 1.0)
    rows += curve("f", steps, plain)
    worst = []
    for unit in (0.1, 10.0):
        errors, _ = _inner_errors(num_outer, GradientMapping(), unit)
        mended, _ = _inner_errors(num_outer, GradientMapping(scale=unit**2), unit)
        worst.append(np.abs(mended / plain - 1.0).max())
        rows.append(measure(f"change-{unit:g}", np.median(errors / plain)))
        rows += curve(f"{unit:g} f", steps, errors)
    return [measure("mended", max(worst)), *rows]


def _criterion_text(num_outer: int) -> Rows:
    steps = np.arange(1, num_outer + 1)
    theory, theory_spent = _inner_errors(num_outer, GradientMapping(), 1.0)
    text, text_spent = _inner_errors(num_outer, GradientMapping(power=2.0), 1.0)
    late = steps > num_outer / 2
    return [
        measure("accuracy", np.median((theory / text)[late])),
        measure("steps", text_spent.sum() / max(theory_spent.sum(), 1.0)),
        *curve("squared <= 1/(t+1)", steps, theory),
        *curve("norm <= 1/(t+1)", steps, text),
    ]


ERRATA = (
    Erratum(
        "criterion-units",
        "Algorithm 3, criterion I",
        "stop when the squared gradient mapping with step 1 is at most 1/(t+1)",
        "the theorem holds, with constants that depend on the unit of f; the test itself is not "
        "invariant to f -> s f, and c/(t+1) with c = s^2 (`scale`) makes up for it",
        _criterion_units,
        (
            Statement(
                "change-0.1",
                "0.1 f instead of f: the squared y error that the test accepts, relative (about "
                "100)",
                ">",
                10.0,
            ),
            Statement(
                "change-10",
                "10 f instead of f: the same (about 0.01)",
                "<",
                0.1,
            ),
            Statement(
                "mended",
                "with scale = s^2 the run is the same in every unit: largest relative change of "
                "the y error",
                "<=",
                1e-6,
            ),
        ),
        ("outer step t+1", "squared y error"),
    ),
    Erratum(
        "criterion-text",
        "Section 2, text, against Algorithm 3",
        "the experiments stop when the gradient of y is below 1/t, the theory when its square is "
        "below 1/(t+1)",
        "these are different tests (the scripts use the square): the text's asks for a squared "
        "gradient of 1/t^2, is undefined at t = 0, and implies the theory's from t = 2 on",
        _criterion_text,
        (
            Statement(
                "accuracy",
                "squared y error under the theory's test / under the text's, median over the last "
                "half (about t)",
                ">",
                10.0,
            ),
            Statement(
                "steps",
                "inner steps under the text's test / under the theory's",
                ">",
                1.0,
            ),
        ),
        ("outer step t+1", "squared y error"),
    ),
)
