"""A look at a data set: its images in rows by class, or its points in the plane."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neada.plots.style import label_axes, new_figure, numbered_style, shared_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["contact_sheet"]

_MOST_POINTS = 2000


def contact_sheet(
    inputs: NDArray[Any], targets: NDArray[Any], title: str = "", num_columns: int = 12
) -> "Figure":
    """The first images of every class, one row per class; for points of the plane, a scatter plot.

    Args:
        inputs: Images of shape (samples, channels, height, width) with 1 or 3 channels, or points
            of shape (samples, 2).
        targets: Their class labels.
        title: Above the sheet.
        num_columns: Images per class.

    Raises:
        ValueError: The inputs are neither.
        ImportError: matplotlib is not installed; the sentence says how to get it.
    """
    if inputs.ndim == 2 and inputs.shape[1] == 2:
        return _scatter(inputs, targets, title)
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        raise ValueError(
            "a contact sheet shows images of 1 or 3 channels, or points of the plane; these "
            f"inputs have shape {tuple(inputs.shape[1:])}"
        )
    classes = np.unique(targets)
    size = 6.6 / num_columns
    height = max(1.0, len(classes) * size * inputs.shape[2] / inputs.shape[3] + 0.3)
    figure, (axes,) = new_figure(1, 1, panel_size=(7.2, height - 0.9))
    axes.imshow(
        _mosaic(inputs, targets, classes, num_columns), cmap="gray", interpolation="nearest"
    )
    step = inputs.shape[2] + 1
    axes.set_yticks([step * (i + 0.5) for i in range(len(classes))], [str(c) for c in classes])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title, fontsize=10)
    return figure


def _mosaic(
    inputs: NDArray[Any], targets: NDArray[Any], classes: NDArray[Any], num_columns: int
) -> NDArray[np.float64]:
    """All images in one, a white line between them; black and white are the data's extremes."""
    _, channels, height, width = inputs.shape
    low, high = float(inputs.min()), float(inputs.max())
    shape = (len(classes) * (height + 1) + 1, num_columns * (width + 1) + 1, channels)
    sheet = np.ones(shape)
    for row, label in enumerate(classes):
        for column, image in enumerate(inputs[targets == label][:num_columns]):
            top, left = row * (height + 1) + 1, column * (width + 1) + 1
            shade = (image.transpose(1, 2, 0) - low) / max(high - low, 1e-12)
            sheet[top : top + height, left : left + width] = shade
    return sheet[:, :, 0] if channels == 1 else sheet


def _scatter(points: NDArray[Any], targets: NDArray[Any], title: str) -> "Figure":
    figure, (axes,) = new_figure(1, 1, panel_size=(5.0, 4.4))
    points, targets = points[:_MOST_POINTS], targets[:_MOST_POINTS]
    for number, label in enumerate(np.unique(targets)):
        axes.plot(
            *points[targets == label].T,
            **{**numbered_style(number), "linestyle": "none"},
            markersize=3.5,
            markeredgewidth=0.0,
            alpha=0.7,
            label=f"class {label}",
        )
    axes.set_aspect("equal")
    axes.grid(alpha=0.25)
    label_axes(axes, title)
    shared_legend(figure, [axes])
    return figure
