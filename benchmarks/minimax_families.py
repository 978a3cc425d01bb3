"""The default of `minimax` on random families and in large dimensions, and another version.

`minimax_calls.py` puts the results on its page. A process measures one version of the library: it
imports `neada` from the `src` folder of that version.
"""

import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pages
import torch
from nested_scipy import nested_calls
from pages import Headline
from torch import Tensor

import neada
from neada import problems, sets

Objective = Callable[[Tensor, Tensor], Tensor]

TOL, MAX_CALLS = 1e-6, 100_000
MOST_SCIPY_DIMS = 50
MOST_OVER_SCIPY, MOST_OVER_BEFORE, MOST_ROWS = 0.3, 0.5, 0.625


class Case(NamedTuple):
    """The first fields of a `Problem`, whose other fields depend on the version."""

    name: str
    fun: Objective
    x0: Tensor
    y0: Tensor
    x_set: Any = None
    y_set: Any = None

    def residual(self, x: Tensor, y: Tensor) -> float:
        """The larger norm of the two gradient mappings, evaluated without the library."""
        x, y = (point.detach().clone().requires_grad_() for point in (x, y))
        grad_x, grad_y = torch.autograd.grad(self.fun(x, y), (x, y))
        moves = ((self.x_set, x, -grad_x), (self.y_set, y, grad_y))
        mappings = (g if one is None else one.project(p + g) - p for one, p, g in moves)
        return float(max(mapping.detach().norm() for mapping in mappings))


# The problems. Each is a function of its index.


