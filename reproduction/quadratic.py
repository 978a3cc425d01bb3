"""Figure 1: the quadratic on which methods without nesting need the right ratio of learning rates.

f(x, y) = -y^2/2 + L x y - L^2 x^2/2 with L = 2. Nested methods are played with both inner loops:
"released" as in the authors' scripts, "text" as the paper words it. Costs a few seconds at the
paper's budgets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neada.runs import RunFolder
from reproduction import figures
from reproduction.experiment import Claim, Progress, Record, Scale, Seeds, if_complete
from reproduction.sweeps import (
    FAMILIES,
    METHODS,
    Family,
    Game,
    Loop,
    Setting,
    Sweep,
    curves,
    end_level,
    method_name,
    play_ratios,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PAPER", "TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "A quadratic: who needs the right ratio of learning rates"
WHERE = "Figure 1, Lemma 1"
PAPER = (
    "On f(x, y) = -y^2/2 + 2xy - 2x^2 without noise, Adam, AMSGrad and AdaGrad fail for ratios r = "
    "lr_y / lr_x up to L = 2 and GDA up to L^2 = 4, as Lemma 1 predicts. The nested methods tend "
    "to a stationary point at every ratio."
)

_L = 2.0
_MAX_CALLS = ((1.0, 8000), (2.0, 8000), (4.0, 2000), (8.0, 5000))
# Torch's own defaults, which the scripts use on this problem.
_EPS: dict[Family, float] = {"gda": 0.0, "adagrad": 1e-10, "adam": 1e-8, "amsgrad": 1e-8}
_START = abs(_L * (0.01 - _L * 1.0))


@dataclass(frozen=True)
class Config:
    """One method on all ratios.

    Attributes:
        family: The step rule of both players.
        nested: Whether y plays an inner loop.
        loop: Which inner loop; "none" for methods without one.
        max_calls: The ratios lr_y / lr_x, each with its gradient calls.
        lr_y: The learning rate of y.
        num_points: Points kept of each curve.
    """

    family: Family
    nested: bool
    loop: str
    max_calls: tuple[tuple[float, int], ...] = _MAX_CALLS
    lr_y: float = 0.2
    num_points: int = 400

    @property
    def label(self) -> str:
        """The method, and its inner loop where it has one."""
        name = method_name(self.family, self.nested)
        return f"{name} {self.loop}" if self.nested else name


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Eight methods, the nested four with both inner loops: the same at every scale."""
    found = []
    for family, nested in METHODS:
        for loop in ("released", "text") if nested else ("none",):
            found.append(Config(family, nested, loop))
    return found


def run(config: Config, run: RunFolder, progress: Progress) -> None:
    """Play all ratios at once."""
    game = Game(
        grad_x=lambda x, y: _L * (y - _L * x),
        grad_y=lambda x, y: _L * x - y,
    )
    loop: Loop = "text" if config.loop == "text" else "released"
    sweep = Sweep(config.family, config.nested, loop, count_scale=0.1, eps=_EPS[config.family])
    start = (np.array([[1.0]]), np.array([[0.01]]))
    setting = Setting(config.lr_y, config.num_points)
    play_ratios(game, start, sweep, config.max_calls, setting, [0], run, progress)


def claims(records: Sequence[Record]) -> list[Claim]:
    """Who diverges, who stays where it was, who converges; and that nesting always helps."""
    by_method = {(r.config.family, r.config.loop): r for r in records}
    judge = _Judge(by_method)
    return [
        *judge.not_nested(),
        *judge.nested("released", "the loop of the released scripts"),
        *judge.nested("text", "the loop as the paper words it"),
    ]


