"""Figure 1: the quadratic on which methods without nesting need the right ratio of learning rates.

f(x, y) = -y^2/2 + L x y - L^2 x^2/2 with L = 2, the optimizers with torch's defaults. The nested
methods have the constants of the stopping rule in the authors' scripts, evaluated at the current y:
a squared y gradient of at most 1/(t+1), or t/10 steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from neada import problems
from neada.runs import RunFolder
from neada.stopping import GradientMapping, InnerSteps
from reproduction import figures
from reproduction.experiment import Claim, Record, Scale, Seeds
from reproduction.play import FAMILIES, METHODS, Family, Rows, curves, end_level, play, write_curves

TITLE = "A quadratic: who needs the right ratio of learning rates"
WHERE = "Figure 1, Lemma 1"
PAPER = (
    "On f(x, y) = -y^2/2 + 2xy - 2x^2 without noise, Adam, AMSGrad and AdaGrad fail for ratios r = "
    "lr_y / lr_x up to L = 2 and GDA up to L^2 = 4, as Lemma 1 predicts. The nested methods tend "
    "to a stationary point at every ratio."
)

_STOPPING = GradientMapping() | InnerSteps(lambda t: 0.1 * t)
_MAX_CALLS = ((1.0, 8000), (2.0, 8000), (4.0, 2000), (8.0, 5000))
_MESSAGES = ("only NeAda falls", "only NeAda falls", "all but GDA fall", "all fall")
_X0, _Y0, _L = 1.0, 0.01, 2.0
_START = abs(_L * (_Y0 - _L * _X0))


@dataclass(frozen=True)
class Config:
    """One method on all ratios.

    Attributes:
        method: Its name in `reproduction.play.METHODS`.
        max_calls: The ratios lr_y / lr_x, each with its gradient calls.
        lr_y: The learning rate of y.
        num_points: Points kept of each curve.
    """

    method: str
    max_calls: tuple[tuple[float, int], ...] = _MAX_CALLS
    lr_y: float = 0.2
    num_points: int = 400

    @property
    def label(self) -> str:
        """The method."""
        return self.method


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Eight methods; fewer calls at scale quick."""
    most = 2000 if scale == "quick" else max(calls for _, calls in _MAX_CALLS)
    max_calls = tuple((ratio, min(calls, most)) for ratio, calls in _MAX_CALLS)
    return [Config(method, max_calls) for method in METHODS]


def run(config: Config, run: RunFolder) -> None:
    """Run all ratios, one row each."""
    ratios = torch.tensor([ratio for ratio, _ in config.max_calls], dtype=torch.float64)
    lr_y = torch.full_like(ratios, config.lr_y)
    rows = Rows(
        x=torch.full((len(ratios), 1), _X0, dtype=torch.float64),
        y=torch.full((len(ratios), 1), _Y0, dtype=torch.float64),
        lr_x=lr_y / ratios,
        lr_y=lr_y,
        max_calls=torch.tensor([calls for _, calls in config.max_calls]),
        stopping=_STOPPING,
    )
    fun = problems.make("quadratic").fun
    calls, norms = play(METHODS[config.method], fun, rows)
    for row, (ratio, max_calls) in enumerate(config.max_calls):
        mine = slice(row, row + 1)
        facts = {"ratio": ratio}
        write_curves(run, calls[:, mine], norms[:, mine], max_calls, config.num_points, facts)


def claims(records: Sequence[Record]) -> list[Claim]:
    """Who diverges, who stays where it was, who converges; and that nesting always helps."""
    found = {r.config.method: r for r in records}
    adaptive = ("Adam", "AMSGrad", "AdaGrad")

    def level(method: str, ratio: float) -> float:
        return float(end_level(found[method], ratio)[0]) / _START

    def growth(method: str, ratio: float) -> float:
        return float(curves(found[method], ratio)[1][-1, 0]) / _START

    def change(method: str, ratio: float) -> float:
        return float(np.abs(curves(found[method], ratio)[1] / _START - 1.0).max())

    def nested(family: Family) -> Claim:
        name = f"NeAda-{FAMILIES[family]}"
        levels = {ratio: level(name, ratio) for ratio, _ in _MAX_CALLS}
        return Claim(
            f"quadratic/scripts/neada-{family}",
            f"{name} trends to a stationary point for every r: largest end / start over r",
            "Figure 1",
            max(levels.values()),
            "<",
            0.1,
            note=", ".join(f"r={ratio:g}: {end:.1e}" for ratio, end in levels.items()),
        )

    return [
        Claim(
            "quadratic/adaptive-diverge",
            "Adam, AMSGrad and AdaGrad diverge at r = 1: smallest growth of |grad_x|",
            "Figure 1(a)",
            min(growth(method, 1.0) for method in adaptive),
            ">",
            2.0,
        ),
        Claim(
            "quadratic/adaptive-constant",
            "at r = L = 2 they stay where they began: largest relative change (torch's eps "
            "breaks the exact symmetry; `lemma` has the rules without it)",
            "Figure 1(b), Lemma 1",
            max(change(method, 2.0) for method in adaptive),
            "<=",
            1e-5,
        ),
        Claim(
            "quadratic/gda-diverges",
            "GDA diverges at r = 1 and 2: smallest growth of |grad_x|",
            "Figure 1(a, b)",
            min(growth("GDA", ratio) for ratio in (1.0, 2.0)),
            ">",
            1e6,
        ),
        Claim(
            "quadratic/gda-constant",
            "GDA stays where it began at r = L^2 = 4: relative change",
            "Figure 1(c), Lemma 1",
            change("GDA", 4.0),
            "<=",
            1e-9,
        ),
        Claim(
            "quadratic/adaptive-converge",
            "the adaptive methods converge for r = 4 and 8: largest end / start",
            "Figure 1(c, d)",
            max(level(method, ratio) for method in adaptive for ratio in (4.0, 8.0)),
            "<",
            1e-2,
        ),
        Claim(
            "quadratic/gda-converges",
            "GDA converges at r = 8: end / start",
            "Figure 1(d)",
            level("GDA", 8.0),
            "<",
            1e-6,
        ),
        *map(nested, FAMILIES),
    ]


def figure(records: Sequence[Record]) -> Figure:
    """One panel per ratio."""
    panels = [
        figures.Panel(
            f"r = {ratio:g}: {message}",
            [figures.Curve(r.config.method, *curves(r, ratio)) for r in records],
        )
        for (ratio, _), message in zip(_MAX_CALLS, _MESSAGES, strict=True)
    ]
    return figures.curves_figure(
        panels,
        num_columns=4,
        y_label="|grad_x f|",
        panel_size=(2.6, 2.6),
        note="r = lr_y / lr_x",
    )
