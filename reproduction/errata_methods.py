"""Errata about inner methods: what AMSGrad carries, which rates and which constants they have."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neada.optim import (
    AdaptiveSGD,
    AdGD,
    Backtracking,
    DecSPS,
    GeneralizedAdaGrad,
    PlayerOptimizer,
    Polyak,
    SCAdaNGD,
)
from reproduction.errata_lemma import Erratum, Rows, Statement, curve, measure
from reproduction.experiment import Array

__all__ = ["ERRATA"]

_GAMMA = 0.999


def _printed_psi(start: float, squares: Array) -> float:
    """AMSGrad's averaging function as printed: the maximum over the steps of one loop."""
    average, largest = start, 0.0
    for square in squares:
        average = _GAMMA * average + (1.0 - _GAMMA) * square
        largest = max(largest, average)
    return largest


def _amsgrad_rebasing(num_loops: int) -> Rows:
    """The second moment of y over outer loops of three steps whose gradient has vanished."""
    printed = [1.0]
    for _ in range(num_loops):
        printed.append(_printed_psi(printed[-1], np.zeros(3)))
    y = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = AdaptiveSGD([y], lr=1e-3, psi="amsgrad", gamma=_GAMMA, maximize=True)
    y.grad = torch.full_like(y, (1.0 - _GAMMA) ** -0.5)  # makes the first second moment 1
    optimizer.step()
    carried = []
    for _ in range(num_loops + 1):
        carried.append(float(optimizer.state[y]["largest_second_moment"]))
        optimizer.reset(keep="everything")
        for _ in range(3):
            y.grad = torch.zeros_like(y)
            optimizer.step()
    kept = np.arange(0, num_loops + 1, max(1, num_loops // 50))
    return [
        measure("printed", printed[-1] / _GAMMA**num_loops),
        measure("printed-left", printed[-1]),
        measure("carried", min(np.divide(carried[1:], carried[:-1]))),
        *curve("as printed", kept, np.array(printed)[kept]),
        *curve("carried as a pair", kept, np.array(carried)[kept]),
    ]


def _inner_errors(alpha: float, at: NDArray[np.intp], num_seeds: int) -> tuple[Array, Array]:
    """Mean squared error of the last and of the averaged iterate after these numbers of steps.

    phi(w) = w^2/2 from w = 1, gradients with Gaussian noise of variance 1, one row per seed.
    """
    generator = torch.Generator().manual_seed(0)
    w = torch.ones(num_seeds, 1, dtype=torch.float64, requires_grad=True)
    optimizer = GeneralizedAdaGrad([w], alpha=alpha, average=1.0, rowwise=True)
    last, averaged = [], []
    wanted = set(at.tolist())
    for step in range(1, int(at[-1]) + 1):
        w.grad = w.detach() + torch.randn(w.shape, dtype=w.dtype, generator=generator)
        optimizer.step()
        if step in wanted:
            last.append(w.detach().square().mean().item())
            with optimizer.averaged():
                averaged.append(w.detach().square().mean().item())
    return np.array(last), np.array(averaged)


def _stochastic_hypothesis(num_steps: int) -> Rows:
    rows: Rows = []
    at = np.unique(np.geomspace(1, num_steps, 100).astype(np.intp))
    late = at >= num_steps / 30

    def exponent(values: Array) -> float:
        return float(np.polyfit(np.log(at[late]), np.log(values[late]), 1)[0])

    def summed(errors: Array) -> Array:
        """Sum over outer loops of t + 1 inner steps, by the trapezoidal rule between points."""
        pieces = 0.5 * (errors[1:] + errors[:-1]) * np.diff(at)
        return np.concatenate([errors[:1], errors[0] + np.cumsum(pieces)])

    averaged_exponents = []
    for alpha in (0.25, 0.5, 0.75):
        last, averaged = _inner_errors(alpha, at, num_seeds=512)
        rows.append(measure(f"last-{alpha:g}", exponent(last)))
        averaged_exponents.append(exponent(averaged))
        if alpha == 0.5:
            rows.append(measure("sum-last", exponent(summed(last))))
            rows.append(measure("sum-averaged", exponent(summed(averaged))))
            rows += curve("last iterate", at, last)
            rows += curve("averaged", at, averaged)
            rows += curve("1/k", at, 1.0 / at)
    return [measure("averaged", max(averaged_exponents)), *rows]


_CENTER = torch.tensor([1.0, -2.0], dtype=torch.float64)
_CURVATURE = torch.tensor([1.0, 10.0], dtype=torch.float64)


def _distances(make: Callable[[list[Tensor]], PlayerOptimizer], num_steps: int) -> Array:
    """Distance to the solution of a quadratic with mu = 1 and l = 10 after every step.

    Of the averaged point where the method is about that; the minimal value is 0.
    """
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = make([w])

    def value() -> Tensor:
        return 0.5 * (_CURVATURE * (w - _CENTER) ** 2).sum()

    found = []
    for _ in range(num_steps):
        w.grad = (_CURVATURE * (w - _CENTER)).detach()
        optimizer.step(value, value=value().detach())
        if isinstance(optimizer, SCAdaNGD):
            with optimizer.averaged():
                found.append((w.detach() - _CENTER).norm().item())
        else:
            found.append((w.detach() - _CENTER).norm().item())
    return np.array(found)


def _steps_ratio(distances: Array) -> float:
    """Steps to a distance of 1e-4 / steps to 1e-2, which is at most 2 at a linear rate."""
    if distances.min() > 1e-4:
        return float("nan")
    return float((np.argmax(distances <= 1e-4) + 1) / (np.argmax(distances <= 1e-2) + 1))


def _agnostic_solvers(num_steps: int) -> Rows:
    solvers: dict[str, Callable[[list[Tensor]], PlayerOptimizer]] = {
        "SC-AdaNGD, H = mu": lambda w: SCAdaNGD(w, 1.0),
        "SC-AdaNGD, H = 10 mu": lambda w: SCAdaNGD(w, 10.0),
        "Polyak, right value": lambda w: Polyak(w, 0.0),
        "Polyak, 0.1 too high": lambda w: Polyak(w, 0.1),
        "Polyak, 0.1 too low": lambda w: Polyak(w, -0.1),
        "AdGD": lambda w: AdGD(w),
        "Backtracking": lambda w: Backtracking(w),
    }
    found = {name: _distances(make, num_steps) for name, make in solvers.items()}
    decreasing = _distances(lambda w: DecSPS(w, 0.0), 12 * num_steps)
    end = {name: float(distances[-num_steps // 10 :].max()) for name, distances in found.items()}
    rows: Rows = [
        measure("modulus-wrong", end["SC-AdaNGD, H = 10 mu"]),
        measure("modulus-right", end["SC-AdaNGD, H = mu"]),
        measure("value-wrong", min(end["Polyak, 0.1 too high"], end["Polyak, 0.1 too low"])),
        measure("value-right", end["Polyak, right value"]),
        measure("decsps", _steps_ratio(decreasing)),
        measure("linear", max(map(_steps_ratio, (found["AdGD"], found["Backtracking"])))),
        measure("agnostic", max(end["AdGD"], end["Backtracking"])),
    ]
    found["DecSPS, right value"] = decreasing
    for name, distances in found.items():
        kept = np.unique(np.geomspace(1, len(distances), 60).astype(np.intp))
        rows += curve(name, kept, np.maximum(distances[kept - 1], 1e-16))
    return rows


ERRATA = (
    Erratum(
        "amsgrad-rebasing",
        "Algorithm 2 with AMSGrad",
        "every inner loop starts its averaging function anew from the last second moment, which "
        "for AMSGrad is a maximum",
        "carry the moving average and the maximum as a pair: re-based, the maximum is multiplied "
        "by gamma at the start of every outer loop and is no longer monotone",
        _amsgrad_rebasing,
        (
            Statement(
                "printed",
                "as printed the second moment loses a factor gamma per outer loop once gradients "
                "vanish: what is left / gamma^loops",
                "between",
                (1.0 - 1e-9, 1.0 + 1e-9),
            ),
            Statement(
                "carried",
                "carried as a pair, as `AdaptiveSGD` does, it never shrinks: smallest quotient of "
                "one loop and the one before",
                ">=",
                1.0,
            ),
        ),
        ("outer loop", "second moment of y"),
        ("linear", "linear"),
    ),
    Erratum(
        "stochastic-hypothesis",
        "Theorem 3 and Section 3.2",
        "Generalized AdaGrad with alpha < 1 is offered as a parameter-agnostic inner method for "
        "the stochastic theorem, which presumes an error of O(1/k)",
        "its last iterate has error k^-alpha, so that t + 1 inner steps leave a sum of errors of "
        "T^(1-alpha), which voids the theorem's bound for alpha <= 1/2; return the average with "
        "weights proportional to k (error about 1/k), or take (t+1)^(1/alpha) steps",
        _stochastic_hypothesis,
        (
            *(
                Statement(
                    f"last-{alpha:g}",
                    f"alpha = {alpha:g}: squared error of the last iterate against inner steps: "
                    f"exponent (-{alpha:g} and not -1)",
                    "between",
                    (-alpha - 0.12, -alpha + 0.12),
                )
                for alpha in (0.25, 0.5, 0.75)
            ),
            Statement(
                "averaged",
                "of the averaged iterate: largest exponent over the three alpha",
                "<=",
                -0.8,
            ),
            Statement(
                "sum-last",
                "alpha = 0.5, t + 1 inner steps: the sum of errors over T outer loops grows like "
                "T^0.5 with the last iterate: exponent",
                "between",
                (0.38, 0.62),
            ),
            Statement(
                "sum-averaged",
                "and like a logarithm with the average: exponent (log T shows about 0.15)",
                "<=",
                0.25,
            ),
        ),
        ("inner steps k", "squared error"),
    ),
    Erratum(
        "agnostic-solvers",
        "Remark after Theorem 2 and its footnote",
        "SC-AdaNGD and Polyak step sizes (DecSPS among them) are adaptive, parameter-agnostic and "
        "linear; SC-AdaNGD needs the diameter, Polyak steps the minimum",
        "SC-AdaNGD needs the modulus, Polyak steps the exact optimal value, DecSPS is not linear; "
        "of the list only backtracking qualifies, and AdGD, which is not on it, does too",
        _agnostic_solvers,
        (
            Statement(
                "modulus-wrong",
                "SC-AdaNGD told ten times the modulus: distance at the end",
                ">=",
                1e-2,
            ),
            Statement("modulus-right", "told the right one: distance at the end", "<=", 1e-8),
            Statement(
                "value-wrong",
                "Polyak told a value wrong by 0.1, too high or too low: smaller distance at the "
                "end (largest over the last tenth of the steps)",
                ">=",
                1e-2,
            ),
            Statement("value-right", "told the right one: distance at the end", "<=", 1e-8),
            Statement(
                "decsps",
                "DecSPS told the right value: steps to 1e-4 / steps to 1e-2 (at most 2 at a linear "
                "rate, 3.4 if steps go with the square of the digits)",
                ">=",
                2.8,
            ),
            Statement(
                "linear",
                "AdGD and backtracking told nothing: larger of the same quotients",
                "<=",
                2.0,
            ),
            Statement("agnostic", "AdGD and backtracking: larger distance at the end", "<=", 1e-8),
        ),
        ("step", "distance"),
    ),
)
