"""One look for all figures, and the figure of one solve."""

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "history_figure",
    "label_axes",
    "method_style",
    "new_figure",
    "numbered_style",
    "save",
    "shared_legend",
]


# Okabe and Ito's palette, which the color-blind can tell apart, then others; markers do the same
# in grey.
_COLORS = (
    *("#D55E00", "#0072B2", "#009E73", "#4D4D4D", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#7F3C8D", "#A5AA24", "#80501C", "#1B9E9E", "#B2182B", "#4A6FE3", "#8C8C8C"),
)
_MARKERS = "os^DvPX<>ph*dH"
_METHODS = ("adam", "amsgrad", "adagrad", "gda", "tiada", "extragradient", "backtracking")
_NESTED = "NeAda"


def numbered_style(number: int) -> dict[str, Any]:
    """The line style of the lines of a figure that are told apart by their order.

    Example:
        >>> numbered_style(0)["color"] == method_style("Adam")["color"]
        True
    """
    number %= len(_COLORS)
    return {
        "color": _COLORS[number],
        "marker": _MARKERS[number],
        "linestyle": "-",
        "linewidth": 1.5,
    }


def method_style(method: str) -> dict[str, Any]:
    """The line style of a method: the same in every figure.

    Example:
        >>> method_style("NeAda-Adam")["linestyle"], method_style("Adam")["linestyle"]
        ('-', '--')
        >>> method_style("NeAda-Adam")["color"] == method_style("Adam")["color"]
        True
    """
    nested = method.startswith(_NESTED)
    base = method.removeprefix(_NESTED).strip("- ").lower()
    if base in _METHODS:
        color = marker = _METHODS.index(base)
    else:
        number = zlib.crc32(base.encode())
        color, marker = 7 + number % 7, 7 + number // 7 % 7
    return {
        "color": _COLORS[color],
        "marker": _MARKERS[marker],
        "linestyle": "-" if nested else "--",
        "linewidth": 1.7 if nested else 1.3,
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


def shared_legend(figure: "Figure", axes: Sequence["Axes"], num_columns: int = 4) -> None:
    """One legend below all panels, every label once."""
    found: dict[str, Artist] = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=min(num_columns, len(found)),
            frameon=False,
            fontsize=9,
        )


def save(figure: "Figure", folder: Path, name: str = "figure") -> tuple[Path, Path]:
    """Write a figure as PNG and SVG; returns both paths."""
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(paths[0], dpi=150)
    # Fixed ids and no date: the same numbers give the same file.
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "neada"}):
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


# Dark blue and orange differ in lightness too, so the picture survives grey and color blindness.
_X_COLOR, _Y_COLOR = "#1f3b73", "#e07b00"


def history_figure(
    history: Mapping[str, NDArray[Any]], tol: float | None = None, title: str = ""
) -> "Figure":
    """Both norms of a solve against the calls spent, on a logarithmic axis.

    Args:
        history: The columns "calls", "grad_norm_x" and "grad_norm_y".
        tol: Where the tolerance is drawn, if anywhere.
        title: What stands above it, such as how the solve ended.

    Raises:
        ImportError: matplotlib is not installed; the sentence says how to get it.
    """
    figure, (axes,) = new_figure(1, 1, panel_size=(6.4, 3.1))
    for name, label, color, line in (
        ("grad_norm_x", "x gradient", _X_COLOR, "-"),
        ("grad_norm_y", "y gradient mapping", _Y_COLOR, "--"),
    ):
        norms = np.asarray(history[name], dtype=float)
        worst = norms if norms.ndim == 1 else norms.max(axis=1)
        # An exact zero has no place on a logarithmic axis: it is shown at the smallest number.
        axes.plot(
            history["calls"], np.maximum(worst, 1e-17), line, color=color, label=label, marker="."
        )
    if tol is not None:
        axes.axhline(tol, color="0.35", linestyle=":", linewidth=1.2, label="tolerance")
    axes.set_yscale("log")
    label_axes(axes, title, "gradient and value calls", "norm")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure
