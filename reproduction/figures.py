"""Curves of methods with the spread of the seeds, and heat maps over two parameters."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
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


def method_style(label: str, variant: int = 0) -> dict[str, Any]:
    """The line style of a method: the same color in every figure.

    Args:
        label: The method's name, or the name, a comma or a space, and further words. A name that
            is not known has the first numbered style.
        variant: Lines of one method, such as its learning rates, differ in dashes and in whether
            their markers are filled.

    Example:
        >>> method_style("NeAda-Adam")["linestyle"], method_style("Adam")["linestyle"]
        ('-', '--')
        >>> method_style("TiAda, lr 0.1", 1)["color"] == method_style("TiAda")["color"]
        True
    """
    method = _method_of(label)
    style = numbered_style(0)
    if method is not None:
        style["color"], style["marker"] = _METHODS[method]
    dash = variant + (method in _WITHOUT_LOOP)
    style["linestyle"] = _DASHES[dash % len(_DASHES)]
    if variant % 2:
        style["markerfacecolor"] = "white"
    return style


def method_styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The line styles of all lines that one legend names: methods by color, variants by dashes.

    Labels that name no known method have numbered styles, in a color that no method here has.

    Example:
        >>> styles = method_styles(["TiAda, lr 1", "TiAda, lr 10", "mine"])
        >>> [style["linestyle"] for style in styles.values()]
        ['-', '--', '-']
    """
    methods = {label: _method_of(label) for label in labels}
    taken = {_METHODS[method][0] for method in methods.values() if method is not None}
    free = [number for number in range(14) if numbered_style(number)["color"] not in taken]
    seen: Counter[str | None] = Counter()
    styles = {}
    for label, method in methods.items():
        number = seen[method]
        seen[method] += 1
        styles[label] = (
            numbered_style(free[number % len(free)])
            if method is None
            else method_style(label, number)
        )
    return styles


def _method_of(label: str) -> str | None:
    """The longest name of a method that the label begins with; capitals do not count."""
    words = label.lower().replace(",", " ,") + " "
    found = [name for name in _METHODS if words.startswith(name.lower().replace(",", " ,") + " ")]
    return max(found, key=len, default=None)


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


# Words beside a line of a panel.
_BESIDE: dict[str, Any] = {"textcoords": "offset points", "color": "0.35", "fontsize": 8}
_BAND = (0.1, 0.9)
_BAND_SEEDS = 5
"""With fewer columns every one is drawn instead of a band."""
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Curve:
    """One method's numbers.

    Attributes:
        label: The name in the legend.
        x: Where the numbers were taken.
        values: The numbers, shape (points,) or (points, seeds).
        style: Of the line and its markers; by default that of the method with this name. Without a
            line every number is a dot of its own.
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
        guides: Reference lines with a label at their start: label, x and y.
        levels: Horizontal lines: a label and a height.
        x_label: Below the panel, if it differs from the figure's.
        y_label: Left of the panel, likewise.
        y_scale: Of its y axis, likewise.
        x_ticks: Places on the x axis with words for them, instead of numbers.
    """

    title: str
    curves: Sequence[Curve]
    guides: Sequence[tuple[str, NDArray[np.float64], NDArray[np.float64]]] = ()
    levels: Sequence[tuple[str, float]] = ()
    x_label: str | None = None
    y_label: str = ""
    y_scale: Scale | None = None
    x_ticks: Sequence[tuple[float, str]] = ()


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
    panel_size: tuple[float, float] = (3.4, 2.8),
    largest: float = 1e6,
    same_y: bool = False,
    note: str = "",
) -> Figure:
    """One panel beside the other: the mean over seeds, and their middle 80 % as a band.

    On a logarithmic axis the mean is geometric, and an exact zero is drawn at 1e-17. Words below
    the figure say what the lines and bands are.

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
        largest: On a logarithmic axis, what is beyond it leaves the panel through its upper edge.
        same_y: Whether all panels have the same y axis.
        note: Further words there.
    """
    figure, axes = new_figure(len(panels), num_columns, panel_size)
    labels = [curve.label for panel in panels for curve in panel.curves]
    for number, (panel, cell) in enumerate(zip(panels, axes, strict=True)):
        scale = panel.y_scale or y_scale
        own = [curve.label for curve in panel.curves]
        styles = method_styles(labels if legends == "shared" else own)
        for offset, curve in enumerate(panel.curves):
            _draw(cell, curve, curve.style or styles[curve.label], scale, offset, largest)
        for label, x, y in panel.guides:
            cell.plot(x, y, color="0.35", linestyle=":", linewidth=1.2)
            rises = y[-1] > y[0]
            cell.annotate(
                *(label, (x[0], y[0]), (6, -3 if rises else 3)),
                **(_BESIDE | {"va": "top" if rises else "bottom"}),
            )
        for label, height in panel.levels:
            cell.axhline(height, color="0.35", linestyle=(0, (4, 2)), linewidth=1.0)
            place = (0.99, height), (0, 3)
            cell.annotate(label, *place, ("axes fraction", "data"), **(_BESIDE | {"ha": "right"}))
        label_axes(
            cell,
            panel.title,
            x_label if panel.x_label is None else panel.x_label,
            panel.y_label or ("" if number % num_columns else y_label),
        )
        _set_scales(cell, x_scale, scale, largest)
        if panel.x_ticks:
            places, words = zip(*panel.x_ticks, strict=True)
            cell.set_xticks(places, words, rotation=40, ha="right", rotation_mode="anchor")
            cell.tick_params(axis="x", which="minor", bottom=False)
        if legends == "own":
            cell.legend(
                fontsize=8,
                ncols=legend_columns,
                frameon=False,
                handlelength=3.2,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.2),
            )
    if same_y:
        low, high = np.array([cell.get_ylim() for cell in axes]).T
        for cell in axes:
            cell.set_ylim(low.min(), high.max())
    if legends == "shared":
        shared_legend(figure, axes, legend_columns)
    add_note(figure, "; ".join(filter(None, [_meaning(panels, y_scale), note])))
    return figure


