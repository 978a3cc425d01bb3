"""Calls of every method on the zoo, against tuned GDA and nested scipy, and comparisons of time.

    python benchmarks/minimax_calls.py [--max-calls N] [--rounds N] [--jobs N] [--quick]
                                       [--before SRC] [--write [FOLDER]] [--render]

Calls are counted, so they do not depend on the machine and are shared out over `--jobs` processes.
Times are taken afterwards, by one process with one thread, and never stand alone: what is reported
is the median over rounds of the ratio of two times taken one right after the other. Exceptions
are the CPU times of random problems, of which there are many; `--before` adds those of another
version, whose `src` folder it names.
"""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import minimax_families
import pages
import torch
from minimax_times import (
    ADAM,
    MOST_OVERHEAD,
    MOST_PER_CALL,
    SMALL,
    WITH_NORMS,
    overhead,
    overhead_section,
    per_call,
    per_call_section,
)
from nested_scipy import nested_calls
from pages import progress
from slsqp import constrained, constrained_means, constrained_problems, constrained_section
from torch import Tensor

import neada
from neada import problems
from neada.sets import Set

TOL = 1e-6
LRS_X = torch.logspace(-4, 1, 13, dtype=torch.float64)
RATIOS = torch.logspace(-1, 3, 13, dtype=torch.float64)
MOST_GDA, MOST_SCIPY = 0.41, 1.0
TUNED = "GDA, tuned"
SCIPY = "nested scipy"
DEFAULT = neada.methods()[0].name
# The problems that tuned GDA and the other methods run on, too.
SHORT_ZOO = [
    "quadratic",
    "mccormick",
    "nc_sc_quadratic_kappa10",
    "nc_sc_quadratic_kappa100",
    "nc_sc_quadratic_kappa1000",
    "bilinear",
    "ball_constrained",
    "simplex_constrained",
    "bounded_nonconvex",
    "bounded_nonconvex_mu0.05",
    "robust_least_squares",
    "robust_logistic",
    "wrm_logistic",
    "auc_maximization",
    "dirac_gan",
    "nonconvex_pl",
    "stackelberg",
]


class Plan(NamedTuple):
    """How much is run."""

    methods: list[str]
    problems: list[str]
    constrained: list[str]  # of `minimize` and SLSQP
    max_calls: int  # of every method but the default
    long_calls: int  # of the default and of nested scipy
    gda_steps: int
    rounds: int
    jobs: int
    family: int  # random problems of one kind
    starts: int  # of McCormick's function
    dims: list[int]


class Tuned(NamedTuple):
    """The best of the grid; nothing if no point of it got there."""

    calls: int | None
    lr_x: float | None = None
    ratio: float | None = None


# Calls.


def calls_of(method: str, problem_name: str, max_calls: int) -> int | None:
    """Gradients and values until both norms are at most the tolerance; None if they never are."""
    problem = problems.make(problem_name)
    result = neada.minimax(
        problem.fun,
        problem.x0,
        problem.y0,
        method=method,
        x_set=problem.x_set,
        y_set=problem.y_set,
        tol=TOL,
        max_calls=max_calls,
    )
    return result.total_calls if result.success else None


def scipy_calls_of(problem_name: str, max_calls: int) -> int | None:
    return nested_calls(problems.make(problem_name), TOL, max_calls)


def tuned_gda(problem_name: str, num_steps: int) -> Tuned:
    """Simultaneous projected GDA on the whole grid at once, one grid point per row.

    All rows take their steps together, so the first one to arrive is the best of the grid.
    """
    problem = problems.make(problem_name)
    x_set, y_set = problem.row_sets()
    lr_x, ratio = (grid.reshape(-1, 1) for grid in torch.meshgrid(LRS_X, RATIOS, indexing="ij"))
    x, y = problem.x0.repeat(len(lr_x), 1), problem.y0.repeat(len(lr_x), 1)
    for step in range(num_steps):
        grad_x, grad_y = problem.gradients(x, y)
        alive = _is_sane(x, grad_x) & _is_sane(y, grad_y)
        if not bool(alive.all()):
            kept = (tensor[alive] for tensor in (lr_x, ratio, x, y, grad_x, grad_y))
            lr_x, ratio, x, y, grad_x, grad_y = kept
            if len(x) == 0:
                break
        worst = torch.maximum(_mapping_norm(x_set, x, -grad_x), _mapping_norm(y_set, y, grad_y))
        for i in (worst <= TOL).nonzero().flatten().tolist():
            if max(problem.stationarity(x[i], y[i])) <= TOL:
                return Tuned(2 * step, lr_x[i].item(), ratio[i].item())
        x, y = x - lr_x * grad_x, y + lr_x * ratio * grad_y
        for one, point in ((x_set, x), (y_set, y)):
            if one is not None:
                one.project_(point)
    return Tuned(None)


