"""Figures are drawn from numbers, and say what is missing when they cannot be."""

import sys

import numpy as np
import pytest

from neada import minimax, problems
from neada.plots import history_figure, numbered_style
from reproduction.figures import Curve, Panel, curves_figure, method_style


def test_a_result_draws_both_norms_against_the_calls(tmp_path) -> None:
    problem = problems.make("mccormick")
    result = minimax(problem.fun, problem.x0, problem.y0)
    figure = result.plot(tol=1e-6)
    (axes,) = figure.axes
    x_line, y_line, _ = axes.lines
    np.testing.assert_array_equal(x_line.get_xdata(), result.to_numpy()["calls"])
    np.testing.assert_array_equal(x_line.get_ydata(), result.to_numpy()["grad_norm_x"])
    assert {x_line.get_label(), y_line.get_label()} == {"x gradient", "y gradient mapping"}
    assert axes.get_legend() is None  # it stands below
    assert axes.get_yscale() == "log"
    figure.savefig(tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 5000


def test_rows_are_drawn_by_the_worst() -> None:
    history = {
        "calls": np.array([2, 4]),
        "grad_norm_x": np.array([[1.0, 3.0], [0.5, 0.1]]),
        "grad_norm_y": np.array([[0.0, 0.0], [0.0, 0.0]]),
    }
    figure = history_figure(history)
    x_line, y_line = figure.axes[0].lines
    assert "the largest norm of 2 rows" in note_of(figure)
    assert x_line.get_ydata().tolist() == [3.0, 0.5]
    assert (y_line.get_ydata() > 0.0).all()  # zero has no place on a logarithmic axis


def test_panels_may_have_their_own_scale_label_and_legend() -> None:
    steps, seeds = np.arange(1.0, 5.0), np.array([[1.0, 4.0]] * 4)
    dashed = {**numbered_style(1), "linestyle": "--"}
    panels = [
        Panel("first", [Curve("Adam", steps, seeds)], levels=[("goal", 0.5)]),
        Panel("second", [Curve("mine", steps, seeds, dashed)], y_label="%", y_scale="linear"),
        Panel("third", [Curve("Adam", steps, seeds)]),
    ]
    figure = curves_figure(panels, num_columns=2, y_label="norm", legends="own")
    first, second, third = figure.axes[:3]
    assert [axes.get_ylabel() for axes in (first, second, third)] == ["norm", "%", "norm"]
    assert [axes.get_yscale() for axes in (first, second)] == ["log", "linear"]
    assert first.lines[0].get_ydata().tolist() == [2.0] * 4  # the geometric mean
    assert second.lines[0].get_ydata().tolist() == [2.5] * 4
    assert first.lines[0].get_color() == method_style("Adam")["color"] == third.lines[0].get_color()
    assert (second.lines[0].get_color(), second.lines[0].get_linestyle()) == (dashed["color"], "--")
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["Adam", "goal"]
    assert not [text for legend in figure.legends for text in legend.get_texts()]
    (shared,) = curves_figure(panels, num_columns=2, y_label="norm").legends
    assert [text.get_text() for text in shared.get_texts()] == ["Adam", "mine", "goal"]


def note_of(figure) -> str:
    return " ".join(" ".join(legend.get_title().get_text().split()) for legend in figure.legends)


def test_a_figure_says_what_its_lines_and_bands_are() -> None:
    steps = np.arange(1.0, 5.0)

    def drawn(scales, num_seeds, last=1.0) -> str:
        seeds = np.ones((4, num_seeds))
        seeds[-1] = last
        panels = [Panel("", [Curve("Adam", steps, seeds)], y_scale=scale) for scale in scales]
        return note_of(curves_figure(panels, num_columns=2, y_label="", note="M: a number"))

    bands = "bands: 10th to 90th percentile; M: a number"
    assert drawn(["log"], 3) == f"lines: geometric mean over 3 seeds; {bands}"
    assert drawn(["linear"], 3) == f"lines: mean over 3 seeds; {bands}"
    assert "mean (geometric on logarithmic axes)" in drawn(["linear", "log"], 3)
    assert drawn(["log"], 1) == "M: a number"
    assert drawn(["log"], 1, 0.0) == "an exact zero is drawn at 1e-17; M: a number"


def test_without_matplotlib_the_sentence_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip"):
        history_figure({})
