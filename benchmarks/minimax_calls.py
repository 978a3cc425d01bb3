"""Gradient calls of every method on the zoo against grid-tuned GDA, and two comparisons of time.

    python benchmarks/minimax_calls.py [--max-calls N] [--rounds N] [--jobs N] [--quick]
                                       [--write FILE]

Calls are counted, so they do not depend on the machine and are shared out over `--jobs` processes.
Times are taken afterwards, by one process with one thread, and never stand alone: what is reported
is the median over rounds of the ratio of two times taken one right after the other.
"""

import argparse
import math
import multiprocessing
import platform
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch
from minimax_times import overhead_section, progress, rows_section
from torch import Tensor

import neada
from neada import problems
from neada.sets import Set

TOL = 1e-6
LRS_X = torch.logspace(-4, 1, 13, dtype=torch.float64)
RATIOS = torch.logspace(-1, 3, 13, dtype=torch.float64)
TUNED = "GDA, tuned"
DEFAULT = neada.methods()[0].name


class Plan(NamedTuple):
    """How much is run."""

    methods: list[str]
    problems: list[str]
    max_calls: int
    gda_steps: int
    rounds: int
    rows: int
    jobs: int


class Tuned(NamedTuple):
    """The best of the grid; no calls if no point of it got there."""

    calls: int | None
    lr_x: float = math.nan
    ratio: float = math.nan


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


def count_calls(plan: Plan) -> dict[tuple[str, str], Any]:
    """Every cell of the table, by method and problem."""
    tasks: dict[tuple[str, str], tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name in plan.problems:
        tasks[TUNED, name] = (tuned_gda, (name, plan.gda_steps))
        for method in plan.methods:
            tasks[method, name] = (calls_of, (method, name, plan.max_calls))
    cells = {}
    for done, (cell, found) in enumerate(_run(tasks, plan.jobs), start=1):
        cells[cell] = found
        progress(f"{done} of {len(tasks)}: {cell[0]} on {cell[1]}")
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


def calls_section(plan: Plan) -> list[str]:
    cells = count_calls(plan)
    columns = [DEFAULT, TUNED, *(m for m in plan.methods if m != DEFAULT)]

    def calls(column: str, name: str) -> int | None:
        found = cells[column, name]
        return found.calls if isinstance(found, Tuned) else found

    lines = [
        f"## Calls to {TOL:g}",
        "",
        "Gradients of both players and values (`MinimaxResult.total_calls`, which includes the "
        f"fresh evaluation that verifies the answer) until both norms are at most {TOL:g}, every "
        f"method with its default settings; - is not solved within {plan.max_calls:,} calls. "
        f'"{TUNED}" is simultaneous projected gradient descent ascent with the best of '
        f"{len(LRS_X)} x {len(RATIOS)} pairs of a learning rate of x from {LRS_X[0]:g} to "
        f"{LRS_X[-1]:g} and a ratio of learning rates from {RATIOS[0]:g} to {RATIOS[-1]:g}, two "
        f"calls per step and at most {plan.gda_steps:,} steps; the calls spent on the search "
        "and on looking at the answer are not counted.",
        "",
        "| problem | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name in plan.problems:
        row = " | ".join(_cell(calls(column, name)) for column in columns)
        lines.append(f"| {name} | {row} |")
    solved = (sum(calls(c, name) is not None for name in plan.problems) for c in columns)
    lines.append(f"| solved of {len(plan.problems)} | " + " | ".join(map(str, solved)) + " |")
    lines += [
        "",
        "## The default against tuned GDA",
        "",
        f"| problem | {DEFAULT} | {TUNED} | ratio | best lr_x | best lr_y / lr_x |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ratios = []
    for name in plan.problems:
        own, best = calls(DEFAULT, name), cells[TUNED, name]
        quotient = "-"
        if own is not None and best.calls is not None:
            ratios.append(own / max(best.calls, 1))
            quotient = f"{ratios[-1]:.2f}"
        rates = f"{best.lr_x:.3g} | {best.ratio:.3g}" if best.calls is not None else "- | -"
        lines.append(f"| {name} | {_cell(own)} | {_cell(best.calls)} | {quotient} | {rates} |")
    unsolved = sum(calls(DEFAULT, name) is None for name in plan.problems)
    mean = statistics.geometric_mean(ratios) if ratios else math.nan
    verdict = "met" if mean <= 1.0 and unsolved == 0 else "missed"
    return [
        *lines,
        "",
        f"Geometric mean of the ratio over the {len(ratios)} problems that both solve: "
        f"{mean:.3f}. Unsolved by the default: {unsolved}. Target (a mean of at most 1 and "
        f"none unsolved): {verdict}.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-calls", type=int, default=20_000, help="calls before giving up")
    parser.add_argument("--rounds", type=int, default=11, help="rounds to take the median over")
    parser.add_argument("--jobs", type=int, default=2, help="processes that count calls")
    parser.add_argument("--quick", action="store_true", help="a few cells only, to see it run")
    parser.add_argument("--write", type=Path, help="also write the page to this file")
    arguments = parser.parse_args()
    for name in ("max_calls", "rounds", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(
                f"--{name.replace('_', '-')} must be at least 1, got {getattr(arguments, name)}"
            )
    torch.set_num_threads(1)
    methods = [info.name for info in neada.methods()]
    names = [name for name in problems.names() if problems.make(name).deterministic]
    plan = Plan(methods, names, arguments.max_calls, 40_000, arguments.rounds, 1000, arguments.jobs)
    if arguments.quick:
        few = [DEFAULT, "gda", "tiada"]
        plan = Plan(few, ["quadratic", "mccormick", "ball_constrained"], 500, 500, 1, 20, 1)
    lines = [
        "# Benchmarks: calls to a solution",
        "",
        f"Written by `python benchmarks/minimax_calls.py --max-calls {plan.max_calls}`. Calls are "
        "exact and the same on every machine; times are not, so they are ratios within a round. "
        f"{platform.machine()}, one thread, torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "",
    ]
    lines += calls_section(plan)
    lines += rows_section(plan.rows, plan.rounds)
    lines += overhead_section(4 * plan.rounds)
    progress("")
    page = "\n".join(lines)
    print(page)
    if arguments.write is not None:
        arguments.write.write_text(page)


if __name__ == "__main__":
    main()
