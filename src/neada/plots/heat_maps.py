"""Heat maps over two parameters, with lines drawn over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neada.plots.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HeatMap", "heat_maps_figure"]


@dataclass(frozen=True)
class HeatMap:
    """Numbers on a grid whose axes are logarithmic.

    Attributes:
        title: Above the map.
        x: The positions of the columns, increasing.
        y: The positions of the rows, increasing.
        values: Shape (len(y), len(x)).
        lines: Curves to draw over it: a label, x and y.
    """

    title: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    values: NDArray[np.float64]
    lines: Sequence[tuple[str, NDArray[np.float64], NDArray[np.float64]]] = ()


def heat_maps_figure(
    maps: Sequence[HeatMap],
    *,
    num_columns: int,
    x_label: str,
    y_label: str,
    value_label: str,
    value_range: tuple[float, float],
    ticks: Sequence[tuple[float, str]] = (),
) -> "Figure":
    """Maps with one scale of colours, light to dark, which also reads in grey.

    Args:
        maps: What is drawn, one panel each.
        num_columns: Panels in a row.
        x_label: Below the panels.
        y_label: Left of them.
        value_label: Beside the bar of colours.
        value_range: The numbers at the ends of the bar.
        ticks: Numbers on the bar with words for them, instead of plain numbers.
    """
    figure, axes = new_figure(len(maps), num_columns, panel_size=(3.3, 2.9))
    image = None
    for heat_map, cell in zip(maps, axes, strict=True):
        image = cell.pcolormesh(
            *(_edges(heat_map.x), _edges(heat_map.y), heat_map.values),
            cmap="cividis",
            vmin=value_range[0],
            vmax=value_range[1],
            rasterized=True,
        )
        for (label, x, y), (colour, dash) in zip(
            heat_map.lines, (("white", "-"), ("#FF8C42", "--"), ("white", ":")), strict=False
        ):
            cell.plot(x, y, color=colour, linestyle=dash, linewidth=2.0, label=label)
        cell.set_xscale("log")
        cell.set_yscale("log")
        cell.set_xlim(_edges(heat_map.x)[0], _edges(heat_map.x)[-1])
        cell.set_ylim(_edges(heat_map.y)[0], _edges(heat_map.y)[-1])
        cell.set_title(heat_map.title, fontsize=10)
        cell.set_xlabel(x_label, fontsize=9)
        cell.tick_params(labelsize=8)
        if heat_map.lines:
            cell.legend(fontsize=8, loc="lower right", facecolor="0.35", labelcolor="white")
    for cell in axes[:: max(1, min(num_columns, len(maps)))]:
        cell.set_ylabel(y_label, fontsize=9)
    if image is not None:
        bar = figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
        bar.set_label(value_label, fontsize=9)
        if ticks:
            bar.set_ticks([place for place, _ in ticks], labels=[words for _, words in ticks])
        bar.ax.tick_params(labelsize=8)
    return figure


def _edges(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """The borders of cells around logarithmically spaced centres."""
    logs = np.log(centres)
    middles = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - middles[0], 2 * logs[-1] - middles[-1]
    edges: NDArray[np.float64] = np.exp(np.concatenate([[first], middles, [last]]))
    return edges
