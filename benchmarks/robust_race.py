"""Robust training against the loops one would write: time and calls to given robust accuracies.

    python benchmarks/robust_race.py [--seeds N] [--quick] [--slow-loops] [--write FILE]

On scikit-learn's digits; on MNIST, too, where the environment variable NEADA_DATA says where it
is. All loops see the same batches and give the network the same Adam, on one thread. Seconds are
CPU time of this process in the loop alone; evaluations are not counted.
"""

import argparse
import copy
import dataclasses
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from race_loops import Adam15, FastAT, FreeAT, Inner, Loop, Released, Setting, judge
from torch import Tensor, nn

from neada import attacks, data, files, models

METRICS = ("fgsm", "clipped", "pgd")
WINDOW = 3


@dataclass(frozen=True)
class Task:
    """What is trained and when it is looked at.

    Attributes:
        data: The name of the data.
        model: The name of the network.
        gamma: The price of a squared distance, for the loops that have one.
        eps: Of the attacks, and of the loops that have a ball.
        batch_size: Samples in a batch.
        every: Steps of x between two evaluations.
        pgd_every: Evaluations between two with PGD.
        max_steps: Steps of x after which a loop is given up.
        eval_samples: Held-out samples of an evaluation.
        pgd_samples: Those of them that PGD looks at.
        levels: The accuracies to reach, by metric.
    """

    data: str
    model: str
    gamma: float
    eps: float
    batch_size: int
    every: int
    pgd_every: int
    max_steps: int
    eval_samples: int
    pgd_samples: int
    levels: dict[str, tuple[float, ...]]


MNIST = Task(
    data="mnist",
    model="cnn",
    gamma=1.3,
    eps=0.1,
    batch_size=128,
    every=20,
    pgd_every=2,
    max_steps=800,
    eval_samples=2000,
    pgd_samples=500,
    levels={"fgsm": (0.70, 0.76), "clipped": (0.80, 0.85), "pgd": (0.75, 0.80)},
)


@dataclass(frozen=True)
class Point:
    """One evaluation.

    Attributes:
        steps: Steps of x until then.
        calls: Gradients of both players in units of a batch.
        seconds: CPU time of the training.
        clean: Accuracy on the inputs as they are.
        fgsm: Under FGSM, not clipped to the range of the data.
        clipped: Under FGSM, clipped.
        pgd: Under PGD with 20 steps, clipped; None where it was not measured.
    """

    steps: int
    calls: float
    seconds: float
    clean: float
    fgsm: float
    clipped: float
    pgd: float | None = None


