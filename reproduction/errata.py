"""Corrections to the paper, each with a counterexample or a computation.

Three kinds are listed separately: errors, typos and notation, and remarks, which are not errata.
"Supported" means that the computation confirms the correction. Costs seconds at every scale.
"""

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from neada.plots import add_note, label_axes, new_figure, shared_legend
from neada.runs import RunFolder
from reproduction.corrections import CORRECTIONS
from reproduction.experiment import Claim, Record, Scale, Seeds

TITLE = "Corrections: errors, typos and remarks"
WHERE = "Lemma 1, Theorems 1 to 4, Algorithms 2 and 3"
PAPER = (
    "Two theorems are false as printed: Theorem 1, whose bound must contain 2E instead of E, and "
    "Theorem 4 with alpha = 1, which needs the learning rate of its own proof. The rates of "
    "Theorems 2 and 3 do not change. Each correction is stated with its first claim."
)


@dataclass(frozen=True)
class Config:
    """One correction, by its letter.

    Attributes:
        letter: The letter in `CORRECTIONS`.
    """

    letter: str

    @property
    def label(self) -> str:
        """The id of the correction."""
        return CORRECTIONS[self.letter].id


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Every correction."""
    return [Config(letter) for letter in CORRECTIONS]


def run(config: Config, run: RunFolder) -> None:
    """Compute the checks and the lines of a correction."""
    checks, lines = CORRECTIONS[config.letter].compute()
    run.append([{**asdict(check), "measured": float(check.measured)} for check in checks])
    for name, (x, y) in lines.items():
        kept = np.unique(np.geomspace(1, len(x), 80).astype(int)) - 1
        run.append([{"line": name, "x": float(x[i]), "y": float(y[i])} for i in kept])


def claims(records: Sequence[Record]) -> list[Claim]:
    """Whether each correction is confirmed, number by number."""
    return [
        Claim(
            f"errata/{record.config.label}/{row['name']}",
            f"{record.config.letter}: {row['sentence']}",
            CORRECTIONS[record.config.letter].where,
            row["measured"],
            row["relation"],
            tuple(row["expected"]) if row["relation"] == "between" else row["expected"],
            note="" if number else _statement(record.config.letter),
            corrects=True,
        )
        for record in records
        for number, row in enumerate(row for row in record.rows if "relation" in row)
    ]


def _statement(letter: str) -> str:
    correction = CORRECTIONS[letter]
    text = " ".join((inspect.getdoc(correction.compute) or "").split())
    return text if correction.kind == "remark" else f"{correction.kind.capitalize()}. {text}"


_ROLES: dict[str, dict[str, Any]] = {
    "measured": {"color": "black", "linestyle": "-"},
    "as printed": {"color": "#D55E00", "linestyle": "--"},
    "corrected": {"color": "#0072B2", "linestyle": "-."},
}


def figure(records: Sequence[Record]) -> Figure:
    """One panel with its letter for each correction that has lines."""
    drawn = [record for record in records if any("line" in row for row in record.rows)]
    figure, axes = new_figure(len(drawn), 2, (4.6, 2.6))
    for record, panel in zip(drawn, axes, strict=True):
        correction = CORRECTIONS[record.config.letter]
        rows = [row for row in record.rows if "line" in row]
        for name in dict.fromkeys(row["line"] for row in rows):
            x, y = np.array([(r["x"], r["y"]) for r in rows if r["line"] == name], float).T
            panel.plot(x, y, linewidth=1.6, label=name, **_ROLES[name])
        title, x_label, y_label = correction.panel
        label_axes(panel, f"{record.config.letter}. {title}", x_label, y_label)
        panel.set(xscale="log", yscale="log")
        panel.margins(y=0.15)
        panel.grid(alpha=0.25)
    shared_legend(figure, axes)
    add_note(figure, "errors with curves; the letters are those of the list of corrections")
    return figure
