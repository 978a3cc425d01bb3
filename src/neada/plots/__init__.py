"""Figures from numbers; the only importer of matplotlib, which is an extra."""

from neada.plots.curves import Curve, HeatMap, Panel, curves_figure, heat_maps_figure
from neada.plots.images import contact_sheet
from neada.plots.style import (
    add_note,
    history_figure,
    label_axes,
    method_style,
    method_styles,
    new_figure,
    numbered_style,
    save,
    shared_legend,
)

__all__ = [
    "Curve",
    "HeatMap",
    "Panel",
    "add_note",
    "contact_sheet",
    "curves_figure",
    "heat_maps_figure",
    "history_figure",
    "label_axes",
    "method_style",
    "method_styles",
    "new_figure",
    "numbered_style",
    "save",
    "shared_legend",
]
