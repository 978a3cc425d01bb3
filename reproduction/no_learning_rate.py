"""Robust accuracy over learning rates: whether the adversary needs one, and whether the model does.

A grid of lr_x (four decades) and lr_y (three) for 15 steps of Adam per batch, NeAda with Adam
inside, TiAda, and the library's default, whose adversary has no learning rate. All have the same
number of gradient calls. The grids are 0.1 to 100 times the usual lr_x and 0.1 to 10 times the
usual lr_y of a method: TiAda has other usual rates than Adam and is compared at the same multiple.
Two more runs with the default adversary move the model by `DoG` and `DoWG`, which have no learning
rate either; as in all other runs the last iterate is measured, not an average.

Every seed has its own split of the data, its own initialization and its own order of batches. A
claim is about the end of a one-sided 95 % interval of Student's t, over numbers paired by seed;
with one seed there is none, and it is about the number itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from neada.runs import RunFolder
from neada.training import TrainConfig
from reproduction import figures
from reproduction.experiment import Array, Claim, Progress, Record, Scale, Seeds, chosen_seeds
from reproduction.robust_training import (
    Runs,
    by_seed,
    divergences,
    last,
    sample_note,
    train_into,
)

TITLE = "Robust training over learning rates: who needs which"
WHERE = "neada"
PAPER = (
    "The paper shows robust training with two learning rates of the adversary, and NeAda as the "
    "less sensitive one. This is the library's own claim: its default adversary has no learning "
    "rate at all and is not worse than the others over the whole range of theirs."
)
KNOWN = {
    "no-learning-rate/lr-x-can-go-*": (
        "DoG and DoWG begin with tiny steps, and these runs are too short for the steps to grow. "
        "The last iterate is measured; an average of iterates, for which there are guarantees, is "
        "not tried."
    ),
    "no-learning-rate/*": (
        "A difference of a few points is within the noise of a small test set (a standard error of "
        "about two points per run) unless several seeds agree on it."
    ),
}

Name = Literal["default", "adam-15", "neada-adam", "tiada", "dog", "dowg"]
_DEFAULT: Name = "default"
_OTHERS: dict[Name, str] = {
    "adam-15": "Adam, 15 inner steps",
    "neada-adam": "NeAda-Adam",
    "tiada": "TiAda",
}
_FREE: dict[Name, str] = {"dog": "DoG", "dowg": "DoWG"}
_OPTIONS: dict[Name, dict[str, Any]] = {
    "default": {"method": "neada"},
    "adam-15": {"method": "gdmax", "inner_steps": 15, "y_optimizer": "adam"},
    "neada-adam": {"method": "neada", "y_optimizer": "adam"},
    "tiada": {"method": "tiada"},
    "dog": {"method": "neada", "x_optimizer": "dog"},
    "dowg": {"method": "neada", "x_optimizer": "dowg"},
}
_ADAM_X, _ADAM_Y = (1e-4, 1e-3, 1e-2, 1e-1), (1e-3, 1e-2, 1e-1)
_TIADA_X, _TIADA_Y = (1e-2, 1e-1, 1.0, 10.0), (1e-2, 1e-1, 1.0)
_RATES: dict[Name, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "default": (_ADAM_X, ()),
    "adam-15": (_ADAM_X, _ADAM_Y),
    "neada-adam": (_ADAM_X, _ADAM_Y),
    "tiada": (_TIADA_X, _TIADA_Y),
}
"""The learning rates of x and y, from 0.1 times the usual one, a decade apart."""
_EPS = 0.1
_MARGIN = 3.0
"""So many percentage points less are not called worse."""
_T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""The 95 % quantile of Student's t with 1, 2, ... degrees; the last one serves for more."""
# Gradient calls, seeds, and which lr_x and lr_y of the grid.
_SCALES: dict[Scale, tuple[int, int, slice, slice]] = {
    "quick": (80, 1, slice(1, 3), slice(1, 2)),
    "standard": (960, 3, slice(None), slice(None)),
    "paper": (4800, 5, slice(None), slice(None)),
}


@dataclass(frozen=True)
class Config:
    """One training run.

    Attributes:
        name: Which method, or which optimizer of the model with the default adversary.
        lr_x: The model's learning rate; None where there is none.
        lr_y: The adversary's, likewise.
        seed: Of the split, the initialization and the order of the batches.
        max_calls: Gradient calls of both players.
        gamma: The price per squared distance.
        batch_size: Images per batch.
    """

    name: Name
    lr_x: float | None
    lr_y: float | None
    seed: int
    max_calls: int
    gamma: float = 1.3
    batch_size: int = 128

    @property
    def label(self) -> str:
        """The method, the learning rates that it has and the seed."""
        rates = [f"{lr:g}" for lr in (self.lr_x, self.lr_y) if lr is not None]
        return " ".join([self.name, *rates, f"seed {self.seed}"])


