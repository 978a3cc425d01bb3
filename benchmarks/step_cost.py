"""Compare the times of steps in two source trees.

    python benchmarks/step_cost.py --before ../other-tree/src

Two processes, one per tree, take turns; the ratio of the pair is the median of the ratios within a
round. Processes differ, so every row is the median over several pairs, with their range. The
allocator keeps freed memory: otherwise it depends on the layout of the heap, thus on luck, whether
a step has to get its largest tensors from the system again (up to 30 % of a step).
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neada import models, optim, robust, steppers

OWN = Path(__file__).parents[1] / "src"
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


def vector_game() -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
    torch.manual_seed(0)
    matrix = torch.randn(10, 10, dtype=torch.float64)
    x = torch.randn(10, dtype=torch.float64, requires_grad=True)
    y = torch.randn(10, dtype=torch.float64, requires_grad=True)
    return x, y, lambda: x.cos().sum() + y @ (matrix @ x) - y @ y


def nested() -> Callable[[], object]:
    """NeAda with its default optimizers on a vector problem."""
    x, y, value = vector_game()
    stepper = steppers.NeAda(optim.GeneralizedAdaGrad([x]), optim.AdGD([y], maximize=True))
    return lambda: stepper.step(value)


def alternating() -> Callable[[], object]:
    """Alternating Adam on a vector problem."""
    x, y, value = vector_game()
    adam = torch.optim.Adam
    stepper = steppers.Alternating(adam([x], 1e-3), adam([y], 1e-3, maximize=True))
    return lambda: stepper.step(value)


def simultaneous() -> Callable[[], object]:
    """Simultaneous Adam on a vector problem."""
    x, y, value = vector_game()
    adam = torch.optim.Adam
    stepper = steppers.Simultaneous(adam([x], 1e-3), adam([y], 1e-3, maximize=True))
    return lambda: stepper.step(value)


def tiada() -> Callable[[], object]:
    """TiAda on a vector problem."""
    x, y, value = vector_game()
    stepper = steppers.TiAda([x], [y])
    return lambda: stepper.step(value)


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(128, 1, 28, 28, generator=generator), torch.arange(128) % 10


def network(name: str) -> nn.Module:
    return models.make(name, (1, 28, 28), 10, seed=0)


def small() -> nn.Module:
    """Batch norm in a network of two layers."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ELU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def wrm(model: nn.Module) -> Callable[[], object]:
    objective = robust.WRM(model, cross_entropy, 1.3)
    x_optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    inputs, targets = images()
    return lambda: objective.step(x_optimizer, inputs, targets)


def group(model: nn.Module) -> Callable[[], object]:
    objective = robust.GroupDRO(model, cross_entropy, 10)
    x_optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    inputs, targets = images()
    return lambda: objective.step(x_optimizer, inputs, targets, targets)


WORKLOADS: dict[str, tuple[Callable[[], Callable[[], object]], int]] = {
    "NeAda, vectors": (nested, 40),
    "alternating Adam, vectors": (alternating, 100),
    "simultaneous Adam, vectors": (simultaneous, 100),
    "TiAda, vectors": (tiada, 100),
    "WRM, small network": (lambda: wrm(small()), 8),
    "WRM, cnn": (lambda: wrm(network("cnn")), 1),
    "group DRO, small network": (lambda: group(small()), 40),
}


def serve() -> None:
    """Time a block of steps of a workload whenever its name is read."""
    torch.set_num_threads(1)
    steps = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in steps:
            steps[name] = WORKLOADS[name][0]()
            for _ in range(3):
                steps[name]()
        times = []
        for _ in range(WORKLOADS[name][1]):
            start = time.perf_counter()
            steps[name]()
            times.append(time.perf_counter() - start)
        sys.stdout.write(f"{statistics.median(times)}\n")
        sys.stdout.flush()


def worker(tree: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **KEEP_MEMORY, "PYTHONPATH": str(tree.resolve())},
    )


def ask(process: "subprocess.Popen[str]", name: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, default=OWN, help="the src folder to compare with")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=6, help="turns of a pair")
    parser.add_argument("--only", choices=WORKLOADS, help="one workload")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    print("| step | after, ms | after / before | range over pairs |\n|---|---|---|---|")
    for name in [arguments.only] if arguments.only else WORKLOADS:
        found = [
            compared(name, arguments.before, number, arguments.rounds)
            for number in range(arguments.pairs)
        ]
        times, ratios = zip(*found, strict=True)
        print(
            f"| {name} | {1e3 * statistics.median(times):.3f} | {statistics.median(ratios):.3f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} |",
            flush=True,
        )


def compared(name: str, before: Path, number: int, rounds: int) -> tuple[float, float]:
    """The time of a step in this tree, and its ratio to the other, by a new pair of processes."""
    old, new = worker(before), worker(OWN)
    pairs = []
    for turn in range(rounds):
        order = (old, new) if (number + turn) % 2 == 0 else (new, old)
        found = {process.pid: ask(process, name) for process in order}
        pairs.append((found[old.pid], found[new.pid]))
    for process in (old, new):
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return statistics.median(b for _, b in pairs), statistics.median(b / a for a, b in pairs)


if __name__ == "__main__":
    main()
