"""Which share of all learning rates works: NeAda against every other method, on the zoo.

A grid of (lr_x, lr_y) over six decades around 1. A method solves a problem with a pair if, within a
budget of calls, it comes to a point where both gradient-mapping norms are at most a thousandth of
the larger one at the start, by the true gradients. Gradients of either player and values count as
calls, for every pair its own. Methods without lr_y (Algorithm 3 with a solver inside that needs no
rate) or without any rate are constant along what they do not have. At `standard`, minutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from neada import plots, problems
from neada.experiments.experiment import Array, Claim, Progress, Record, Scale
from neada.experiments.races import Rules, calls_to_arrive
from neada.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "Which share of all learning rates works"
WHERE = "neada"

_DEFAULT = "neada"
_FAMILIES = {
    "gda": "neada-gda",
    "adagrad": "neada-adagrad-coordinate",
    "adam": "neada-adam",
    "amsgrad": "neada-amsgrad",
}
_ALGORITHM_3 = ("neada-adagrad", "neada-adgd")
_NEADA = (*_FAMILIES.values(), *_ALGORITHM_3, "neada-stochastic")
_OTHERS = (
    *_FAMILIES,
    *("alternating-gda", "gdmax", "smoothed-agda"),
    *("extragradient", "past-extragradient", "optimistic-gda"),
    *("tiada", "tiada-coordinate", "tiada-adam", "tiada-amsgrad"),
    *("adagda", "vr-adagda"),
)
METHODS = (_DEFAULT, *_NEADA, *_OTHERS)
_QUICK = ("quadratic", "mccormick")  # the two of the paper
# The calls of each row, and the grid's points for each decade.
_SIZES: dict[Scale, tuple[int, int]] = {"quick": (250, 2), "standard": (500, 2), "paper": (2000, 2)}


@dataclass(frozen=True)
class Config:
    """One method on the whole grid and some problems.

    Attributes:
        method: Its name in `neada.methods()`.
        problems: Names in the zoo.
        max_calls: Gradients of both players and values, for each pair of rates.
        per_decade: Points of the grid for each decade.
        decades: The rates go from 10^-decades to 10^decades.
        tol: Both norms must be at most this times the larger one at the start.
    """

    method: str
    problems: tuple[str, ...]
    max_calls: int
    per_decade: int
    decades: int = 3
    tol: float = 1e-3

    @property
    def label(self) -> str:
        """The method."""
        return self.method

    @property
    def rates(self) -> Array:
        """The learning rates of either player."""
        return np.logspace(-self.decades, self.decades, 2 * self.decades * self.per_decade + 1)


def configs(scale: Scale, seeds: int | None = None) -> list[Config]:
    """Every method with a learning rate, and the default; nothing is random."""
    names = _QUICK if scale == "quick" else tuple(problems.names())
    return [Config(method, names, *_SIZES[scale]) for method in METHODS]


def run(config: Config, run: Run, progress: Progress) -> None:
    """Try all pairs at once on one problem after the other.

    A row of the metrics has the problem, lr_x, and for every lr_y the calls it took.
    """
    rates = torch.from_numpy(config.rates)
    lr_x, lr_y = (grid.flatten() for grid in torch.meshgrid(rates, rates, indexing="ij"))
    options = {"lr_x": lr_x, "lr_y": lr_y}
    if config.method in _ALGORITHM_3:
        options = {"lr_x": rates}
    elif config.method == _DEFAULT:
        options = {}
    num_rows = len(options["lr_x"]) if options else 1
    for number, name in enumerate(config.problems):
        progress(number / len(config.problems))
        rules = Rules(config.max_calls, config.tol)
        calls = calls_to_arrive(config.method, problems.make(name), options, num_rows, rules)
        shape = (-1, len(rates)) if num_rows == len(lr_x) else (-1, 1)
        grid = calls.reshape(shape).expand(len(rates), len(rates))
        run.append(
            [
                {"problem": name, "lr_x": rate, "calls": found}
                for rate, found in zip(rates.tolist(), grid.tolist(), strict=True)
            ]
        )


def claims(records: Sequence[Record]) -> list[Claim]:
    """Nesting against not nesting for each rule, and the best of NeAda against all others."""
    shares = {r.config.method: float(_solved(r).mean()) for r in records}
    found = []
    for plain, nested in _FAMILIES.items():
        both = [shares[m] for m in (nested, plain) if m in shares]
        found.append(
            Claim(
                f"agnostic/{nested}",
                f"nesting {plain} makes more learning rates work: share of the grid that {nested} "
                f"solves minus that of {plain}, mean over problems",
                "neada",
                both[0] - both[1] if len(both) == 2 else None,
                ">",
                0.0,
                note=_listed(shares, (nested, plain)),
            )
        )
    found.append(
        Claim(
            "agnostic/best-neada",
            "some NeAda with a learning rate works for more of them than every other method: "
            "largest share among the former minus largest among the latter",
            "neada",
            _lead(shares, _NEADA),
            ">",
            0.0,
            note=_listed(shares, sorted(_NEADA + _OTHERS, key=lambda m: -shares.get(m, 0.0))),
        )
    )
    found.append(
        Claim(
            "agnostic/default",
            "the default, which has no learning rate, solves more problems than any other method "
            "does on average over the grid: share of problems minus largest share",
            "neada",
            _lead(shares, (_DEFAULT,)),
            ">",
            0.0,
            note=_listed(shares, (_DEFAULT,)),
        )
    )
    return found


def _solved(record: Record) -> Array:
    """Which share of the problems each pair solves, shape (lr_x, lr_y)."""
    calls = np.array([row["calls"] for row in record.rows])
    num_rates = len(record.config.rates)
    solved: Array = np.isfinite(calls).reshape(-1, num_rates, num_rates).mean(axis=0)
    return solved


def _lead(shares: dict[str, float], ours: Sequence[str]) -> float | None:
    if not all(method in shares for method in (*ours, *_OTHERS)):
        return None
    return max(shares[m] for m in ours) - max(shares[m] for m in _OTHERS)


def _listed(shares: dict[str, float], methods: Sequence[str]) -> str:
    return ", ".join(f"{m} {100 * shares[m]:.1f} %" for m in methods if m in shares)


def figure(records: Sequence[Record]) -> "Figure":
    """One map per method, the best first."""
    maps = []
    for record in sorted(records, key=lambda r: -_solved(r).mean()):
        solved, rates = _solved(record), record.config.rates
        title = f"{record.config.method}: {100 * solved.mean():.0f} %"
        maps.append(plots.HeatMap(title, rates, rates, solved.T))
    figure = plots.heat_maps_figure(
        maps,
        num_columns=6,
        x_label="lr_x",
        y_label="lr_y",
        value_label="share of the problems solved",
        value_range=(0.0, 1.0),
    )
    for axes in figure.axes[: len(maps)]:
        axes.minorticks_off()  # hundreds of them in two dozen maps
        axes.label_outer()
    return figure