@dataclass
class Curve:
    """One training run.

    Attributes:
        points: Its evaluations.
        inner: What its adversary reaches in the end.
    """

    points: list[Point]
    inner: Inner | None = None

    def arrival(self, metric: str, level: float) -> Point | None:
        """Where an accuracy is reached, or None.

        That is the middle of the first three neighbouring evaluations whose mean is at least it.
        """
        seen = [point for point in self.points if getattr(point, metric) is not None]
        for i in range(len(seen) - WINDOW + 1):
            window = seen[i : i + WINDOW]
            if sum(getattr(point, metric) for point in window) / WINDOW >= level:
                return window[WINDOW // 2]
        return None


# Running.


Make = Callable[[nn.Module, data.Dataset, Setting], Loop]

SLOW: dict[str, Make] = {
    "Adam, 15 steps": lambda model, dataset, setting: Adam15(model, setting),
    "NeAda as released": lambda model, dataset, setting: Released(model, setting),
}


def run(
    task: Task, make: Make, seed: int, keep: Callable[[Curve], None] = lambda curve: None
) -> Curve:
    """Train until all accuracies are reached, or for the most steps.

    Args:
        task: What and how long.
        make: Makes the loop.
        seed: Of the split, the network, the order of the batches and random starts.
        keep: Gets what is there after every evaluation.
    """
    dataset = load(task, seed)
    model = models.make(task.model, dataset.input_shape, dataset.num_classes, seed=seed)
    loop = make(model, dataset, Setting(task.gamma, task.eps, seed=seed))
    batches = batches_of(task, dataset, seed)
    curve = Curve([])
    seconds = 0.0
    while loop.x_steps < task.max_steps and not has_all(task, curve):
        target = loop.x_steps + task.every
        while loop.x_steps < target:
            batch = next(batches)
            begin = time.process_time()
            loop.step(*batch)
            seconds += time.process_time() - begin
        with_pgd = len(curve.points) % task.pgd_every == 0
        accuracies = evaluate(task, model, dataset, with_pgd)
        curve.points.append(Point(loop.x_steps, loop.calls, seconds, **accuracies))
        keep(curve)
    fixed = next(batches_of(task, dataset, seed + 1_000_000))
    curve.inner = judge(copy.deepcopy(model), loop, *fixed)
    keep(curve)
    return curve


def load(task: Task, seed: int) -> data.Dataset:
    # Half of the digits are held out, since a fifth would be 360.
    fraction = 0.5 if task.data == "digits" else None
    return data.load(task.data, seed=seed, test_fraction=fraction)


def batches_of(task: Task, dataset: data.Dataset, seed: int) -> Iterator[tuple[Tensor, ...]]:
    return data.Batches(
        dataset.inputs_train, dataset.targets_train, task.batch_size, seed=seed, drop_last=True
    ).endless()


def has_all(task: Task, curve: Curve) -> bool:
    return all(
        curve.arrival(metric, level) for metric in METRICS for level in task.levels[metric]
    )


def evaluate(
    task: Task, model: nn.Module, dataset: data.Dataset, with_pgd: bool
) -> dict[str, float]:
    """Accuracies on held-out samples."""
    part = dataset.splits.get("held-out", dataset.splits["test"])
    inputs, targets = (tensor[: task.eval_samples] for tensor in part)
    some = list(zip(inputs.split(250), targets.split(250), strict=True))
    fgsm = attacks.robust_accuracy(model, some, "fgsm", task.eps)
    clipped = attacks.robust_accuracy(model, some, "fgsm", task.eps, bounds=dataset.bounds)
    found = {
        "clean": fgsm.clean,
        "fgsm": fgsm.attacked[task.eps],
        "clipped": clipped.attacked[task.eps],
    }
    if with_pgd:
        fewer = [(inputs[: task.pgd_samples], targets[: task.pgd_samples])]
        pgd = attacks.robust_accuracy(
            *(model, fewer, "pgd", task.eps),
            bounds=dataset.bounds,
            num_steps=20,
            num_restarts=0,
        )
        found["pgd"] = pgd.attacked[task.eps]
    return found


# The slow loops are kept in files.


RESULTS = Path(__file__).parent / "results"


def slow_file(task: Task, name: str) -> Path:
    words = name.lower().replace(",", "").replace(" ", "-")
    return RESULTS / f"robust_race_{task.data}_{words}.json"


def run_slowly(task: Task, name: str, seed: int = 0) -> Curve:
    """Run a slow loop and write what is there after every evaluation."""
    RESULTS.mkdir(exist_ok=True)

    def keep(curve: Curve) -> None:
        content = {
            "loop": name,
            "seed": seed,
            "task": dataclasses.asdict(task),
            "machine": f"1 thread, {platform.machine()}, torch {torch.__version__}",
            **dataclasses.asdict(curve),
        }
        files.write_json(slow_file(task, name), content)

    return run(task, SLOW[name], seed, keep)


def read_slow(task: Task, name: str) -> Curve:
    content: dict[str, Any] = files.read_json(slow_file(task, name))
    inner = content["inner"]
    return Curve(
        [Point(**point) for point in content["points"]], None if inner is None else Inner(**inner)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow-loop", choices=SLOW)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run_slowly(MNIST, arguments.slow_loop)


if __name__ == "__main__":
    main()
