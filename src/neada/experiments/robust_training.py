"""What Figures 3 and 4 share: training runs, numbers of them, and how they are drawn."""

import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from neada import plots
from neada.experiments.experiment import Claim, Progress, Record
from neada.runs import Run
from neada.training import TrainConfig, TrainStatus, train
from neada.training.evaluation import accuracy_names
from neada.training.loop import load_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "METHODS",
    "Array",
    "Line",
    "Method",
    "Panel",
    "Runs",
    "by_seed",
    "differences",
    "divergences",
    "drop_differences",
    "end_loss",
    "falls_first",
    "figure_of",
    "last",
    "mean",
    "mean_loss_of_beginning",
    "of_all",
    "over_calls",
    "quotient",
    "train_into",
]


Array = NDArray[np.float64]
Runs = Mapping[int, Record]
"""The runs of one method with one learning rate, by seed."""
Method = Literal["adam-15", "neada-adam"]
METHODS: dict[Method, str] = {"adam-15": "Adam, 15 inner steps", "neada-adam": "NeAda-Adam"}
_BEGINNING, _END = 0.2, 0.95
"""The beginning of a run is its first fifth, the end its last twentieth, in gradient calls."""
_POINTS = 60
_TRAINING, _DIVERGED = "training", "diverged"


def train_into(config: TrainConfig, run: Run, progress: Progress, *, resumable: bool) -> None:
    """Train, and append the rows of the training to the run.

    A training that diverges is a result: from there on it has no network, so its accuracies are 0.

    Args:
        config: What to train.
        run: Takes the rows.
        progress: Hears about it.
        resumable: Keep checkpoints in the run's folder; the next attempt goes on from there.
    """
    folder = run.folder / _TRAINING if resumable else None
    # A training that had finished is in the way only when somebody wants it done again.
    finished = folder is not None and (folder / "result.json").exists()
    result = train(
        config,
        folder,
        resume=resumable and not finished,
        overwrite=finished,
        progress=lambda seen: progress(seen.part),
    )
    if result.status is TrainStatus.INTERRUPTED:
        _give_way()
    run.append(result.rows)
    if result.status is TrainStatus.NON_FINITE:
        none_right = dict.fromkeys(accuracy_names(config, load_data(config)), 0.0)
        ends = (result.calls, config.budget)
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
    # Nothing is made up where a run has not been measured yet.
    begin = max(c[0] for c, _ in columns)
    end = max(begin, min(c[-1] for c, _ in columns))
    grid = np.linspace(begin, end, min(_POINTS, *(len(c) for c, _ in columns)))
    return grid, np.stack([np.interp(grid, *column) for column in columns], axis=1)


def falls_first(id: str, where: str, words: str, adam: Runs, neada: Runs) -> Claim:
    """The claim that NeAda's training loss is the lower at the beginning."""
    losses = [mean(of_all(runs, mean_loss_of_beginning)) for runs in (adam, neada)]
    known = [loss for loss in losses if loss is not None]
    there = len(known) == len(losses)
    return Claim(
        id,
        f"{words} NeAda's training loss is the lower at the beginning: its mean over the first "
        "fifth of the calls, divided by Adam's",
        where,
        quotient(known[1], known[0]) if there else None,
        "<",
        1.0,
        seeds=min(len(adam), len(neada)),
        note=f"{known[1]:.3g} against {known[0]:.3g}{divergences(adam, neada)}" if there else "",
    )


def _column(record: Record, name: str) -> tuple[Array, Array]:
    rows = [row for row in record.rows if name in row]
    calls = np.array([row["calls"] for row in rows], dtype=float)
    return calls, np.array([row[name] for row in rows], dtype=float)


@dataclass(frozen=True)
class Line:
    """How one group of runs is drawn.

    Attributes:
        label: Its name in the legend.
        color: Of the line.
        marker: Tells methods apart in grey.
        dashed: Tells learning rates apart.
        runs: By seed.
    """

    label: str
    color: str
    marker: str
    dashed: bool
    runs: Runs


@dataclass(frozen=True)
class Panel:
    """What one panel shows of every line.

    Attributes:
        title: Above it.
        column: The name of the numbers in the rows.
        y_label: Left of it.
        percent: Show 100 times the numbers.
        logarithmic: The scale of the y axis.
        level: A horizontal line to compare with, and its name.
    """

    title: str
    column: str
    y_label: str
    percent: bool = False
    logarithmic: bool = False
    level: tuple[str, float] | None = None


def figure_of(lines: Sequence[Line], panels: Sequence[Panel], num_columns: int) -> "Figure":
    """One panel beside the other: the mean over the seeds, and their range as a shade."""
    figure, axes = plots.new_figure(len(panels), num_columns, panel_size=(4.2, 3.1))
    for panel, cell in zip(panels, axes, strict=True):
        for number, line in enumerate(lines):
            if line.runs:
                _draw(cell, line, panel, number)
        if panel.level is not None:
            name, height = panel.level
            cell.axhline(height, color="0.35", linestyle=":", linewidth=1.0, label=name)
        cell.set_title(panel.title, fontsize=10)
        cell.set_yscale("log" if panel.logarithmic else "linear")
        cell.set_xlim(left=0)
        cell.set_xlabel("gradient calls", fontsize=9)
        cell.set_ylabel(panel.y_label, fontsize=9)
        cell.tick_params(labelsize=8)
        cell.grid(alpha=0.25)
    plots.shared_legend(figure, axes, num_columns=2)
    return figure


def _draw(cell: "Axes", line: Line, panel: Panel, number: int) -> None:
    calls, values = over_calls(line.runs, panel.column)
    values = 100.0 * values if panel.percent else values
    few = len(calls) <= 20
    middle = np.exp(np.log(values).mean(axis=1)) if panel.logarithmic else values.mean(axis=1)
    cell.plot(
        *(calls, middle),
        label=line.label,
        color=line.color,
        linestyle="--" if line.dashed else "-",
        linewidth=1.6,
        marker=line.marker,
        markersize=4.5,
        markerfacecolor="white" if line.dashed else line.color,
        markevery=1 if few else (2 * number, len(calls) // 6),
    )
    if values.shape[1] > 1:
        low, high = values.min(axis=1), values.max(axis=1)
        cell.fill_between(calls, low, high, color=line.color, alpha=0.10, lw=0)
