"""One look for all figures, and the figure of one solve."""

import math
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neada.runs import atomic_write

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "add_note",
    "history_figure",
    "label_axes",
    "method_style",
    "method_styles",
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
SMALLEST = 1e-17
"""Where an exact zero is drawn, which has no place on a logarithmic axis."""
_MARKERS = "os^DvPX<>ph*dH"
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
    "NeAda as released": ("#C04E00", "o"),
    "NeAda-Adam, frozen statistics": ("#12A5B8", "P"),
    "Adam, 15 inner steps": ("#7F3C8D", "v"),
    "Adam, 15 steps": ("#7F3C8D", "v"),
    "TiAda": ("#D9609F", "X"),
    "default": ("#000000", "D"),
    "WRM": ("#000000", "D"),
    "AdversarialTraining": ("#B2182B", "s"),
    "Fast-AT": ("#4A6FE3", "<"),
    "Free-AT": ("#009E73", ">"),
    # Inner solvers without noise.
    "Backtracking": ("#2E86AB", "o"),
    "AdGD": ("#E69F00", "s"),
    "AdGD adapg": ("#E69F00", "s"),
    "AdGD mm20": ("#B8860B", "D"),
    "AdGD mm20lin": ("#F2C45A", "^"),
    "AdGD mm23": ("#80501C", "v"),
    "L-BFGS": ("#D6278A", "P"),
    "AdaGrad-Norm": ("#2F9E44", "*"),
    "GD": ("#5A5A5A", "X"),
    "Polyak": ("#9467BD", "<"),
    "SC-AdaNGD": ("#B2182B", ">"),
    "DecSPS": ("#A5AA24", "h"),
    # Inner solvers with noise.
    "SGD": ("#000000", "o"),
    "AdaGrad averaged": ("#2F9E44", "s"),
    "AdaGrad carried": ("#0072B2", "v"),
    "AdaGrad alpha 1": ("#D55E00", "P"),
    "AdaGrad alpha 3/4": ("#E69F00", "p"),
    "AdaGrad alpha 1/2": ("#80501C", "h"),
    "coin betting": ("#CC79A7", "*"),
    "FreeRexMomentum": ("#56B4E9", "<"),
    "DoG": ("#0E8A93", "X"),
    "DoWG": ("#5B8C00", "d"),
}
_WITHOUT_LOOP = ("Adam", "AMSGrad", "AdaGrad", "GDA")


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
    free = [number for number, color in enumerate(_COLORS) if color not in taken]
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


def save(figure: "Figure", folder: Path, name: str = "figure") -> tuple[Path, Path]:
    """Write a figure as PNG and SVG; returns both paths."""
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    with atomic_write(paths[0]) as file:
        figure.savefig(file, format="png", dpi=150)
    # Fixed ids and no date: the same numbers give the same file.
    import matplotlib

    with atomic_write(paths[1]) as file, matplotlib.rc_context({"svg.hashsalt": "neada"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return paths


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
