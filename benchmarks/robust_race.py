"""Robust training against the loops one would write: time and calls to given robust accuracies.

    python benchmarks/robust_race.py [--seeds N] [--slow-loops] [--runs FOLDER] [--quick]
        [--write [FOLDER]] [--render] [--figures FOLDER]

On scikit-learn's digits, and on MNIST where the environment variable NEADA_DATA says where it is.
All loops see the same batches and give the network the same Adam, on one thread. Seconds are CPU
time of this process in the loop alone: evaluations are not counted. The two slow loops on MNIST
are read from files in `benchmarks/results` unless `--slow-loops` runs them again, one seed each.
With `--runs` all runs are kept in a folder, where finished ones are not run again.
"""

import argparse
import dataclasses
import math
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
import torch
from race_loops import Inner
from race_runs import (
    ADAM15,
    DEFAULT,
    DIGITS,
    METRICS,
    MNIST,
    QUICK,
    RELEASED,
    SLOW,
    Curve,
    Curves,
    Point,
    Task,
    all_curves,
)

from neada import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The tables.


def median_of(curves: list[Curve], metric: str, level: float, what: str) -> float:
    """The median over seeds of the seconds or calls to an accuracy; infinite if it is not there."""
    arrivals = [curve.arrival(metric, level) for curve in curves]
    return statistics.median(
        math.inf if arrival is None else getattr(arrival, what) for arrival in arrivals
    )


def ratios(curves: Curves, task: Task, rival: str) -> dict[str, float]:
    """How many times as fast as a rival each loop gets to the accuracy that is compared."""
    level = task.levels["fgsm"][-1]
    seconds = {name: median_of(runs, "fgsm", level, "seconds") for name, runs in curves.items()}
    return {
        name: seconds[rival] / spent if math.isfinite(spent) else 0.0
        for name, spent in seconds.items()
    }


def arrival_rows(curves: Curves, task: Task) -> list[str]:
    goals = [(metric, level) for metric in METRICS for level in task.levels[metric]]
    names = " | ".join(f"{METRICS[metric]}: {100 * level:g} %" for metric, level in goals)
    rows = [
        f"| loop | seeds | {names} | against {ADAM15} | against {RELEASED} |",
        "|" + "---|" * (len(goals) + 4),
    ]
    faster = [ratios(curves, task, rival) for rival in SLOW]
    for name, runs in curves.items():
        cells = []
        for metric, level in goals:
            seconds, calls = (median_of(runs, metric, level, what) for what in ("seconds", "calls"))
            cells.append(f"{seconds:.3g} ({calls:.0f})" if math.isfinite(seconds) else "-")
        cells += [said(ratio[name]) for ratio in faster]
        rows.append(f"| {name} | {len(runs)} | " + " | ".join(cells) + " |")
    return rows


def said(ratio: float) -> str:
    """A ratio in a cell; nothing where one of the two did not arrive."""
    return f"{ratio:.2f}" if 0.0 < ratio < math.inf else "-"


def target_lines(curves: Curves, task: Task) -> list[str]:
    """What the library's default should do, and whether it does."""
    lines = []
    for rival, (target, goal) in task.targets.items():
        ratio = ratios(curves, task, rival)[DEFAULT]
        reached = "goal met" if ratio >= goal else "target met" if ratio >= target else "missed"
        if ratio == math.inf:
            reached = f"not measured, {rival} did not arrive"
        lines.append(
            f"- {DEFAULT} against {rival}, to {100 * task.levels['fgsm'][-1]:g} %: "
            f"{said(ratio)} times as fast; target {target:g}, goal {goal:g}: **{reached}**."
        )
    return lines


