"""Robust training against the loop one would write: inner steps, memory, and calls to an accuracy.

    python benchmarks/robust_steps.py [--rounds N] [--seeds N] [--quick] [--write [FOLDER]]
        [--render]

The plain loop makes a fresh Adam for every perturbed batch, calls `backward()` for everything, the
parameters included, and `.item()` at every step. Machines are noisy, so no time stands alone: in
every round all ways are timed one right after the other, and what is reported is the median over
rounds of the ratio within a round; on one thread times are those of the processor. Memory is the
peak of a process of its own per way.
"""

import argparse
import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import pages
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada import attacks, data, models, robust
from neada.stopping import FixedSteps

GAMMA, LR_X, LR_Y = 1.3, 1e-3, 0.01
BATCH_SIZE = 128
NUM_STEPS = 15
SAME = 1e-3
PLAIN, UNFOLDED, OURS, OURS_LAST = WAYS = (
    "plain",
    "neada, not folded",
    "neada",
    "neada, channels last",
)
EPSILON, EVERY = 0.1, 5
TARGET_ACCURACY, MOST_X_STEPS = 0.65, 400


Norm = Literal["batch", "frozen"]
NORMS: tuple[Norm, ...] = ("batch", "frozen")


def least(norm: Norm, threads: int) -> float:
    """How many times as fast as the plain loop it should be."""
    if norm == "batch":
        return 1.6
    return 1.8 if threads == 1 else 1.9


# One inner loop of 15 steps on the paper's network.


def plain_inner(model: nn.Module, clean: Tensor, targets: Tensor, num_steps: int) -> Tensor:
    """The usual inner loop."""
    y = clean.clone().requires_grad_()
    optimizer = torch.optim.Adam([y], lr=LR_Y)
    values = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        penalty = (y - clean).square().flatten(1).sum(1).mean()
        objective = GAMMA * penalty - functional.cross_entropy(model(y), targets)
        objective.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(objective.item())
    return y.detach()


def neada_inner(
    model: nn.Module,
    clean: Tensor,
    targets: Tensor,
    num_steps: int,
    norm: Norm,
    fold: bool = True,
) -> Tensor:
    """The same by `WRM`."""
    adversary = robust.Adversary(
        optimizer=lambda params: torch.optim.Adam(params, lr=LR_Y, maximize=True),
        stopping=FixedSteps(num_steps),
        batch_norm=norm,
        dropout="on",
        fold=fold,
    )
    objective = robust.WRM(model, functional.cross_entropy, GAMMA, adversary=adversary)
    return objective.perturb(clean, targets).inputs


Inner = Callable[[], Tensor]


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """The paper's network, with running statistics that are not those of a new one, and a batch."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(BATCH_SIZE, 1, 28, 28, generator=generator)
    targets = torch.randint(10, (BATCH_SIZE,), generator=generator)
    model = models.make("cnn", (1, 28, 28), 10, seed=0)
    with torch.no_grad():
        model(clean)
    return model, clean, targets


def inner_ways(norm: Norm, num_steps: int) -> dict[str, Inner]:
    """Functions that perturb the same batch with the same network; the plain one first.

    With frozen statistics the plain loop has the network in evaluation mode.
    """
    model, clean, targets = problem()
    usual = copy.deepcopy(model).train(norm == "batch")
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return {
        PLAIN: lambda: plain_inner(usual, clean, targets, num_steps),
        UNFOLDED: lambda: neada_inner(model, clean, targets, num_steps, norm, fold=False),
        OURS: lambda: neada_inner(model, clean, targets, num_steps, norm),
        OURS_LAST: lambda: neada_inner(last, clean, targets, num_steps, norm),
    }


def objective_at(y: Tensor, norm: Norm) -> float:
    """What the inner loop maximizes, at a point."""
    model, clean, targets = problem()
    model.train(norm == "batch")
    with torch.no_grad():
        penalty = (y - clean).square().flatten(1).sum(1).mean()
        return float(functional.cross_entropy(model(y), targets) - GAMMA * penalty)


def timed(way: Inner) -> tuple[float, Tensor]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    found = way()
    return clock() - begin, found


def inner_steps(norm: Norm, rounds: int, num_steps: int) -> list[dict[str, Any]]:
    """Seconds per step, the ratio to the plain loop and the objective reached, for every way."""
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    reached: dict[str, float] = {}
    ways = inner_ways(norm, num_steps)
    for done in range(rounds + 1):
        for name, way in ways.items():
            seconds, y = timed(way)
            if done == 0:  # the first round warms up
                reached[name] = objective_at(y, norm)
                if abs(reached[name] / reached[PLAIN] - 1.0) > SAME:
                    raise SystemExit(f"{name} ({norm}) reaches {reached[name]}, not {reached}")
            else:
                times[name].append(seconds)
        pages.progress(f"inner steps, {norm}: round {done} of {rounds}")
    ratios = {
        name: statistics.median(a / b for a, b in zip(times[PLAIN], spent, strict=True))
        for name, spent in times.items()
    }
    return [
        {
            "batch_norm": norm,
            "way": name,
            "seconds": statistics.median(times[name]) / num_steps,
            "ratio": ratios[name],
            "objective": reached[name],
        }
        for name in WAYS
    ]


# Memory, in processes of their own.


def report_peak(side: str, norm: Norm) -> None:
    """Print by how much one way's inner loops raise the resident memory of this process, in MB."""
    print(pages.peak_growth(inner_ways(norm, num_steps=3)[side]))