def _set_scales(axes: Axes, x_scale: Scale, y_scale: Scale, largest: float) -> None:
    axes.set_xscale(x_scale)
    axes.set_yscale(y_scale)
    if y_scale == "log" and axes.get_ylim()[1] > 2 * largest:
        axes.set_ylim(top=2 * largest)
    if x_scale == "linear":
        axes.locator_params(axis="x", nbins=5)
    if "linear" in (x_scale, y_scale):
        axes.minorticks_on()
    axes.grid(alpha=0.25)


def _meaning(panels: Sequence[Panel], y_scale: Scale) -> str:
    """What the lines and bands of a figure are; empty where there is one number at each place."""
    counts, scales, zeros = set(), set(), False
    for panel in panels:
        scale = panel.y_scale or y_scale
        for curve in panel.curves:
            if _is_dots(curve.style):
                continue
            values = np.asarray(curve.values)
            zeros |= scale == "log" and bool((values < SMALLEST).any())
            if values.ndim == 2:
                counts.add(values.shape[1])
                scales.add(scale)
    words = []
    if max(counts, default=1) > 1:
        mean = {"log": "geometric mean", "linear": "mean"}.get("".join(scales))
        mean = mean or "mean (geometric on logarithmic axes)"
        number = " to ".join(str(n) for n in sorted({min(counts), max(counts)}))
        spread = "bands: 10th to 90th percentile"
        if max(counts) < _BAND_SEEDS:
            spread = "thin lines: single seeds"
        words.append(f"lines: {mean} over {number} seeds; {spread}")
    if zeros:
        words.append(f"an exact zero is drawn at {SMALLEST:g}")
    return "; ".join(words)


def _is_dots(style: Mapping[str, Any] | None) -> bool:
    return style is not None and style.get("linestyle") == "none"


def _draw(
    axes: Axes,
    curve: Curve,
    style: Mapping[str, Any],
    y_scale: Scale,
    offset: int,
    largest: float,
) -> None:
    values = np.asarray(curve.values, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    dots = _is_dots(style)
    if y_scale == "log":
        # A line leaves the panel; a dot has to be seen.
        top = largest if dots else 10 * largest
        values = np.clip(np.nan_to_num(values, nan=np.inf, posinf=1e300), SMALLEST, top)
        middle = np.exp(np.log(values).mean(axis=1))
        low, high = np.exp(np.quantile(np.log(values), _BAND, axis=1))
    else:
        middle = values.mean(axis=1)
        low, high = np.quantile(values, _BAND, axis=1)
    # Markers of different curves sit at different places, so that none hides another.
    many = (offset * max(1, len(middle) // 40), max(1, len(middle) // 5))
    every = many if len(middle) > 20 and not dots else 1
    axes.plot(
        curve.x, middle, label=curve.label, markevery=every, markersize=4.5, alpha=0.95, **style
    )
    if values.shape[1] == 1 or dots:
        return
    look = {"color": style["color"], "linestyle": style["linestyle"]}
    edges = np.array([low, high])
    if values.shape[1] >= _BAND_SEEDS:
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.1, lw=0)
    else:
        edges = values.T
    for edge in edges:  # tells apart bands that lie over each other
        axes.plot(curve.x, edge, **look, alpha=0.35, linewidth=0.5)


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
    panel_size: tuple[float, float] = (3.3, 2.9),
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
        ticks: Numbers on the bar with words for them, instead of plain numbers.
        panel_size: Width and height in inches.
        note: Words below the figure.
    """
    figure, axes = new_figure(len(maps), num_columns, panel_size)
    from matplotlib.patheffects import withStroke

    image = None
    for number, (heat_map, cell) in enumerate(zip(maps, axes, strict=True)):
        image = cell.pcolormesh(
            *(_edges(heat_map.x), _edges(heat_map.y), heat_map.values),
            cmap="cividis",
            vmin=value_range[0],
            vmax=value_range[1],
            rasterized=True,
        )
        for (label, x, y), (color, dash, edge) in zip(heat_map.lines, _OVER_MAPS, strict=False):
            effects = [withStroke(linewidth=3.5, foreground=edge)]
            cell.plot(*(x, y, dash), color=color, linewidth=1.8, label=label, path_effects=effects)
        cell.set_xscale("log")
        cell.set_yscale("log")
        cell.set_xlim(_edges(heat_map.x)[0], _edges(heat_map.x)[-1])
        cell.set_ylim(_edges(heat_map.y)[0], _edges(heat_map.y)[-1])
        label_axes(cell, heat_map.title, x_label, "" if number % num_columns else y_label)
    if image is not None:
        bar = figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
        bar.set_label(value_label, fontsize=9)
        if ticks:
            bar.set_ticks([place for place, _ in ticks], labels=[words for _, words in ticks])
        bar.ax.tick_params(labelsize=8)
    shared_legend(figure, axes)
    add_note(figure, note)
    return figure


# Color, dash and outline of lines that have to be seen on every color of a map and beside it.
_OVER_MAPS = (("white", "-", "black"), ("#D7191C", "--", "white"), ("white", ":", "black"))


def _edges(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The borders of cells around logarithmically spaced centers."""
    logs = np.log(centers)
    middles = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - middles[0], 2 * logs[-1] - middles[-1]
    edges: NDArray[np.float64] = np.exp(np.concatenate([[first], middles, [last]]))
    return edges
