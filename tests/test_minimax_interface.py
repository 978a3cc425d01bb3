"""`minimax` as users meet it: what it prints and plots, the forms it takes, and its sentences."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import neada
from neada import Players, make_stepper, minimax, sets

BOX = sets.Box(-1.0, 1.0)
ROWS = {"x0": np.zeros((2, 1)), "y0": np.zeros((2, 1)), "rowwise": True}


def saddle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x - 1.0) ** 2).sum() + 2.0 * x.sum() * y.sum() - (y**2).sum()


def pulled(x: torch.Tensor, y: Any) -> torch.Tensor:
    """The maximum over the parts of y lies at about (2, 2), outside of the sets of the tests."""
    first, second = y.values() if isinstance(y, dict) else y
    far = (first - 2.0).square().sum() + (second - 2.0).square().sum()
    return x**2 + 0.1 * x * (first.sum() + second.sum()) - far


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
    assert all(name in str(caught.value) for name in names)


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
    with pytest.raises(ValueError, match="ties"):
        minimax(fun, np.ones((3, 1)), y0, y_set={"a": sets.L2Ball(1.0), "b": None}, rowwise=True)


@pytest.mark.parametrize(
    ("y_set", "error", "message"),
    [
        (3.0, TypeError, "y_set"),
        (sets.Simplex, TypeError, "class"),
        ({"a": sets.Box(torch.zeros(3), 1.0), "b": None}, ValueError, "set"),
        ({"a": None, "b": BOX}, ValueError, "form"),
        ({"a": None, "c": None}, ValueError, "form"),
    ],
)
def test_a_wrong_set_is_one_sentence(y_set: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        minimax(pulled, 1.0, {"a": [0.0, 0.0], "b": (0.0, 0.0)}, y_set=y_set)


# Wrong arguments.


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"fun": 3.0}, TypeError, "fun"),
        ({"method": "newton"}, ValueError, "method"),
        ({"method": neada.NeAda}, TypeError, "NeAda"),
        ({"method": lambda players: None}, TypeError, "return"),
        ({"options": {"lr_x": 1.0}}, ValueError, "option"),
        ({"method": "gda", "options": {"lrx": 1.0}}, ValueError, "lr_x"),
        ({"rowwise": "yes"}, ValueError, "rowwise"),
        ({"progress": "x"}, ValueError, "progress"),
        ({"x0": [1.0, [2.0, 3.0]]}, ValueError, "list"),
        ({"method": "adam", "options": {"lr_x": -1}}, ValueError, "lr_x"),
        ({"method": "gdmax", "options": {"inner_steps": 1.5}}, ValueError, "num_steps"),
        ({"max_calls": 2.5}, ValueError, "max_calls"),
        ({"tol": "a"}, ValueError, "tol"),
        ({"noise": np.ones(2)}, ValueError, "noise"),
        ({"x0": torch.zeros(0)}, ValueError, "empty"),
        ({"x0": np.zeros(2, complex)}, TypeError, "complex"),
        ({"x0": np.array(["a"])}, TypeError, "array"),
        ({"x0": torch.zeros(2, 2).to_sparse()}, TypeError, "sparse"),
        ({"rowwise": True}, ValueError, "rows"),
    ],
)
def test_a_wrong_argument_is_one_sentence(kwargs: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        minimax(**{"fun": saddle, "x0": 0.0, "y0": 0.0, **kwargs})


def test_a_function_of_rows_must_return_one_value_each() -> None:
    start = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="row"):
        minimax(saddle, start, start, rowwise=True)


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"tol": np.float32(1e-3), "max_calls": np.int64(60)}
    result = minimax(saddle, 0.0, 0.0, noise=np.float32(0.5), seed=np.int64(3), **options)
    same = minimax(saddle, 0.0, 0.0, noise=0.5, seed=3, **options)
    assert result.x == same.x
    assert result.x != minimax(saddle, 0.0, 0.0, noise=0.5, seed=4, **options).x


# Steppers by name.


def test_players_need_their_tensors_only() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    stepper = make_stepper("auto", Players([x], [y]))
    for _ in range(8):
        stepper.step(lambda: x @ x + x @ y - y @ y)
    assert float(x.detach().norm()) < 1e-3
    made = make_stepper(lambda players: neada.TiAda(players.x, players.y), Players([x], [y]))
    assert isinstance(made, neada.TiAda)


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert minimax(lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, 0.0, 0.0).success
