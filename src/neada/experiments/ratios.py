"""What Figures 1 and 2 share: eight methods, a few ratios, rows of seeds, and how to judge them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neada.experiments.experiment import Progress, Record
from neada.experiments.rules import Array, Family
from neada.experiments.sweeps import Game, Rows, Sweep, play
from neada.runs import Run

__all__ = ["FAMILIES", "METHODS", "Setting", "curves", "end_level", "method_name", "play_ratios"]

FAMILIES: dict[Family, str] = {
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adagrad": "AdaGrad",
    "gda": "GDA",
}
METHODS: tuple[tuple[Family, bool], ...] = tuple(
    (family, nested) for nested in (False, True) for family in FAMILIES
)


def method_name(family: Family, nested: bool) -> str:
    """The name in legends: "Adam", "NeAda-Adam".

    Example:
        >>> method_name("amsgrad", True)
        'NeAda-AMSGrad'
    """
    return f"NeAda-{FAMILIES[family]}" if nested else FAMILIES[family]


@dataclass(frozen=True)
class Setting:
    """What a figure fixes for all its methods.

    Attributes:
        lr_y: The learning rate of y; that of x is lr_y divided by the ratio.
        num_points: How many points of each curve are kept.
    """

    lr_y: float
    num_points: int


def play_ratios(
    game: Game,
    starts: tuple[Array, Array],
    sweep: Sweep,
    budgets: Sequence[tuple[float, int]],
    setting: Setting,
    noise_seeds: Sequence[int],
    run: Run,
    progress: Progress,
) -> None:
    """Play every ratio from every start as one batch, and write the curves.

    A row of the metrics has the ratio, the calls, and for every seed the norm of the x gradient
    and its largest value since the row before.

    Args:
        game: The problem.
        starts: x and y of every seed.
        sweep: The method.
        budgets: The ratios, each with its number of gradient calls.
        setting: What the figure fixes.
        noise_seeds: One per start; ratios of the same seed see the same noise.
        run: Where the rows go.
        progress: Hears which part is done.
    """
    num_seeds, num_ratios = len(starts[0]), len(budgets)
    ratios = np.repeat([ratio for ratio, _ in budgets], num_seeds)
    grids = {ratio: _grid(budget, setting.num_points) for ratio, budget in budgets}
    at = np.unique(np.concatenate(list(grids.values())))
    rows = Rows(
        x=np.tile(starts[0], (num_ratios, 1)),
        y=np.tile(starts[1], (num_ratios, 1)),
        lr_x=setting.lr_y / ratios,
        lr_y=np.full(len(ratios), setting.lr_y),
        noise=tuple(np.random.default_rng(seed) for _ in budgets for seed in noise_seeds),
    )
    norms, peaks = play(game, rows, sweep, at, progress)
    for number, (ratio, _) in enumerate(budgets):
        mine = slice(number * num_seeds, (number + 1) * num_seeds)
        wanted = np.isin(at, grids[ratio])
        # Peaks between points of other ratios' grids belong to the next point of this one.
        groups = np.searchsorted(grids[ratio], at[at <= grids[ratio][-1]])
        own = np.zeros((len(grids[ratio]), num_seeds))
        np.maximum.at(own, groups, peaks[at <= grids[ratio][-1]][:, mine])
        run.append(
            [
                {"ratio": ratio, "calls": int(calls), "grad_x": list(norm), "peak": list(peak)}
                for calls, norm, peak in zip(
                    at[wanted], norms[wanted][:, mine].tolist(), own.tolist(), strict=True
                )
            ]
        )


def _grid(budget: int, num_points: int) -> Any:
    return np.unique(np.linspace(0, budget, min(num_points, budget) + 1).astype(np.intp))


def curves(record: Record, ratio: float, column: str = "grad_x") -> tuple[Array, Array]:
    """The calls, and one column of a ratio as an array of shape (points, seeds)."""
    rows = [row for row in record.rows if row["ratio"] == ratio]
    return np.array([row["calls"] for row in rows]), np.array([row[column] for row in rows])


def end_level(record: Record, ratio: float) -> Array:
    """For every seed the largest norm within the last tenth of the calls."""
    calls, peaks = curves(record, ratio, "peak")
    level: Array = peaks[calls > 0.9 * calls[-1]].max(axis=0)
    return level