def _is_sane(point: Tensor, gradient: Tensor) -> Tensor:
    """Which rows have not diverged (a NaN is not below anything)."""
    limit = 1e10
    return (point.abs().amax(1) < limit) & (gradient.abs().amax(1) < limit)


def _mapping_norm(one: Set | None, point: Tensor, ascent: Tensor) -> Tensor:
    mapping = ascent if one is None else one.gradient_mapping(point, ascent)
    norms: Tensor = torch.linalg.vector_norm(mapping, dim=1)
    return norms


def count_calls(plan: Plan) -> dict[str, dict[str, Any]]:
    """Every cell of the table, by method and problem; a `Tuned` for the tuned one."""
    tasks: dict[tuple[str, str], tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name in plan.problems:
        tasks[DEFAULT, name] = (calls_of, (DEFAULT, name, plan.long_calls))
        tasks[SCIPY, name] = (scipy_calls_of, (name, plan.long_calls))
        if name in SHORT_ZOO:
            tasks[TUNED, name] = (tuned_gda, (name, plan.gda_steps))
            for method in plan.methods:
                tasks[method, name] = (calls_of, (method, name, plan.max_calls))
    cells: dict[str, dict[str, Any]] = {
        method: {} for method in (DEFAULT, TUNED, SCIPY, *plan.methods)
    }
    found_by_cell = {}
    for done, (cell, found) in enumerate(_run(tasks, plan.jobs), start=1):
        found_by_cell[cell] = found
        progress(f"{done} of {len(tasks)}: {cell[0]} on {cell[1]}")
    for method, name in tasks:  # in the order of the table
        cells[method][name] = found_by_cell[method, name]
    return cells


def _run(tasks: dict[Any, Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    if jobs == 1:
        for cell, (function, arguments) in tasks.items():
            yield cell, function(*arguments)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(function, *args): cell for cell, (function, args) in tasks.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _cell(calls: int | None) -> str:
    return "-" if calls is None else str(calls)


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _quotient(own: int | None, other: int | None) -> float | None:
    return None if own is None or other is None else own / max(other, 1)


class Compared(NamedTuple):
    """What the table of calls adds up to."""

    over_gda: list[float]
    over_scipy: list[float]
    unsolved: int

    @property
    def means(self) -> tuple[float, float]:
        """Geometric means of the ratios to tuned GDA and to nested scipy."""
        gda, scipy = (
            statistics.geometric_mean(ratios) if ratios else math.nan
            for ratios in (self.over_gda, self.over_scipy)
        )
        return gda, scipy


def compare(cells: dict[str, dict[str, Any]]) -> Compared:
    """The default against tuned GDA and nested scipy."""
    own = cells[DEFAULT]
    gda = {name: Tuned._make(found).calls for name, found in cells[TUNED].items()}
    over = [
        [q for name in own if (q := _quotient(own[name], other.get(name))) is not None]
        for other in (gda, cells[SCIPY])
    ]
    return Compared(*over, sum(calls is None for calls in own.values()))


def calls_section(numbers: dict[str, Any]) -> list[str]:
    """The default, tuned GDA and nested scipy on every problem, and the targets."""
    cells = numbers["calls"]
    lines = [
        f"## Calls to {TOL:g}",
        "",
        "Gradients of both players and values until both norms are at most "
        f"{TOL:g}, by a fresh evaluation; - is not solved. The default "
        "(`MinimaxResult.total_calls`, which includes the evaluation that verifies the answer) and "
        f'nested scipy may spend {numbers["long_calls"]:,} calls. "{TUNED}" is simultaneous '
        f"projected gradient descent ascent with the best of {len(LRS_X)} x {len(RATIOS)} pairs of "
        f"a learning rate of x from {LRS_X[0]:g} to {LRS_X[-1]:g} and a ratio of learning rates "
        f"from {RATIOS[0]:g} to {RATIOS[-1]:g}, two calls per step and at most "
        f"{numbers['gda_steps']:,} steps; the calls spent on the search and on looking at "
        "the answer are not counted, and it "
        f'is run on part of the problems. "{SCIPY}" is L-BFGS-B inside L-BFGS-B '
        "with the exact gradient of the maximum, inner tolerance 1e-9, from the last y; boxes are "
        "its bounds, and it cannot take other sets.",
        "",
        f"| problem | {DEFAULT} | {TUNED} | {SCIPY} | {DEFAULT} / GDA | {DEFAULT} / scipy "
        "| best lr_x | best lr_y / lr_x |",
        "|---|" + "---:|" * 7,
    ]
    solved = {DEFAULT: 0, TUNED: 0, SCIPY: 0}
    for name, own in cells[DEFAULT].items():
        scipy, gda = cells[SCIPY][name], cells[TUNED].get(name)
        best = Tuned(None) if gda is None else Tuned._make(gda)
        for column, calls in ((DEFAULT, own), (TUNED, best.calls), (SCIPY, scipy)):
            solved[column] += calls is not None
        quotients = [_quotient(own, best.calls), _quotient(own, scipy)]
        ratios = " | ".join("" if q is None else f"{q:.2f}" for q in quotients)
        tuned = "" if gda is None else _cell(best.calls)
        rates = " | " if best.calls is None else f"{best.lr_x:.3g} | {best.ratio:.3g}"
        lines.append(f"| {name} | {_cell(own)} | {tuned} | {_cell(scipy)} | {ratios} | {rates} |")
    num, num_gda = len(cells[DEFAULT]), len(cells[TUNED])
    found = compare(cells)
    mean_gda, mean_scipy = found.means
    return [
        *lines,
        f"| solved | {solved[DEFAULT]} of {num} | {solved[TUNED]} of {num_gda} "
        f"| {solved[SCIPY]} of {num} | | | | |",
        "",
        f"- Unsolved by the default: {found.unsolved}. Target (none): "
        f"{_verdict(found.unsolved == 0)}.",
        f"- Geometric mean of {DEFAULT} / GDA over the {len(found.over_gda)} problems that both "
        f"solve: {mean_gda:.3f}. Target (at most {MOST_GDA:g}): {_verdict(mean_gda <= MOST_GDA)}; "
        f"goal (0.25): {_verdict(mean_gda <= 0.25)}.",
        f"- Geometric mean of {DEFAULT} / scipy over the {len(found.over_scipy)} problems that "
        f"scipy solves: {mean_scipy:.3f}. Target (at most {MOST_SCIPY:.1f}): "
        f"{_verdict(mean_scipy <= MOST_SCIPY)}; goal (0.8): {_verdict(mean_scipy <= 0.8)}.",
        "",
    ]


def methods_section(numbers: dict[str, Any]) -> list[str]:
    """Every other method on part of the problems."""
    methods = {
        name: found
        for name, found in numbers["calls"].items()
        if name not in (DEFAULT, TUNED, SCIPY)
    }
    names = list(numbers["calls"][TUNED])
    lines = [
        "## Every other method",
        "",
        "Each with its default settings, on the problems of tuned GDA; - is not solved "
        f"within {numbers['max_calls']:,} calls.",
        "",
        "| problem | " + " | ".join(methods) + " |",
        "|---|" + "---:|" * len(methods),
    ]
    for name in names:
        row = " | ".join(_cell(found[name]) for found in methods.values())
        lines.append(f"| {name} | {row} |")
    solved = (sum(calls is not None for calls in found.values()) for found in methods.values())
    return [*lines, f"| solved of {len(names)} | " + " | ".join(map(str, solved)) + " |", ""]


def timed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The small problems that the default and nested scipy both solve."""
    both = [n for n, own in cells[DEFAULT].items() if None not in (own, cells[SCIPY][n])]
    made = map(problems.make, both)
    return [problem.name for problem in made if max(problem.dim_x, problem.dim_y) <= SMALL]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Calls, then times."""
    plan = Plan(
        [info.name for info in neada.methods() if info.name != DEFAULT],
        problems.names(),
        list(constrained_problems()),
        max_calls=arguments.max_calls,
        long_calls=max(20_000, arguments.max_calls),
        gda_steps=40_000,
        rounds=arguments.rounds,
        jobs=arguments.jobs,
        family=100,
        starts=1000,
        dims=[2500, 5000, 10_000, 20_000],
    )
    if arguments.quick:
        few = ["quadratic", "mccormick", "ball_constrained", "mixed_units"]
        hard = ["lagrangian", "hs71"]
        plan = Plan(["gda", "tiada"], few, hard, 500, 500, 500, 1, 1, 2, 20, [2000, 4000])
    cells = count_calls(plan)
    numbers = {
        "max_calls": plan.max_calls,
        "long_calls": plan.long_calls,
        "gda_steps": plan.gda_steps,
        "rounds": plan.rounds,
        "calls": cells,
        "constrained": constrained(plan.constrained, TOL, plan.rounds),
        "per_call": per_call(timed(cells), TOL, plan.rounds),
        "overhead": overhead(4 * plan.rounds),
        "random": minimax_families.measure(
            plan.family, plan.starts, plan.rounds, plan.long_calls, plan.dims, arguments.before
        ),
    }
    return numbers


def render(record: pages.Record) -> str:
    """The page."""
    numbers = record.numbers
    rounds = numbers["rounds"]
    lines = [
        "# Benchmarks: calls to a solution",
        "",
        f"{pages.opening(record, 'minimax_calls')} Calls are exact and the same on every machine; "
        "times are not, so they are ratios within a round where nothing else is stated.",
        "",
        *calls_section(numbers),
        *minimax_families.section(numbers["random"]),
        *constrained_section(numbers["constrained"], TOL, rounds),
        *per_call_section(numbers["per_call"], rounds),
        *overhead_section(numbers["overhead"]),
        *methods_section(numbers),
    ]
    return "\n".join(lines)


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """One number of every section that has a target, and the constraints."""
    found = compare(numbers["calls"])
    mean_gda, mean_scipy = found.means
    slowest = max(ratio for _, _, ratio in numbers["per_call"].values())
    overhead_ratio = numbers["overhead"]["ratios"][ADAM][WITH_NORMS]
    num = len(numbers["calls"][DEFAULT])
    return [
        pages.Headline(
            f"problems of the zoo, of {num}, that `minimax` does not solve",
            found.unsolved,
            limit=0,
            form="d",
        ),
        pages.Headline(
            "calls of `minimax` / of tuned GDA, geometric mean",
            mean_gda,
            limit=MOST_GDA,
            form=".3f",
        ),
        pages.Headline(
            "calls of `minimax` / of nested scipy, geometric mean",
            mean_scipy,
            limit=MOST_SCIPY,
            form=".3f",
        ),
        pages.Headline(
            "calls of `minimize` / of SLSQP, geometric mean",
            constrained_means(numbers["constrained"])[0],
        ),
        pages.Headline(
            "time per call of `minimax` / of nested scipy, the largest",
            slowest,
            limit=MOST_PER_CALL,
        ),
        pages.Headline(
            "a gradient call of `NeAda.step` / of a loop by hand, time",
            overhead_ratio,
            limit=MOST_OVERHEAD,
        ),
        *minimax_families.headlines(numbers["random"]),
    ]


BENCHMARK = pages.Benchmark("minimax_calls", "benchmarks-minimax.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-calls", type=int, default=20_000, help="calls before giving up")
    parser.add_argument("--rounds", type=int, default=11, help="rounds to take the median over")
    parser.add_argument("--jobs", type=int, default=2, help="processes that count calls")
    parser.add_argument("--before", type=Path, metavar="SRC", help="another version to compare")
    parser.add_argument("--quick", action="store_true", help="a few cells only, to see it run")
    arguments = pages.parse(parser)
    if arguments.before is not None and not (arguments.before / "neada").is_dir():
        parser.error(f"--before: {arguments.before} does not contain the package neada")
    torch.set_num_threads(1)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
