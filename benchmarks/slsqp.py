"""`minimize` against scipy's SLSQP on problems with constraints: calls and times.

`minimax_calls.py` puts it on its page. An evaluation of the objective together with all constraints
at one point is one call, and so is the gradient of the objective together with the Jacobian of all
constraints; for `minimize` these are the gradients of the two players of the Lagrangian.
"""

import math
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import torch
from hock_schittkowski import LATER, PROBLEMS, Problem, by_scipy
from numpy.typing import NDArray

import neada
from neada import problems

__all__ = ["constrained", "constrained_means", "constrained_problems", "constrained_section"]

_FTOLS = (1e-6, 1e-9, 1e-12, 1e-15)


class _Row(NamedTuple):
    own: int | None
    other: int | None
    time_ratio: float | None


def constrained_problems() -> dict[str, Problem]:
    """The Lagrangians of the zoo as problems with constraints, and those of Hock-Schittkowski."""
    found = {name: _from_zoo(name) for name in ("lagrangian", "fair_logistic")}
    both = sorted({**PROBLEMS, **LATER}.items())
    return found | {
        f"hs{number}": problem
        for number, problem in both
        if problem.inequality is not None or problem.equality is not None
    }


def _from_zoo(name: str) -> Problem:
    """A Lagrangian is linear in y: differences of its values are the constraints."""
    zoo = problems.make(name)
    units = torch.eye(zoo.dim_y, dtype=torch.float64)
    zero = torch.zeros(zoo.dim_y, dtype=torch.float64)
    assert zoo.solution is not None
    return Problem(
        lambda x: zoo.fun(x, zero),
        zoo.x0.tolist(),
        zoo.fun(*zoo.solution).item(),
        inequality=lambda x: torch.stack([zoo.fun(x, unit) for unit in units]) - zoo.fun(x, zero),
    )


def _own(problem: Problem, tol: float) -> Any:
    return neada.minimize(
        problem.objective,
        problem.start,
        inequality=problem.inequality,
        equality=problem.equality,
        x_set=problem.x_set,
        tol=tol,
        max_calls=20_000,
    )


def residual(problem: Problem, x: NDArray[np.float64]) -> float:
    """The larger of the violation and of the distance to stationarity, by the best multipliers.

    SLSQP gives no multipliers back, so they are fitted: those of constraints and bounds that hold
    with equality within 1e-6.
    """
    point = torch.tensor(x)
    rows, lower, missed = [], [], 0.0
    for function, low in ((problem.inequality, 0.0), (problem.equality, -np.inf)):
        if function is None:
            continue
        values = function(point).reshape(-1).numpy()
        slopes = torch.autograd.functional.jacobian(function, point).reshape(-1, len(x)).numpy()
        missed = max(missed, float(np.max(values if low == 0.0 else np.abs(values))))
        for value, slope in zip(values, slopes, strict=True):
            if low != 0.0 or value >= -1e-6:
                rows.append(slope)
                lower.append(low)
    for bound, sign in zip(problem.bounds or (), (-1.0, 1.0), strict=bool(problem.bounds)):
        for i in np.flatnonzero(np.abs(x - np.array(bound)) <= 1e-6):
            rows.append(sign * np.eye(len(x))[i])
            lower.append(0.0)
    gradient = torch.autograd.functional.jacobian(problem.objective, point).numpy()
    if rows:
        matrix = np.array(rows).T
        fit = scipy.optimize.lsq_linear(matrix, -gradient, (lower, np.inf), tol=1e-14)
        gradient = gradient + matrix @ fit.x
    return max(missed, float(np.linalg.norm(gradient)))


def _slsqp_ftol(problem: Problem, tol: float) -> float | None:
    """The loosest tolerance of SLSQP whose answer is as accurate as is asked for."""
    for ftol in _FTOLS:
        found = by_scipy(problem, "SLSQP", ftol=ftol, maxiter=2000)
        if np.isfinite(found.x).all() and residual(problem, found.x) <= tol:
            return ftol
    return None


def _compare(problem: Problem, tol: float, rounds: int) -> _Row:
    result = _own(problem, tol)
    own = result.calls if result.success else None
    ftol = _slsqp_ftol(problem, tol)
    if ftol is None:
        return _Row(own, None, None)
    found = by_scipy(problem, "SLSQP", ftol=ftol, maxiter=2000)
    ratios = []
    for _ in range(rounds):
        begin = time.perf_counter()
        _own(problem, tol)
        middle = time.perf_counter()
        by_scipy(problem, "SLSQP", ftol=ftol, maxiter=2000)
        ratios.append((middle - begin) / (time.perf_counter() - middle))
    return _Row(own, int(found.nfev + found.njev), statistics.median(ratios))


def constrained(names: list[str], tol: float, rounds: int) -> dict[str, Any]:
    """Calls of both and the ratio of their times, by problem."""
    made = constrained_problems()
    return {name: list(_compare(made[name], tol, rounds)) for name in names}


def constrained_means(found: dict[str, Any]) -> tuple[float, float]:
    """Geometric means of the ratios of calls and of times over the problems that both solve."""
    both = [row for row in map(_Row._make, found.values()) if None not in row]
    if not both:
        return math.nan, math.nan
    calls = statistics.geometric_mean(row.own / row.other for row in both)
    return calls, statistics.geometric_mean(row.time_ratio for row in both)


def constrained_section(found: dict[str, Any], tol: float, rounds: int) -> list[str]:
    """A table of calls and of times, and their geometric means."""
    rows = {name: _Row._make(row) for name, row in found.items()}
    lines = [
        "## Constraints: `minimize` against SLSQP",
        "",
        "One call is the objective with all constraints at a point, or all their gradients there "
        "(a Jacobian counts once, however many rows it has). `minimize` ends when stationarity, "
        f"violation and complementarity are at most {tol:g}; SLSQP has the loosest `ftol` of "
        f"{', '.join(f'{ftol:g}' for ftol in _FTOLS)} with which its answer is that accurate, by "
        f"multipliers that are fitted; - is not solved. Times are of whole solves, medians of "
        f"{rounds} rounds. `lagrangian` and `fair_logistic` are of the zoo, hs are problems of "
        "Hock and Schittkowski.",
        "",
        "| problem | minimize | SLSQP | ratio of calls | ratio of times |",
        "|---|---:|---:|---:|---:|",
    ]
    num_both = 0
    for name, row in rows.items():
        ratios = " | "
        if row.own is not None and row.other is not None:
            num_both += 1
            ratios = f"{row.own / row.other:.2f} | {row.time_ratio:.2f}"
        cells = ["-" if number is None else str(number) for number in (row.own, row.other)]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratios} |")
    solved = [sum(row[i] is not None for row in rows.values()) for i in (0, 1)]
    means = constrained_means(found)
    return [
        *lines,
        f"| solved | {solved[0]} of {len(rows)} | {solved[1]} of {len(rows)} | | |",
        "",
        f"Geometric means over the {num_both} problems that both solve: {means[0]:.2f} of the "
        f"calls, {means[1]:.2f} of the time. SLSQP solves a quadratic program with all gradients "
        "of the constraints in every step; `minimize` takes gradients of one number only.",
        "",
    ]
