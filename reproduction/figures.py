"""Curves of methods with the spread of the seeds, and heat maps over two parameters."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from neada.plots import (
    SMALLEST,
    add_note,
    label_axes,
    new_figure,
    numbered_style,
    shared_legend,
)
from neada.runs import atomic_write
from reproduction.experiment import interval

_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
# The color and the marker of each method. Without NeAda's inner loop the color is a lighter one of
# the same hue, and the line dashed. Those that share a color are never drawn in one figure.
_METHODS = {
    # Simultaneous play, and NeAda's inner loop.
    "NeAda-Adam": ("#C04E00", "o"),
    "NeAda-AMSGrad": ("#0062A8", "s"),
    "NeAda-AdaGrad": ("#007F5F", "^"),
    "NeAda-GDA": ("#5A5A5A", "D"),
    "Adam": ("#F09A55", "o"),
    "AMSGrad": ("#5FAFE0", "s"),
    "AdaGrad": ("#58BF9F", "^"),
    "GDA": ("#A0A0A0", "D"),
    # Robust training.
    "NeAda-Adam, library": ("#12A5B8", "P"),
    "Adam, 15 inner steps": ("#7F3C8D", "v"),
    "TiAda": ("#D9609F", "X"),
    "default": ("#000000", "D"),
}
_WITHOUT_LOOP = ("Adam", "AMSGrad", "AdaGrad", "GDA")


def method_styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The line styles of all lines that one legend names.

    A label that begins with the name of a method has the same color in every figure. Lines of one
    method, such as its learning rates, differ in dashes and in whether their markers are filled.
    Other labels have numbered styles.

    Example:
        >>> styles = method_styles(["TiAda, lr 1", "TiAda, lr 10", "mine"])
        >>> [style["linestyle"] for style in styles.values()]
        ['-', '--', '-']
    """
    seen: Counter[str | None] = Counter()
    styles = {}
    for label in dict.fromkeys(labels):
        names = [name for name in _METHODS if label.lower().startswith(name.lower())]
        method = max(names, key=len, default=None)
        variant = seen[method]
        seen[method] += 1
        style = numbered_style(variant)
        if method is not None:
            style["color"], style["marker"] = _METHODS[method]
            dash = variant + (method in _WITHOUT_LOOP)
            style["linestyle"] = _DASHES[dash % len(_DASHES)]
            style["markerfacecolor"] = "white" if variant % 2 else style["color"]
        styles[label] = style
    return styles


