"""Curves of methods over calls or any other axis, with the spread of the seeds."""

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

__all__ = ["Curve", "Panel", "curves_figure"]

_SMALLEST, _LARGEST = 1e-17, 1e6
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Curve:
    """One method's numbers.

    Attributes:
        method: The name in the legend; it decides the colour.
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
