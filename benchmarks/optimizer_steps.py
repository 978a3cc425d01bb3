"""Time of one optimizer step against torch's Adam and SGD of the same size, in the same run.

    python benchmarks/optimizer_steps.py [--rounds N] [--write [FOLDER]] [--render]

Machines are noisy, so no time stands alone: in every round each optimizer is timed right after
torch's own, and what is reported is the median over rounds of the ratio within a round. The
closure that line searches and Polyak steps ask for costs nothing here: only the optimizer is
measured.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pages
import torch

from neada import optim


class Size(NamedTuple):
    """A player: so many tensors of so many elements."""

    num_tensors: int
    num_elements: int
    num_steps: int

    def __str__(self) -> str:
        return f"{self.num_tensors} x {self.num_elements:,}"


SIZES = [Size(1, 10, 300), Size(1, 1_000_000, 20), Size(200, 10_000, 4)]

SCALAR, ADAM_LIKE, OTHER = "one step size", "per coordinate", "several passes"

# (name, kind, class, arguments): steps are tiny so that no parameter leaves its range.
OURS: list[tuple[str, str, type[Any], dict[str, Any]]] = [
    ("GeneralizedAdaGrad", SCALAR, optim.GeneralizedAdaGrad, {"lr": 1e-6}),
    ("Polyak", SCALAR, optim.Polyak, {"f_bound": 1.0 - 1e-9}),
    ("SPS", SCALAR, optim.SPS, {"max_step": 1e-6}),
    ("DecSPS", SCALAR, optim.DecSPS, {"max_step": 1e-6}),
    ("DoG", SCALAR, optim.DoG, {"lr": 1e-3}),
    ("DoWG", SCALAR, optim.DoWG, {"lr": 1e-3}),
    ("AdGD", SCALAR, optim.AdGD, {"lr": 1e-9}),
    ("SPG", OTHER, optim.SPG, {"lr": 1e-9}),
    ("AdaptiveSGD adagrad", ADAM_LIKE, optim.AdaptiveSGD, {"lr": 1e-6, "psi": "adagrad"}),
    ("AdaptiveSGD adam", ADAM_LIKE, optim.AdaptiveSGD, {"lr": 1e-6, "psi": "adam"}),
    ("AdaptiveSGD amsgrad", ADAM_LIKE, optim.AdaptiveSGD, {"lr": 1e-6, "psi": "amsgrad"}),
    ("COCOB", OTHER, optim.COCOB, {}),
    ("SCAdaNGD", OTHER, optim.SCAdaNGD, {"strong_convexity": 1e6}),
    ("HazanKakade", OTHER, optim.HazanKakade, {"f_bound": 1.0 - 1e-9}),
    ("KT", OTHER, optim.KT, {"bound": 1e6}),
    ("CoinBetting", OTHER, optim.CoinBetting, {"bound": 1e6}),
    ("FreeRex", OTHER, optim.FreeRex, {}),
    ("Backtracking", OTHER, optim.Backtracking, {"lr": 1e-6, "grow": 1.0}),
    ("StochasticLineSearch", OTHER, optim.StochasticLineSearch, {"lr": 1e-6, "growth": 1.0}),
]
TORCH: list[tuple[str, type[Any], dict[str, Any]]] = [
    ("Adam, foreach", torch.optim.Adam, {"lr": 1e-6, "foreach": True}),
    ("Adam, default", torch.optim.Adam, {"lr": 1e-6}),
    ("SGD, default", torch.optim.SGD, {"lr": 1e-6}),
]


def stepper(make: type[Any], kwargs: dict[str, Any], size: Size) -> Callable[[], None]:
    """A function that takes one step of a fresh optimizer."""
    generator = torch.Generator().manual_seed(0)
    shape = (size.num_elements,)
    params = [torch.zeros(shape, requires_grad=True) for _ in range(size.num_tensors)]
    turns = itertools.cycle(
        [torch.randn(shape, generator=generator) for _ in params] for _ in range(2)
    )
    optimizer = make(params, **kwargs)
    is_ours = not isinstance(optimizer, torch.optim.Adam | torch.optim.SGD)

    def step() -> None:
        for param, gradient in zip(params, next(turns), strict=True):
            param.grad = gradient  # two gradients in turn: a constant one is no work for some
        if is_ours:
            optimizer.step(lambda: 0.0, value=1.0)
        else:
            optimizer.step()

    return step


def seconds(step: Callable[[], None], num_steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(num_steps):
        step()
    return (time.perf_counter() - begin) / num_steps


def timed(size: Size, rounds: int) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Median seconds of torch's optimizers, and of ours the median ratios to each of them."""
    torchs = {name: stepper(make, kwargs, size) for name, make, kwargs in TORCH}
    ours = {name: stepper(make, kwargs, size) for name, _, make, kwargs in OURS}
    for step in (*torchs.values(), *ours.values()):
        seconds(step, 2)  # warm up
    base: dict[str, list[float]] = {name: [] for name in torchs}
    ratios: dict[str, dict[str, list[float]]] = {
        name: {other: [] for other in torchs} for name in ours
    }
    for done in range(rounds):
        for name, step in ours.items():
            times = {other: seconds(torchs[other], size.num_steps) for other in torchs}
            own = seconds(step, size.num_steps)
            for other, spent in times.items():
                base[other].append(spent)
                ratios[name][other].append(own / spent)
        pages.progress(f"{size}: round {done + 1} of {rounds}")
    medians = {
        name: {other: statistics.median(values) for other, values in row.items()}
        for name, row in ratios.items()
    }
    return {name: statistics.median(times) for name, times in base.items()}, medians


