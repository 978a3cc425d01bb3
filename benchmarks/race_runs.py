"""The runs of `robust_race.py`: what is trained, who takes part, and the files of finished runs."""

import copy
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pages
import torch
from race_loops import Adam15, FastAT, FreeAT, Inner, Loop, Released, Setting, judge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neada import attacks, data, models, robust, runs
from neada.inner import Counters

METRICS = {"fgsm": "FGSM", "clipped": "FGSM, clipped", "pgd": "PGD-20"}
WINDOW = 3
CALIBRATION_STEPS = 3
RESULTS = Path(__file__).parent / "results"


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
        levels: The accuracies to reach, by metric; the last one of FGSM is compared.
        seeds: How many seeds there are, unless told.
        judge_steps: Spectral steps that the adversaries are compared with.
        has_slow_files: Whether the slow loops are read from files.
        targets: How many times as fast as the loop of that name the library's default should be,
            and the goal beyond.
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
    levels: Mapping[str, tuple[float, ...]]
    seeds: int
    judge_steps: int = 100
    has_slow_files: bool = False
    targets: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


ADAM15, RELEASED = "Adam, 15 steps", "NeAda as released"
DEFAULT = "`WRM`"

DIGITS = Task(
    data="digits",
    model="small-cnn",
    gamma=3.0,
    eps=0.1,
    batch_size=128,
    every=10,
    pgd_every=1,
    max_steps=300,
    eval_samples=898,
    pgd_samples=898,
    levels={"fgsm": (0.60, 0.72), "clipped": (0.80,), "pgd": (0.76,)},
    seeds=5,
)
MNIST = Task(
    data="mnist",
    model="cnn",
    gamma=1.3,
    eps=0.1,
    batch_size=128,
    every=20,
    pgd_every=2,
    max_steps=500,
    eval_samples=2000,
    pgd_samples=500,
    levels={"fgsm": (0.70, 0.76), "clipped": (0.80, 0.85), "pgd": (0.75, 0.80)},
    seeds=3,
    has_slow_files=True,
    targets={ADAM15: (10.0, 15.0), RELEASED: (2.5, 4.0)},
)
QUICK = dataclasses.replace(
    DIGITS,
    batch_size=32,
    every=4,
    max_steps=12,
    eval_samples=100,
    pgd_samples=50,
    levels={"fgsm": (0.0,), "clipped": (0.0,), "pgd": (2.0,)},
    seeds=1,
    judge_steps=5,
    targets={ADAM15: (1.0, 1e9)},
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
        inner: What its adversary reaches in the end; None before it.
    """

    points: list[Point]
    inner: Inner | None = None

    def seen(self, metric: str) -> list[Point]:
        """The evaluations that measured an accuracy."""
        return [point for point in self.points if getattr(point, metric) is not None]

    def arrival(self, metric: str, level: float) -> Point | None:
        """Where an accuracy is reached, or None.

        That is the middle of the first three neighbouring evaluations whose mean is at least it.
        """
        seen = self.seen(metric)
        for i in range(len(seen) - WINDOW + 1):
            window = seen[i : i + WINDOW]
            if statistics.fmean(getattr(point, metric) for point in window) >= level:
                return window[WINDOW // 2]
        return None

    def has_all(self, task: Task) -> bool:
        """Whether every accuracy is reached."""
        return all(self.arrival(name, level) for name in METRICS for level in task.levels[name])


# The contestants: the plain loops, and the library's.


class Nested(Loop):
    """An objective as the library constructs it.

    Args:
        model: The network.
        setting: The numbers, of which only gamma or eps and the network's learning rate are used.
        dataset: What is trained on.
        in_ball: `AdversarialTraining` instead of `WRM`.
        whole_batch: Whether all samples stop together, not each by itself.
        warm: Whether perturbations are kept between epochs.
    """

    def __init__(
        self,
        model: nn.Module,
        setting: Setting,
        dataset: data.Dataset,
        *,
        in_ball: bool = False,
        whole_batch: bool = False,
        warm: bool = False,
    ) -> None:
        super().__init__(model, setting)
        self.in_ball = in_ball
        self.warm = warm
        adversary = robust.Adversary(
            per_sample=False if whole_batch else None, start="kept" if warm else "clean"
        )
        self.objective = (
            robust.AdversarialTraining(model, cross_entropy, setting.eps, adversary=adversary)
            if in_ball
            else robust.WRM(model, cross_entropy, setting.gamma, adversary=adversary)
        )

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> None:
        """One step of the objective."""
        self.objective.step(self.x_optimizer, inputs, targets, ids if self.warm else None)
        self.x_steps = self.objective.outer_steps
        self.calls = calls_of(self.objective.counters, len(inputs))

    def perturb(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The objective's inner loop."""
        return self.objective.perturb(inputs, targets, ids if self.warm else None).inputs


def calls_of(counters: Counters, batch_size: int) -> float:
    samples = counters.samples_x + counters.samples_y
    return samples / batch_size + counters.calls_value


Make = Callable[[nn.Module, Setting, data.Dataset], Loop]

SLOW: dict[str, Make] = {
    ADAM15: lambda model, setting, dataset: Adam15(model, setting),
    RELEASED: lambda model, setting, dataset: Released(model, setting),
}
AGAINST: dict[str, Make] = {
    **SLOW,
    "Fast-AT": lambda model, setting, dataset: FastAT(model, setting),
    "Free-AT, 4 replays": lambda model, setting, dataset: FreeAT(model, setting),
}
PLAIN = tuple(AGAINST.values())
CONTESTANTS: dict[str, Make] = {
    **AGAINST,
    DEFAULT: Nested,
    "`WRM`, whole batch": functools.partial(Nested, whole_batch=True),
    "`WRM`, warm start": functools.partial(Nested, warm=True),
    "`AdversarialTraining`": functools.partial(Nested, in_ball=True),
}


# Running.


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
    loop = new_loop(task, make, seed, dataset)
    batches = batches_of(task, dataset, seed)
    curve = Curve([])
    seconds = 0.0
    while loop.x_steps < task.max_steps and not curve.has_all(task):
        end = loop.x_steps + task.every
        while loop.x_steps < end:
            seconds += timed(loop, next(batches))
        with_pgd = len(curve.points) % task.pgd_every == 0
        accuracies = evaluate(task, loop.model, dataset, with_pgd)
        curve.points.append(Point(loop.x_steps, loop.calls, seconds, **accuracies))
        keep(curve)
    fixed = next(batches_of(task, dataset, seed + 1_000_000))
    curve.inner = judge(copy.deepcopy(loop.model), loop, fixed, task.judge_steps)
    keep(curve)
    return curve


def load(task: Task, seed: int) -> data.Dataset:
    # Half of the digits are held out, since a fifth would be 360.
    fraction = 0.5 if task.data == "digits" else None
    return data.load(task.data, seed=seed, test_fraction=fraction)


def new_loop(task: Task, make: Make, seed: int, dataset: data.Dataset) -> Loop:
    model = models.make(task.model, dataset.input_shape, dataset.num_classes, seed=seed)
    if make not in PLAIN and task.model == "cnn":
        # As `neada train` lays it out.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return make(model, Setting(task.gamma, task.eps, seed=seed), dataset)


def batches_of(task: Task, dataset: data.Dataset, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """Full batches only."""
    batches = data.Batches(
        dataset.inputs_train, dataset.targets_train, task.batch_size, seed=seed
    ).endless()
    return (batch for batch in batches if len(batch[0]) == task.batch_size)


def timed(loop: Loop, batch: tuple[Tensor, ...]) -> float:
    begin = time.process_time()
    loop.step(*batch)
    return time.process_time() - begin


def evaluate(
    task: Task, model: nn.Module, dataset: data.Dataset, with_pgd: bool
) -> dict[str, float]:
    """Accuracies on held-out samples."""
    part = dataset.splits.get("held-out", dataset.splits["test"])
    inputs, targets = (tensor[: task.eval_samples] for tensor in part)
    batches = list(zip(inputs.split(250), targets.split(250), strict=True))
    accuracy = functools.partial(attacks.robust_accuracy, model, eps=task.eps)
    plain = accuracy(batches, "fgsm")
    clipped = accuracy(batches, "fgsm", bounds=dataset.bounds)
    found = {
        "clean": plain.clean,
        "fgsm": plain.attacked[task.eps],
        "clipped": clipped.attacked[task.eps],
    }
    if with_pgd:
        fewer = [(inputs[: task.pgd_samples], targets[: task.pgd_samples])]
        pgd = accuracy(fewer, "pgd", bounds=dataset.bounds, num_steps=20, num_restarts=0)
        found["pgd"] = pgd.attacked[task.eps]
    return found


# Runs in files.


def file_of(folder: Path, task: Task, name: str, seed: int) -> Path:
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return folder / f"robust_race_{task.data}_{'_'.join(words)}_{seed}.json"


def is_finished(task: Task, curve: Curve) -> bool:
    at_the_end = bool(curve.points) and curve.points[-1].steps >= task.max_steps
    return curve.inner is not None and (at_the_end or curve.has_all(task))


def run_into(folder: Path | None, task: Task, name: str, seed: int) -> Curve:
    """Run a contestant, or read it where it has been run; without a folder nothing is kept."""
    if folder is None:
        return run(task, CONTESTANTS[name], seed)
    path = file_of(folder, task, name, seed)
    if path.exists() and is_finished(task, known := read(path, task)):
        return known
    folder.mkdir(parents=True, exist_ok=True)

    def keep(curve: Curve) -> None:
        about = {"loop": name, "seed": seed, "machine": pages.machine()}
        content = {**about, "task": dataclasses.asdict(task), **dataclasses.asdict(curve)}
        runs.write_json(path, content)

    return run(task, CONTESTANTS[name], seed, keep)


def read(path: Path, task: Task) -> Curve:
    """A run from its file, if it is one of this task."""
    content = runs.read_json(path)
    for name in ("data", "model", "gamma", "eps", "batch_size", "eval_samples", "pgd_samples"):
        if content["task"][name] != getattr(task, name):
            raise SystemExit(
                f"{path} was run with {name} = {content['task'][name]}, not {getattr(task, name)}; "
                "give another folder, or run it again"
            )
    inner = content["inner"]
    points = [Point(**point) for point in content["points"]]
    return Curve(points, None if inner is None else Inner(**inner))


def read_slow(task: Task, name: str) -> Curve:
    """A slow loop as it was kept, at the present speed."""
    path = file_of(RESULTS, task, name, seed=0)
    if not path.exists():
        raise SystemExit(f"{path} is missing; run the slow loops with --slow-loops")
    return at_present_speed(task, name, read(path, task))


def at_present_speed(task: Task, name: str, curve: Curve) -> Curve:
    """A run of another day, its seconds as if the machine had been as fast as it is now.

    A few steps of the same loop are timed; a call costs the same at any time of the training.
    """
    dataset = load(task, 0)
    loop = new_loop(task, CONTESTANTS[name], 0, dataset)
    batches = batches_of(task, dataset, 0)
    costs = []
    for _ in range(CALIBRATION_STEPS):
        before = loop.calls
        seconds = timed(loop, next(batches))
        costs.append(seconds / (loop.calls - before))
    last = curve.points[-1]
    factor = statistics.median(costs) / (last.seconds / last.calls)
    points = [dataclasses.replace(p, seconds=factor * p.seconds) for p in curve.points]
    return Curve(points, curve.inner)


Curves = dict[str, list[Curve]]


def all_curves(
    task: Task, seeds: int, folder: Path | None, slow_loops: bool, kept_only: bool = False
) -> Curves:
    """The runs of all contestants, seed after seed.

    Args:
        task: What they train.
        seeds: How many seeds.
        folder: Where runs are kept.
        slow_loops: Whether the slow loops run, too, instead of being read.
        kept_only: Whether runs that are not finished in the folder are left out.
    """
    curves: Curves = {name: [] for name in CONTESTANTS}
    for seed in range(seeds):
        for name, found in curves.items():
            pages.progress(f"{task.data}: seed {seed + 1} of {seeds}, {name}")
            if not (task.has_slow_files and name in SLOW):
                if not (kept_only and missing(folder, task, name, seed)):
                    found.append(run_into(folder, task, name, seed))
            elif seed == 0 and slow_loops:
                found.append(run_into(folder or RESULTS, task, name, seed))
            elif seed == 0:
                found.append(read_slow(task, name))
    return {name: found for name, found in curves.items() if found}


def missing(folder: Path | None, task: Task, name: str, seed: int) -> bool:
    """Whether a run is not finished in the folder."""
    path = None if folder is None else file_of(folder, task, name, seed)
    return path is None or not path.exists() or not is_finished(task, read(path, task))
