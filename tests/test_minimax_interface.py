"""`minimax` as users meet it: what it prints and plots, the forms it takes, and its sentences."""

import dataclasses
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import neada
from neada import Players, Status, make_stepper, minimax, problems, sets
from neada.solve import History


def saddle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x - 1.0) ** 2).sum() + 2.0 * x.sum() * y.sum() - (y**2).sum()


def saddle_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x - 1.0) ** 2).sum(1) + 2.0 * x.sum(1) * y.sum(1) - (y**2).sum(1)


def pulled(x: torch.Tensor, y: Any) -> torch.Tensor:
    """The maximum over the parts of y lies at about (2, 2), outside of the sets of the tests."""
    first, second = y.values() if isinstance(y, dict) else y
    far = (first - 2.0).square().sum() + (second - 2.0).square().sum()
    return x**2 + 0.1 * x * (first.sum() + second.sum()) - far


# What is printed.


def test_a_result_prints_as_an_aligned_table_without_its_history() -> None:
    result = minimax(saddle, [0.0], [0.0])
    lines = repr(result).splitlines()
    assert str(result) == repr(result)
    names = [line.split(":")[0].strip() for line in lines]
    assert names == [
        *("status", "success", "message", "fun", "x", "y"),
        *("grad_norm_x", "grad_norm_y", "calls", "steps"),
    ]
    assert {line.index(":") for line in lines} == {len("grad_norm_x")}
    assert lines[0].strip() == "status: CONVERGED"
    assert lines[1].strip() == "success: True"
    assert lines[4].strip() == "x: [0.5]"
    assert f": {result.total_calls} ({result.calls_x} of x, {result.calls_y} of y, " in lines[8]
    assert lines[9].strip() == f"steps: {result.outer_steps} of x, {result.inner_steps} of y"


def test_long_points_and_messages_are_shortened_and_wrapped_in_their_column() -> None:
    start = torch.ones(40, 50, dtype=torch.float64)
    result = minimax(lambda x, y: (x**2).sum() + x.sum() * y - y**2, start, 0.0, max_calls=3)
    text = repr(result)
    assert ", shape (40, 50)" in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) <= 14
    assert "\n" + " " * (len("grad_norm_x") + 2) in text  # the message goes on in its column


def test_points_in_parts_are_printed_by_part() -> None:
    start = {"w": torch.zeros(2).double(), "more": [np.zeros(1), 0.0]}
    result = minimax(
        lambda x, y: saddle(x["w"], y) + x["more"][0].square().sum() + x["more"][1] ** 2, start, 0.0
    )
    text = repr(result)
    assert "x:    w: [0." in text
    assert "more: 0: [" in text
    many = dataclasses.replace(result, x=[np.zeros(1)] * 30)
    assert "... 30 parts" in repr(many)


def test_rows_are_counted() -> None:
    start = torch.zeros(12, 2, dtype=torch.float64)
    result = minimax(saddle_rows, start, start, rowwise=True)
    assert "success: 12 of 12 rows" in repr(result)
    mixed = [Status.CONVERGED] * 2 + [Status.BUDGET]
    each = dataclasses.replace(
        result, status=np.array(mixed), message=[status.value for status in mixed]
    )
    assert "status: 2 CONVERGED, 1 BUDGET" in repr(each)
    assert repr(each).count(Status.CONVERGED.value) == 1
    assert each.plot().axes[0].get_title().startswith("2 CONVERGED, 1 BUDGET after")


def test_a_history_prints_short() -> None:
    result = minimax(saddle, [0.0], [0.0])
    steps = len(result.history.calls)
    assert repr(result.history) == f"History({steps} steps, {result.history.calls[-1]} calls)"
    assert repr(History()) == "History(0 steps, 0 calls)"


# What is plotted.


def test_the_figure_says_how_the_solve_ended_and_where_its_tolerance_was() -> None:
    problem = problems.make("mccormick")
    result = minimax(problem.fun, problem.x0, problem.y0, tol=1e-5)
    assert result.tol == 1e-5
    figure = result.plot(title="McCormick")
    (axes,), (legend,) = figure.axes, figure.legends
    end = f"CONVERGED after {result.total_calls} calls"
    assert axes.get_title() == f"McCormick\n{end}"
    assert legend.get_title().get_text().startswith(result.message)
    assert axes.lines[-1].get_label() == "tolerance 1e-05"
    assert set(axes.lines[-1].get_ydata()) == {1e-5}