def peaks(norm: Norm, rounds: int) -> dict[str, float]:
    """The median growth of the peak in MB, for every way."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for done in range(rounds):
        for name, seen in found.items():
            command = [sys.executable, __file__, "--side", name, "--norm", norm]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            seen.append(float(result.stdout))
        pages.progress(f"memory, {norm}: round {done + 1} of {rounds}")
    return {name: statistics.median(seen) for name, seen in found.items()}


# Training to an accuracy.


class Arrival(NamedTuple):
    """What it took to get there; infinite if it did not."""

    inner_steps: float
    samples: float
    seconds: float


VARIANTS: dict[str, tuple[bool, bool]] = {
    "whole batch, cold start": (False, False),
    "per sample, cold start": (True, False),
    "whole batch, warm start": (False, True),
    "per sample, warm start": (True, True),
}


def batches_of(digits: data.Dataset, seed: int) -> Iterator[tuple[Tensor, ...]]:
    return data.Batches(digits.inputs_train, digits.targets_train, BATCH_SIZE, seed=seed).endless()


def train_to(target: float, per_sample: bool, warm: bool, seed: int) -> Arrival:
    """Train on digits until the test accuracy under attack is there; evaluations are free."""
    digits = data.load("digits")
    model = models.make("small-cnn", digits.input_shape, digits.num_classes, seed=seed)
    adversary = robust.Adversary(per_sample=per_sample, start="kept" if warm else "clean")
    objective = robust.WRM(model, functional.cross_entropy, GAMMA, adversary=adversary)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=LR_X)
    batches = batches_of(digits, seed)
    seconds = 0.0
    while objective.outer_steps < MOST_X_STEPS:
        begin = time.perf_counter()
        for _ in range(EVERY):
            inputs, labels, ids = next(batches)
            objective.step(x_optimizer, inputs, labels, ids=ids if warm else None)
        seconds += time.perf_counter() - begin
        test = [(digits.inputs_test, digits.targets_test)]
        accuracy = attacks.robust_accuracy(model, test, "fgsm", [EPSILON]).attacked[EPSILON]
        if accuracy >= target:
            samples = objective.samples_x + objective.samples_y
            return Arrival(objective.inner_steps, samples, seconds)
    return Arrival(*[float("inf")] * 3)


def arrivals(seeds: int, target: float) -> list[dict[str, Any]]:
    """Medians over seeds of what each variant needs, relative to the first."""
    found: dict[str, list[Arrival]] = {name: [] for name in VARIANTS}
    for seed in range(seeds):
        for name, (per_sample, warm) in VARIANTS.items():
            found[name].append(train_to(target, per_sample, warm, seed))
            pages.progress(f"training: seed {seed + 1} of {seeds}, {name}")
    first, *_ = found.values()
    rows = []
    for name, own in found.items():
        ratios = [
            statistics.median(a[i] / b[i] for a, b in zip(own, first, strict=True))
            for i in range(len(Arrival._fields))
        ]
        calls = statistics.median(arrival.samples for arrival in own) / BATCH_SIZE
        rows.append({"name": name, "calls": calls, "ratios": ratios})
    return rows


# The page.


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Inner steps, memory, and training to an accuracy."""
    rounds, seeds = arguments.rounds, arguments.seeds
    num_steps, target = NUM_STEPS, TARGET_ACCURACY
    if arguments.quick:
        rounds, seeds, num_steps, target = 1, 1, 2, 0.3
    numbers = {
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "seeds": seeds,
        "num_steps": num_steps,
        "target": target,
        "inner": [row for norm in NORMS for row in inner_steps(norm, rounds, num_steps)],
        "peaks": {norm: peaks(norm, min(rounds, 3)) for norm in NORMS},
        "training": arrivals(seeds, target),
    }
    return numbers


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """The fastest way of each kind of batch norm, and the largest peak."""
    found = []
    for norm in NORMS:
        best = max(row["ratio"] for row in numbers["inner"] if row["batch_norm"] == norm)
        what = f"an inner step of WRM (batch norm: {norm}), times as fast as a plain loop"
        found.append(pages.Headline(what, best, "at least", least(norm, numbers["threads"])))
    worst = max(max(mb[OURS], mb[OURS_LAST]) / mb[PLAIN] for mb in numbers["peaks"].values())
    return [*found, pages.Headline("its peak memory / of the plain loop", worst, limit=1)]


