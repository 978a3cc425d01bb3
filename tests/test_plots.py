"""Figures show the numbers they are given."""

import sys

import numpy as np
import pytest

from neada import minimax, problems
from neada.plots import history_figure
from reproduction.figures import Curve, Panel, curves_figure, method_styles


def test_a_result_draws_both_norms_against_the_calls(tmp_path) -> None:
    problem = problems.make("mccormick")
    result = minimax(problem.fun, problem.x0, problem.y0)
    figure = result.plot(tol=1e-6)
    (axes,) = figure.axes
    x_line, y_line, _ = axes.lines
    np.testing.assert_array_equal(x_line.get_xdata(), result.to_numpy()["calls"])
    np.testing.assert_array_equal(x_line.get_ydata(), result.to_numpy()["grad_norm_x"])
    assert {x_line.get_label(), y_line.get_label()} == {"x gradient", "y gradient mapping"}
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
    assert x_line.get_ydata().tolist() == [3.0, 0.5]
    assert (y_line.get_ydata() > 0.0).all()  # zero has no place on a logarithmic axis


def test_panels_may_have_their_own_scale_label_and_legend() -> None:
    steps, seeds = np.arange(1.0, 5.0), np.array([[1.0, 4.0]] * 4)
    panels = [
        Panel("first", [Curve("Adam", steps, seeds)], guides=[("goal", steps, 1.0 / steps)]),
        Panel("second", [Curve("mine", steps, seeds)], y_label="%", y_scale="linear"),
    ]
    figure = curves_figure(panels, num_columns=2, y_label="norm", legends="own")
    first, second = figure.axes[:2]
    assert [axes.get_ylabel() for axes in (first, second)] == ["norm", "%"]
    assert [axes.get_yscale() for axes in (first, second)] == ["log", "linear"]
    assert first.lines[0].get_ydata().tolist() == [2.0] * 4  # the geometric mean
    assert second.lines[0].get_ydata().tolist() == [2.5] * 4
    assert first.lines[0].get_color() == method_styles(["Adam"])["Adam"]["color"]
    assert first.lines[-1].get_ydata().tolist() == (1.0 / steps).tolist()
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["Adam", "goal"]
    (shared,) = curves_figure(panels, num_columns=2, y_label="norm").legends
    assert [text.get_text() for text in shared.get_texts()] == ["Adam", "goal", "mine"]


def test_without_matplotlib_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip"):
        history_figure({})
