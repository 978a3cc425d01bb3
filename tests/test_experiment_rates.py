"""The experiments on Theorems 2 and 3: exponents, games, transcriptions, claims."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from neada.runs import RunFolder
from neada.stopping import FixedAccuracy
from reproduction import constants, deterministic_rate, rates, stochastic_rate
from reproduction.experiment import Claim, Record


def played(module: Any, config: Any, folder: Path) -> Record:
    run = RunFolder(folder)
    run.start(dataclasses.asdict(config))
    module.run(config, run)
    return Record(config, run.rows())


def named(claims: list[Claim], name: str) -> Claim:
    return next(claim for claim in claims if claim.id.endswith(f"/{name}"))


# Exponents.


@pytest.mark.parametrize("power", [2.0, 3.0, 4.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    cost = np.geomspace(10.0, 1e6, 200)
    found = rates.complexity_exponent(cost, 5.0 * cost ** (-1.0 / power), log_power=0.0)
    assert found == pytest.approx(power, rel=1e-9)


def test_a_logarithm_in_the_law_is_divided_out() -> None:
    cost = np.geomspace(10.0, 1e6, 2000)
    error = np.sqrt(np.log(cost) / cost)
    assert rates.complexity_exponent(cost, error, log_power=1.0) == pytest.approx(2.0, abs=1e-3)
    assert rates.complexity_exponent(cost, error, log_power=0.0) > 2.1


def test_an_error_that_is_small_before_it_grows_does_not_count() -> None:
    cost = np.geomspace(10.0, 1e6, 400)
    error = np.where(cost < 1e5, 1e-9, cost**-0.5)
    found = rates.complexity_exponent(cost, error, log_power=0.0, first_cost=1e2)
    assert found > 2.0  # the plateau before the fall makes it steeper, never flatter
    flat = rates.complexity_exponent(cost, np.ones_like(cost), log_power=0.0)
    growing = rates.complexity_exponent(cost, cost, log_power=0.0)
    assert flat == growing == math.inf


def test_an_error_that_is_no_number_has_no_exponent() -> None:
    cost = np.geomspace(10.0, 1e3, 50)
    broken = cost**-0.5
    broken[-1] = math.nan
    assert math.isnan(rates.complexity_exponent(cost, broken, log_power=0.0))


def test_marks_begin_at_one_and_end_at_the_last_step() -> None:
    found = rates.marks(5000, 50)
    assert found[0] == 1 and found[-1] == 5000 and len(found) <= 50
    assert np.all(np.diff(found) > 0)


# Games.


@pytest.mark.parametrize("name", ["tail", "steep tail"])
def test_a_game_is_what_it_declares(name: str) -> None:
    game = rates.tail_game(name)
    generator = torch.Generator().manual_seed(0)
    x = game.x0 * (1.0 + torch.rand(5, game.dim_x, generator=generator, dtype=torch.float64))
    assert game.best_response is not None and game.phi is not None
    best = game.best_response(x)
    assert_allclose(game.gradients(x, best)[1], 0.0, atol=1e-15)
    assert_allclose(game.fun(x, best), game.phi(x), rtol=1e-14)
    # Danskin, against differences of the maximal value.
    width = 1e-6 * float(game.x0.abs().max())
    for i in range(game.dim_x):
        side = torch.zeros(game.dim_x, dtype=torch.float64)
        side[i] = width
        difference = (game.phi(x + side) - game.phi(x - side)) / (2.0 * width)
        assert_allclose(game.gradients(x, game.best_response(x))[0][:, i], difference, rtol=1e-6)
    # The curvature in y lies between the modulus 1 and the smoothness 10, and reaches both.
    curvatures = []
    for distance in (0.0, 300.0):
        for i in range(game.dim_y):
            y = best[0] + distance
            step = torch.zeros(game.dim_y, dtype=torch.float64)
            step[i] = 1e-3
            ahead, behind = (game.gradients(x[0], y + s)[1][i] for s in (step, -step))
            curvatures.append(float(behind - ahead) / 2e-3)
    assert min(curvatures) == pytest.approx(1.0, rel=1e-3)
    assert max(curvatures) == pytest.approx(10.0, rel=1e-3)


# The deterministic run, against the same algorithm with gradients by hand.


def test_the_deterministic_run_is_the_algorithm_of_the_paper(tmp_path: Path) -> None:
    config = deterministic_rate.Config("GD 1/l (knows l)", "tail", 0.7, 400)
    record = played(deterministic_rate, config, tmp_path)
    x, y, v, calls, total = 1.0, np.zeros(2), 1.0, 0, 0.0
    curvature, image = np.array([1.0, 10.0]), np.array([0.5, -0.5])
    expected = {}
    t = 0
    while calls < 400:
        k = 0
        while True:
            gradient = -curvature * (y - image * x)
            calls += 1
            if k >= 1 and gradient @ gradient <= 1.0 / (t + 1):
                break
            y = y + gradient / 10.0
            k += 1
        slope = -4.0 * x * (1.0 + x * x) ** -1.05 + float(image @ (curvature * (y - image * x)))
        calls += 1
        apart = y - image * x
        total += slope**2 + float(apart @ apart)
        v += slope**2
        x -= 0.7 * slope / math.sqrt(v)
        t += 1
        expected[t] = (calls, math.sqrt(total / t))
    assert record.rows[-1]["t"] == t
    for row in record.rows:
        assert row["calls"] == expected[row["t"]][0] and row["values"] == 0
        assert row["error"] == pytest.approx(expected[row["t"]][1], rel=1e-9)


def test_a_line_search_pays_for_its_values(tmp_path: Path) -> None:
    config = deterministic_rate.Config("backtracking", "tail", 1.0, 200)
    last = played(deterministic_rate, config, tmp_path).rows[-1]
    assert 0 < last["values"] < last["calls"]


# The stochastic run.


def small(solver: str = "SGD 1/(mu k)", **options: Any) -> stochastic_rate.Config:
    epsilons = options.pop("epsilons", (0.8, 0.6, 0.45))
    return stochastic_rate.Config(solver, "t+1", epsilons, tuple(range(24)), **options)


def test_the_runs_are_algorithm_3(tmp_path: Path) -> None:
    """SGD with steps 1/k, t + 1 of them, and batches of eps^-2, by hand."""
    (row,) = played(stochastic_rate, small(epsilons=(0.6,)), tmp_path).rows
    draws = [np.random.default_rng(seed).standard_normal((256, 2)) for seed in range(24)]
    stream = iter(np.stack(draws, 1))
    x, y, v = np.ones(24), np.zeros(24), np.ones(24)
    x_sum, y_sum = np.zeros(24), np.zeros(24)
    for t in range(row["t"]):
        for k in range(1, t + 2):
            y = y + (0.1 * x - y + next(stream)[:, 1]) / k
        gradient = -2.0 * x * (1.0 + x * x) ** -1.05 + 0.1 * (y - 0.1 * x)
        x_sum, y_sum = x_sum + gradient**2, y_sum + (y - 0.1 * x) ** 2
        gradient = gradient + next(stream)[:, 0] / math.sqrt(3.0)
        v = v + gradient**2
        x = x - gradient / np.sqrt(v)
    assert row["t"] == 12 and row["batch"] == 3 and row["samples"] == 12 * 3 + 78
    assert row["x_error"] == pytest.approx(np.sqrt(x_sum / 12).mean(), rel=1e-9)
    assert row["y_error"] == pytest.approx(np.sqrt((y_sum / 12).mean()), rel=1e-9)


# Claims and figures.


@pytest.fixture(scope="module")
def deterministic_records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("deterministic")
    chosen = [
        config
        for config in deterministic_rate.configs("quick")
        if config.solver == "AdGD adapg" or "GD 1/l" in config.solver
    ]
    return [
        played(deterministic_rate, dataclasses.replace(config, max_calls=600), folder / str(i))
        for i, config in enumerate(chosen)
    ]


def test_a_deterministic_rate_is_judged_by_its_rows(deterministic_records: list[Record]) -> None:
    found = deterministic_rate.claims(deterministic_records)
    assert named(found, "gd-1-l").result == named(found, "lr-0.01").result == "supported"
    assert named(found, "hard-enough").result == "supported"
    slow = [
        Record(r.config, [{**row, "error": row["calls"] ** -0.3} for row in r.rows])
        for r in deterministic_records
    ]
    found = deterministic_rate.claims(slow)
    assert named(found, "gd-1-l").result == named(found, "lr-0.01").result == "not supported"
    fast = [
        Record(r.config, [{**row, "error": 1.0 / row["calls"]} for row in r.rows])
        for r in deterministic_records
    ]
    assert named(deterministic_rate.claims(fast), "hard-enough").result == "not supported"


def test_the_cost_is_that_of_the_algorithm_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "GradientMapping", lambda: FixedAccuracy(1e-12))
    config = constants.Config("L-BFGS", 2.0, 4.0)
    (row,) = played(constants, config, tmp_path).rows
    x, v, total, t = 1.0, 4.0, 0.0, 0
    while t == 0 or total / t > 0.25:
        slope = -0.1 * x * (1.0 + x * x) ** -1.05 + 3.0 * x
        total, v, t = total + slope**2, v + slope**2, t + 1
        x -= slope / math.sqrt(v)
    assert row["outer_steps"] == t
    assert row["error"] == pytest.approx(math.sqrt(total / t), rel=1e-6)


def test_the_costs_over_kappa_and_v0_are_checked_by_their_exponents() -> None:
    def results(power: float) -> set[str]:
        records = [
            Record(c, [{"outer_steps": (c.kappa * c.v0) ** power, "calls": 1.0}])
            for c in constants.configs("quick")
        ]
        return {claim.result for claim in constants.claims(records)}

    assert results(0.05) == {"supported"} and results(3.0) == {"not supported"}


def test_a_wrong_error_flips_the_stochastic_claims(tmp_path: Path) -> None:
    config = small(all_cases=True)
    record = played(stochastic_rate, config, tmp_path)

    def results(power: float) -> dict[str, str]:
        rows = [{**row, "x_error": row["t"] ** power} for row in record.rows]
        found = stochastic_rate.claims([Record(config, rows)])
        return {claim.id.partition("/")[2]: claim.result for claim in found}

    slow, fast = results(-0.1), results(-0.6)
    for name in ("tail", "valley", "growing-batch", "batch-of-1"):
        assert (slow[name], fast[name]) == ("not supported", "supported")
    assert (slow["frozen-x"], fast["frozen-x"]) == ("supported", "not supported")
