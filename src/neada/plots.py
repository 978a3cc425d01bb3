"""What users plot: the history of a solve, and the parts that figures share.

The only module that imports matplotlib, which is an extra.
"""

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "SMALLEST",
    "add_note",
    "history_figure",
    "label_axes",
    "new_figure",
    "numbered_style",
    "shared_legend",
]

# Okabe and Ito's palette, which the color-blind can tell apart, then others; markers do the same
# in grey.
_COLORS = (
    *("#D55E00", "#0072B2", "#009E73", "#4D4D4D", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#7F3C8D", "#A5AA24", "#80501C", "#1B9E9E", "#B2182B", "#4A6FE3", "#8C8C8C"),
)
SMALLEST = 1e-17
"""Where an exact zero is drawn, which has no place on a logarithmic axis."""
_MARKERS = "os^DvPX<>ph*dH"


def numbered_style(number: int) -> dict[str, Any]:
    """The line style of the lines of a figure that are told apart by their order.

    Example:
        >>> numbered_style(0)["marker"], numbered_style(1)["marker"]
        ('o', 's')
    """
    number %= len(_COLORS)
    return {
        "color": _COLORS[number],
        "marker": _MARKERS[number],
        "linestyle": "-",
        "linewidth": 1.5,
    }


def new_figure(
    num_panels: int, num_columns: int, panel_size: tuple[float, float] = (3.6, 2.9)
) -> tuple["Figure", list["Axes"]]:
    """A figure with a grid of panels; cells without a panel are left blank.

    Raises:
        ImportError: matplotlib is not installed; the sentence says how to get it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'neada[plots]'") from error
    num_columns = min(num_columns, num_panels)
    num_rows = math.ceil(num_panels / num_columns)
    width, height = panel_size
    figure = Figure((num_columns * width, num_rows * height + 0.9), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    axes = [cell for row in grid for cell in row]
    for blank in axes[num_panels:]:
        blank.set_axis_off()
    return figure, axes[:num_panels]


def label_axes(axes: "Axes", title: str, x_label: str = "", y_label: str = "") -> None:
    """A panel's title, labels and ticks in the sizes of all figures."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.tick_params(labelsize=8, which="both")


def shared_legend(
    figure: "Figure", axes: Sequence["Axes"], num_columns: int = 4, last: Collection[str] = ()
) -> None:
    """One legend below all panels, every label once, some of them at the end."""
    found: dict[str, Artist] = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    found = dict(sorted(found.items(), key=lambda entry: entry[0] in last))
    if found:
        num_columns = min(num_columns, len(found))
        # Two rows have room already.
        more = max(0, math.ceil(len(found) / num_columns) - 2)
        figure.set_figheight(figure.get_figheight() + 0.19 * more)
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=num_columns,
            frameon=False,
            fontsize=9,
            handlelength=3.2,  # long enough to show dashes
        )


def add_note(figure: "Figure", text: str) -> None:
    """Small grey words below the panels, such as what a line and a band are; nothing if empty.

    They stand above the shared legend, if there is one, which has to be there already.
    """
    if not text:
        return
    size = 8.0
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 72.0 / (0.52 * size)))
    figure.set_figheight(figure.get_figheight() + 1.4 * size / 72.0 * len(lines))
    # A title of the legend: the layout keeps room for nothing else down there.
    legend = next(iter(figure.legends), None) or figure.legend(
        [], [], loc="outside lower center", frameon=False
    )
    legend.set_title("\n".join(lines))
    legend.get_title().set(color="0.35", fontsize=size, multialignment="center")


# Dark blue and orange differ in lightness too, so the picture survives grey and color blindness.
_X_COLOR, _Y_COLOR = "#1f3b73", "#e07b00"


def history_figure(
    history: Mapping[str, NDArray[Any]], tol: float | None = None, title: str = "", note: str = ""
) -> "Figure":
    """Both norms of a solve against the calls spent, on a logarithmic axis.

    Args:
        history: The columns "calls", "grad_norm_x" and "grad_norm_y"; with one number per row of
            a rowwise solve the largest is drawn.
        tol: Where the tolerance is drawn, if anywhere.
        title: What stands above it, such as how the solve ended.
        note: What stands below it in small letters, such as what that means.

    Raises:
        ImportError: matplotlib is not installed; the sentence says how to get it.
    """
    figure, (axes,) = new_figure(1, 1, panel_size=(6.4, 3.1))
    notes = [note] if note else []
    for name, label, color, line in (
        ("grad_norm_x", "x gradient", _X_COLOR, "-"),
        ("grad_norm_y", "y gradient mapping", _Y_COLOR, "--"),
    ):
        norms = np.asarray(history[name], dtype=float)
        worst = norms if norms.ndim == 1 else norms.max(axis=1)
        if norms.ndim == 2:
            notes.append(f"lines: the largest norm of {norms.shape[1]} rows")
        if (worst < SMALLEST).any():
            notes.append(f"an exact zero is drawn at {SMALLEST:g}")
        axes.plot(
            history["calls"],
            np.maximum(worst, SMALLEST),
            line,
            color=color,
            label=label,
            marker="." if len(worst) < 100 else "",
        )
    if tol is not None:
        axes.axhline(tol, color="0.35", linestyle=":", linewidth=1.2, label=f"tolerance {tol:.3g}")
    axes.set_yscale("log")
    label_axes(axes, title, "gradient and value calls", "norm")
    axes.grid(alpha=0.3)
    shared_legend(figure, [axes])
    add_note(figure, "; ".join(dict.fromkeys(notes)))
    return figure