def generators(seed: int) -> tuple[torch.Generator, Callable[..., Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return generator, partial(torch.randn, generator=generator, dtype=torch.float64)


def quadratic(
    index: int,
    kappas: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4),
    dims: tuple[int, ...] = (5, 10, 20, 50, 100, 200),
) -> Case:
    """Nonconvex in x and strongly concave in y; the maximum over y is strongly convex."""
    _, normal = generators(index)
    dim, kappa = dims[index % len(dims)], kappas[index // len(dims) % len(kappas)]
    basis = torch.linalg.qr(normal(dim, dim))[0]
    curvatures = torch.logspace(-math.log10(kappa), 0, dim, dtype=torch.float64)
    c = basis * curvatures @ basis.mT
    b = normal(dim, dim)
    b /= torch.linalg.matrix_norm(b, 2)
    a = normal(dim, dim) / math.sqrt(8 * dim)
    a += a.mT.clone()
    least = torch.linalg.eigvalsh(a + b @ (basis / curvatures) @ basis.mT @ b.mT)[0].item()
    a += max(0.0, 0.05 - least) * torch.eye(dim, dtype=torch.float64)
    p, q = normal(dim), normal(dim)

    def fun(x: Tensor, y: Tensor) -> Any:
        return x @ (a @ x) / 2 + x @ (b @ y) - y @ (c @ y) / 2 + p @ x + q @ y

    return Case(f"quadratic {index}", fun, normal(dim), normal(dim))


def smooth(index: int) -> Case:
    """Nonconvex in x, strongly concave in y, in four ways, with a modulus from 5e-4 to 0.5."""
    generator, normal = generators(1_000 + index)
    n, m = torch.randint(2, 101, (2,), generator=generator).tolist()
    mu = 10.0 ** (-3.0 * torch.rand(1, generator=generator).item())
    w, v = normal(m, n) / math.sqrt(n), normal(n, n) / math.sqrt(n)
    b, c = normal(m), normal(n)

    def coupling(z: Tensor, y: Tensor) -> Any:
        if index % 4 == 0:
            return y @ (z.tanh() + 0.1 * z) - torch.logaddexp(y, -y).sum()
        if index % 4 == 1:
            return y @ z - (1 + y.square()).sqrt().sum() / 2
        if index % 4 == 2:
            return y @ (z.sin() + b) - y.pow(4).sum() / 4
        return y @ (z - b) - torch.logsumexp(torch.cat([y, -y]), 0)

    def fun(x: Tensor, y: Tensor) -> Any:
        of_x = (v @ x).cos().sum() + 0.15 * (x - c).square().sum()
        return of_x + (coupling(w @ x, y) - mu * y @ y / 2) / 2

    return Case(f"smooth {index}", fun, normal(n), normal(m) / 2)


def constrained(index: int) -> Case:
    """Simplex, box, ball and orthant for y; a box for x; a box for both."""
    generator, normal = generators(2_000 + index)
    n, m = torch.randint(2, 41, (2,), generator=generator).tolist()
    a, b, c = normal(m, n) / math.sqrt(n), normal(m), normal(n)
    slack = torch.rand(m, generator=generator, dtype=torch.float64) + 0.5
    funs: list[Objective] = [
        lambda x, y: y @ (a @ x - b).square() - y @ y / 10 + x @ x / 100,
        lambda x, y: y @ ((a @ x).tanh() - b) - y @ y / 20 + (x - 1).square().sum() / 10,
        lambda x, y: (a @ x - b + y).square().sum() / 2 - 0.6 * y @ y + x @ x / 20,
        lambda x, y: (x - 2 * c).square().sum() / 2 + y @ (a @ x - slack),  # a Lagrangian
        lambda x, y: y @ (a @ x - b) + x @ x / 20,
        lambda x, y: (a @ x).cos() @ y / 2 + x @ x / 10 - (y - b).square().sum() / 2,
    ]
    kind = index % len(funs)
    x_set = (None, None, None, None, sets.Box(-2.0, 2.0), sets.Box(-0.5, 1.0))[kind]
    box, ball = sets.Box(-1.0, 1.0), sets.L2Ball(1.0)
    y_set = (sets.Simplex(), box, ball, sets.NonNegative(), box, None)[kind]
    y0 = torch.full((m,), 1 / m if kind == 0 else 0.0, dtype=torch.float64)
    return Case(f"constrained {index}", funs[kind], 0.4 * normal(n), y0, x_set, y_set)


def chain(dim: int) -> Case:
    """A nonconvex chain in x and a concave one in y: time and memory of f grow linearly."""
    _, normal = generators(3_000)
    center = normal(dim)

    def fun(x: Tensor, y: Tensor) -> Any:
        of_x = x.cos().sum() + (x - center).square().sum() / 4 + x.diff().square().sum() / 2
        return of_x + y @ (x + x.roll(1) / 2) - y @ y / 2 - y.diff().square().sum() / 2

    return Case(f"chain {dim}", fun, normal(dim), normal(dim))


def zoo(index: int) -> Case:
    problem = problems.make(problems.names()[index])
    return Case(*(getattr(problem, field) for field in Case._fields))


RANDOM = {"quadratic": quadratic, "smooth": smooth, "constrained": constrained}


def families(num: int) -> dict[str, Iterable[Case]]:
    """All families, with at most `num` problems each."""
    ill = partial(quadratic, kappas=(1e5,), dims=(10, 20, 50, 100))
    return {
        **{name: map(make, range(num)) for name, make in RANDOM.items()},
        "quadratic, kappa 1e5": map(ill, range(min(num, 24))),
        "zoo": map(zoo, range(min(num, len(problems.names())))),
    }


# One version per process.


def solve(case: Case) -> Any:
    sets_of = {"x_set": case.x_set, "y_set": case.y_set}
    return neada.minimax(case.fun, case.x0, case.y0, tol=TOL, max_calls=MAX_CALLS, **sets_of)


def cpu(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and its CPU time in seconds."""
    begin = time.process_time()
    found = function()
    return found, round(time.process_time() - begin, 6)


def solve_family(cases: Iterable[Case], scipy_calls: int) -> dict[str, Any]:
    """Columns with one entry per problem, None if it is not solved; and the false successes."""
    rows, num_false = [], 0
    for case in cases:
        pages.progress(case.name)
        result, seconds = cpu(partial(solve, case))
        is_right = result.success and case.residual(result.x, result.y) <= TOL
        num_false += result.success and not is_right
        scipy, scipy_seconds = None, 0.0
        if scipy_calls > 0 and max(len(case.x0), len(case.y0)) <= MOST_SCIPY_DIMS:
            problem = problems.Problem(*case)
            scipy, scipy_seconds = cpu(partial(nested_calls, problem, TOL, scipy_calls))
        own = (result.total_calls, seconds) if is_right else (None, None)
        rows.append((*own, None if scipy is None else scipy_seconds))
    names = ("calls", "seconds", "scipy_seconds")
    return {"false": num_false, **dict(zip(names, zip(*rows, strict=True), strict=True))}


def solve_all(num: int, num_rows: int, rounds: int, scipy_calls: int) -> dict[str, Any]:
    """All families, and standard normal starts of McCormick's function at once."""
    found = {name: solve_family(cases, scipy_calls) for name, cases in families(num).items()}
    fun = problems.make("mccormick").fun
    xs, ys = generators(0)[1](2, num_rows, 2)
    at_once = partial(neada.minimax, fun, xs, ys, tol=TOL, rowwise=True)
    solved = int(at_once().success.sum())  # warms up, too
    seconds = statistics.median(cpu(at_once)[1] for _ in range(rounds))
    rows = {"starts": num_rows, "solved": solved, "seconds": seconds}
    return {"families": found, "rows": rows}


def solve_chain(dim: int, rounds: int) -> dict[str, Any]:
    """Calls, the median CPU time, and the growth of the peak memory in MB for n + m = dim."""
    solve(chain(100))
    one = partial(solve, chain(dim // 2))
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free, but not returned, would be used again
    megabytes = pages.peak_growth(one)
    results, seconds = zip(*(cpu(one) for _ in range(rounds)), strict=True)
    calls = results[0].total_calls if results[0].success else None
    return {"calls": calls, "seconds": statistics.median(seconds), "megabytes": megabytes}


def main() -> None:
    """Call `solve_all` or `solve_chain` with integers and print what it returns."""
    torch.set_num_threads(1)
    for dim in (1, 70):  # the modules that are loaded depend on the dimension
        solve(quadratic(0, dims=(dim,)))
    nested_calls(problems.make("mccormick"), TOL, 100)
    job, *sizes = sys.argv[1:]
    jobs: dict[str, Any] = {"all": solve_all, "chain": solve_chain}
    print(json.dumps(jobs[job](*map(int, sizes))))


# Both versions.


def measure(
    num: int, num_rows: int, rounds: int, scipy_calls: int, dims: list[int], before: Path | None
) -> dict[str, Any]:
    """The numbers of this version and, if its `src` folder is given, of another one."""
    own = Path(neada.__file__).parents[1]
    return {
        "scipy_calls": scipy_calls,
        "now": _run(own, "all", num, num_rows, rounds, scipy_calls),
        "before": before and _run(before, "all", num, num_rows, rounds, 0),
        "commit_before": before and pages.commit(before),
        "scale": {str(dim): _run(own, "chain", dim, rounds) for dim in dims},
    }


def _run(src: Path, job: str, *sizes: int) -> dict[str, Any]:
    pages.progress(f"{job}: {src}")
    found = subprocess.run(
        [sys.executable, __file__, job, *map(str, sizes)],
        env={**os.environ, "PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    numbers: dict[str, Any] = json.loads(found.stdout)
    return numbers


class Ratios(NamedTuple):
    """Two columns where neither has None: of their sums, the geometric mean, and how many."""

    of_sums: float
    mean: float
    num: int


def ratios(own: list[float | None], other: list[float | None]) -> Ratios:
    pairs = [(a, b) for a, b in zip(own, other, strict=True) if a is not None and b is not None]
    if not pairs:
        return Ratios(math.nan, math.nan, 0)
    own_sum, other_sum = map(sum, zip(*pairs, strict=True))
    mean = statistics.geometric_mean(a / b for a, b in pairs)
    return Ratios(own_sum / other_sum, mean, len(pairs))


def _column(found: dict[str, Any], column: str, names: Iterable[str] = ()) -> list[Any]:
    """One column of several families, by default of all."""
    columns = found["families"]
    return [entry for name in names or columns for entry in columns[name][column]]


def _exponent(scale: dict[str, Any], column: str) -> float:
    """The slope of the logarithm of a column against that of the dimension."""
    if any(row["calls"] is None for row in scale.values()):
        return math.nan
    dims = [math.log(int(dim)) for dim in scale]
    logs = [math.log(max(row[column], 1e-3)) for row in scale.values()]
    return statistics.linear_regression(dims, logs).slope


def headlines(numbers: dict[str, Any]) -> list[Headline]:
    """All numbers that have a target."""
    now, before, scale = numbers["now"], numbers["before"], numbers["scale"]
    calls, seconds = _column(now, "calls", RANDOM), _column(now, "seconds")
    share = 100 * (1 - calls.count(None) / len(calls))
    num_false = sum(family["false"] for family in now["families"].values())
    over_scipy = ratios(seconds, _column(now, "scipy_seconds")).of_sums
    heads = [
        Headline(
            f"random problems, of {len(calls)}, that `minimax` solves, in %",
            share,
            "at least",
            99,
            ".1f",
        ),
        Headline("false successes of `minimax`", num_false, limit=0, form="d"),
        Headline("CPU time of `minimax` / of nested scipy", over_scipy, limit=MOST_OVER_SCIPY),
        Headline("exponent of the dimension in the CPU time", _exponent(scale, "seconds"), limit=1),
        Headline("exponent of the dimension in the memory", _exponent(scale, "megabytes"), limit=1),
    ]
    if before is None:
        return heads
    of_zoo = ratios(*(_column(found, "calls", ["zoo"]) for found in (now, before))).mean
    over_before = ratios(seconds, _column(before, "seconds")).of_sums
    rows = now["rows"]["seconds"] / before["rows"]["seconds"]
    starts = f"{now['rows']['starts']:,} starts at once"
    return [
        *heads,
        Headline("calls on the zoo / of the previous default, geometric mean", of_zoo, limit=1),
        Headline(
            "CPU time of `minimax` / of the previous default", over_before, limit=MOST_OVER_BEFORE
        ),
        Headline(f"CPU time of {starts} / of the previous default", rows, limit=MOST_ROWS),
    ]


def section(numbers: dict[str, Any]) -> list[str]:
    """The families, many starts, large dimensions, and the targets."""
    now, before = numbers["now"], numbers["before"]
    compared = "The comparison with the previous default was not run."
    if before is not None:
        compared = (
            f"The previous default is that of commit {numbers['commit_before']}; ratios to it are "
            "the geometric mean for calls and of the totals for CPU times, over the problems that "
            "both solve."
        )
    lines = [
        "## Random problems",
        "",
        f"The default to {TOL:g} within {MAX_CALLS:,} calls, on seeded random problems and on the "
        "zoo. A problem is solved if `success` is true and an evaluation without the library "
        "confirms both norms. Quadratic problems have 5 to 200 coordinates per player, kappa from "
        "10 to 1e4, and a maximum over y that is strongly convex in x. Smooth problems are "
        "nonconvex in x. Constrained ones have a simplex, a ball, an orthant or boxes. Calls are "
        "medians and CPU times are totals over the solved problems. Nested scipy may spend "
        f"{numbers['scipy_calls']:,} calls and runs on problems without sets or with boxes, up to "
        f"{MOST_SCIPY_DIMS} coordinates per player. The ratio to it is that of the total CPU times "
        "and, in parentheses, the geometric mean over the problems that both solve. " + compared,
        "",
        "| family | solved | calls | CPU time | CPU / scipy | both solve |"
        + (" solved before | calls / before | CPU / before |" if before else ""),
        "|---|" + "---:|" * (8 if before else 5),
    ]
    for name, own in now["families"].items():
        calls, seconds = ([n for n in own[key] if n is not None] for key in ("calls", "seconds"))
        scipy = ratios(own["seconds"], own["scipy_seconds"])
        cells = [
            f"{name} | {len(calls)} of {len(own['calls'])}",
            f"{statistics.median(calls):.0f} | {sum(seconds):.2f} s" if calls else "- | -",
            f"{scipy.of_sums:.2f} ({scipy.mean:.2f}) | {scipy.num}" if scipy.num else " | 0",
        ]
        if before is not None:
            other = before["families"][name]
            cells += [
                str(len(other["calls"]) - other["calls"].count(None)),
                f"{ratios(own['calls'], other['calls']).mean:.2f}",
                f"{ratios(own['seconds'], other['seconds']).of_sums:.2f}",
            ]
        lines.append(f"| {' | '.join(cells)} |".replace("nan", "-"))
    rows = now["rows"]
    of_before = f", against {before['rows']['seconds'] * 1e3:.0f} ms before" if before else ""
    return [
        *lines,
        "",
        f"`minimax(..., rowwise=True)` from {rows['starts']:,} standard normal starts of mccormick "
        f"solves {rows['solved']:,} rows in {rows['seconds'] * 1e3:.0f} ms of CPU time{of_before}.",
        "",
        "## Large dimensions",
        "",
        "A nonconvex chain coupled with a concave one, n = m, in processes of their own: time and "
        "memory of f grow linearly, and the condition number does not grow. Memory is the growth "
        "of the peak during a solve.",
        "",
        "| n + m | calls | CPU time | memory |",
        "|---:|---:|---:|---:|",
        *(
            f"| {int(dim):,} | {'-' if row['calls'] is None else row['calls']} "
            f"| {row['seconds'] * 1e3:.0f} ms | {row['megabytes']:.1f} MB |"
            for dim, row in numbers["scale"].items()
        ),
        "",
        "Targets for the random problems and the large dimensions:",
        "",
        "| number | value | target | |",
        "|---|---:|---|---|",
        *(f"| {' | '.join(head.cells())} |" for head in headlines(numbers)),
        "",
    ]


if __name__ == "__main__":
    main()
