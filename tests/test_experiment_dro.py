"""Robust training of Figures 3 and 4: the numbers against a plain loop, verdicts, interruptions."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from neada import data, models
from neada.runs import RunFolder
from neada.training import TrainConfig
from reproduction import mnist_dro, robust_training, synthetic_dro
from reproduction.experiment import Claim, Record, interval

SYNTHETIC, MNIST = synthetic_dro, mnist_dro


def record_of(module: Any, config: Any, folder: Path) -> Record:
    run = RunFolder(folder)
    run.start(dataclasses.asdict(config))
    module.run(config, run)
    run.finish()
    return Record(config, run.rows())


def released_loop(config: Any) -> tuple[int, float, float]:
    """The authors' loop, written out: x steps, mean loss of all of them, accuracy under attack."""
    points = data.load("synthetic", seed=config.seed)
    model = models.make("mlp", (2,), 2, seed=config.seed)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=config.lr_x)
    batches = data.Batches(
        points.inputs_train, points.targets_train, config.batch_size, seed=config.seed
    )
    losses: list[float] = []
    calls = 0
    for clean, labels, _ in batches.endless():
        z = clean.clone().requires_grad_()
        z_optimizer = torch.optim.Adam([z], lr=config.lr_y)
        k, t, enough = 0, len(losses), False
        while not enough and calls < config.max_calls:
            penalty = config.gamma * ((z - clean) ** 2).sum(1).mean()
            z.grad = None
            (penalty - nn.functional.cross_entropy(model(z), labels)).backward()
            z_optimizer.step()
            assert z.grad is not None
            k, calls = k + 1, calls + 1
            if config.method == "neada":
                enough = float((z.grad**2).sum()) <= config.stop_scale / (t + 1) or k >= t
            else:
                enough = k == 15
        if calls >= config.max_calls:
            break
        x_optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(z.detach()), labels)
        loss.backward()
        x_optimizer.step()
        calls += 1
        losses.append(loss.item())
    test = points.inputs_test.clone().requires_grad_()
    nn.functional.cross_entropy(model(test), points.targets_test).backward()
    assert test.grad is not None
    attacked = model(points.inputs_test + 0.5 * test.grad.sign()).argmax(1)
    return (
        len(losses),
        float(np.mean(losses)),
        float((attacked == points.targets_test).float().mean()),
    )


@pytest.mark.parametrize("method", ["gdmax", "neada"])
def test_a_run_is_the_loop_of_the_authors(method: Any, tmp_path: Path) -> None:
    config = synthetic_dro.Config(method, 0.08, seed=3, max_calls=400, num_evaluations=1)
    record = record_of(SYNTHETIC, config, tmp_path)
    x_steps, mean_loss, accuracy = released_loop(config)
    last = record.rows[-1]
    assert (last["calls"], last["x_steps"]) == (400, x_steps)
    assert last["test_0.5"] == pytest.approx(accuracy, abs=2 / 4000)
    steps = np.diff([0, *(row["x_steps"] for row in record.rows)])
    losses = np.array([row["loss"] for row in record.rows])
    assert (steps * losses).sum() / steps.sum() == pytest.approx(mean_loss, rel=1e-4)


def test_the_library_runs_beside_the_loop_of_the_authors(tmp_path: Path) -> None:
    config = synthetic_dro.Config("library", 0.08, seed=3, max_calls=100, num_evaluations=1)
    last = record_of(SYNTHETIC, config, tmp_path).rows[-1]
    assert last["calls"] == 100
    assert 0.0 < last["test_0.5"] <= 1.0


def test_seven_runs_per_seed() -> None:
    for scale, max_calls in (("standard", 1565), ("paper", 78200)):
        configs = mnist_dro.configs(scale, [0])  # type: ignore[arg-type]
        assert {(c.max_calls, c.data, c.lr_x, c.gamma, c.batch_size) for c in configs} == {
            (max_calls, "mnist", 0.001, 1.3, 128)
        }
        methods = ("gdmax", "neada", "library")
        assert {(c.method, c.lr_y) for c in configs} == {
            *((method, rate) for method in methods for rate in (0.001, 0.01)),
            ("default", None),
        }
    assert {c.max_calls for c in mnist_dro.configs("standard", max_calls=7820)} == {7820}


# Results, on rows made up so that every number behind them is known.


def made_up(lead: float, spread: float, seeds: int) -> list[Claim]:
    """NeAda's accuracy is higher by a lead that alternates between the seeds."""
    records = []
    for config in synthetic_dro.configs("standard", range(seeds)):
        extra = lead + spread * (-1) ** config.seed if config.method == "neada" else 0.0
        rows = [{"calls": 100 * k, "loss": 1.0, "test_0.5": 0.75 + extra} for k in range(80)]
        records.append(Record(config, rows))
    return synthetic_dro.claims(records)


@pytest.mark.parametrize(
    ("lead", "spread", "seeds", "result"),
    [
        (0.05, 0.01, 6, "supported"),
        (-0.05, 0.01, 6, "not supported"),
        (0.01, 0.05, 6, "not tested"),
        (0.05, 0.0, 1, "not tested"),
    ],
)
def test_the_result_follows_from_the_interval(
    lead: float, spread: float, seeds: int, result: str
) -> None:
    (claim,) = [c for c in made_up(lead, spread, seeds) if c.id == "synthetic-dro/higher-0.08"]
    assert claim.result == result
    assert claim.measured == pytest.approx(100.0 * lead)


