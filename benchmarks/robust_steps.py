"""Robust training against the loop one would write: inner steps, memory, and calls to an accuracy.

    python benchmarks/robust_steps.py [--rounds N] [--seeds N] [--quick] [--write FILE]

The plain loop makes a fresh Adam for every perturbed batch, calls `backward()` for everything, the
parameters included, and `.item()` at every step. Machines are noisy, so no time stands alone: in
every round all ways are timed one right after the other, and what is reported is the median over
rounds of the ratio within a round; on one thread times are those of the processor. Memory is the
peak of a process of its own per way.
"""

import argparse
import copy
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from neada import attacks, data, models, robust
from neada.inner import InnerOptions
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


def least(norm: Norm) -> float:
    """How many times as fast as the plain loop it should be."""
    if norm == "batch":
        return 1.6
    return 1.8 if torch.get_num_threads() == 1 else 1.9


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
    objective = robust.WRM(
        model,
        functional.cross_entropy,
        GAMMA,
        y_optimizer=lambda params: torch.optim.Adam(params, lr=LR_Y, maximize=True),
        stopping=FixedSteps(num_steps),
        inner=InnerOptions(measure="batch", dropout="on", fold=fold),
        batch_norm=norm,
    )
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


def inner_rows(norm: Norm, rounds: int, num_steps: int) -> tuple[list[str], int]:
    """Table rows of the inner step, and whether the target is missed."""
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
        progress(f"inner steps, {norm}: round {done} of {rounds}")
    ratios = {
        name: statistics.median(a / b for a, b in zip(times[PLAIN], spent, strict=True))
        for name, spent in times.items()
    }
    rows = [
        f"| {norm} | {name} | {1e3 * statistics.median(times[name]) / num_steps:.1f} | "
        f"{ratios[name]:.2f} | {reached[name]:.5f} |"
        for name in WAYS
    ]
    return rows, int(max(ratios.values()) < least(norm))


# Memory, in processes of their own.


def report_peak(side: str, norm: Norm) -> None:
    """Print by how much one way's inner loops raise the resident memory of this process, in MB.

    The kernel's high-water mark is set back before them; that of `getrusage` cannot be, and a new
    process inherits it.
    """
    way = inner_ways(norm, num_steps=3)[side]
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    way()
    print(high_water() - before)


def high_water() -> float:
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) / 1024


def peaks(norm: Norm, rounds: int) -> dict[str, float]:
    """The median growth of the peak in MB, for every way."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for done in range(rounds):
        for name, seen in found.items():
            command = [sys.executable, __file__, "--side", name, "--norm", norm]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            seen.append(float(result.stdout))
        progress(f"memory, {norm}: round {done + 1} of {rounds}")
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
    shape = digits.inputs_train.shape
    store = robust.PerturbationStore(shape[0], shape[1:]) if warm else None
    objective = robust.WRM(
        model, functional.cross_entropy, GAMMA, per_sample=per_sample, store=store
    )
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


def training_rows(seeds: int, target: float) -> list[str]:
    """Table rows: medians over seeds of what each variant needs, relative to the first."""
    found: dict[str, list[Arrival]] = {name: [] for name in VARIANTS}
    for seed in range(seeds):
        for name, (per_sample, warm) in VARIANTS.items():
            found[name].append(train_to(target, per_sample, warm, seed))
            progress(f"training: seed {seed + 1} of {seeds}, {name}")
    first, *_ = found.values()
    rows = []
    for name, arrivals in found.items():
        ratios = [
            statistics.median(a[i] / b[i] for a, b in zip(arrivals, first, strict=True))
            for i in range(len(Arrival._fields))
        ]
        calls = statistics.median(arrival.samples for arrival in arrivals) / BATCH_SIZE
        rows.append(f"| {name} | {calls:.0f} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")
    return rows


# The page.


def progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{words:<70}", end="", file=sys.stderr)


def page(rounds: int, seeds: int, num_steps: int, target: float) -> str:
    """Run everything and write it as a Markdown page."""
    rows = [inner_rows(norm, rounds, num_steps) for norm in NORMS]
    memory = {norm: peaks(norm, min(rounds, 3)) for norm in NORMS}
    heavy = [max(mb[OURS], mb[OURS_LAST]) > mb[PLAIN] for mb in memory.values()]
    lines = [
        "# Benchmarks: robust training",
        "",
        "Written by `benchmarks/robust_steps.py`. "
        f"{torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "",
        "## One inner step of WRM",
        "",
        f"The paper's network for MNIST, a batch of {BATCH_SIZE}, {num_steps} steps of a new Adam. "
        "The plain loop computes the gradients of the parameters too and reads the objective at "
        "every step. With frozen statistics batch norm is folded into the convolution before it, "
        f"unless the row says otherwise. Medians over {rounds} rounds of (plain) / (this) in the "
        f"same round, so above 1 is faster. Target: at least {least('batch'):g}, with frozen "
        f"statistics {least('frozen'):g}. All ways must reach the same objective (last column) to "
        f"within a part in {1 / SAME:.0f}.",
        "",
        "| batch norm | way | ms per step | times as fast | objective reached |",
        "|---|---|---|---|---|",
        *(line for block, _ in rows for line in block),
        "",
        f"Targets missed in this run: {sum(missed for _, missed in rows)}.",
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
            for norm, found in memory.items()
            for name, mb in found.items()
        ),
        "",
        f"Targets missed in this run: {sum(heavy)}.",
        "",
        "## Per-sample stopping and warm starts",
        "",
        f"The digits and the small network, trained until {100 * target:.0f} % of the test images "
        f"survive FGSM of {EPSILON:g}; medians over {seeds} seeds, evaluations not counted. Calls "
        f"are gradients of both players in units of a batch of {BATCH_SIZE}; the ratios are to the "
        "first row, so below 1 is cheaper.",
        "",
        "| stopping and start | calls | inner steps, ratio | calls, ratio | time, ratio |",
        "|---|---|---|---|---|",
        *training_rows(seeds, target),
        "",
    ]
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds to take the median over")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the training runs")
    parser.add_argument("--quick", action="store_true", help="one of each, to see that it runs")
    parser.add_argument("--write", type=Path, help="also write the page to this file")
    parser.add_argument("--side", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--norm", choices=NORMS, default="batch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        report_peak(arguments.side, arguments.norm)
        return
    if arguments.rounds < 1 or arguments.seeds < 1:
        parser.error("--rounds and --seeds must be at least 1")
    if arguments.quick:
        text = page(1, 1, num_steps=2, target=0.3)
    else:
        text = page(arguments.rounds, arguments.seeds, NUM_STEPS, TARGET_ACCURACY)
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