def configs(scale: Scale, seeds: Seeds = None, max_calls: int | None = None) -> list[Config]:
    """The grid of every method, and the two without a learning rate of x, for every seed."""
    usual_calls, num_seeds, of_x, of_y = _SCALES[scale]
    cells: list[tuple[Name, float | None, float | None]] = [
        (name, lr_x, lr_y)
        for name, (rates_x, rates_y) in _RATES.items()
        for lr_x in rates_x[of_x]
        for lr_y in rates_y[of_y] or (None,)
    ]
    cells += [(name, None, None) for name in _FREE]
    calls = usual_calls if max_calls is None else max_calls
    return [Config(*cell, seed, calls) for seed in chosen_seeds(seeds, num_seeds) for cell in cells]


def run(config: Config, run: RunFolder, progress: Progress) -> None:
    """Train, and attack at the end."""
    asked = TrainConfig(
        device="cpu",
        data="digits",
        data_seed=config.seed,
        model="small-cnn",
        objective="wrm",
        gamma=config.gamma,
        lr_x=config.lr_x,
        lr_y=config.lr_y,
        batch_size=config.batch_size,
        max_calls=config.max_calls,
        eval_every=config.max_calls,
        eval_eps=(_EPS,),
        eval_clip=False,
        eval_samples=None,
        seed=config.seed,
        **_OPTIONS[config.name],
    )
    train_into(asked, run, progress, resumable=False)


def claims(records: Sequence[Record]) -> list[Claim]:
    """Whether lr_y can go, by level and by spread over lr_x, and whether lr_x can."""
    grid = _Grid(records)
    return [
        *(_not_worse(grid, name, at) for name in _OTHERS for at in grid.places),
        *(_not_wider(grid, name) for name in _OTHERS),
        *(_as_good_as_the_best(grid, name) for name in _FREE),
    ]