@pytest.mark.parametrize("seeds", [2, 5, 20])
def test_the_interval_is_that_of_student(seeds: int) -> None:
    values = np.random.default_rng(seeds).normal(size=seeds)
    expected = scipy.stats.t.interval(0.95, seeds - 1, values.mean(), scipy.stats.sem(values))
    np.testing.assert_allclose(interval(values), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("scale", "max_calls", "tested"),
    [("quick", 78200, False), ("standard", None, False), ("paper", None, True)],
)
def test_only_mnist_at_the_budget_of_the_paper_tests_its_claims(
    scale: Any, max_calls: int | None, tested: bool
) -> None:
    records = []
    for config in mnist_dro.configs(scale, range(5), max_calls):
        accuracy = 0.9 if config.method == "neada" else 0.8
        columns = {f"held_out_{eps}": accuracy for eps in ("0.02", "0.05", "0.1")}
        columns |= {f"test_{eps}": accuracy for eps in ("0.02", "0.05", "0.1")}
        rows = [{"calls": config.max_calls * k // 20, "loss": 1.0, **columns} for k in range(21)]
        records.append(Record(config, rows))
    claims = {claim.id: claim for claim in mnist_dro.claims(records)}
    assert (claims["mnist-dro/higher-0.01-0.1"].result == "supported") == tested
    assert tested or {claim.result for claim in claims.values()} == {"not tested"}


# Numbers of a run.


def test_runs_that_were_measured_at_other_calls_are_brought_together() -> None:
    config = synthetic_dro.configs("quick", [0])[0]
    first = Record(config, [{"calls": 0, "loss": 0.0}, {"calls": 100, "loss": 10.0}] * 1)
    second = Record(
        config, [{"calls": 50, "loss": 1.0}, {"calls": 80, "a": 1}, {"calls": 150, "loss": 3.0}]
    )
    calls, values = robust_training.over_calls({0: first, 1: second}, "loss")
    assert calls[0] == 50.0
    assert calls[-1] == 100.0  # nothing beyond what every run has
    np.testing.assert_allclose(values[[0, -1]], [[5.0, 1.0], [10.0, 2.0]])


def test_differences_pair_the_seeds() -> None:
    config = synthetic_dro.configs("quick", [0])[0]
    runs = {seed: Record(config, [{"v": value}]) for seed, value in ((0, 1.0), (1, 5.0), (2, 7.0))}
    others = {
        seed: Record(config, [{"v": value}]) for seed, value in ((2, 8.0), (1, 2.0), (9, 0.0))
    }

    def value(record: Record) -> float:
        return robust_training.last(record, "v")

    assert robust_training.differences(runs, others, value).tolist() == [-3.0, 1.0]


def test_drops_pair_the_seeds_and_a_tie_is_not_a_lead() -> None:
    def advantage(*accuracies: float) -> float | None:
        """NeAda's advantage for one seed: Adam and NeAda, with separate and equal rates."""
        cells = [(method, rate) for method in ("gdmax", "neada") for rate in (0.08, 0.01)]
        records = [
            Record(synthetic_dro.Config(method, rate, 4, 100), [{"test_0.5": accuracy}])  # type: ignore[arg-type]
            for (method, rate), accuracy in zip(cells, accuracies, strict=True)
        ]
        other = Record(synthetic_dro.Config("gdmax", 0.08, 9, 100), [{"test_0.5": 0.0}])
        runs = robust_training.Comparison("toy", "Figure 3", [*records, other], (0.08, 0.01))
        return runs.mean("toy", "", runs.advantages(0.5), ">", 0.0).measured

    assert advantage(0.9, 0.7, 0.8, 0.75) == 15.0
    assert advantage(240 / 359, 241 / 359, 301 / 359, 302 / 359) == 0.0  # not 7e-15 points


def test_the_larger_class_is_what_the_generator_draws() -> None:
    labels = torch.cat([data.load("synthetic", seed=seed).targets_train for seed in range(4)])
    share = 100.0 * float((labels == 0).float().mean())
    spread = 100.0 * math.sqrt(0.25 / len(labels))
    assert share == pytest.approx(synthetic_dro._larger_class(), abs=4 * spread)


# Interruptions and failures.


def tiny_training(**changes: Any) -> TrainConfig:
    return TrainConfig(data="synthetic", max_calls=30, eval_eps=(0.5,), **changes)


def test_a_training_that_diverges_is_a_result(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start({})
    config = tiny_training(
        method="gdmax", x_optimizer="sgd", y_optimizer="sgd", inner_steps=1, lr_x=1e30
    )
    robust_training.train_into(config, run, resumable=False)
    *_, there, end = run.rows()
    assert there["calls"] < end["calls"] == 30
    for row in (there, end):
        assert (row["test_clean"], row["test_0.5"]) == (0.0, 0.0)
        assert "gradient calls" in row["diverged"]
