"""What Figures 3 and 4 share: training runs, numbers of them, and how they are drawn."""

import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from neada.runs import RunFolder
from neada.training import TrainConfig, TrainStatus, accuracy_names, load_data, train
from reproduction import figures
from reproduction.experiment import Array, Claim, Progress, Record, Relation, if_complete

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "METHODS",
    "Lines",
    "Method",
    "Runs",
    "about_mean",
    "by_seed",
    "differences",
    "divergences",
    "drop_differences",
    "end_loss",
    "falls_first",
    "figure_of",
    "last",
    "lower_loss",
    "mean",
    "mean_loss_of_beginning",
    "of_all",
    "over_calls",
    "panel",
    "quotient",
    "sample_note",
    "train_into",
    "training",
]

Runs = Mapping[int, Record]
"""The runs of one method with one learning rate, by seed."""
Method = Literal["gdmax", "neada"]
METHODS: dict[Method, str] = {"gdmax": "Adam, 15 inner steps", "neada": "NeAda-Adam"}
Lines = Mapping[str, Runs]
"""Runs by the label of their line."""
_BEGINNING, _END = 0.2, 0.95
"""The beginning of a run is its first fifth, the end its last twentieth, in gradient calls."""
_POINTS = 60
_TRAINING, _DIVERGED = "training", "diverged"


def training(config: Any, **others: Any) -> TrainConfig:
    """The training that a config asks for, with the inner loop of the authors' scripts.

    Args:
        config: Has the fields that both figures have.
        others: Fields of the training that only one of them has, or that differ from the scripts'.
    """
    usual: dict[str, Any] = {
        "method": config.method,
        "y_optimizer": "adam",
        "inner_steps": 15 if config.method == "gdmax" else None,
        "stop": "released",
        "eval_samples": None,
    }
    return TrainConfig(
        device="cpu",
        x_optimizer="adam",
        lr_x=config.lr_x,
        lr_y=config.lr_y,
        gamma=config.gamma,
        batch_size=config.batch_size,
        max_calls=config.max_calls,
        stop_scale=config.stop_scale,
        eval_every=max(1, config.max_calls // config.num_evaluations),
        eval_clip=False,
        seed=config.seed,
        **(usual | others),
    )


def train_into(config: TrainConfig, run: RunFolder, progress: Progress, *, resumable: bool) -> None:
    """Train, and append the rows of the training to the run.

    A training that diverges is a result: from there on it has no network, so its accuracies are 0.

    Args:
        config: What to train.
        run: Takes the rows.
        progress: Called with the part that is done.
        resumable: Keep checkpoints in the run's folder; the next attempt goes on from there.
    """
    folder = run.path / _TRAINING if resumable else None
    # A training that had finished is in the way only when somebody wants it done again.
    finished = folder is not None and (folder / "result.json").exists()
    begin = partial(train, config, folder, progress=lambda seen: progress(seen.part))
    try:
        result = begin(resume=resumable and not finished, overwrite=finished)
    except ValueError:
        if folder is None or finished:
            raise
        result = begin(overwrite=True)  # what is left of an earlier attempt cannot go on
    if result.status is TrainStatus.INTERRUPTED:
        _give_way()
    run.append(result.rows)
    if result.status is TrainStatus.NON_FINITE:
        none_right = dict.fromkeys(accuracy_names(config, load_data(config)), 0.0)
        ends = (result.calls, config.max_calls)
        run.append([{"calls": end, **none_right, _DIVERGED: result.message} for end in ends])


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


def differences(first: Runs, second: Runs, measure: Callable[[Record], float]) -> Array:
    """By how much a number of the second runs is larger, for every seed that both have."""
    both = [seed for seed in first if seed in second]
    return _exact([measure(second[s]) - measure(first[s]) for s in both])


def drop_differences(
    first: tuple[Runs, Runs], second: tuple[Runs, Runs], measure: Callable[[Record], float]
) -> Array:
    """How much more the first method loses than the second, for every seed that all runs have.

    Args:
        first: A method's runs before and after a change.
        second: Another method's.
        measure: What is lost.
    """
    groups = (*first, *second)
    seeds = [seed for seed in groups[0] if all(seed in runs for runs in groups)]
    return _exact(
        [
            (measure(first[0][s]) - measure(first[1][s]))
            - (measure(second[0][s]) - measure(second[1][s]))
            for s in seeds
        ]
    )


def _exact(differences: list[float]) -> Array:
    """Differences of shares without the rounding that would make a tie a lead."""
    return np.round(np.array(differences, dtype=float), 9)


def mean(values: Array) -> float | None:
    """The mean of what there is; None of nothing."""
    return float(values.mean()) if len(values) else None


def quotient(a: float, b: float) -> float:
    """The ratio of a to b; not a number where b is 0, so that no claim about it holds."""
    return a / b if b else math.nan


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
    evaluated = all("eval_samples" in row for r in runs.values() for row in r.rows if name in row)
    if evaluated and len({len(c) for c, _ in columns}) == 1:
        # Every point is a measurement of every run, at about the same calls.
        calls, values = (np.stack(both, axis=1) for both in zip(*columns, strict=True))
        return calls.mean(axis=1), values
    # Nothing is made up where a run has not been measured yet.
    begin = max(c[0] for c, _ in columns)
    end = max(begin, min(c[-1] for c, _ in columns))
    grid = np.linspace(begin, end, min(_POINTS, *(len(c) for c, _ in columns)))
    return grid, np.stack([np.interp(grid, *column) for column in columns], axis=1)


def about_mean(
    id: str,
    sentence: str,
    where: str,
    values: Array,
    relation: Relation,
    expected: float | tuple[float, float],
    note: str = "",
) -> Claim:
    """A claim about the mean of a number that every seed has."""
    return Claim(id, sentence, where, mean(values), relation, expected, len(values), note)


def lower_loss(
    id: str, sentence: str, where: str, measure: Callable[[Record], float], one: Runs, other: Runs
) -> Claim:
    """The claim that the mean loss of some runs, divided by that of others, is below 1."""
    losses = [mean(of_all(runs, measure)) for runs in (one, other)]
    measured = if_complete(lambda both: quotient(*both), losses)
    against = "" if measured is None else f"{losses[0]:.3g} against {losses[1]:.3g}"
    return Claim(
        *(id, sentence, where, measured, "<", 1.0),
        seeds=min(len(one), len(other)),
        note=against and against + divergences(one, other),
    )


def falls_first(id: str, where: str, words: str, adam: Runs, neada: Runs) -> Claim:
    """The claim that NeAda's training loss is the lower at the beginning."""
    sentence = (
        f"{words} NeAda's training loss is the lower at the beginning: its mean over the first "
        "fifth of the calls, divided by Adam's"
    )
    return lower_loss(id, sentence, where, mean_loss_of_beginning, neada, adam)


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
    title: str,
    column: str,
    y_label: str,
    lines: Lines,
    *,
    percent: bool = False,
    logarithmic: bool = False,
    levels: Sequence[tuple[str, float]] = (),
) -> figures.Panel:
    """One column of all runs, as a line for every group of them.

    Args:
        title: Above the panel.
        column: The name of the numbers in the rows.
        y_label: Left of the panel.
        lines: The groups.
        percent: Show 100 times the numbers.
        logarithmic: The scale of the y axis.
        levels: Horizontal lines to compare with, and their names.
    """
    curves = []
    for label, runs in lines.items():
        if runs:
            calls, values = over_calls(runs, column)
            curves.append(figures.Curve(label, calls, 100.0 * values if percent else values))
    scale: Literal["log", "linear"] = "log" if logarithmic else "linear"
    return figures.Panel(title, curves, levels=levels, y_label=y_label, y_scale=scale)


def sample_note(records: Sequence[Record], what: str) -> str:
    """Words about the sample size of the points of a curve; empty if nothing was evaluated."""
    sizes = sorted({rows[0] for r in records if (rows := r.column("eval_samples")).size})
    number = " or ".join(f"{size:.0f}" for size in sizes)
    return f"each point: accuracy on {number} {what}" if sizes else ""


def figure_of(panels: Sequence[figures.Panel], records: Sequence[Record], what: str) -> "Figure":
    """The panels, two in a row, with one legend.

    Args:
        panels: What is drawn.
        records: The runs behind them.
        what: What an accuracy is measured on, in plural.
    """
    drawn = figures.curves_figure(
        panels,
        num_columns=2,
        y_label="",
        legend_columns=2,
        panel_size=(4.6, 3.1),
        note=sample_note(records, what),
    )
    for axes in drawn.axes:
        axes.set_xlim(0.0, 1.02 * max(r.config.max_calls for r in records))
    return drawn
