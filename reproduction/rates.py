"""How the cost of an accuracy grows with it: exponents, games to measure them on, figures."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from neada.problems import Problem
from reproduction import figures
from reproduction.experiment import Array, Claim, Relation

MODULUS, SMOOTHNESS = 1.0, 10.0
_TAIL = 0.1
_NUM_ACCURACIES = 24


def complexity_exponent(
    cost: Array, error: Array, *, log_power: float, first_cost: float | None = None
) -> float:
    r"""The exponent p in cost = C eps^-p log^q(cost), for a given q.

    For accuracies eps between the error at `first_cost` and the last one, the cost is that of the
    first point from which on the error is at most eps; p is the slope of log(cost / log^q cost)
    against log(1/eps). If error = C sqrt(log T / T) at a cost of T, then p = 2 with q = 1.

    Args:
        cost: Increasing; larger than e from `first_cost` on.
        error: One number for each cost.
        log_power: The power q.
        first_cost: Where the fit begins; a twentieth of the largest cost by default.

    Returns:
        The exponent; infinite if the error does not fall.

    Example:
        >>> steps = np.geomspace(10, 1e5, 400)
        >>> error = 3.0 * np.sqrt(np.log(steps) / steps)
        >>> round(complexity_exponent(steps, error, log_power=1.0), 2)
        2.0
    """
    begin = int(np.searchsorted(cost, cost[-1] / 20.0 if first_cost is None else first_cost))
    # The largest error still to come: it falls from one point to the next, or stays.
    worst = np.maximum.accumulate(error[begin:][::-1])[::-1]
    if not np.isfinite(worst).all() or worst[-1] <= 0.0:
        return math.nan
    if worst[0] <= worst[-1]:
        return math.inf
    accuracies = np.geomspace(worst[0], worst[-1], _NUM_ACCURACIES)
    # Between two points where it falls it is taken as a power of the cost.
    fell = np.concatenate([[True], worst[1:] < worst[:-1]])
    known = np.log(cost[begin:][fell])
    spent = np.exp(np.interp(-np.log(accuracies), -np.log(worst[fell]), known))
    return slope(1.0 / accuracies, spent / np.log(spent) ** log_power)


def slope(x: Array, y: Array) -> float:
    """The slope of the least-squares line through (log x, log y).

    Example:
        >>> x = np.array([1.0, 10.0, 100.0])
        >>> round(slope(x, 5.0 * x**-0.25), 3)
        -0.25
    """
    if not (np.all(np.isfinite(y)) and np.all(y > 0.0)):
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def marks(num_steps: int, num_marks: int = 120) -> NDArray[np.intp]:
    """At most `num_marks` step numbers from 1 to `num_steps`, even on a logarithmic axis.

    Example:
        >>> marks(8).tolist()
        [1, 2, 3, 4, 5, 6, 7, 8]
    """
    spread = np.geomspace(1.0, num_steps, num_marks)
    return np.unique(np.round(spread).astype(np.intp))


def theorem_1_bound(
    num_outer: int,
    gap: float,
    kappa_l: float,
    inner_error: float,
    noise_std: float,
) -> float:
    r"""The right side of Theorem 1 with 2E in place of E, for learning rate and v0 of 1.

    The polynomial in the logarithm of A is that of the proof: one plus the loose bound of the root
    of the sum of squared gradients, plus sigma sqrt(T / M).

    Args:
        num_outer: The outer steps T.
        gap: Phi(x_0) - min Phi.
        kappa_l: The condition number times the smoothness.
        inner_error: The expected cumulative error E of the inner loops.
        noise_std: sigma / sqrt(M).
    """
    doubled = 2.0 * inner_error
    noise = noise_std * math.sqrt(num_outer)
    curved = kappa_l**2 + 4.0 * noise_std**2
    loose = 1.0 / 3.0 + 432.0 * gap**2 + 2.0 * noise / 3.0
    loose += 432.0 * 33.0 * curved + 108.0 * doubled**2
    logarithm = 1.0 + 2.0 * math.log(1.0 + loose + noise)
    b = 2.0 * gap + (4.0 * noise_std + 2.0 * kappa_l) * logarithm + doubled
    total = 2.0 * b + math.sqrt(b) + 2.0 * math.sqrt(b * noise)
    return total / math.sqrt(num_outer)


def tail_game(name: str) -> Problem:
    r"""One of the games f(x, y) = h (1 + (x/w)^2)^(-1/20) - sum_j c_j (y_j - b_j x)^2 / 2.

    The maximum over y is the first term, and the heights are such that its gradient dominates the
    error of y. The curvatures c_j are 1 and 10. The "steep tail" is narrow (w = 0.01), so that even
    an x that moves by 1/100 leaves its shoulder in a few steps; the "tail" has w = 1.
    """
    width, height = (0.01, 1.0) if name == "steep tail" else (1.0, 40.0)
    row = torch.tensor([0.5, -0.5], dtype=torch.float64)
    half_curvature = torch.tensor([MODULUS, SMOOTHNESS], dtype=torch.float64) / 2.0
    one = torch.ones(1, dtype=torch.float64)

    # Few operations: these functions are half of the experiment's time.
    def phi(x: Tensor) -> Tensor:
        shape = torch.addcmul(one, x, x, value=width**-2).pow(-_TAIL / 2.0)
        return height * shape.sum(-1)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        apart = y - x * row
        return phi(x) - (half_curvature * apart * apart).sum(-1)

    return Problem(
        name=name,
        fun=fun,
        x0=width * one,
        y0=torch.zeros(2, dtype=torch.float64),
        strong_concavity=MODULUS,
        best_response=lambda x: (x * row).detach(),
        phi=phi,
    )


def claim_about_all(
    id: str, sentence: str, found: Mapping[str, float], relation: Relation, expected: float
) -> Claim:
    """A claim of Theorem 2 about the worst of several numbers, which the note names."""
    worst = min(found.values()) if ">" in relation else max(found.values())
    note = "; ".join(f"{label}: {number:.2f}" for label, number in found.items())
    return Claim(id, sentence, "Theorem 2", worst, relation, expected, note=note)


def rate_panel(
    title: str,
    law: str,
    values: Callable[[Array], Array],
    curves: Sequence[tuple[str, Array, Array]],
) -> figures.Panel:
    """Errors against costs, and a law below them to compare with.

    Args:
        title: Above the panel.
        law: What the law is called.
        values: The law at given costs, up to a factor.
        curves: A name, costs, and errors of shape (points,) or (points, parts of the runs).
    """
    last = max(float(cost[-1]) for _, cost, _ in curves)
    lowest = min(float(np.mean(error[-1])) for _, _, error in curves)
    drawn = values(costs := np.geomspace(last / 100.0, last, 40))
    return figures.Panel(
        title,
        [figures.Curve(*curve) for curve in curves],
        guides=[(law, costs, 0.75 * lowest * drawn / drawn[-1])],
    )


def rate_figure(panels: Sequence[figures.Panel], x_label: str, note: str = "") -> Figure:
    """Logarithmic panels, two in a row, with a legend below each, and a note."""
    slope = "the dotted line has the slope of the theory; its height is free"
    return figures.curves_figure(
        panels,
        num_columns=2,
        y_label="error so far",
        x_label=x_label,
        x_scale="log",
        legend_columns=2,
        legends="own",
        panel_size=(5.1, 4.2),
        note="; ".join(filter(None, [slope, note])),
    )
