"""What Figures 3 and 4 share: training runs, their numbers and claims, and how they are drawn."""

import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from matplotlib.figure import Figure

from neada import models
from neada.data import Batches
from neada.runs import RunFolder
from neada.training import (
    TrainConfig,
    TrainStatus,
    accuracy_names,
    evaluations,
    load_data,
    train,
)
from reproduction import figures
from reproduction.experiment import Array, Claim, Record, Relation, interval
from reproduction.released import ReleasedTraining

Runs = Mapping[int, Record]
"""The runs of one method with one learning rate, by seed."""
Method = Literal["gdmax", "neada", "library"]
METHODS: dict[Method, str] = {
    "gdmax": "Adam, 15 inner steps",
    "neada": "NeAda-Adam",
    "library": "NeAda-Adam, library",
}
"""The two loops of the authors' released code, and the library's Algorithm 2."""
_RELEASED: tuple[Method, Method] = ("gdmax", "neada")
Lines = Mapping[str, Runs]
"""Runs by the label of their line."""
_BEGINNING, _END = 0.2, 0.95
"""The beginning of a run is its first fifth, the end its last twentieth, in gradient calls."""
_POINTS, _ROWS = 60, 100
_TRAINING, _DIVERGED = "training", "diverged"


@dataclass(frozen=True)
class TrainingRun:
    """The config of one training run of Figure 3 or 4.

    Attributes:
        method: The authors' loop with 15 inner steps or NeAda's rule, the library's Algorithm 2, or
            the library's default.
        lr_y: The adversary's learning rate; None for the default, which has none.
        seed: Of the initialization and the order of the batches, and of synthetic data.
        max_calls: Gradient calls of both players.
        data: "synthetic", "mnist" with the paper's network, or "digits" with a small one.
        num_evaluations: How often the accuracies are measured.
        eval_samples: On how many images; at the end on all as well.
        lr_x: The model's learning rate.
        gamma: The price per squared distance.
        stop_scale: The constant of NeAda's rule in the authors' loop; the library has its default.
        batch_size: Samples per batch.
    """

    method: Method | Literal["default"]
    lr_y: float | None
    seed: int
    max_calls: int
    data: Literal["synthetic", "digits", "mnist"] = "mnist"
    num_evaluations: int = 8
    eval_samples: int | None = None
    lr_x: float = 0.001
    gamma: float = 1.3
    stop_scale: float = 1.0
    batch_size: int = 128

    @property
    def label(self) -> str:
        """The method, the learning rate, the data and the seed."""
        rate = "" if self.lr_y is None else f" {self.lr_y:g}"
        return f"{self.method}{rate} {self.data} seed {self.seed}"

    @property
    def eps(self) -> tuple[float, ...]:
        """The sizes of the attacks."""
        return (0.5,) if self.data == "synthetic" else (0.02, 0.05, 0.1)

    @property
    def eval_every(self) -> int:
        """Gradient calls between two evaluations."""
        return max(1, self.max_calls // self.num_evaluations)


def run(config: TrainingRun, run: RunFolder) -> None:
    """Train, and attack with every size; interrupted runs on images are resumed."""
    is_synthetic = config.data == "synthetic"
    asked = train_config(
        config,
        data=config.data,
        y_optimizer=None if config.method == "default" else "adam",
        eval_every=config.eval_every,
        eval_samples=config.eval_samples,
        eval_eps=config.eps,
        **({"data_seed": config.seed} if is_synthetic else {"final_samples": "all"}),
    )
    if config.method in _RELEASED:
        train_released(config, asked, run)
    else:
        train_into(asked, run, resumable=not is_synthetic)


def train_config(config: Any, **options: Any) -> TrainConfig:
    """The library's config for a run of an experiment, with some options that differ."""
    fields = ("lr_x", "lr_y", "gamma", "batch_size", "max_calls", "seed")
    common = {name: getattr(config, name) for name in fields}
    return TrainConfig(device="cpu", eval_clip=False, **common, **options)


def train_into(config: TrainConfig, run: RunFolder, *, resumable: bool) -> None:
    """Train, and append the rows of the training to the run.

    A training that diverges is a result: from there on it has no network, so its accuracies are 0.

    Args:
        config: What to train.
        run: Takes the rows.
        resumable: Keep checkpoints in the run's folder, from which the next attempt resumes.
    """
    folder = run.path / _TRAINING if resumable else None
    finished = folder is not None and (folder / "result.json").exists()
    try:
        result = train(config, folder, resume=resumable and not finished, overwrite=finished)
    except ValueError:
        if folder is None or finished:
            raise
        result = train(config, folder, overwrite=True)  # the earlier attempt cannot be resumed
    if result.status is TrainStatus.INTERRUPTED:
        _give_way()
    run.append(result.rows)
    if result.status is TrainStatus.NON_FINITE:
        none_right = dict.fromkeys(accuracy_names(config, load_data(config)), 0.0)
        ends = (result.calls, config.max_calls)
        run.append([{"calls": end, **none_right, _DIVERGED: result.message} for end in ends])


def train_released(config: TrainingRun, asked: TrainConfig, run: RunFolder) -> None:
    """Train with the authors' released loop, and append losses and accuracies to the run.

    There is a checkpoint with every evaluation; the next attempt resumes from the last one.
    """
    assert config.lr_y is not None
    points = load_data(asked)
    shape = points.input_shape, points.num_classes
    model = models.make(asked.model_name, *shape, seed=config.seed)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    state = ReleasedTraining(
        model,
        torch.optim.Adam(model.parameters(), lr=config.lr_x),
        config.lr_y,
        config.gamma,
        config.max_calls,
        inner_steps=15 if config.method == "gdmax" else None,
        stop_scale=config.stop_scale,
    )
    batches = Batches(
        points.inputs_train, points.targets_train, config.batch_size, seed=config.seed
    )
    rows: list[dict[str, Any]] = []
    folder = RunFolder(run.path / _TRAINING)
    finished = (folder.path / "result.json").exists()
    checkpoint = None if finished else next(folder.checkpoints(), None)
    if checkpoint is None:
        folder.start({}, overwrite=True)
    else:
        folder.resume(checkpoint)
        state.load_state_dict(checkpoint.state["training"])
        batches.load_state_dict(checkpoint.state["batches"])
        rows = checkpoint.state["rows"]
    for row, at_end in _released_rows(state, batches, config.eval_every):
        if at_end is None:
            rows.append(row)
            continue
        rows += [row | found for found in evaluations(asked, model, points, at_end)]
        folder.save_checkpoint(
            {"training": state.state_dict(), "batches": batches.state_dict(), "rows": rows}
        )
    run.append(rows)
    folder.finish()


def _released_rows(
    state: ReleasedTraining, batches: Batches, every: int
) -> Iterator[tuple[dict[str, Any], bool | None]]:
    """Train, and yield rows of the metrics: 100 in total, and one for every evaluation.

    With each row: whether it is the last one; None if the model is not evaluated there.
    """
    losses: list[float] = []
    for inputs, targets, _ in batches.endless():
        if state.calls == state.max_calls:
            return
        before = state.calls
        loss = state.step(inputs, targets)
        losses += [] if loss is None else [loss]
        at_end = state.calls == state.max_calls
        is_evaluated = at_end or state.calls // every > before // every
        num_rows = [calls * _ROWS // state.max_calls for calls in (before, state.calls)]
        if is_evaluated or num_rows[1] > num_rows[0]:
            row: dict[str, Any] = {"calls": state.calls, "x_steps": state.x_steps}
            row |= {"loss": float(np.mean(losses))} if losses else {}
            losses = []
            yield row, at_end if is_evaluated else None


def _give_way() -> NoReturn:
    """Pass on the signal that training has answered with a checkpoint."""
    if multiprocessing.parent_process() is not None:
        # A worker that only raised would take up the next task.
        signal.raise_signal(signal.SIGTERM)
    raise KeyboardInterrupt


# Numbers.


def by_seed(records: Iterable[Record], **fields: Any) -> dict[int, Record]:
    """The runs whose configs have these values, by their seeds."""
    return {
        record.config.seed: record
        for record in records
        if all(getattr(record.config, name) == value for name, value in fields.items())
    }


def of_all(runs: Runs, measure: Callable[[Record], float]) -> Array:
    """A number of every run."""
    return np.array([measure(record) for record in runs.values()], dtype=float)


def means(measure: Callable[[Record], float], *groups: Runs) -> list[float]:
    """The mean of a number over each group of runs that has any."""
    return [float(of_all(runs, measure).mean()) for runs in groups if runs]


def differences(first: Runs, second: Runs, measure: Callable[[Record], float]) -> Array:
    """By how much a number of the second runs is larger, for every seed that both have."""
    both = [seed for seed in first if seed in second]
    return np.array([measure(second[s]) - measure(first[s]) for s in both], dtype=float)


def last(record: Record, name: str) -> float:
    """A number of the last row."""
    return float(record.rows[-1][name])


def _end_of(record: Record) -> float:
    """After how many calls a run diverged; infinite if it did not."""
    return min((row["calls"] for row in record.rows if _DIVERGED in row), default=math.inf)


def divergences(*groups: Runs) -> str:
    """How many of some runs diverged, for a note; empty if none did."""
    ends = [_end_of(record) for runs in groups for record in runs.values()]
    count = sum(math.isfinite(end) for end in ends)
    return f"; {count} of {len(ends)} runs diverged" if count else ""


def mean_loss_of_beginning(record: Record) -> float:
    """The mean training loss over the first fifth of the calls; infinite if it diverged there."""
    until = _BEGINNING * record.config.max_calls
    if _end_of(record) <= until:
        return math.inf
    calls, losses = _column(record, "loss")
    if not len(calls):  # the calls ended before the first step of the model
        return math.nan
    grid = np.linspace(0.0, until, _POINTS + 1)[1:]
    return float(np.interp(grid, calls, losses).mean())


def end_loss(record: Record) -> float:
    """The mean training loss over the last twentieth of the calls; infinite if it diverged."""
    if _end_of(record) < math.inf:
        return math.inf
    calls, losses = _column(record, "loss")
    ending = losses[calls > _END * record.config.max_calls]
    return float(ending.mean()) if len(ending) else math.nan


def over_calls(runs: Runs, name: str) -> tuple[Array, Array]:
    """A column of several runs at common calls: (calls, values with a column per run)."""
    columns = [column for r in runs.values() if len((column := _column(r, name))[0])]
    if not columns:  # all diverged before the first row
        return np.empty(0), np.empty((0, 1))
    # Nothing is made up where a run has not been measured yet.
    begin = max(c[0] for c, _ in columns)
    end = max(begin, min(c[-1] for c, _ in columns))
    grid = np.linspace(begin, end, min(_POINTS, *(len(c) for c, _ in columns)))
    return grid, np.stack([np.interp(grid, *column) for column in columns], axis=1)


def about_mean(claim: Claim, values: Array) -> Claim:
    """Complete a claim about the mean of a number that every seed has.

    It is tested if the 95 % confidence interval of the mean lies on one side of the expected
    number, or inside or outside the expected range.
    """
    values = np.round(values, 9)  # the rounding of shares would make a tie a lead
    limits = claim.expected if isinstance(claim.expected, tuple) else (claim.expected,)
    note, untested = claim.note, claim.untested
    if len(values) < 2:
        untested = untested or "a single seed allows no conclusion"
    else:
        low, high = interval(values)
        words = f"95 % interval from {low:.3g} to {high:.3g}"
        if not all(high < limit or limit < low for limit in limits):
            untested = untested or f"the {words} allows no conclusion"
        note = "; ".join(part for part in (words, note) if part)
    mean, seeds = float(values.mean()), len(values)
    return replace(claim, measured=mean, seeds=seeds, note=note, untested=untested)


def accuracy(eps: float) -> Callable[[Record], float]:
    """The accuracy under FGSM in percent; where nothing is held out, on the test set."""

    def measure(record: Record) -> float:
        name = f"held_out_{eps:g}"
        return 100.0 * last(record, name if name in record.rows[-1] else f"test_{eps:g}")

    return measure


@dataclass(frozen=True)
class Comparison:
    """The runs of a figure, and claims about them.

    Attributes:
        name: The experiment.
        where: Its place in the paper.
        records: All runs.
        rates: Separate and equal learning rates: lr_y in both cases.
        untested: Why the runs test nothing, if they do not.
    """

    name: str
    where: str
    records: Sequence[Record]
    rates: tuple[float, float]
    untested: str = ""

    def runs(self, method: str, lr_y: float | None = None) -> Runs:
        """The runs of a method, by seed."""
        return by_seed(self.records, method=method, lr_y=lr_y)

    def mean(
        self,
        name: str,
        sentence: str,
        values: Array,
        relation: Relation,
        expected: float | tuple[float, float],
        note: str = "",
        where: str = "",
    ) -> Claim:
        """A claim about the mean of a number that every seed has."""
        place = f"{self.name}/{name}", sentence, where or self.where
        claim = Claim(*place, None, relation, expected, note=note, untested=self.untested)
        return about_mean(claim, values)

    def level(self, name: str, words: str, method: str, eps: float, expected: float) -> Claim:
        """The claim that a method is accurate with separate learning rates."""
        found = of_all(self.runs(method, self.rates[0]), accuracy(eps))
        sentence = f"{self._words(0)} {words}: its mean accuracy under FGSM of {eps:g}, in percent"
        return self.mean(name, sentence, found, ">=", expected)

    def lead(
        self, name: str, words: str, ours: Runs, theirs: Runs, eps: float, where: str = ""
    ) -> Claim:
        """The claim that some runs are more accurate under attack than others."""
        sentence = f"{words} under FGSM of {eps:g}: its mean lead in percentage points"
        leads, note = differences(theirs, ours, accuracy(eps)), _beside(ours, theirs, eps)
        return self.mean(name, sentence, leads, ">", 0.0, note, where)

    def advantages(self, eps: float) -> Array:
        """How much more Adam loses than NeAda from separate to equal rates, by seed."""
        return self.drops("gdmax", eps) - self.drops("neada", eps)

    def drops(self, method: str, eps: float) -> Array:
        """What a method loses from separate to equal learning rates, by seed."""
        separate, equal = (self.runs(method, rate) for rate in self.rates)
        return differences(equal, separate, accuracy(eps))

    def lower_loss(
        self, name: str, words: str, measure: Callable[[Record], float], one: Runs, other: Runs
    ) -> Claim:
        """The claim that the loss of some runs is lower than that of others."""
        both = means(measure, one, other)
        against = "{:.3g} against {:.3g}".format(*both) if len(both) == 2 else ""
        note = against and against + divergences(one, other)
        return self.mean(name, words, differences(other, one, measure), "<", 0.0, note)

    def neada_and_adam(self) -> list[Claim]:
        """What the paper says in both figures about NeAda and Adam with 15 inner steps."""
        found, losses = [], []
        sizes = self.records[0].config.eps
        names = {eps: f"-{eps:g}" if len(sizes) > 1 else "" for eps in sizes}
        for number, rate in enumerate(self.rates):
            words, adam, neada = self._words(number), *(self.runs(m, rate) for m in _RELEASED)
            more = f"{words} NeAda is more accurate than Adam with 15 inner steps"
            found += [
                self.lead(f"higher-{rate:g}{name}", more, neada, adam, eps)
                for eps, name in names.items()
            ]
            first = (
                f"{words} NeAda's training loss is lower at the beginning: its mean over the first "
                "fifth of the calls minus Adam's"
            )
            name = f"loss-first-{rate:g}"
            losses.append(self.lower_loss(name, first, mean_loss_of_beginning, neada, adam))
        drops = [
            self.mean(
                f"smaller-drop{name}",
                f"from lr_y = {self.rates[0]:g} to equal learning rates NeAda loses less accuracy "
                f"than Adam under FGSM of {eps:g}: Adam's loss minus NeAda's in percentage points",
                self.advantages(eps),
                ">",
                0.0,
            )
            for eps, name in names.items()
        ]
        return [*found, *drops, *losses]

    def _words(self, number: int) -> str:
        return (f"with lr_y = {self.rates[0]:g}", "with equal learning rates")[number]


def _beside(ours: Runs, theirs: Runs, eps: float) -> str:
    """The accuracies behind a lead."""
    if not ours or not theirs:
        return ""
    both = means(accuracy(eps), ours, theirs)
    return "{:.1f} % against {:.1f} %".format(*both) + divergences(theirs, ours)


def _column(record: Record, name: str) -> tuple[Array, Array]:
    # The last evaluation was of all samples, the one before it at the same calls of as many as the
    # others: a curve is about the same samples throughout.
    rows = [row for row in record.rows if name in row]
    sizes = [row["eval_samples"] for row in rows if "eval_samples" in row]
    rows = [row for row in rows if row.get("eval_samples") in (None, *sizes[:1])]
    calls, values = (np.array([row[of] for row in rows], dtype=float) for of in ("calls", name))
    return calls, values


# Figures.


def panel(
    title: str, column: str, lines: Lines, guides: Sequence[figures.Guide] = ()
) -> figures.Panel:
    """An accuracy (in percent) or the loss of all runs, as a line for every group of them."""
    is_loss = column == "loss"
    curves = []
    for label, runs in lines.items():
        if runs:
            calls, values = over_calls(runs, column)
            curves.append(figures.Curve(label, calls, values if is_loss else 100.0 * values))
    y_label = "loss at the perturbed batch" if is_loss else "accuracy (%)"
    scale: figures.Scale = "log" if is_loss else "linear"
    return figures.Panel(title, curves, guides=guides, y_label=y_label, y_scale=scale)


def sample_note(records: Sequence[Record], what: str) -> str:
    """Words about the sample size of the points of a curve; empty if nothing was evaluated."""
    sizes = sorted({rows[0] for r in records if (rows := r.column("eval_samples")).size})
    number = " or ".join(f"{size:.0f}" for size in sizes)
    return f"each point: accuracy on {number} {what}" if sizes else ""


def figure_of(panels: Sequence[figures.Panel], records: Sequence[Record], what: str) -> Figure:
    """The panels, two in a row, with one legend; accuracies are measured on `what`."""
    drawn = figures.curves_figure(
        panels,
        num_columns=2,
        y_label="",
        legend_columns=2,
        panel_size=(4.6, 3.1),
        bands="mean",
        note=sample_note(records, what),
    )
    for axes in drawn.axes:
        axes.set_xlim(0.0, 1.02 * max(r.config.max_calls for r in records))
    return drawn