def render(record: pages.Record) -> str:
    """The page."""
    numbers = record.numbers
    threads, rounds = numbers["threads"], numbers["rounds"]
    *fast, light = headlines(numbers)
    lines = [
        "# Benchmarks: robust training",
        "",
        pages.opening(record, "robust_steps"),
        "",
        "## One inner step of WRM",
        "",
        f"The paper's network for MNIST, a batch of {BATCH_SIZE}, {numbers['num_steps']} steps of "
        "a new Adam. The plain loop computes the gradients of the parameters too and reads the "
        "objective at every step. With frozen statistics batch norm is folded into the convolution "
        f"before it, unless the row says otherwise. Medians over {rounds} rounds of (plain) / "
        f"(this) in the same round, so above 1 is faster. Target: at least "
        f"{least('batch', threads):g}, with frozen statistics {least('frozen', threads):g}. All "
        "ways must reach the same objective (last column) to within a part in "
        f"{1 / SAME:.0f}.",
        "",
        "| batch norm | way | ms per step | times as fast | objective reached |",
        "|---|---|---|---|---|",
        *(
            f"| {row['batch_norm']} | {row['way']} | {1e3 * row['seconds']:.1f} | "
            f"{row['ratio']:.2f} | {row['objective']:.5f} |"
            for row in numbers["inner"]
        ),
        "",
        f"Targets missed in this run: {sum(not head.is_met for head in fast)}.",
        "",
        "## Peak memory",
        "",
        "By how much an inner loop raises the peak of the resident memory, each way in processes "
        f"of its own, medians of {min(rounds, 3)}. Target: not above the plain loop.",
        "",
        "| batch norm | way | MB | relative to plain |",
        "|---|---|---|---|",
        *(
            f"| {norm} | {name} | {mb:.0f} | {mb / found[PLAIN]:.2f} |"
            for norm, found in numbers["peaks"].items()
            for name, mb in found.items()
        ),
        "",
        f"The largest of the library's: {light.value:.2f}, {'met' if light.is_met else 'missed'}.",
        "",
        "## Per-sample stopping and warm starts",
        "",
        f"The digits and the small network, trained until {100 * numbers['target']:.0f} % of the "
        f"test images survive FGSM of {EPSILON:g}; medians over {numbers['seeds']} seeds, "
        "evaluations not counted. Calls are gradients of both players in units of a batch of "
        f"{BATCH_SIZE}; the ratios are to the first row, so below 1 is cheaper.",
        "",
        "| stopping and start | calls | inner steps, ratio | calls, ratio | time, ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['calls']:.0f} | "
            + " | ".join(f"{ratio:.2f}" for ratio in row["ratios"])
            + " |"
            for row in numbers["training"]
        ),
        "",
    ]
    return "\n".join(lines)


BENCHMARK = pages.Benchmark("robust_steps", "benchmarks-robust.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds to take the median over")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the training runs")
    parser.add_argument("--quick", action="store_true", help="one of each, to see that it runs")
    parser.add_argument("--side", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--norm", choices=NORMS, default="batch", help=argparse.SUPPRESS)
    arguments = pages.parse(parser)
    if arguments.side is not None:
        report_peak(arguments.side, arguments.norm)
        return
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
