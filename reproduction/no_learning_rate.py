"""Robust accuracy over learning rates: whether the adversary needs one, and whether the model does.

A grid of lr_x (four decades) and lr_y (three) for 15 steps of Adam per batch, NeAda with Adam
inside, TiAda, and the library's default, whose adversary has no learning rate. All have the same
number of gradient calls. The grids are 0.1 to 100 times the usual lr_x and 0.1 to 10 times the
usual lr_y of a method: TiAda has other usual rates than Adam and is compared at the same multiple.
Two more runs with the default adversary move the model by `DoG` and `DoWG`, which have no learning
rate either; as in all other runs the last iterate is measured, not an average.

Every seed has its own split of the data, its own initialization and its own order of batches. The
result of a claim follows from the 95 % interval of Student's t, over numbers paired by seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from neada.runs import RunFolder
from reproduction import figures
from reproduction.experiment import Array, Claim, Record, Scale, Seeds, chosen_seeds
from reproduction.robust_training import (
    about_mean,
    by_seed,
    last,
    of_all,
    sample_note,
    train_config,
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


def run(config: Config, run: RunFolder) -> None:
    """Train, and attack at the end."""
    asked = train_config(
        config,
        data="digits",
        data_seed=config.seed,
        eval_every=config.max_calls,
        eval_samples=None,
        eval_eps=(_EPS,),
        **_OPTIONS[config.name],
    )
    train_into(asked, run, resumable=False)


def claims(records: Sequence[Record]) -> list[Claim]:
    """Whether lr_y can go, by level and by spread over lr_x, and whether lr_x can."""
    places = _places(records)
    levels = {name: np.array([_level(records, name, at) for at in places]) for name in _RATES}
    ours = levels[_DEFAULT]
    best = ours[np.argmax(ours.mean(axis=1))]
    found = []
    for name, words in _OTHERS.items():
        for at, own, theirs in zip(places, ours, levels[name], strict=True):
            lr_x, there = _ADAM_X[at], _RATES[name][0][at]
            beside = "" if there == lr_x else f" (there {there:g})"
            found.append(
                _lead(
                    f"not-worse-{name}-{lr_x:g}",
                    f"with lr_x = {lr_x:g}{beside} the default, which has no lr_y, is not worse by "
                    f"more than {_MARGIN:g} points than {words} in the mean over its lr_y: its "
                    f"lead under FGSM of {_EPS:g} in percentage points",
                    own,
                    theirs,
                    -_MARGIN,
                )
            )
        found.append(
            _lead(
                f"not-wider-{name}",
                "the accuracy of the default, from its best to its worst lr_x, does not spread "
                f"wider than that of {words} in the mean over lr_y: how much narrower it is, in "
                "percentage points",
                np.ptp(levels[name], axis=0),
                np.ptp(ours, axis=0),
                0.0,
            )
        )
    for name, words in _FREE.items():
        found.append(
            _lead(
                f"lr-x-can-go-{name}",
                f"lr_x can go too: {words} instead of Adam, with the default adversary, is not "
                f"worse by more than {_MARGIN:g} points than Adam with its best lr_x: its lead in "
                "percentage points",
                of_all(by_seed(records, name=name), _accuracy),
                best,
                -_MARGIN,
            )
        )
    return found


def _places(records: Sequence[Record]) -> list[int]:
    """Where in the grid of lr_x there are runs of the default."""
    return [at for at, lr in enumerate(_ADAM_X) if by_seed(records, name=_DEFAULT, lr_x=lr)]


def _level(records: Sequence[Record], name: Name, at: int) -> Array:
    """The accuracy of a method at a place of lr_x by seed: the mean over lr_y where it has one."""
    rates_x, rates_y = _RATES[name]
    cells = [by_seed(records, name=name, lr_x=rates_x[at], lr_y=lr) for lr in rates_y or (None,)]
    level: Array = np.mean([of_all(runs, _accuracy) for runs in cells if runs], axis=0)
    return level


def _accuracy(record: Record) -> float:
    """Under attack, in percent."""
    return 100.0 * last(record, f"test_{_EPS:g}")


def _lead(id: str, sentence: str, ours: Array, theirs: Array, expected: float) -> Claim:
    """The claim that ours minus theirs, paired by seed, is at least so much in the mean."""
    note = f"{ours.mean():.1f} against {theirs.mean():.1f}"
    claim = Claim(f"no-learning-rate/{id}", sentence, WHERE, None, ">=", expected, note=note)
    return about_mean(claim, ours - theirs)


def figure(records: Sequence[Record]) -> Figure | None:
    """A panel per method, a line per lr_y, and the default in each of them."""
    if len(_places(records)) < len(_ADAM_X):  # too few points for a curve
        return None
    panels = []
    for name, words in _OTHERS.items():
        rates_x, rates_y = _RATES[name]
        lines = {
            f"{words}, lr_y = {lr_y:g}": [
                by_seed(records, name=name, lr_x=lr_x, lr_y=lr_y) for lr_x in rates_x
            ]
            for lr_y in rates_y
        }
        # At the places of the method's rates.
        lines["default, no lr_y"] = [by_seed(records, name=_DEFAULT, lr_x=lr) for lr in _ADAM_X]
        curves = []
        for label, line in lines.items():
            values = np.array([of_all(runs, _accuracy) for runs in line])
            curves.append(figures.Curve(label, np.array(rates_x), values))
        panels.append(figures.Panel(words, curves, y_scale="linear"))
    drawn = figures.curves_figure(
        panels,
        num_columns=3,
        x_label="lr_x",
        x_scale="log",
        y_label=f"accuracy under FGSM of {_EPS:g} (%)",
        legend_columns=1,
        legends="own",
        panel_size=(2.6, 3.8),
        note=f"{sample_note(records, 'images of the digits, at the end of the training')}; "
        "beside TiAda the default is at the same multiples of its usual lr_x",
    )
    for axes in drawn.axes:
        axes.set_ylim(-3.0, 100.0)
    return drawn
