"""Curves of methods with the spread of the seeds, and heat maps over two parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from neada.plots.style import label_axes, method_style, new_figure, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "HeatMap", "Panel", "curves_figure", "heat_maps_figure"]


_SMALLEST, _LARGEST = 1e-17, 1e6
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Curve:
    """One method's numbers.

    Attributes:
        label: The name in the legend.
        x: Where the numbers were taken.
        values: The numbers, shape (points,) or (points, seeds).
        style: Of the line and its markers; by default that of the method with this name.
    """

    label: str
    x: NDArray[np.float64]
    values: NDArray[np.float64]
    style: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Panel:
    """A title, curves, and lines to compare them with.

    Attributes:
        title: Above the panel.
        curves: What is drawn.
        guides: Reference lines: a label, and the values at the x of the first curve.
        levels: Horizontal lines: a label and a height.
        y_label: Left of the panel, if it differs from the figure's.
        y_scale: Of its y axis, likewise.
    """

    title: str
    curves: Sequence[Curve]
    guides: Sequence[tuple[str, NDArray[np.float64], NDArray[np.float64]]] = ()
    levels: Sequence[tuple[str, float]] = ()
    y_label: str = ""
    y_scale: Scale | None = None


def curves_figure(
    panels: Sequence[Panel],
    *,
    num_columns: int,
    y_label: str,
    x_label: str = "gradient calls",
    x_scale: Scale = "linear",
    y_scale: Scale = "log",
    legend_columns: int = 4,
    legends: Literal["shared", "own"] = "shared",
    panel_size: tuple[float, float] = (3.6, 2.9),
) -> "Figure":
    """One panel beside the other: the mean over seeds, and their middle 80 % as a shade.

    On a logarithmic axis the mean is geometric, an exact zero is drawn at 1e-17, and what is
    beyond 1e6 leaves the panel through its upper edge.

    Args:
        panels: What is drawn.
        num_columns: Panels in a row.
        y_label: Left of the panels.
        x_label: Below them.
        x_scale: Of their x axes.
        y_scale: Of their y axes.
        legend_columns: Entries in a row of a legend.
        legends: One below all panels, or one below each.
        panel_size: Width and height in inches.
    """
    figure, axes = new_figure(len(panels), num_columns, panel_size)
    for number, (panel, cell) in enumerate(zip(panels, axes, strict=True)):
        scale = panel.y_scale or y_scale
        for offset, curve in enumerate(panel.curves):
            _draw(cell, curve, scale, offset)
        for label, x, y in panel.guides:
            cell.plot(x, y, color="0.35", linestyle=":", linewidth=1.2, label=label)
        for label, height in panel.levels:
            cell.axhline(height, color="0.35", linestyle="-.", linewidth=1.0, label=label)
        label_axes(
            cell, panel.title, x_label, panel.y_label or ("" if number % num_columns else y_label)
        )
        cell.set_xscale(x_scale)
        cell.set_yscale(scale)
        if scale == "log":
            cell.set_ylim(top=min(cell.get_ylim()[1], 3 * _LARGEST))
        cell.grid(alpha=0.25)
        if x_scale == "linear":
            cell.locator_params(axis="x", nbins=5)
        if legends == "own":
            cell.legend(
                fontsize=8,
                ncols=legend_columns,
                frameon=False,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.16),
            )
    if legends == "shared":
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
    style = curve.style or method_style(curve.label)
    # Markers of different curves sit at different places, so that none hides another.
    many = (offset * max(1, len(middle) // 40), max(1, len(middle) // 5))
    every = many if len(middle) > 20 else 1
    axes.plot(
        curve.x, middle, label=curve.label, markevery=every, markersize=4.5, alpha=0.95, **style
    )
    if values.shape[1] > 1:
        low, high = np.quantile(values, [0.1, 0.9], axis=1)
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.12, lw=0)


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
    for number, (heat_map, cell) in enumerate(zip(maps, axes, strict=True)):
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
        label_axes(cell, heat_map.title, x_label, "" if number % num_columns else y_label)
        if heat_map.lines:
            cell.legend(fontsize=8, loc="lower right", facecolor="0.35", labelcolor="white")
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