def test_a_solve_that_took_no_step_can_be_plotted(tmp_path) -> None:
    result = minimax(lambda x, y: x * torch.nan - y**2, 1.0, 1.0)
    assert not result.history.calls
    figure = result.plot()
    assert figure.axes[0].get_title().startswith("NON_FINITE after")
    figure.savefig(tmp_path / "history.png")


# One dtype.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("y0", [[0.0, 0.0], 0.0, (0.0, [1.0]), np.zeros(2, dtype=int)])
def test_numbers_and_lists_take_the_dtype_of_the_other_player(dtype: torch.dtype, y0: Any) -> None:
    seen = set()

    def fun(x: torch.Tensor, y: Any) -> torch.Tensor:
        parts = y if isinstance(y, tuple) else (y,)
        seen.update(part.dtype for part in parts)
        ones = torch.ones(2, dtype=dtype)
        return sum(saddle(x @ ones, part) for part in parts)

    result = minimax(fun, torch.zeros(2, dtype=dtype), y0, tol=1e-4)
    assert result.success
    assert seen == {dtype}
    assert result.x.dtype == dtype
    assert type(result.y) is type(y0)
    minimax(fun, np.zeros(2, dtype=str(dtype).removeprefix("torch.")), y0, tol=1e-4)
    assert seen == {dtype}


