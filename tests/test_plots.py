"""Figures are drawn from numbers, and say what is missing when they cannot be."""

import sys
from pathlib import Path

import numpy as np
import pytest

from neada import minimax, plots, problems
from neada.experiments import deterministic_rate, stochastic_rate
from neada.plots import (
    Curve,
    HeatMap,
    Panel,
    curves_figure,
    heat_maps_figure,
    history_figure,
    method_style,
    method_styles,
    numbered_style,
)


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


def test_a_line_lies_within_its_band_on_a_logarithmic_axis() -> None:
    seeds = np.array([[1e-6, 1.0]] * 4)
    figure = curves_figure(
        [Panel("", [Curve("Adam", np.arange(4.0), seeds)])], num_columns=1, y_label=""
    )
    middle, low, high = (line.get_ydata()[0] for line in figure.axes[0].lines)
    assert low < middle < high
    np.testing.assert_allclose([middle, low, high], [1e-3, 10**-5.4, 10**-0.6])


def looks(styles) -> list[tuple]:
    return [(style["color"], str(style["linestyle"])) for style in styles.values()]


@pytest.mark.parametrize(
    "labels",
    [
        [f"{nested}{name}" for nested in ("", "NeAda-") for name in ("Adam", "AMSGrad", "GDA")],
        [c.solver for c in deterministic_rate.configs("standard")],
        [c.label for c in stochastic_rate.configs("standard")],
        ["Adam, 15 inner steps", "NeAda-Adam", "NeAda-Adam, frozen statistics", "default", "TiAda"],
        [
            "default adversary",
            "DoG",
            "DoWG",
            "Adam, 15 inner steps, lr 1",
            "TiAda",
            "mine",
            "yours",
        ],
    ],
)
def test_lines_of_a_figure_differ_in_color_or_dashes(labels) -> None:
    styles = method_styles(labels)
    assert len(set(looks(styles))) == len(styles) == len(set(labels))


def test_a_method_has_one_color_whatever_else_is_drawn() -> None:
    alone, among = method_style("TiAda"), method_styles(["mine", "NeAda-Adam", "TiAda, lr 1"])
    assert among["TiAda, lr 1"]["color"] == alone["color"]
    assert method_style("NeAda-Adam")["color"] != method_style("Adam")["color"]
    assert method_style("Adam, 15 inner steps")["color"] != method_style("Adam")["color"]
    assert method_style("AdamW") == numbered_style(0)  # a name of its own, not Adam's


def test_legends_and_notes_are_outside_the_panels(tmp_path) -> None:
    curve = Curve("Adam", np.arange(1.0, 5.0), np.ones((4, 3)))
    maps = [
        HeatMap("", np.array([1.0, 10.0]), np.array([1.0, 10.0]), np.eye(2), [("l", *np.eye(2))])
    ]
    for figure in (
        curves_figure([Panel("", [curve])] * 3, num_columns=2, y_label="norm"),
        curves_figure([Panel("", [curve])] * 3, num_columns=2, y_label="norm", legends="own"),
        heat_maps_figure(
            maps,
            num_columns=1,
            x_label="",
            y_label="",
            value_label="",
            value_range=(0.0, 1.0),
            note="solved: all",
        ),
    ):
        figure.savefig(tmp_path / "figure.png")
        panels = [axes for axes in figure.axes if axes.axison]
        own = [legend for axes in panels if (legend := axes.get_legend()) is not None]
        assert note_of(figure)
        for legend in (*figure.legends, *own):
            box = legend.get_window_extent()
            assert box.y0 >= 0.0
            assert not any(axes.get_window_extent().overlaps(box) for axes in panels)


def test_without_matplotlib_the_sentence_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'neada\[plots\]'"):
        history_figure({})


def test_a_figure_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    other = tmp_path / "other"
    other.write_text("somebody's", encoding="utf-8")
    for name in ("figure.png", "figure.svg"):
        (tmp_path / name).symlink_to(other)
    paths = plots.save(Figure((1.0, 1.0)), tmp_path)
    assert other.read_text(encoding="utf-8") == "somebody's"
    assert all(path.is_file() and not path.is_symlink() for path in paths)
