"""Figure 2: McCormick's function with noisy gradients, three ratios, many seeds.

Adam and AMSGrad use eps = 0.8 here, as the authors' scripts do, with which they are nearly SGD with
momentum; the inner loop is that of the scripts. The figure of the paper shows one start; here every
seed has its own noise, and all claims are judged twice: with all seeds at the paper's start, and
with a start of its own for every seed. Costs about half a minute at the paper's budgets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from neada.runs import RunFolder
from reproduction import figures
from reproduction.experiment import Array, Claim, Progress, Record, Scale, Seeds, chosen_seeds
from reproduction.sweeps import (
    METHODS,
    Family,
    Game,
    Setting,
    Sweep,
    curves,
    end_level,
    method_name,
    play_ratios,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KNOWN", "PAPER", "TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "McCormick's function with noise"
WHERE = "Figure 2"
PAPER = (
    "On McCormick's function coupled with y, with Gaussian noise of 0.01, Adam, AMSGrad and GDA "
    "fail at the ratio 0.01. GDA converges from 0.03 on, Adam and AMSGrad only at 0.05. NeAda with "
    "an adaptive subroutine converges at all three ratios."
)
KNOWN = {
    "mccormick/random/neada-*": (
        "The figure shows one start. From some others these methods need more calls than the "
        "figure's; AdaGrad's y, whose steps the first large gradients have shrunk, follows a jump "
        "of x slowly."
    ),
    "mccormick/random/*": (
        "The figure shows one start. Whether a method without nesting converges at a ratio depends "
        "on the start: from about half of them Adam and AMSGrad do where the figure has them fail, "
        "and from some they fail where it has them converge."
    ),
}

_MAX_CALLS = ((0.01, 40000), (0.03, 15000), (0.05, 23000))
_NUM_SEEDS: dict[Scale, int] = {"quick": 4, "standard": 10, "paper": 30}
_EPS: dict[Family, float] = {"gda": 0.0, "adagrad": 1e-10, "adam": 0.8, "amsgrad": 0.8}
_CONVERGED = 0.2
"""Largest |grad_x| in the last tenth of the calls; it is about 3 at the start."""

_TOP = 100.0
"""The figure ends here: what runs away is far beyond it soon."""


Start = Literal["paper", "random"]
_STARTS: dict[Start, str] = {"paper": "the paper's start", "random": "random starts"}


@dataclass(frozen=True)
class Config:
    """One method on all ratios and seeds.

    Attributes:
        family: The step rule of both players.
        nested: Whether y plays an inner loop.
        seeds: Of the noise at the paper's start, and of as many random starts.
        max_calls: The ratios lr_y / lr_x, each with its gradient calls.
        lr_y: The learning rate of y.
        noise_std: Standard deviation of the noise on every coordinate of every gradient used.
        num_points: Points kept of each curve.
    """

    family: Family
    nested: bool
    seeds: tuple[int, ...]
    max_calls: tuple[tuple[float, int], ...] = _MAX_CALLS
    lr_y: float = 0.01
    noise_std: float = 0.01
    num_points: int = 200

    @property
    def label(self) -> str:
        """The method."""
        return method_name(self.family, self.nested)


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Eight methods; only the number of seeds depends on the scale."""
    chosen = chosen_seeds(seeds, _NUM_SEEDS[scale])
    return [Config(family, nested, chosen) for family, nested in METHODS]


def gradient_x(x: Array, y: Array) -> Array:
    """The x gradient, one row per point."""
    first, second = x[:, 0], x[:, 1]
    wave, slope = np.cos(first + second), 2.0 * (first - second)
    gradient = y.copy()
    gradient[:, 0] += wave + slope - 1.5
    gradient[:, 1] += wave - slope + 2.5
    return gradient


def _start(kind: Start, seed: int) -> Array:
    """Both players' start: x1, x2, y1, y2."""
    if kind == "random":
        return np.random.default_rng([seed, 1]).standard_normal(4)
    # What torch draws after the seed 8 of the scripts.
    generator = torch.Generator().manual_seed(8)
    start: Array = torch.randn(4, generator=generator, dtype=torch.float64).numpy()
    return start