def test_the_list_may_be_x_too_and_without_tensors_it_is_float64() -> None:
    def fun(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.dtype == y.dtype == expected
        return saddle(x, y)

    expected = torch.float32
    assert minimax(fun, [0.0], torch.zeros(1), tol=1e-4).success
    expected = torch.float64
    assert minimax(fun, [0.0], 0).success
    assert minimax(fun, torch.zeros(1, dtype=torch.int64), 0).success


def test_arrays_of_two_dtypes_are_computed_in_the_wider_and_come_back_as_they_were() -> None:
    result = minimax(lambda x, y: x @ x + x @ y - y @ y, np.ones(2, np.float32), np.ones(2))
    assert (result.x.dtype, result.y.dtype) == (np.float32, np.float64)
    assert result.success


@pytest.mark.parametrize(
    ("x0", "y0", "names"),
    [
        (torch.zeros(2), torch.zeros(2).double(), ("x0", "y0")),
        (torch.zeros(2), np.zeros(2), ("x0", "y0")),
        ({"a": torch.zeros(2), "b": [torch.zeros(2).double()]}, 0.0, ("x0['a']", "x0['b'][0]")),
    ],
)
def test_tensors_of_two_dtypes_are_both_named(x0: Any, y0: Any, names: tuple[str, str]) -> None:
    with pytest.raises(TypeError) as caught:
        minimax(saddle, x0, y0)
    sentence = f"{names[0]} is torch.float32 but {names[1]} is torch.float64: convert one of them"
    assert str(caught.value).startswith(sentence)


def test_a_named_tuple_comes_back_as_one() -> None:
    pair = namedtuple("pair", "a b")
    result = minimax(lambda x, y: saddle(x.a, y) + x.b**2, pair(0.0, 1.0), 0.0)
    assert isinstance(result.x, pair)
    assert result.x.a == pytest.approx(0.5, abs=1e-5)


# Sets in the form of the start.

BOX = sets.Box(-1.0, 1.0)


@pytest.mark.parametrize(
    ("y0", "y_set", "expected"),
    [
        ({"a": [0.0], "b": [0.0, 0.0]}, {"b": sets.L2Ball(1.0), "a": BOX}, ([1.0], [0.7071] * 2)),
        ([np.zeros(1), np.zeros(2)], [sets.Box(0.0, 0.5), sets.Simplex()], ([0.5], [0.5] * 2)),
        ((0.0, 0.0), [BOX, BOX], (1.0, 1.0)),
        ((0.0, 0.0), (BOX, sets.Box(0.0, 0.25)), (1.0, 0.25)),
    ],
)
def test_every_part_may_have_its_own_set(y0: Any, y_set: Any, expected: tuple) -> None:
    result = minimax(pulled, 1.0, y0, y_set=y_set)
    assert result.success
    parts = result.y.values() if isinstance(y0, dict) else result.y
    for part, numbers in zip(parts, expected, strict=True):
        np.testing.assert_allclose(part, numbers, atol=1e-4)


def test_parts_may_have_no_set_and_may_be_nested() -> None:
    def fun(x: dict, y: dict) -> torch.Tensor:
        first, second = x["in"]
        return saddle(first, y["a"]) + (second - 3.0) ** 2 - (y["b"] - 2.0) ** 2

    x0, y0 = {"in": (0.0, 0.0)}, {"a": 0.0, "b": 0.0}
    result = minimax(fun, x0, y0, x_set={"in": [None, BOX]}, y_set={"a": None, "b": BOX})
    assert result.success
    assert result.x["in"] == pytest.approx((0.5, 1.0), abs=1e-5)
    assert (result.y["a"], result.y["b"]) == pytest.approx((0.5, 1.0), abs=1e-5)
    free = minimax(fun, x0, y0, x_set={"in": None}, y_set={"a": None, "b": None})
    without = minimax(fun, x0, y0)
    assert (free.x, free.y, free.total_calls) == (without.x, without.y, without.total_calls)


@pytest.mark.parametrize("first", [BOX, sets.L2Ball(1.0, per_sample=True)])
def test_sets_of_parts_work_by_rows(first: sets.Set) -> None:
    def fun(x: torch.Tensor, y: dict) -> torch.Tensor:
        far = (y["a"] - 2.0).square().sum(1) + (y["b"] - 2.0).square().sum(1)
        return x[:, 0] ** 2 + 0.1 * x[:, 0] * y["b"].sum(1) - far

    y0 = {"a": np.zeros((3, 1)), "b": np.zeros((3, 2))}
    result = minimax(fun, np.ones((3, 1)), y0, y_set={"a": first, "b": None}, rowwise=True)
    assert result.success.all()
    np.testing.assert_allclose(result.y["a"], 1.0)
    with pytest.raises(ValueError, match="ties the rows together"):
        minimax(fun, np.ones((3, 1)), y0, y_set={"a": sets.L2Ball(1.0), "b": None}, rowwise=True)


@pytest.mark.parametrize(
    ("y_set", "error", "message"),
    [
        (3.0, TypeError, "y_set must be a set from neada.sets such as .* got 3.0"),
        ("l2", TypeError, "y_set must be a set from neada.sets such as .* got 'l2'"),
        (sets.Simplex, TypeError, "got the class Simplex itself"),
        ({"a": BOX, "b": 3.0}, TypeError, r"y_set\['b'\] must be a set .* form of y0\['b'\]"),
        ({"a": BOX}, ValueError, "y_set must have the form of y0"),
        ({"a": BOX, "c": BOX}, ValueError, "y_set must have the form of y0"),
        ([BOX, BOX], ValueError, "y_set must have the form of y0"),
        ({"a": [BOX], "b": BOX}, ValueError, r"y_set\['a'\] must have the form"),
        ({"a": BOX, "b": [BOX]}, ValueError, r"y_set\['b'\] must have the form"),
        ({"a": BOX, "b": BOX}, ValueError, r"y_set\['b'\] is one set, but y0\['b'\] has 2 tensors"),
        (
            {"a": sets.Box(torch.zeros(3), 1.0), "b": None},
            ValueError,
            r"the set of y0\['a'\] does not fit: lower of shape \(3,\) does not broadcast",
        ),
    ],
)
def test_a_wrong_set_is_one_sentence(y_set: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        minimax(pulled, 1.0, {"a": [0.0, 0.0], "b": (0.0, 0.0)}, y_set=y_set)


# Wrong arguments.


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"method": "newton"}, ValueError, "method must be one of 'neada', .* got 'newton'"),
        ({"method": "tiadda"}, ValueError, "there is no method 'tiadda'; did you mean 'tiada'?"),
        ({"method": lambda players: None}, TypeError, "must return a stepper, not NoneType"),
        (
            {"method": lambda players: make_stepper("gda", players), "options": {"lr_x": 1.0}},
            ValueError,
            "a method given as a function takes no options",
        ),
        ({"options": {"thta": 1.0}}, ValueError, "has no option 'thta'; did you mean 'theta'"),
        ({"x0": [1.0, [2.0, 3.0]]}, ValueError, "x0 is a list of lists of unequal lengths"),
        ({"options": {"history": "a"}}, ValueError, "history must be a whole number"),
        ({"options": {"history": 2.5}}, ValueError, "history must be a whole number"),
        ({"method": "adam", "options": {"lr_x": -1}}, ValueError, "lr_x must be a number greater"),
        ({"method": "gdmax", "options": {"inner_steps": 1.5}}, ValueError, "inner_steps must be"),
        (
            {"options": {3: 1.0}},
            ValueError,
            "has no option 3; it has theta, history",
        ),
        ({"max_calls": 2.5}, ValueError, "max_calls must be a whole number at least 1, got 2.5"),
        ({"tol": "a"}, ValueError, "tol must be a number greater than 0, got 'a'"),
        ({"tol": math.nan}, ValueError, "tol must be a number greater than 0, got nan"),
        ({"noise": np.ones(2)}, ValueError, "noise must be a number"),
        ({"x0": torch.zeros(0)}, ValueError, "x0 is empty"),
        ({"x0": np.zeros(2, complex)}, TypeError, "x0 is complex"),
        ({"x0": np.array(["a"])}, TypeError, "x0 is an array of <U1: give it numbers"),
        ({"x0": torch.zeros(2, 2).to_sparse()}, TypeError, "x0 is sparse"),
        ({"rowwise": True}, ValueError, "x0 is one number and has no rows"),
        (
            {"rowwise": True, "x0": np.zeros((3, 1)), "y0": np.zeros((2, 1))},
            ValueError,
            "x0 has 3 rows but y0 has 2",
        ),
        (
            {"rowwise": True, "x0": [np.zeros((3, 1)), np.zeros((2, 1))], "y0": np.zeros((3, 1))},
            ValueError,
            r"x0\[0\] has 3 rows but x0\[1\] has 2",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(kwargs: dict, error: type, message: str) -> None:
    call = {"x0": 0.0, "y0": 0.0, **kwargs}
    with pytest.raises(error, match=message):
        minimax(saddle, call.pop("x0"), call.pop("y0"), **call)


@pytest.mark.parametrize(
    ("fun", "error", "message"),
    [
        (3.0, TypeError, "fun must be a function of x and y, not float"),
        (lambda x, y: None, TypeError, "must be a tensor .*, not NoneType"),
        (lambda x, y: 1.0, TypeError, "must be a tensor .*, not float"),
        (lambda x, y: x * torch.ones(3), ValueError, r"must be one number, .*\(3,"),
        (lambda x, y: (x + y).detach(), ValueError, "depends on neither player"),
    ],
)
def test_a_wrong_function_is_one_sentence_about_fun(
    fun: Callable, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        minimax(fun, 0.0, 0.0)


def test_a_function_of_rows_must_return_one_value_each() -> None:
    start = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"one number per row, shape \(3,\), .* shape \(\)"):
        minimax(saddle, start, start, rowwise=True)


def test_a_method_that_forgets_the_rows_is_told() -> None:
    start = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="pass it rowwise=players.rowwise, which is True"):
        minimax(saddle_rows, start, start, rowwise=True, method=lambda p: neada.TiAda(p.x, p.y))


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"tol": np.float32(1e-3), "max_calls": np.int64(60)}
    result = minimax(saddle, 0.0, 0.0, noise=np.float32(0.5), seed=np.int64(3), **options)
    same = minimax(saddle, 0.0, 0.0, noise=0.5, seed=3, **options)
    assert result.x == same.x
    assert result.x != minimax(saddle, 0.0, 0.0, noise=0.5, seed=4, **options).x


# Steppers by name.


def test_players_need_their_tensors_only() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    stepper = make_stepper("neada", Players([x], [y]))
    for _ in range(8):
        stepper.step(lambda: x @ x + x @ y - y @ y)
    assert float(x.detach().norm()) < 1e-3
    made = make_stepper(lambda players: neada.TiAda(players.x, players.y), Players([x], [y]))
    assert isinstance(made, neada.TiAda)


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert minimax(lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, 0.0, 0.0).success
