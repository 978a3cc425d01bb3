"""Many runs in one array do what each would do alone with torch.optim, and with neada.NeAda."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import neada
from neada.inner import InnerOptions
from neada.stopping import GradientMapping, InnerSteps
from reproduction.sweeps import Game, Rows, Rule, Sweep, play

FAMILIES = ("gda", "adagrad", "adam", "amsgrad")


def plain_loop() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "plain_loop.py"
    spec = importlib.util.spec_from_file_location("plain_loop", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quadratic_game() -> Game:
    return Game(lambda x, y: 2 * y - 4 * x, lambda x, y: 2 * x - y)


def mccormick_game(noise_std: float) -> Game:
    def grad_x(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        wave, slope = np.cos(x[:, 0] + x[:, 1]), 2 * (x[:, 0] - x[:, 1])
        return np.stack([wave + slope - 1.5, wave - slope + 2.5], 1) + y

    return Game(grad_x, lambda x, y: x - y, noise_std)


def latest_before(
    norms: list[tuple[int, float]], at: np.ndarray, start: float = np.nan
) -> np.ndarray:
    norms = [(-1, start), *norms]
    calls = np.array([c for c, _ in norms])
    return np.array([norms[np.searchsorted(calls, c, side="right") - 1][1] for c in at])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["non-nested", "released", "text"])
def test_each_row_is_the_plain_loop_on_the_quadratic(family: str, kind: str) -> None:
    loop = plain_loop()
    at = np.arange(0, 201, 7)
    ratios = np.array([1.0, 4.0])
    ones = np.ones((2, 1))
    eps = {"gda": 0.0, "adagrad": 1e-10, "adam": 1e-8, "amsgrad": 1e-8}[family]
    sweep = Sweep(family, kind != "non-nested", "text" if kind == "text" else "released", 0.1, eps)
    norms, peaks = play(
        quadratic_game(), Rows(ones, 0.01 * ones, 0.2 / ratios, np.full(2, 0.2)), sweep, at
    )
    for row, ratio in enumerate(ratios):
        reference = loop.play(
            loop.quadratic,
            ([1.0], [0.01]),
            family,
            kind != "non-nested",
            0.2 / ratio,
            0.2,
            202,
            count_scale=0.1,
            text=kind == "text",
        )
        expected = latest_before(reference, at, start=3.98)
        # Below 1e-6 the gradient is a difference of nearly equal numbers.
        np.testing.assert_allclose(norms[:, row], expected, rtol=1e-8, atol=1e-12)
    assert (peaks >= norms).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("nested", [False, True])
def test_rows_with_noise_draw_what_the_plain_loop_draws(family: str, nested: bool) -> None:
    loop = plain_loop()
    at = np.arange(0, 701, 10)  # more than one block of noise
    starts = np.random.default_rng(5).standard_normal((2, 4))
    eps = {"gda": 0.0, "adagrad": 1e-10, "adam": 0.8, "amsgrad": 0.8}[family]
    rows = Rows(
        starts[:, :2],
        starts[:, 2:],
        np.array([1.0, 0.2]) * (0.05 if family == "gda" else 1.0),
        np.full(2, 0.01),
        tuple(np.random.default_rng(seed) for seed in range(2)),
    )
    norms, _ = play(mccormick_game(0.01), rows, Sweep(family, nested, eps=eps), at)
    for row in range(2):
        reference = loop.play(
            loop.mccormick,
            (starts[row, :2].tolist(), starts[row, 2:].tolist()),
            family,
            nested,
            float(rows.lr_x[row]),
            0.01,
            702,
            eps=eps,
            noise_std=0.01,
            generator=np.random.default_rng(row),
        )
        np.testing.assert_allclose(norms[:, row], latest_before(reference, at), rtol=1e-6)


def test_a_nested_row_is_neada_with_the_released_rule() -> None:
    x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.01], dtype=torch.float64, requires_grad=True)
    stepper = neada.NeAda(
        torch.optim.Adam([x], lr=0.1),
        torch.optim.Adam([y], lr=0.2, maximize=True),
        GradientMapping() | InnerSteps(lambda t: 0.1 * t),
        inner=InnerOptions(min_steps=0, test="last"),
    )
    calls, norms = [], []
    while stepper.calls_x + stepper.calls_y < 300:
        info = stepper.step(lambda: (-(y**2) / 2 + 2 * x * y - 2 * x**2).sum())
        calls.append(stepper.calls_x + stepper.calls_y - 1)
        norms.append(info.grad_sq_x**0.5)
    at = np.array(calls)
    one = np.ones((1, 1))
    rows = Rows(one, 0.01 * one, np.array([0.1]), np.array([0.2]))
    found, _ = play(quadratic_game(), rows, Sweep("adam", True, "released", 0.1, 1e-8), at)
    np.testing.assert_allclose(found[:, 0], norms, rtol=1e-9, atol=1e-13)


def test_an_overflow_is_recorded_as_infinity_and_leaves_other_rows_alone() -> None:
    at = np.arange(0, 4001, 100)
    ones = np.ones((2, 1))
    rows = Rows(ones, 0.01 * ones, np.array([0.2, 0.025]), np.full(2, 0.2))
    norms, peaks = play(quadratic_game(), rows, Sweep("gda", False), at)
    assert norms[-1, 0] == np.inf == peaks[-1, 0]
    assert norms[-1, 1] < 1e-10


def test_peaks_see_what_lies_between_two_records() -> None:
    ones = np.ones((1, 1))
    rows = Rows(ones, 0.01 * ones, np.array([0.2]), np.array([0.2]))
    sweep = Sweep("adam", True, "released", 0.1, 1e-8)
    dense, _ = play(quadratic_game(), rows, sweep, np.arange(0, 201))
    _, peaks = play(quadratic_game(), rows, sweep, np.arange(0, 201, 50))
    for number, end in enumerate(range(50, 201, 50), start=1):
        assert peaks[number, 0] == dense[end - 50 : end + 1, 0].max()


def test_the_papers_rule_has_neither_eps_nor_bias_correction() -> None:
    rule = Rule("adam", np.array([0.5]), eps=0.0, bias_correction=False)
    assert rule.step(np.array([[0.0]])) == 0.0  # 0/0 is no step
    step = rule.step(np.array([[2.0]]))
    np.testing.assert_allclose(step, 0.5 * 0.1 * 2.0 / np.sqrt(0.001 * 4.0), rtol=1e-14)
