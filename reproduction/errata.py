"""Errata: what is wrong or soft in the print, each shown by a small computation.

The verdict "holds" means that the computation confirms what is said here about the print. What the
print says and what should stand there is in `errata_lemma`, `errata_regret` and
`errata_methods`, beside the computations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neada.runs import RunFolder
from reproduction import errata_lemma, errata_methods, errata_regret, figures
from reproduction.errata_lemma import Erratum
from reproduction.experiment import Claim, Progress, Record, Scale, Seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ERRATA", "PAPER", "TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "Errata: the print against small computations"
WHERE = "Lemma 1, Theorems 2 to 4, Algorithms 2 and 3"
PAPER = (
    "What the print says in each case, and what should stand there, is beside the computations in "
    "the source. All theorems survive the corrections but Theorem 4 with alpha = 1, which needs "
    "the larger learning rate of its own proof."
)

ERRATA: dict[str, Erratum] = {
    erratum.id: erratum
    for erratum in (
        *errata_lemma.LEMMA,
        *errata_regret.REGRET,
        *errata_methods.ERRATA,
        *errata_regret.STOPPING,
    )
}
_SIZES: dict[str, tuple[int, int, int]] = {
    "lemma-sign": (300, 1000, 1000),
    "lemma-average": (3000, 10_000, 30_000),
    "gda-step": (100, 100, 100),
    "regret-constant": (5000, 20_000, 100_000),
    "regret-rate": (50_000, 100_000, 300_000),
    "log-proposition": (1000, 10_000, 100_000),
    "amsgrad-rebasing": (300, 1000, 3000),
    "stochastic-hypothesis": (2000, 10_000, 30_000),
    "agnostic-solvers": (800, 2000, 5000),
    "criterion-units": (60, 1000, 3000),
    "criterion-text": (60, 1000, 3000),
}
_TITLES = {
    "lemma-sign": "Lemma 1: a bound on absolute values",
    "lemma-average": "Lemma 1: averaged iterates",
    "gda-step": "Lemma 1: GDA with r = 2 L²",
    "regret-constant": "Theorem 4: the constant",
    "regret-rate": "Theorem 4: the learning rate",
    "log-proposition": "Appendix: the logarithmic inequality",
    "amsgrad-rebasing": "Algorithm 2 with AMSGrad",
    "stochastic-hypothesis": "Theorem 3: error of the inner method",
    "agnostic-solvers": "Remark on Theorem 2: inner solvers",
    "criterion-units": "Algorithm 3: the unit of f",
    "criterion-text": "Section 2: the stopping rule",
}


@dataclass(frozen=True)
class Config:
    """One erratum.

    Attributes:
        erratum: Its id.
        size: Steps, rounds or draws of its computation.
    """

    erratum: str
    size: int

    @property
    def label(self) -> str:
        """The id."""
        return self.erratum


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Every erratum; where something is random, its rows are many draws of one stream."""
    number = ("quick", "standard", "paper").index(scale)
    return [Config(name, _SIZES[name][number]) for name in ERRATA]


def run(config: Config, run: RunFolder, progress: Progress) -> None:
    """Do the computation of an erratum."""
    run.append(ERRATA[config.erratum].compute(config.size))
    progress(1.0)


def claims(records: Sequence[Record]) -> list[Claim]:
    """Whether each erratum is confirmed, number by number."""
    found = {
        (record.config.erratum, row["measure"]): float(row["value"])
        for record in records
        for row in record.rows
        if "measure" in row
    }
    return [
        Claim(
            f"errata/{erratum.id}/{statement.name}",
            statement.sentence,
            erratum.where,
            found.get((erratum.id, statement.name)),
            statement.relation,
            statement.expected,
            note=_note(erratum) if number == 0 else "",
        )
        for erratum in ERRATA.values()
        for number, statement in enumerate(erratum.statements)
    ]


def _note(erratum: Erratum) -> str:
    """Stands beside the first claim of an erratum."""
    return f"Print: {erratum.printed}. Corrected: {erratum.corrected}."


def figure(records: Sequence[Record]) -> "Figure":
    """One panel per erratum."""
    return figures.curves_figure(
        [_panel(record, ERRATA[record.config.erratum]) for record in records],
        num_columns=3,
        y_label="",
        legend_columns=2,
        legends="own",
        panel_size=(3.4, 3.3),
        largest=math.inf,
    )


def _panel(record: Record, erratum: Erratum) -> figures.Panel:
    rows = [row for row in record.rows if "curve" in row]
    curves = []
    for name in dict.fromkeys(row["curve"] for row in rows):
        points = np.array([(row["x"], row["y"]) for row in rows if row["curve"] == name], float)
        curves.append(figures.Curve(name, *points.T))
    x_label, y_label = erratum.axes
    x_scale, y_scale = erratum.scales
    return figures.Panel(
        _TITLES[erratum.id],
        curves,
        x_label=x_label,
        y_label=y_label,
        x_scale=x_scale,
        y_scale=y_scale,
    )