def inner_rows(curves: Curves, task: Task) -> list[str]:
    rows = [
        f"| loop | inputs as they are | reached | {task.judge_steps} spectral steps | "
        "reached, relative | share of the gain |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in curves.items():
        inners = [curve.inner for curve in runs if curve.inner is not None]
        if inners:
            cells = [
                f"{statistics.median(inner.clean for inner in inners):.4f}",
                f"{statistics.median(inner.reached for inner in inners):.4f}",
                f"{statistics.median(inner.best for inner in inners):.4f}",
                f"{statistics.median(inner.reached / inner.best for inner in inners):.3f}",
                f"{statistics.median(gain(inner) for inner in inners):.2f}",
            ]
            rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def gain(inner: Inner) -> float:
    return (inner.reached - inner.clean) / (inner.best - inner.clean)


# The figure.


def figure_of(curves: Curves, task: Task) -> "Figure":
    """Accuracy over seconds, a panel for each attack; means over the seeds."""
    panels = []
    for metric, title in METRICS.items():
        lines = []
        for name, runs in curves.items():
            seen = [curve.seen(metric) for curve in runs]
            # Seeds arrive at different times: as far as all of them went.
            together = list(zip(*seen, strict=False))
            seconds = [statistics.fmean(p.seconds for p in points) for points in together]
            values = [[getattr(p, metric) for p in points] for points in together]
            label = name.replace("`", "")
            lines.append(plots.Curve(label, np.array(seconds), 100 * np.array(values)))
        levels = [("to be reached", 100 * level) for level in task.levels[metric]]
        panels.append(plots.Panel(title, lines, levels=levels))
    return plots.curves_figure(
        panels,
        num_columns=3,
        y_label="accuracy in %",
        x_label="CPU seconds of training",
        x_scale="log",
        y_scale="linear",
        panel_size=(3.4, 3.2),
        note=f"each point: accuracy on {task.eval_samples} held-out images"
        + (f", with PGD on {task.pgd_samples}" if task.pgd_samples < task.eval_samples else ""),
    )


# The page.


def section(task: Task, curves: Curves, seeds: int) -> list[str]:
    count = "1 seed" if seeds == 1 else f"Up to {seeds} seeds"
    held_out = " (half of the data is held out)" if task.data == "digits" else ""
    pgd = (
        f"PGD looks at {task.pgd_samples} of them, every {task.pgd_every * task.every} steps."
        if task.pgd_samples < task.eval_samples
        else "PGD looks at the same."
    )
    lines = [
        f"## {'MNIST' if task.data == 'mnist' else 'Digits'}",
        "",
        f"The network `{task.model}`, batches of {task.batch_size}, gamma = {task.gamma:g}; the "
        f"attacks and the balls of Fast-AT and Free-AT have eps = {task.eps:g}. {count}, medians. "
        f"Evaluated every {task.every} steps of x on {task.eval_samples} held-out images"
        f"{held_out}. {pgd} A loop ends when it has reached all of the accuracies, or after "
        f"{task.max_steps} steps of x.",
        "",
    ]
    if task.has_slow_files:
        lines += [
            f"{ADAM15} and {RELEASED} were run once, with one seed, and are read from a file. "
            "Their seconds are those of their calls at the speed that the same loops have in "
            "this run.",
            "",
        ]
    lines += [
        "CPU seconds and, in brackets, calls to each accuracy; the last columns say how many times "
        f"as fast a loop is to {100 * task.levels['fgsm'][-1]:g} % under FGSM without clipping. "
        "A dash: not reached.",
        "",
        *arrival_rows(curves, task),
        "",
    ]
    if task.targets:
        lines += [*target_lines(curves, task), ""]
    lines += [
        f"![Accuracy over seconds](figures/robust-race-{task.data}.png)",
        "",
        "How strong the adversaries are at the end of the training, on a batch of training images:",
        "",
        *inner_rows(curves, task),
        "",
    ]
    return lines


INTRODUCTION = """\
Time and calls to a given robust accuracy, for loops as one would write them with torch and for the
library's. All loops of a seed begin with the same network, see the same batches in the same order
and train the network with Adam (learning rate 0.001). Nothing is tuned for a loop: those that climb
with Adam have its learning rate 0.01, the library's have none.

- {adam15}: a new Adam with every batch, gradients of everything.
- {released}: the loop of the scripts that the paper's authors released, the same Adam until the
  squared gradient of the batch mean is at most 1/(t+1), or for t steps.
- Fast-AT: one signed step of 1.25 eps from a random start. Free-AT: every batch 4 times, each
  backward pass moves both players. They have a ball of the attack's size and norm where the
  others have a price per squared distance, so they train for the very attack that is measured.
- {default}: `WRM(model, loss, gamma)` with no further argument: each sample stops by itself; then
  all samples together (`per_sample=False`), and perturbations kept between epochs. The
  library's loops have the memory layout that `neada train` chooses (channels last for the
  paper's network).
- `AdversarialTraining`: the library's nested loop in the ball of Fast-AT.

Accuracies are those under FGSM without clipping, under FGSM clipped to the range of the data, and
under PGD with 20 steps from the FGSM point, clipped. One evaluation of 2,000 images has a standard
error of a point, so an accuracy counts as reached at the middle of the first three neighbouring
evaluations whose mean is at least it. Seconds are CPU seconds of the training on one thread;
evaluations are not counted. A call is a gradient of one player on one batch, a backward pass that
serves both players is two, and samples that have left a batch are not counted.

"Share of the gain" is how much of what spectral gradient steps per sample gain on the inner
objective the loop's own adversary gains: loss minus price, or the loss within the ball for the
loops that have one. The objective is that of the network in evaluation mode. The plain loops climb
in training mode, as their authors' do, where batch norm has other statistics. The adversary of
Free-AT is that of its last replay."""


def render(record: pages.Record) -> str:
    """All tables as a Markdown page."""
    lines = [
        "# Benchmarks: the race to a robust accuracy",
        "",
        pages.opening(record, "robust_race"),
        "",
        INTRODUCTION.format(adam15=ADAM15, released=RELEASED, default=DEFAULT),
        "",
    ]
    for task, curves, count in read_races(record.numbers):
        lines += section(task, curves, count)
    return "\n".join(lines)


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """The library's default against the loops that it has targets for."""
    return [
        pages.Headline(
            f"{DEFAULT} on {task.data.upper()} to {100 * task.levels['fgsm'][-1]:g} % under FGSM, "
            f"times as fast as {rival}",
            ratios(curves, task, rival)[DEFAULT],
            "at least",
            target,
        )
        for task, curves, _ in read_races(numbers)
        for rival, (target, _) in task.targets.items()
    ]


# Numbers and curves.


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All curves of all tasks."""
    tasks = (
        [QUICK] if arguments.quick else [DIGITS, *([MNIST] if "NEADA_DATA" in os.environ else [])]
    )
    races = []
    for task in tasks:
        seeds = arguments.seeds or task.seeds
        kept = (arguments.slow_loops, arguments.kept_only)
        races.append(as_numbers(task, seeds, all_curves(task, seeds, arguments.runs, *kept)))
    return {"races": races}


def as_numbers(task: Task, seeds: int, curves: Curves) -> dict[str, Any]:
    """A race as it is in the file: points are rows of their numbers."""
    return {
        "task": dataclasses.asdict(task),
        "seeds": seeds,
        "curves": {
            name: [
                {
                    "points": [list(dataclasses.astuple(point)) for point in curve.points],
                    "inner": None if curve.inner is None else dataclasses.asdict(curve.inner),
                }
                for curve in runs
            ]
            for name, runs in curves.items()
        },
    }


def read_races(numbers: dict[str, Any]) -> list[tuple[Task, Curves, int]]:
    """The races of a record, with their tasks and numbers of seeds."""
    return [
        (
            Task(**race["task"]),
            {
                name: [
                    Curve(
                        [Point(*row) for row in curve["points"]],
                        None if curve["inner"] is None else Inner(**curve["inner"]),
                    )
                    for curve in runs
                ]
                for name, runs in race["curves"].items()
            },
            race["seeds"],
        )
        for race in numbers["races"]
    ]


BENCHMARK = pages.Benchmark("robust_race", "benchmarks-race.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, help="seeds (default: 5 of digits, 3 of MNIST)")
    parser.add_argument(
        "--quick", action="store_true", help="a little of each, to see that it runs"
    )
    parser.add_argument("--slow-loops", action="store_true", help="run the slow loops on MNIST too")
    parser.add_argument("--runs", type=Path, help="keep all runs here, and go on with them")
    parser.add_argument("--kept-only", action="store_true", help="train nothing, show what is kept")
    parser.add_argument("--figures", type=Path, help="write the figures to this folder")
    arguments = pages.parse(parser)
    torch.set_num_threads(1)
    record = pages.publish(BENCHMARK, arguments)
    if arguments.figures is not None:
        for task, curves, _ in read_races(record.numbers):
            path = arguments.figures / f"robust-race-{task.data}.png"
            figure_of(curves, task).savefig(path, dpi=150)


if __name__ == "__main__":
    main()
