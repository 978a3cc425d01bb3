"""The experiments on Theorems 2 and 3: exponents, games, transcriptions, claims."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.optim.optimizer import Optimizer

from neada import NeAda, optim
from neada.inner import InnerOptions
from neada.runs import RunFolder
from neada.sets import Box
from neada.stopping import InnerSteps
from reproduction import deterministic_rate, rates, stochastic_rate, sublinear
from reproduction.experiment import Claim, Record


def played(module: Any, config: Any, folder: Path) -> Record:
    run = RunFolder(folder)
    run.start(dataclasses.asdict(config))
    module.run(config, run, lambda part: None)
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


@pytest.mark.parametrize("name", ["tail", "steep tail", "curved"])
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
    curvature, image = np.array([1.0, 10.0]), np.array([1.0, -1.0])
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
        slope = -0.1 * x * (1.0 + x * x) ** -1.05 + float(image @ (curvature * (y - image * x)))
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


# The stochastic solvers, against the stepper of the library.

SOLVERS: dict[str, tuple[Callable[[torch.Tensor, Box], Optimizer], str]] = {
    "AdaGrad averaged, lr 0.1": (
        lambda y, box: optim.GeneralizedAdaGrad(
            [y], 0.1, average=1.0, maximize=True, rowwise=True, constraint=box
        ),
        "nothing",
    ),
    "AdaGrad carried": (
        lambda y, box: optim.GeneralizedAdaGrad([y], maximize=True, rowwise=True, constraint=box),
        "everything",
    ),
    "AdaGrad alpha 3/4": (
        lambda y, box: optim.GeneralizedAdaGrad(
            [y], alpha=0.75, maximize=True, rowwise=True, constraint=box
        ),
        "nothing",
    ),
    "AdaGrad alpha 1, lr 1/4": (
        lambda y, box: optim.GeneralizedAdaGrad(
            [y], 0.25, alpha=1.0, maximize=True, rowwise=True, constraint=box
        ),
        "nothing",
    ),
    "coin betting": (
        lambda y, box: optim.CoinBetting(
            [y], average=1.0, maximize=True, rowwise=True, constraint=box
        ),
        "nothing",
    ),
    "FreeRexMomentum": (
        lambda y, box: optim.FreeRex(
            [y], momentum=True, average=0.0, maximize=True, rowwise=True, constraint=box
        ),
        "nothing",
    ),
    "DoG": (
        lambda y, box: optim.DoG(
            [y], r_eps=1e-2, average=8.0, maximize=True, rowwise=True, constraint=box
        ),
        "step",
    ),
}


@pytest.mark.parametrize("radius", [100.0, 0.6])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_row_is_a_run_of_the_stepper(
    name: str, radius: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows, num_outer = 3, 12
    monkeypatch.setattr(sublinear, "Y_RADIUS", radius)
    steps = sublinear.trajectory(
        sublinear.SOLVERS[name](),
        lambda t: t + 1,
        lambda t: 1.0,
        num_rows,
        np.random.default_rng(3),
    )
    found = [next(steps) for _ in range(num_outer)]

    noise = np.random.default_rng(3)
    per_step = [
        [*noise.standard_normal((t + 1, num_rows)), noise.standard_normal(num_rows)]
        for t in range(num_outer)
    ]
    stream = iter([torch.from_numpy(row)[:, None] for rows in per_step for row in rows])
    x = torch.ones(num_rows, 1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(num_rows, 1, dtype=torch.float64, requires_grad=True)
    make, keep = SOLVERS[name]
    stepper = NeAda(
        optim.GeneralizedAdaGrad([x], rowwise=True),
        make(y, Box(-radius, radius)),
        InnerSteps(),
        inner=InnerOptions(keep=keep),  # type: ignore[arg-type]
        rowwise=True,
    )
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    stepper.x_optimizer.register_step_pre_hook(
        lambda *_: seen.append((x.detach().numpy()[:, 0].copy(), y.detach().numpy()[:, 0].copy()))
    )

    def closure() -> torch.Tensor:
        disturbance = next(stream)
        value = (1.0 + x * x) ** -0.05 - 0.5 * (y - x) ** 2 + disturbance * (x + y)
        return value[:, 0]

    for _ in range(num_outer):
        stepper.step(closure)
    for t, ((num_inner, grad_sq_x, y_error_sq), (at_x, at_y)) in enumerate(
        zip(found, seen, strict=True)
    ):
        gradient = -0.1 * at_x * (1.0 + at_x**2) ** -1.05 + at_y - at_x
        assert num_inner == t + 1
        assert_allclose(grad_sq_x, gradient**2, rtol=1e-8, atol=1e-12)
        best = np.clip(at_x, -radius, radius)
        assert_allclose(y_error_sq, (at_y - best) ** 2, rtol=1e-8, atol=1e-12)


def test_sgd_with_the_modulus_is_the_mean_of_what_it_saw() -> None:
    noise = np.random.default_rng(0).standard_normal((50, 4))
    target = np.arange(4.0)
    found = sublinear.SOLVERS["SGD 1/(mu k)"]().maximize(np.zeros(4), target, noise)
    assert_allclose(found, target + noise.mean(axis=0), rtol=1e-12)


# The stochastic run.


def test_the_theorems_setting_counts_its_samples(tmp_path: Path) -> None:
    seeds = tuple(range(8))
    config = stochastic_rate.Config("SGD 1/(mu k)", "t+1", "eps^-2", 64, seeds, (0.5, 0.25))
    rows = played(stochastic_rate, config, tmp_path).rows
    assert [(row["epsilon"], row["t"]) for row in rows] == [(0.5, 16), (0.25, 64)]
    # M T samples for x and T (T + 1) / 2 for y.
    assert [row["samples"] for row in rows] == [4 * 16 + 136, 16 * 64 + 2080]


def test_growing_batches_count_their_samples(tmp_path: Path) -> None:
    config = stochastic_rate.Config("AdaGrad averaged", "5", "t+1", 20, tuple(range(8)))
    for row in played(stochastic_rate, config, tmp_path).rows:
        assert row["samples"] == 5 * row["t"] + row["t"] * (row["t"] + 1) // 2


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
    assert named(found, "gd-1-l").verdict == named(found, "lr-0.1").verdict == "holds"
    assert named(found, "lr-spread").verdict == named(found, "hard-enough").verdict == "holds"
    assert named(found, "polyak").verdict == "not run"
    slow = [
        Record(r.config, [{**row, "error": row["calls"] ** -0.3} for row in r.rows])
        for r in deterministic_records
    ]
    found = deterministic_rate.claims(slow)
    assert named(found, "gd-1-l").verdict == named(found, "lr-0.1").verdict == "fails"
    fast = [
        Record(r.config, [{**row, "error": 1.0 / row["calls"]} for row in r.rows])
        for r in deterministic_records
    ]
    assert named(deterministic_rate.claims(fast), "hard-enough").verdict == "fails"
    apart = [
        Record(r.config, [{**row, "error": row["error"] * r.config.lr} for row in r.rows])
        for r in deterministic_records
    ]
    assert named(deterministic_rate.claims(apart), "lr-spread").verdict == "fails"


@pytest.fixture(scope="module")
def stochastic_records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("stochastic")
    found = []
    for i, config in enumerate(stochastic_rate.configs("quick", seeds=range(24))):
        epsilons = config.epsilons[:3]
        small = dataclasses.replace(
            config, num_outer=min(config.num_outer, 40 if not epsilons else 76), epsilons=epsilons
        )
        found.append(played(stochastic_rate, small, folder / str(i)))
    return found


def test_every_stochastic_case_is_judged(stochastic_records: list[Record]) -> None:
    found = stochastic_rate.claims(stochastic_records)
    assert all(claim.verdict != "not run" and claim.seeds == 24 for claim in found)
    for name in ("sgd", "fixed-steps", "alpha-1-small-lr", "carried-0.1"):
        assert named(found, name).verdict == "holds"


@pytest.mark.parametrize(
    ("power", "failing"),
    [
        # As functions of the outer steps: so slow that no rate holds; as fast as without noise.
        (-0.05, ["theorem", "sgd", "one-sample", "coin-log", "power-1/2", "carried", "alpha-1/2"]),
        (-1.0, ["fixed-steps", "alpha-1/2", "alpha-3/4"]),
    ],
)
def test_a_wrong_error_flips_the_stochastic_verdicts(
    stochastic_records: list[Record], power: float, failing: list[str]
) -> None:
    changed = [
        Record(r.config, [{**row, "error": row["t"] ** power} for row in r.rows])
        for r in stochastic_records
    ]
    found = stochastic_rate.claims(changed)
    assert [named(found, name).verdict for name in failing] == ["fails"] * len(failing)
    assert named(found, "carried-0.1").verdict == "fails"
    assert named(found, "alpha-1-small-lr").verdict == "fails"
