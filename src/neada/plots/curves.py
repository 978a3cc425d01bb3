"""Curves of methods with the spread of the seeds, and heat maps over two parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from neada.plots.style import method_style, new_figure, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

__all__ = ["Curve", "HeatMap", "Panel", "curves_figure", "heat_maps_figure"]


_SMALLEST, _LARGEST = 1e-17, 1e6
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Curve:
    """One method's numbers.

    Attributes:
        method: The name in the legend; it decides the color.
        x: Where the numbers were taken.
        values: The numbers, shape (points,) or (points, seeds).
        markers: Whether to mark the points themselves, for curves of a few measurements.
    """

    method: str
    x: NDArray[np.float64]
    values: NDArray[np.float64]
    markers: bool = False


@dataclass(frozen=True)
class Panel:
    """A title, curves, and lines to compare them with.

    Attributes:
        title: Above the panel.
        curves: What is drawn.
        guides: Reference lines: a label, and the values at the x of the first curve.
        levels: Horizontal lines: a label and a height.
        x_label: Below the panel, if it differs from the figure's.
    """

    title: str
    curves: Sequence[Curve]
    guides: Sequence[tuple[str, NDArray[np.float64], NDArray[np.float64]]] = ()
    levels: Sequence[tuple[str, float]] = ()
    x_label: str = ""


def curves_figure(
    panels: Sequence[Panel],
    *,
    num_columns: int,
    y_label: str,
    x_label: str = "gradient calls",
    x_scale: Scale = "linear",
    y_scale: Scale = "log",
    y_limits: tuple[float, float] | None = None,
    legend_columns: int = 4,
) -> "Figure":
    """One panel beside the other: the mean over seeds, and their middle 80 % as a shade.

    On a logarithmic axis the mean is geometric, an exact zero is drawn at 1e-17, and what is
    beyond 1e6 leaves the panel through its upper edge.
    """
    figure, axes = new_figure(len(panels), num_columns)
    for panel, cell in zip(panels, axes, strict=True):
        for number, curve in enumerate(panel.curves):
            _draw(cell, curve, y_scale, offset=number)
        for label, x, y in panel.guides:
            cell.plot(x, y, color="0.35", linestyle=":", linewidth=1.2, label=label)
        for label, height in panel.levels:
            cell.axhline(height, color="0.35", linestyle="-.", linewidth=1.0, label=label)
        cell.set_title(panel.title, fontsize=10)
        cell.set_xscale(x_scale)
        cell.set_yscale(y_scale)
        if y_limits is not None:
            cell.set_ylim(*y_limits)
        elif y_scale == "log":
            cell.set_ylim(top=min(cell.get_ylim()[1], 3 * _LARGEST))
        cell.set_xlabel(panel.x_label or x_label, fontsize=9)
        cell.tick_params(labelsize=8)
        cell.grid(alpha=0.25)
        if x_scale == "linear":
            cell.xaxis.set_major_locator(_few_ticks())
    for cell in axes[:: max(1, min(num_columns, len(panels)))]:
        cell.set_ylabel(y_label, fontsize=9)
    shared_legend(figure, axes, legend_columns)
    return figure


def _draw(axes: "Axes", curve: Curve, y_scale: Scale, offset: int) -> None:
    values = np.asarray(curve.values, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    if y_scale == "log":
        values = np.clip(np.nan_to_num(values, nan=np.inf, posinf=1e300), _SMALLEST, 10 * _LARGEST)
        middle = np.exp(np.log(values).mean(axis=1))
    else:
        middle = values.mean(axis=1)
    style = method_style(curve.method)
    # Markers of different curves sit at different places, so that none hides another.
    every = 1 if curve.markers else (offset * max(1, len(middle) // 40), max(1, len(middle) // 5))
    axes.plot(
        curve.x, middle, label=curve.method, markevery=every, markersize=4.5, alpha=0.95, **style
    )
    if values.shape[1] > 1:
        low, high = np.quantile(values, [0.1, 0.9], axis=1)
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.12, lw=0)


def _few_ticks() -> "MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


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
    """Maps with one scale of colors, light to dark, which also reads in grey.

    Args:
        maps: What is drawn, one panel each.
        num_columns: Panels in a row.
        x_label: Below the panels.
        y_label: Left of them.
        value_label: Beside the bar of colors.
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
        for (label, x, y), (color, dash) in zip(
            heat_map.lines, (("white", "-"), ("#FF8C42", "--"), ("white", ":")), strict=False
        ):
            cell.plot(x, y, color=color, linestyle=dash, linewidth=2.0, label=label)
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


def _edges(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The borders of cells around logarithmically spaced centers."""
    logs = np.log(centers)
    middles = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - middles[0], 2 * logs[-1] - middles[-1]
    edges: NDArray[np.float64] = np.exp(np.concatenate([[first], middles, [last]]))
    return edges
