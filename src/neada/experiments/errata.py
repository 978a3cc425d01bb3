"""Errata: what is wrong or soft in the print, each shown by a small computation.

The verdict "holds" means that the computation confirms what is said here about the print. What the
print says and what should stand there is in `errata_lemma`, `errata_regret` and
`errata_methods`, beside the computations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neada import plots
from neada.experiments import errata_lemma, errata_methods, errata_regret
from neada.experiments.errata_lemma import Erratum
from neada.experiments.experiment import Claim, Progress, Record, Scale
from neada.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ERRATA", "TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "Errata: the print against small computations"
WHERE = "Lemma 1, Theorems 2 to 4, Algorithms 2 and 3"

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
    "regret-constant": (20_000, 100_000, 300_000),
    "regret-rate": (100_000, 300_000, 1_000_000),
    "log-proposition": (1000, 10_000, 100_000),
    "amsgrad-rebasing": (300, 1000, 3000),
    "stochastic-hypothesis": (2000, 10_000, 30_000),
    "agnostic-solvers": (800, 2000, 5000),
    "criterion-units": (60, 1000, 3000),
    "criterion-text": (60, 1000, 3000),
}
_DASHES = ("-", "--", "-.", ":")


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


def configs(scale: Scale, seeds: int | None = None) -> list[Config]:
    """Every erratum; where something is random, its rows are many draws of one stream."""
    number = ("quick", "standard", "paper").index(scale)
    return [Config(name, _SIZES[name][number]) for name in ERRATA]


def run(config: Config, run: Run, progress: Progress) -> None:
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
    figure, axes = plots.new_figure(len(records), 4, panel_size=(3.7, 3.0))
    for record, cell in zip(records, axes, strict=True):
        _draw(cell, record, ERRATA[record.config.erratum])
    return figure


def _draw(cell: "Axes", record: Record, erratum: Erratum) -> None:
    rows = [row for row in record.rows if "curve" in row]
    names = list(dict.fromkeys(row["curve"] for row in rows))
    for number, name in enumerate(names):
        points = [(row["x"], row["y"]) for row in rows if row["curve"] == name]
        color, dash = plots.numbered_style(number)["color"], _DASHES[number % len(_DASHES)]
        cell.plot(*zip(*points, strict=True), dash, color=color, lw=1.5, label=name)
    plots.label_axes(cell, erratum.id, *erratum.axes)
    cell.set(xscale=erratum.scales[0], yscale=erratum.scales[1])
    cell.grid(alpha=0.25)
    many = len(names) > 4
    cell.legend(
        fontsize=6.5 if many else 7.5,
        loc="lower left" if many else "best",
        framealpha=0.7,
        edgecolor="none",
    )
