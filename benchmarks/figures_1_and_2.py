"""Figures 1 and 2 at the paper's budgets: the reproduction against a Python loop per run.

The plain loop (`plain_loop.py`) plays every method, ratio and seed for itself, as the authors'
scripts do; it is timed on a part of every run (`--share`) and its time extrapolated, because a run
costs the same per call from start to end. Both sides use both cores. The numbers of both sides are
compared on that part.

    python benchmarks/figures_1_and_2.py [--share S] [--seeds N] [--write [FOLDER]] [--render]
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pages
import plain_loop
import torch

from reproduction import mccormick, quadratic
from reproduction.sweeps import METHODS, Array, Family, Game, Rows, Sweep, method_name, play

LEAST = 8.0
SETTINGS = {
    "quadratic": quadratic.Config("gda", nested=False, loop="none"),
    "mccormick": mccormick.Config("gda", nested=False, seeds=(0,)),
}


@dataclass(frozen=True)
class Job:
    """One method on one figure: all its ratios and seeds."""

    figure: str
    family: Family
    nested: bool
    seeds: int
    share: float

    @property
    def noisy(self) -> bool:
        """Only McCormick's function has noise."""
        return self.figure == "mccormick"

    @property
    def lr_y(self) -> float:
        """The learning rate of y."""
        return SETTINGS[self.figure].lr_y

    @property
    def max_calls(self) -> list[tuple[float, int]]:
        """The ratios, each with its gradient calls."""
        return [(ratio, int(n * self.share)) for ratio, n in SETTINGS[self.figure].max_calls]

    @property
    def eps(self) -> float:
        """As in the authors' scripts."""
        if self.family == "adagrad":
            return 1e-10
        return 0.8 if self.noisy else 1e-8

    def starts(self) -> Array:
        """The starts of x and y, one row per seed."""
        if not self.noisy:
            return np.array([[1.0, 0.01]])
        rngs = [np.random.default_rng([seed, 1]) for seed in range(self.seeds)]
        return np.stack([rng.standard_normal(4) for rng in rngs])


def play_plainly(job: Job) -> list[Array]:
    """Every ratio and seed for itself: the norm before each x step, per run."""
    torch.set_num_threads(1)
    found = []
    for ratio, max_calls in job.max_calls:
        for seed, start in enumerate(job.starts()):
            half = len(start) // 2
            norms = plain_loop.play(
                plain_loop.mccormick if job.noisy else plain_loop.quadratic,
                (start[:half].tolist(), start[half:].tolist()),
                job.family,
                job.nested,
                job.lr_y / ratio,
                job.lr_y,
                max_calls,
                eps=job.eps,
                count_scale=1.0 if job.noisy else 0.1,
                noise_std=0.01 if job.noisy else 0.0,
                generator=np.random.default_rng(seed) if job.noisy else None,
            )
            found.append(np.array(norms))
    return found


def play_in_rows(job: Job) -> tuple[Array, Array]:
    """The same as rows of one array: the calls, and the norms of every run there."""
    starts = job.starts()
    half = starts.shape[1] // 2
    ratios = np.repeat([ratio for ratio, _ in job.max_calls], len(starts))
    rows = Rows(
        np.tile(starts[:, :half], (len(job.max_calls), 1)),
        np.tile(starts[:, half:], (len(job.max_calls), 1)),
        job.lr_y / ratios,
        np.full(len(ratios), job.lr_y),
        tuple(np.random.default_rng(seed) for _ in job.max_calls for seed in range(len(starts))),
    )
    game = (
        Game(mccormick.gradient_x, lambda x, y: x - y, 0.01)
        if job.noisy
        else Game(lambda x, y: 2 * (y - 2 * x), lambda x, y: 2 * x - y)
    )
    at = np.arange(0, max(calls for _, calls in job.max_calls) + 1, 10)
    sweep = Sweep(job.family, job.nested, "released", 1.0 if job.noisy else 0.1, job.eps)
    norms, _ = play(game, rows, sweep, at)
    return at, norms


def difference(job: Job, plain: list[Array], at: Array, norms: Array) -> float:
    """The largest relative difference of both sides while neither is below 1e-6 or overflows."""
    worst = 0.0
    num_starts = len(job.starts())
    for row, run in enumerate(plain):
        max_calls = job.max_calls[row // num_starts][1]
        for calls, mine in zip(at, norms[:, row], strict=True):
            if calls > max_calls - 2 or not np.isfinite(mine) or mine > 1e100:
                break
            theirs = run[np.searchsorted(run[:, 0], calls, side="right") - 1, 1]
            if min(mine, theirs) > 1e-6:
                worst = max(worst, abs(mine - theirs) / theirs)
    return worst


def timed(function: object, jobs: list[Job], processes: int) -> tuple[float, list[object]]:
    """Seconds for all jobs on all cores, and what they gave; the pool is warm before."""
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(time.sleep, [0.1] * processes))
        started = time.perf_counter()
        results = list(pool.map(function, jobs))  # type: ignore[arg-type]
        return time.perf_counter() - started, results


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of both sides, and how much they differ."""

    def jobs(share: float) -> list[Job]:
        return [
            Job(figure, family, nested, arguments.seeds, share)
            for figure in ("mccormick", "quadratic")
            for family, nested in METHODS
        ]

    share, processes = arguments.share, arguments.processes
    sys.stderr.write("rows, whole budgets ...\n")
    rows_seconds, _ = timed(play_in_rows, jobs(1.0), processes)
    sys.stderr.write("plain loops ...\n")
    plain_seconds, plain = timed(play_plainly, jobs(share), processes)
    worst = {}
    for job, found in zip(jobs(share), plain, strict=True):
        name = f"{job.figure} {method_name(job.family, job.nested)}"
        worst[name] = difference(job, found, *play_in_rows(job))
    return {
        "share": share,
        "processes": processes,
        "rows_seconds": rows_seconds,
        "plain_seconds": plain_seconds / share,
        "differences": worst,
    }


def ratio_of(numbers: dict[str, Any]) -> float:
    """How many times as fast the rows are."""
    return float(numbers["plain_seconds"] / numbers["rows_seconds"])


def render(record: pages.Record) -> str:
    """The page."""
    numbers = record.numbers
    ratio = ratio_of(numbers)
    lines = [
        "# Benchmark: Figures 1 and 2",
        "",
        f"{pages.opening(record, 'figures_1_and_2')} Both sides on {numbers['processes']} "
        "processes.",
        "",
        "| | seconds |",
        "|---|---|",
        f"| a Python loop per run, `torch.optim` (timed on {numbers['share']:.0%}, extrapolated) "
        f"| {numbers['plain_seconds']:.0f} |",
        "| rows of one array (`reproduction.sweeps`), whole budgets "
        f"| {numbers['rows_seconds']:.1f} |",
        "",
        f"Ratio: **{ratio:.0f}x** (target: at least {LEAST:g}x: "
        f"{'met' if ratio >= LEAST else 'MISSED'}).",
        "",
        "Largest relative difference of |grad_x| between the two on that part, while it is above "
        "1e-6:",
        "",
        "| figure, method | difference |",
        "|---|---|",
        *(f"| {name} | {value:.1e} |" for name, value in numbers["differences"].items()),
        "",
    ]
    return "\n".join(lines)


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """The ratio."""
    what = "Figures 1 and 2 as rows of one array, times as fast as a Python loop per run"
    return [pages.Headline(what, ratio_of(numbers), "at least", LEAST, ".0f")]


BENCHMARK = pages.Benchmark("figures_1_and_2", "benchmarks-figures.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.1, help="part of the plain runs to time")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    arguments = pages.parse(parser)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