def save(figure: Figure, folder: Path, name: str = "figure") -> tuple[Path, Path]:
    """Write a figure as PNG and SVG; returns both paths."""
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    with atomic_write(paths[0]) as file:
        figure.savefig(file, format="png", dpi=150)
    # Fixed ids and no date: the same numbers give the same file.
    import matplotlib

    with atomic_write(paths[1]) as file, matplotlib.rc_context({"svg.hashsalt": "neada"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return paths


Band = Literal["seeds", "mean"]
_BAND_WORDS: dict[Band, str] = {
    "seeds": "10th to 90th percentile",
    "mean": "95 % confidence interval of the mean",
}
_BAND_SEEDS = 5
"""With fewer columns every one is drawn instead of a band."""
Scale = Literal["linear", "log"]
Guide = tuple[str, NDArray[np.float64], NDArray[np.float64]]
"""A line to compare with: its label, x and y."""


@dataclass(frozen=True)
class Curve:
    """One method's numbers.

    Attributes:
        label: The name in the legend.
        x: Where the numbers were taken.
        values: The numbers, shape (points,) or (points, seeds).
    """

    label: str
    x: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """A title, curves, and lines to compare them with.

    Attributes:
        title: Above the panel.
        curves: What is drawn.
        guides: Dotted reference lines.
        x_label: Below the panel, if it differs from the figure's.
        y_label: Left of the panel, likewise.
        y_scale: Of its y axis.
    """

    title: str
    curves: Sequence[Curve]
    guides: Sequence[Guide] = ()
    x_label: str = ""
    y_label: str = ""
    y_scale: Scale = "log"


def curves_figure(
    panels: Sequence[Panel],
    *,
    num_columns: int,
    y_label: str = "",
    x_label: str = "gradient calls",
    x_scale: Scale = "linear",
    legend_columns: int = 4,
    legends: Literal["shared", "own"] = "shared",
    panel_size: tuple[float, float] = (3.4, 2.8),
    largest: float = 1e6,
    bands: Band = "seeds",
    note: str = "",
) -> Figure:
    """One panel beside the other: the mean over seeds with a band.

    On a logarithmic axis the mean is geometric, and an exact zero is drawn at 1e-17. Words below
    the figure say what the lines and bands are.

    Args:
        panels: What is drawn.
        num_columns: Panels in a row.
        y_label: Left of the panels.
        x_label: Below them.
        x_scale: Of their x axes.
        legend_columns: Entries in a row of a legend.
        legends: One below all panels, or one below each.
        panel_size: Width and height in inches.
        largest: On a logarithmic axis, what is beyond it leaves the panel through its upper edge.
        bands: The middle 80 % of the seeds, or a confidence interval of the mean.
        note: Further words there.
    """
    figure, axes = new_figure(len(panels), num_columns, panel_size)
    labels = [curve.label for panel in panels for curve in panel.curves]
    for number, (panel, cell) in enumerate(zip(panels, axes, strict=True)):
        own = [curve.label for curve in panel.curves]
        styles = method_styles(labels if legends == "shared" else own)
        for offset, curve in enumerate(panel.curves):
            style = styles[curve.label]
            _draw(cell, curve, style, panel.y_scale, offset, 10 * largest, bands)
        for label, x, y in panel.guides:
            cell.plot(x, y, color="0.35", linestyle=":", linewidth=1.2, label=label or None)
        outer_label = "" if number % num_columns else y_label
        label_axes(cell, panel.title, panel.x_label or x_label, panel.y_label or outer_label)
        cell.set(xscale=x_scale, yscale=panel.y_scale)
        if x_scale == "linear":
            cell.locator_params(axis="x", integer=True)
        cell.grid(alpha=0.25)
        if panel.y_scale == "log" and cell.get_ylim()[1] > 2 * largest:
            cell.set_ylim(top=2 * largest)
        if legends == "own":
            below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
            cell.legend(fontsize=8, ncols=legend_columns, frameon=False, **below)
    if legends == "shared":
        shared_legend(figure, axes, legend_columns)
    add_note(figure, "; ".join(filter(None, [_meaning(panels, bands), note])))
    return figure


def _meaning(panels: Sequence[Panel], bands: Band) -> str:
    """What the lines and bands of a figure are; empty where there is one number at each place."""
    values = [np.asarray(curve.values) for panel in panels for curve in panel.curves]
    counts = {each.shape[1] for each in values if each.ndim == 2}
    if max(counts, default=1) == 1:
        return ""
    number = " to ".join(str(n) for n in sorted({min(counts), max(counts)}))
    spread = f"bands: {_BAND_WORDS[bands]}"
    if max(counts) < _BAND_SEEDS:
        spread = "thin lines: single seeds"
    return f"lines: mean over {number} seeds (geometric on logarithmic axes); {spread}"


def _draw(
    axes: Axes,
    curve: Curve,
    style: Mapping[str, Any],
    scale: Scale,
    offset: int,
    top: float,
    bands: Band,
) -> None:
    values = np.asarray(curve.values, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    if scale == "log":
        values = np.log(np.clip(np.nan_to_num(values, nan=np.inf, posinf=1e300), SMALLEST, top))
    drawn = np.exp if scale == "log" else np.asarray
    middle = drawn(values.mean(axis=1))
    # Markers of different curves sit at different places, so that none hides another.
    many = (offset * max(1, len(middle) // 40), max(1, len(middle) // 5))
    every = many if len(middle) > 20 else 1
    axes.plot(
        curve.x, middle, label=curve.label, markevery=every, markersize=4.5, alpha=0.95, **style
    )
    if values.shape[1] >= _BAND_SEEDS:
        ends = interval(values) if bands == "mean" else np.quantile(values, (0.1, 0.9), axis=1)
        axes.fill_between(curve.x, *map(drawn, ends), color=style["color"], alpha=0.15, lw=0)
    elif values.shape[1] > 1:
        axes.plot(curve.x, drawn(values), color=style["color"], alpha=0.35, linewidth=0.5)


@dataclass(frozen=True)
class HeatMap:
    """Numbers on a grid whose axes are logarithmic.

    Attributes:
        title: Above the map.
        x: The positions of the columns, increasing.
        y: The positions of the rows, increasing.
        values: Shape (len(y), len(x)).
        guides: At most two lines to draw over it.
    """

    title: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    values: NDArray[np.float64]
    guides: Sequence[Guide] = ()


def heat_maps_figure(
    maps: Sequence[HeatMap],
    *,
    num_columns: int,
    x_label: str,
    y_label: str,
    value_label: str,
    value_range: tuple[float, float],
    panel_size: tuple[float, float],
    note: str = "",
) -> Figure:
    """Maps with one scale of colors, light to dark, which also reads in grey.

    Args:
        maps: What is drawn, one panel each.
        num_columns: Panels in a row.
        x_label: Below the panels.
        y_label: Left of them.
        value_label: Beside the bar of colors.
        value_range: The numbers at the ends of the bar.
        panel_size: Width and height in inches.
        note: Words below the figure.
    """
    figure, axes = new_figure(len(maps), num_columns, panel_size)
    colors = Normalize(*value_range)
    for heat_map, cell in zip(maps, axes, strict=True):
        grid = heat_map.x, heat_map.y, heat_map.values
        cell.pcolormesh(*grid, cmap="cividis", norm=colors, rasterized=True)
        for number, (label, x, y) in enumerate(heat_map.guides):
            color, dash = ("#D7191C", "-") if number else ("black", "--")
            cell.plot(x, y, color=color, linestyle=dash, linewidth=1.8, label=label)
        limits = {"xlim": heat_map.x[[0, -1]], "ylim": heat_map.y[[0, -1]]}
        cell.set(xscale="log", yscale="log", facecolor="0.6", **limits)
        label_axes(cell, heat_map.title, x_label, y_label)
        cell.label_outer()
    bar = figure.colorbar(ScalarMappable(colors, "cividis"), ax=axes, shrink=0.85, pad=0.02)
    bar.set_label(value_label, fontsize=9)
    shared_legend(figure, axes)
    add_note(figure, note)
    return figure
