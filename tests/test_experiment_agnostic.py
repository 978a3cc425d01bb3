"""Races over learning rates against plain loops, what each row is charged, and the verdicts."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from neada import problems
from neada.solve.methods import methods
from reproduction import agnostic
from reproduction.agnostic import calls_to_arrive

TOL = 1e-3
TAKES = {info.name: info.options for info in methods()}
PAIRS = [(0.3, 0.3), (0.1, 1.0), (1e-3, 0.5), (30.0, 0.1), (0.03, 100.0), (0.2, 0.4)]
X0, Y0 = np.array([0.5, -0.5]), np.array([0.1, 0.2])


def mccormick_gradients(x: Any, y: Any) -> tuple[Any, Any]:
    wave, slope = math.cos(x[0] + x[1]), 2.0 * (x[0] - x[1])
    return np.array([wave + slope - 1.5 + y[0], wave - slope + 2.5 + y[1]]), x - y


def goal() -> float:
    return TOL * max(np.linalg.norm(g) for g in mccormick_gradients(X0, Y0))


def gda_calls(lr_x: float, lr_y: float, max_calls: int) -> float:
    """Simultaneous steps until both norms are small; two calls each, the last look included."""
    x, y = X0, Y0
    for step in range(max_calls // 2):
        grad_x, grad_y = mccormick_gradients(x, y)
        if max(np.linalg.norm(grad_x), np.linalg.norm(grad_y)) <= goal():
            return 2.0 * (step + 1)
        x, y = x - lr_x * grad_x, y + lr_y * grad_y
        if np.abs(np.concatenate([x, y])).max() > 1e8:
            break
    return math.inf


def nested_calls(lr_x: float, lr_y: float, max_calls: int) -> float:
    """Algorithm 2 with gradient steps and both criteria, counting every gradient."""
    x, y, calls, t = X0, Y0, 0, 0
    while True:
        seen, k = math.inf, 0
        while k == 0 or k < t + 1:
            grad_y = mccormick_gradients(x, y)[1]
            calls += 1
            seen = float(np.linalg.norm(grad_y))
            if k >= 1 and seen**2 <= 1.0 / (t + 1):
                break
            y, k = y + lr_y * grad_y, k + 1
            if np.abs(y).max() > 1e8 or calls > max_calls:
                return math.inf
        grad_x, grad_y = mccormick_gradients(x, y)
        calls += 1
        if calls > max_calls or np.abs(x).max() > 1e8:
            return math.inf
        now = float(np.linalg.norm(grad_y))
        if max(float(np.linalg.norm(grad_x)), seen, now) <= goal():
            return float(calls)
        x, t = x - lr_x * grad_x, t + 1


def race(
    method: str, pairs: list[tuple[float, float]], max_calls: int, name: str = "mccormick"
) -> list[float]:
    table = torch.tensor(pairs, dtype=torch.float64)
    rates = {"lr_x": table[:, 0], "lr_y": table[:, 1]}
    options = {name: rate for name, rate in rates.items() if name in TAKES[method]}
    found: list[float] = calls_to_arrive(
        method, problems.make(name), options, len(pairs), max_calls, TOL
    ).tolist()
    return found


def test_the_start_is_the_one_of_the_references() -> None:
    problem = problems.make("mccormick")
    assert np.array_equal(problem.x0, X0)
    assert np.array_equal(problem.y0, Y0)


@pytest.mark.parametrize(("method", "reference"), [("gda", gda_calls), ("neada-gda", nested_calls)])
def test_calls_equal_those_of_a_plain_loop(method: str, reference: Any) -> None:
    """Among the pairs are some that run away and some that are too slow."""
    expected = [reference(*pair, 200) for pair in PAIRS]
    assert race(method, PAIRS, 200) == expected
    assert 2 <= sum(map(math.isfinite, expected)) <= 4


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("neada-adam", "quadratic"),
        ("neada-stochastic", "quadratic"),
        ("gdmax", "quadratic"),
        ("tiada", "quadratic"),
        ("neada", "stackelberg"),
        ("neada-adgd", "stackelberg"),
    ],
)
def test_a_row_is_charged_what_it_spends_alone(method: str, name: str) -> None:
    pairs = [(0.1, 0.1), (0.5, 0.5), (1e3, 1e3)]
    together = race(method, pairs, 100, name)
    assert any(map(math.isfinite, together))
    assert together == [race(method, [pair], 100, name)[0] for pair in pairs]


@pytest.mark.parametrize("method", ["gda", "neada-gda", "neada"])
def test_a_budget_one_call_short_is_not_enough(method: str) -> None:
    (needed,) = race(method, [(0.3, 0.3)], 500)
    assert math.isfinite(needed)
    assert race(method, [(0.3, 0.3)], int(needed)) == [needed]
    assert race(method, [(0.3, 0.3)], int(needed) - 1) == [math.inf]


def test_every_method_is_one_of_the_library() -> None:
    assert set(agnostic.METHODS) <= TAKES.keys()
    assert len(agnostic.METHODS) == len(set(agnostic.METHODS))
    assert set(agnostic._DRAWN) <= set(agnostic.METHODS)