@dataclass(frozen=True)
class _Judge:
    records: dict[tuple[Family, str], Record]

    def not_nested(self) -> list[Claim]:
        adaptive: tuple[Family, ...] = ("adam", "amsgrad", "adagrad")
        return [
            Claim(
                "quadratic/adaptive-diverge",
                "Adam, AMSGrad and AdaGrad diverge at r = 1: smallest growth of |grad_x|",
                "Figure 1(a)",
                if_complete(min, [self._growth(f, "none", 1.0) for f in adaptive]),
                ">",
                2.0,
            ),
            Claim(
                "quadratic/adaptive-constant",
                "at r = L = 2 they stay where they began: largest relative change (torch's eps "
                "breaks the exact symmetry; `lemma` has the rules without it)",
                "Figure 1(b), Lemma 1",
                if_complete(max, [self._change(f, 2.0) for f in adaptive]),
                "<=",
                1e-5,
            ),
            Claim(
                "quadratic/gda-diverges",
                "GDA diverges at r = 1 and 2: smallest growth of |grad_x|",
                "Figure 1(a, b)",
                if_complete(min, [self._growth("gda", "none", r) for r in (1.0, 2.0)]),
                ">",
                1e6,
            ),
            Claim(
                "quadratic/gda-constant",
                "GDA stays where it began at r = L^2 = 4: relative change",
                "Figure 1(c), Lemma 1",
                self._change("gda", 4.0),
                "<=",
                1e-9,
            ),
            Claim(
                "quadratic/adaptive-converge",
                "the adaptive methods converge for r = 4 and 8: largest end / start",
                "Figure 1(c, d)",
                if_complete(max, [self._level(f, "none", r) for f in adaptive for r in (4.0, 8.0)]),
                "<",
                1e-2,
            ),
            Claim(
                "quadratic/gda-converges",
                "GDA converges at r = 8: end / start",
                "Figure 1(d)",
                self._level("gda", "none", 8.0),
                "<",
                1e-6,
            ),
        ]

    def nested(self, loop: str, words: str) -> list[Claim]:
        found = []
        for family in FAMILIES:
            levels = [self._level(family, loop, ratio) for ratio, _ in _MAX_CALLS]
            found.append(
                Claim(
                    f"quadratic/{loop}/neada-{family}",
                    f"{method_name(family, True)} trends to a stationary point for every r "
                    f"({words}): largest end / start over r",
                    "Figure 1",
                    if_complete(max, levels),
                    "<",
                    0.1,
                    note=_listed(levels),
                )
            )
        return found

    def _level(self, family: Family, loop: str, ratio: float) -> float | None:
        record = self.records.get((family, loop))
        return None if record is None else float(end_level(record, ratio)[0]) / _START

    def _growth(self, family: Family, loop: str, ratio: float) -> float | None:
        record = self.records.get((family, loop))
        return None if record is None else float(curves(record, ratio)[1][-1, 0]) / _START

    def _change(self, family: Family, ratio: float) -> float | None:
        record = self.records.get((family, "none"))
        if record is None:
            return None
        return float(np.abs(curves(record, ratio)[1] / _START - 1.0).max())


def _listed(levels: Sequence[float | None]) -> str:
    ratios = [ratio for ratio, _ in _MAX_CALLS]
    shown = [f"r={r:g}: {v:.1e}" for r, v in zip(ratios, levels, strict=True) if v is not None]
    return ", ".join(shown)


def figure(records: Sequence[Record]) -> "Figure":
    """One panel per ratio; a second row for the other inner loop."""
    panels = [
        figures.Panel(
            f"r = {ratio:g}, {words}",
            [
                figures.Curve(method_name(r.config.family, r.config.nested), *curves(r, ratio))
                for r in records
                if r.config.loop in ("none", loop)
            ],
        )
        for loop, words in (("released", "scripts' loop"), ("text", "paper's text"))
        for ratio, _ in _MAX_CALLS
    ]
    return figures.curves_figure(
        panels,
        num_columns=4,
        y_label="|grad_x f|",
        panel_size=(2.6, 2.6),
        note="r = lr_y / lr_x; nested methods (NeAda) are drawn with the inner loop of the "
        "released scripts in the upper row, with that of the paper's text in the lower one",
    )
