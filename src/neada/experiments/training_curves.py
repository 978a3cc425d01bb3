"""How Figures 3 and 4 are drawn: a line per group of runs, a panel per number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neada import plots
from neada.experiments.robust_training import Runs, over_calls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "Panel", "figure_of"]


@dataclass(frozen=True)
class Line:
    """How one group of runs is drawn.

    Attributes:
        label: Its name in the legend.
        colour: Of the line.
        marker: Tells methods apart in grey.
        dashed: Tells learning rates apart.
        runs: By seed.
    """

    label: str
    colour: str
    marker: str
    dashed: bool
    runs: Runs


@dataclass(frozen=True)
class Panel:
    """What one panel shows of every line.

    Attributes:
        title: Above it.
        column: The name of the numbers in the rows.
        y_label: Left of it.
        percent: Show 100 times the numbers.
        logarithmic: The scale of the y axis.
        level: A horizontal line to compare with, and its name.
    """

    title: str
    column: str
    y_label: str
    percent: bool = False
    logarithmic: bool = False
    level: tuple[str, float] | None = None


def figure_of(lines: Sequence[Line], panels: Sequence[Panel], num_columns: int) -> "Figure":
    """One panel beside the other: the mean over the seeds, and their range as a shade."""
    figure, axes = plots.new_figure(len(panels), num_columns, panel_size=(4.2, 3.1))
    for panel, cell in zip(panels, axes, strict=True):
        for number, line in enumerate(lines):
            if line.runs:
                _draw(cell, line, panel, number)
        if panel.level is not None:
            name, height = panel.level
            cell.axhline(height, color="0.35", linestyle=":", linewidth=1.0, label=name)
        cell.set_title(panel.title, fontsize=10)
        cell.set_yscale("log" if panel.logarithmic else "linear")
        cell.set_xlim(left=0)
        cell.set_xlabel("gradient calls", fontsize=9)
        cell.set_ylabel(panel.y_label, fontsize=9)
        cell.tick_params(labelsize=8)
        cell.grid(alpha=0.25)
    plots.shared_legend(figure, axes, num_columns=2)
    return figure


def _draw(cell: "Axes", line: Line, panel: Panel, number: int) -> None:
    calls, values = over_calls(line.runs, panel.column)
    values = 100.0 * values if panel.percent else values
    few = len(calls) <= 20
    middle = np.exp(np.log(values).mean(axis=1)) if panel.logarithmic else values.mean(axis=1)
    cell.plot(
        *(calls, middle),
        label=line.label,
        color=line.colour,
        linestyle="--" if line.dashed else "-",
        linewidth=1.6,
        marker=line.marker,
        markersize=4.5,
        markerfacecolor="white" if line.dashed else line.colour,
        markevery=1 if few else (2 * number, len(calls) // 6),
    )
    if values.shape[1] > 1:
        low, high = values.min(axis=1), values.max(axis=1)
        cell.fill_between(calls, low, high, color=line.colour, alpha=0.10, lw=0)