def run(config: Config, run: RunFolder, progress: Progress) -> None:
    """Play all ratios, starts and seeds at once: first all seeds from the paper's start."""
    seeds = config.seeds
    starts = np.stack([_start(kind, seed) for kind in _STARTS for seed in seeds])
    game = Game(gradient_x, lambda x, y: x - y, config.noise_std)
    play_ratios(
        game,
        (starts[:, :2], starts[:, 2:]),
        Sweep(config.family, config.nested, eps=_EPS[config.family]),
        config.max_calls,
        Setting(config.lr_y, config.num_points),
        [*seeds] * len(_STARTS),
        run,
        progress,
    )


def claims(records: Sequence[Record]) -> list[Claim]:
    """Who converges at which ratio, as a share of the seeds."""
    by_method = {(r.config.family, r.config.nested): r for r in records}
    return [
        _judged(by_method.get((family, nested)), start, family, nested, ratio)
        for start in _STARTS
        for ratio, _ in _MAX_CALLS
        for family, nested in METHODS
        if (family, nested) not in (("adagrad", False), ("gda", True))  # nothing is said of these
    ]


def _converges(family: Family, nested: bool, ratio: float) -> bool:
    """What the paper says."""
    if nested or ratio == 0.05:
        return True
    return family == "gda" and ratio == 0.03


def _judged(
    record: Record | None, start: Start, family: Family, nested: bool, ratio: float
) -> Claim:
    name = method_name(family, nested)
    converges = _converges(family, nested, ratio)
    levels = None if record is None else _of(start, end_level(record, ratio))
    panel = "abc"[[r for r, _ in _MAX_CALLS].index(ratio)]
    return Claim(
        f"mccormick/{start}/{name.lower()}-{ratio:g}",
        f"{name} {'converges' if converges else 'does not converge'} at ratio {ratio:g} from "
        f"{_STARTS[start]}: share of seeds with |grad_x| <= {_CONVERGED:g} in the last tenth of "
        "the calls",
        f"Figure 2({panel})",
        None if levels is None else float((levels <= _CONVERGED).mean()),
        ">=" if converges else "<=",
        0.9 if converges else 0.1,
        seeds=0 if levels is None else len(levels),
        note="" if levels is None else f"median level {np.median(levels):.1e}",
    )


def _of(start: Start, values: Array) -> Array:
    """The columns (the last dimension) of one kind of start."""
    num_seeds = values.shape[-1] // len(_STARTS)
    return values[..., :num_seeds] if start == "paper" else values[..., num_seeds:]


def _curves_from_paper(record: Record, ratio: float) -> tuple[Array, Array]:
    calls, norms = curves(record, ratio)
    return calls, _of("paper", norms)


def figure(records: Sequence[Record]) -> "Figure":
    """One panel per ratio: curves from the paper's start, then where every random start ended."""
    panels = [
        figures.Panel(
            f"ratio {ratio:g}, {_STARTS['paper']}",
            [figures.Curve(r.config.label, *_curves_from_paper(r, ratio)) for r in records],
        )
        for ratio, _ in _MAX_CALLS
    ]
    # The bands of random starts would all lie over each other.
    panels += [
        figures.Panel(
            f"ratio {ratio:g}, {_STARTS['random']}",
            [_dots(place, r, ratio) for place, r in enumerate(records)],
            levels=[(f"converged: at most {_CONVERGED:g}", _CONVERGED)],
            x_label="",
            y_label="" if number else "|grad_x f| at the end",
            x_ticks=[(place, r.config.label) for place, r in enumerate(records)],
        )
        for number, (ratio, _) in enumerate(_MAX_CALLS)
    ]
    return figures.curves_figure(
        panels,
        num_columns=3,
        y_label="|grad_x f|, noiseless",
        legend_columns=5,
        largest=_TOP,
        same_y=True,
        note="a dot: one random start, the largest norm in the last tenth of its calls (at "
        f"{_TOP:g} if it is larger); ratio = lr_y / lr_x",
    )


def _dots(place: int, record: Record, ratio: float) -> figures.Curve:
    """The levels at the end, side by side."""
    levels = _of("random", end_level(record, ratio))
    label = record.config.label
    style = figures.method_style(label) | {"linestyle": "none"}
    return figures.Curve(label, place + np.linspace(-0.3, 0.3, len(levels)), levels, style)