def rival(size: Size) -> str:
    """Which of torch's optimizers a size is compared with."""
    return "Adam, default" if size.num_elements == 10 else "Adam, foreach"


def target(kind: str, size: Size) -> float | None:
    """The ratio not to exceed."""
    if kind == SCALAR:
        return 1.0
    return 1.5 if kind == ADAM_LIKE and size.num_elements > 10 else None


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of every optimizer at every size."""
    results = {size: timed(size, arguments.rounds) for size in SIZES}
    return {
        "rounds": arguments.rounds,
        "sizes": [str(size) for size in SIZES],
        "ratios": [
            {
                "name": name,
                "kind": kind,
                "ratios": [results[size][1][name][rival(size)] for size in SIZES],
            }
            for name, kind, _, _ in OURS
        ],
        "microseconds": {
            name: [1e6 * results[size][0][name] for size in SIZES] for name, _, _ in TORCH
        },
    }


def render(record: pages.Record) -> str:
    """The page."""
    numbers = record.numbers
    columns = " | ".join(numbers["sizes"])
    lines = [
        "# Benchmarks: one step",
        "",
        f"{pages.opening(record, 'optimizer_steps')} Each number is the median over "
        f"{numbers['rounds']} rounds of (time of one step) / (time of one step of torch's "
        "optimizer in the same round): below 1 is faster than torch. float32. Objective and "
        "gradient cost nothing here.",
        "",
        "A player of 10 elements is compared with torch's Adam as constructed by default, the "
        "larger ones with `Adam(foreach=True)`. Targets: methods with one step size at most 1.0, "
        "per-coordinate methods at most 1.5 at the two larger sizes; the others are reported as "
        "they are. A number above its target is in bold.",
        "",
        f"| optimizer | kind | {columns} |",
        "|---|---|" + "---|" * len(SIZES),
    ]
    missed = 0
    for row in numbers["ratios"]:
        cells = []
        for size, ratio in zip(SIZES, row["ratios"], strict=True):
            goal = target(row["kind"], size)
            is_bad = goal is not None and ratio > goal
            missed += is_bad
            cells.append(f"**{ratio:.2f}**" if is_bad else f"{ratio:.2f}")
        lines.append(f"| `{row['name']}` | {row['kind']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Time of one step of torch's own, in microseconds:",
        "",
        f"| optimizer | {columns} |",
        "|---|" + "---|" * len(SIZES),
        *(
            f"| `{name}` | " + " | ".join(f"{time:,.0f}" for time in times) + " |"
            for name, times in numbers["microseconds"].items()
        ),
        "",
        f"Targets missed in this run: {missed}.",
        "",
    ]
    return "\n".join(lines)


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """The largest ratio of each kind that has a target."""
    found = []
    for kind, words in ((SCALAR, "with one step size"), (ADAM_LIKE, "per coordinate")):
        ratios = {
            ratio: goal
            for row in numbers["ratios"]
            for size, ratio in zip(SIZES, row["ratios"], strict=True)
            if row["kind"] == kind and (goal := target(kind, size)) is not None
        }
        worst = max(ratios)
        what = f"a step of an optimizer {words} / of torch's Adam, the largest ratio"
        found.append(pages.Headline(what, worst, "at most", ratios[worst]))
    return found


BENCHMARK = pages.Benchmark("optimizer_steps", "benchmarks-steps.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="rounds to take the median over")
    arguments = pages.parse(parser)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