class _Grid:
    """Accuracies in percent by method, place of lr_x and seed; the mean over lr_y where it has one.

    Args:
        records: The runs there are.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        here = [at for at, lr_x in enumerate(_ADAM_X) if self.runs(_DEFAULT, lr_x)]
        self.places = here or list(range(len(_ADAM_X)))
        """Where in the grid of lr_x there are runs of the default; everywhere if there are none."""

    def runs(self, name: Name, lr_x: float | None, lr_y: float | None = None) -> Runs:
        """The runs of a cell, by seed."""
        return by_seed(self._records, name=name, lr_x=lr_x, lr_y=lr_y)

    def cells(self, name: Name, at: int) -> list[Runs]:
        """The runs of a method at a place of lr_x: for every lr_y that was tried."""
        rates_x, rates_y = _RATES[name]
        found = (self.runs(name, rates_x[at], lr_y) for lr_y in rates_y or (None,))
        return [runs for runs in found if runs]

    def at(self, name: Name, at: int) -> dict[int, float]:
        """The accuracy of a method at a place of lr_x, for every seed that all its lr_y have."""
        cells = self.cells(name, at)
        seeds = [seed for seed in cells[0] if all(seed in c for c in cells)] if cells else []
        return {seed: float(np.mean([_accuracy(c[seed]) for c in cells])) for seed in seeds}

    def spreads(self, name: Name) -> dict[int, float]:
        """The largest minus the smallest accuracy over lr_x, for every seed that has all."""
        levels = [self.at(name, at) for at in self.places]
        return {
            seed: max(level[seed] for level in levels) - min(level[seed] for level in levels)
            for seed in levels[0]
            if all(seed in level for level in levels)
        }


def _accuracy(record: Record) -> float:
    """Under attack, in percent."""
    return 100.0 * last(record, f"test_{_EPS:g}")


def _not_worse(grid: _Grid, name: Name, at: int) -> Claim:
    ours, theirs = grid.at(_DEFAULT, at), grid.at(name, at)
    lr_x = _ADAM_X[at]
    own = _RATES[name][0][at]
    beside = f" (there {own:g})" if own != lr_x else ""
    return _least(
        f"not-worse-{name}-{lr_x:g}",
        f"with lr_x = {lr_x:g}{beside} the default, which has no lr_y, is not worse by more than "
        f"{_MARGIN:g} points than {_OTHERS[name]} in the mean over its lr_y: its lead under FGSM "
        f"of {_EPS:g} in percentage points",
        ours,
        theirs,
        -_MARGIN,
        " %",
        divergences(*grid.cells(_DEFAULT, at), *grid.cells(name, at)),
    )


def _not_wider(grid: _Grid, name: Name) -> Claim:
    return _least(
        f"not-wider-{name}",
        "the accuracy of the default, from its best to its worst lr_x, does not spread wider than "
        f"that of {_OTHERS[name]} in the mean over lr_y: how much narrower it is, in percentage "
        "points",
        grid.spreads(name),
        grid.spreads(_DEFAULT),
        0.0,
        " points",
    )


def _as_good_as_the_best(grid: _Grid, name: Name) -> Claim:
    ours = grid.runs(name, None)
    levels = [grid.at(_DEFAULT, at) for at in grid.places]
    best = max(levels, key=lambda level: np.mean([*level.values()]) if level else -math.inf)
    return _least(
        f"lr-x-can-go-{name}",
        f"lr_x can go too: {_FREE[name]} instead of Adam, with the default adversary, is not worse "
        f"by more than {_MARGIN:g} points than Adam with its best lr_x: its lead in percentage "
        "points",
        {seed: _accuracy(record) for seed, record in ours.items()},
        best,
        -_MARGIN,
        " %",
        divergences(ours),
    )


def _least(
    id: str,
    sentence: str,
    ours: dict[int, float],
    theirs: dict[int, float],
    expected: float,
    unit: str,
    note: str = "",
) -> Claim:
    """The claim that ours minus theirs is at least so much, by the lower end of its interval."""
    both = [seed for seed in ours if seed in theirs]
    first, second = (np.array([of[seed] for seed in both]) for of in (ours, theirs))
    leads = first - second
    means = f"{first.mean():.1f}{unit} against {second.mean():.1f}{unit}" if both else ""
    if len(both) > 1:
        sentence += ", lower end of its one-sided 95 % interval over seeds"
        means += f", {leads.mean():+.1f} in the mean, from {leads.min():+.1f} to {leads.max():+.1f}"
    elif both:
        means += "; one seed, so no interval"
    return Claim(
        *(f"no-learning-rate/{id}", sentence, WHERE, _lower_end(leads), ">=", expected),
        seeds=len(both),
        note=means + (note if both else ""),
    )


def _lower_end(values: Array) -> float | None:
    """Of the one-sided 95 % interval of the mean; one value is itself, and none is None."""
    count = len(values)
    if count < 2:
        return float(values[0]) if count else None
    quantile = _T_95[min(count - 1, len(_T_95)) - 1]
    # Differences of shares without the rounding that would make a tie a loss.
    return round(float(values.mean() - quantile * values.std(ddof=1) / math.sqrt(count)), 9)


def figure(records: Sequence[Record]) -> Figure:
    """A panel per method, a line per lr_y, and the default in each of them."""
    grid = _Grid(records)
    panels = [
        figures.Panel(title, [*_lines(grid, name), *_beside(grid, name)])
        for name, title in _OTHERS.items()
    ]
    panels.append(figures.Panel("default adversary", [*_beside(grid, _DEFAULT), *_levels(grid)]))
    drawn = figures.curves_figure(
        [panel for panel in panels if panel.curves],
        num_columns=4,
        x_label="lr_x",
        x_scale="log",
        y_label=f"accuracy under FGSM of {_EPS:g} (%)",
        y_scale="linear",
        legend_columns=1,
        legends="own",
        panel_size=(2.6, 3.8),
        note="; ".join(
            [
                sample_note(records, "images, at the end of the training"),
                "beside TiAda the default is at the same multiples of its usual lr_x",
            ]
        ),
    )
    for axes in drawn.axes:
        axes.set_ylim(-3.0, 100.0)
    return drawn


def _lines(grid: _Grid, name: Name) -> list[figures.Curve]:
    rates_x, rates_y = _RATES[name]
    return [
        curve
        for number, lr_y in enumerate(rates_y)
        for curve in _curve(
            f"lr_y = {lr_y:g}",
            [(lr_x, grid.runs(name, lr_x, lr_y)) for lr_x in rates_x],
            figures.method_style(_OTHERS[name], number),
        )
    ]


def _beside(grid: _Grid, name: Name) -> list[figures.Curve]:
    """The default at the places of another method's rates."""
    places = zip(_RATES[name][0], _ADAM_X, strict=True)
    cells = [(lr_x, grid.runs(_DEFAULT, own)) for lr_x, own in places]
    return _curve("default, no lr_y", cells, figures.method_style(_DEFAULT))


def _levels(grid: _Grid) -> list[figures.Curve]:
    """The optimizers of the model that have no learning rate, as horizontal lines."""
    ends = (_ADAM_X[grid.places[0]], _ADAM_X[grid.places[-1]])
    return [
        curve
        for name, title in _FREE.items()
        for curve in _curve(
            f"x by {title}, no lr_x",
            [(end, grid.runs(name, None)) for end in ends],
            figures.method_style(title) | {"marker": ""},
        )
    ]


def _curve(
    label: str, cells: Sequence[tuple[float, Runs]], style: dict[str, Any]
) -> list[figures.Curve]:
    """Accuracies over learning rates, a column per seed that all have; nothing without runs."""
    cells = [(rate, runs) for rate, runs in cells if runs]
    seeds = [seed for seed in cells[0][1] if all(seed in r for _, r in cells)] if cells else []
    if not seeds:
        return []
    values = np.array([[_accuracy(runs[seed]) for seed in seeds] for _, runs in cells])
    return [figures.Curve(label, np.array([rate for rate, _ in cells]), values, style)]
