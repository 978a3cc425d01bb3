"""The history of one solve."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["history_figure"]

# Dark blue and orange differ in lightness too, so the picture survives grey and colour blindness.
_X_COLOUR, _Y_COLOUR = "#1f3b73", "#e07b00"


def history_figure(history: Mapping[str, NDArray[Any]], tol: float | None = None) -> "Figure":
    """Both norms of a solve against the calls spent, on a logarithmic axis.

    Args:
        history: The columns "calls", "grad_x_norm" and "gradient_mapping_norm".
        tol: Where the tolerance is drawn, if anywhere.

    Raises:
        ImportError: matplotlib is not installed; the sentence says how to get it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'neada[plots]'") from error
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    calls = history["calls"]
    for name, label, colour, line in (
        ("grad_x_norm", "x gradient", _X_COLOUR, "-"),
        ("gradient_mapping_norm", "y gradient mapping", _Y_COLOUR, "--"),
    ):
        norms = np.asarray(history[name], dtype=float)
        worst = norms if norms.ndim == 1 else norms.max(axis=1)
        # An exact zero has no place on a logarithmic axis: it is shown at the smallest number.
        axes.plot(calls, np.maximum(worst, 1e-17), line, color=colour, label=label, marker=".")
    if tol is not None:
        axes.axhline(tol, color="0.5", linewidth=0.8, label="tolerance")
    axes.set_yscale("log")
    axes.set_xlabel("gradient and value calls")
    axes.set_ylabel("norm")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure
