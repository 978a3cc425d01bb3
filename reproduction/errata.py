"""Corrections to the paper, each with a counterexample or a computation.

Three kinds are listed separately: errors, typos and notation, and remarks, which are not errata.
"Supported" means that the computation confirms the correction. Costs seconds at every scale.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from neada.plots import add_note, label_axes, new_figure, numbered_style, shared_legend
from neada.runs import RunFolder
from reproduction.corrections import CORRECTIONS, Correction
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
    return [claim for record in records for claim in _claims_of(record)]


def _claims_of(record: Record) -> Iterator[Claim]:
    correction = CORRECTIONS[record.config.letter]
    for number, row in enumerate(row for row in record.rows if "relation" in row):
        expected = row["expected"]
        yield Claim(
            f"errata/{correction.id}/{row['name']}",
            f"{record.config.letter}: {row['sentence']}",
            correction.where,
            row["measured"],
            row["relation"],
            tuple(expected) if isinstance(expected, list) else expected,
            note="" if number else _statement(correction),
            corrects=True,
        )


def _statement(correction: Correction) -> str:
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
    figure, axes = new_figure(len(drawn), 3, (3.4, 2.5))
    for record, panel in zip(drawn, axes, strict=True):
        correction = CORRECTIONS[record.config.letter]
        rows = [row for row in record.rows if "line" in row]
        for number, name in enumerate(dict.fromkeys(row["line"] for row in rows)):
            x, y = np.array([(r["x"], r["y"]) for r in rows if r["line"] == name], float).T
            style = _ROLES.get(name) or {"color": numbered_style(number)["color"]}
            panel.plot(x, y, linewidth=1.6, label=name if name in _ROLES else None, **style)
            if name not in _ROLES:  # a label, below a line that falls and above any other
                look: dict[str, Any] = {"color": style["color"], "fontsize": 8, "ha": "right"}
                place = (-4, -12) if y[-1] < 0.1 * y[0] else (0, 4)
                panel.annotate(name, (x[-1], y[-1]), place, textcoords="offset points", **look)
        title, x_label, y_label = correction.panel
        label_axes(panel, f"{record.config.letter}. {title}", x_label, y_label)
        panel.set(xscale=correction.scales[0], yscale=correction.scales[1])
        panel.margins(y=0.15)
        panel.grid(alpha=0.25)
    shared_legend(figure, axes)
    add_note(figure, "A to F: errors; G to J: typos and notation; K to M: remarks")
    return figure
