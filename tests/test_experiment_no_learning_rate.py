"""Robust training over learning rates: the runs, the verdicts on made-up numbers, the figure."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neada import data, models, optim, robust, stopping
from neada.runs import RunFolder
from neada.training import TrainConfig, train
from reproduction import no_learning_rate
from reproduction.experiment import Claim, Record


def record_of(config: Any, folder: Path) -> Record:
    run = RunFolder(folder)
    run.start(dataclasses.asdict(config))
    no_learning_rate.run(config, run)
    run.finish()
    return Record(config, run.rows())


def test_a_run_of_the_default_is_wrm_in_a_plain_loop(tmp_path: Path) -> None:
    config = no_learning_rate.Config("default", 1e-2, None, seed=2, max_calls=90)
    last = record_of(config, tmp_path).rows[-1]
    digits = data.load("digits", seed=2)
    model = models.make("small-cnn", digits.inputs_train.shape[1:], 10, seed=2)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    objective = robust.WRM(
        model,
        nn.functional.cross_entropy,
        1.3,
        adversary=robust.Adversary(
            stopping=stopping.GradientMapping(1.0) | stopping.InnerSteps(), max_steps=1_000_000
        ),
        bounds=digits.bounds,
    )
    objective.max_calls = 90
    batches = data.Batches(digits.inputs_train, digits.targets_train, 128, seed=2)
    with pytest.raises(Exception, match="90"):
        for inputs, targets, _ in batches.endless():
            objective.step(x_optimizer, inputs, targets)
    assert last["x_steps"] == objective.counters.outer_steps
    model.eval()
    test = digits.inputs_test.clone().requires_grad_()
    nn.functional.cross_entropy(model(test), digits.targets_test).backward()
    assert test.grad is not None
    attacked = model(digits.inputs_test + 0.1 * test.grad.sign()).argmax(1)
    accuracy = float((attacked == digits.targets_test).float().mean())
    assert last["test_0.1"] == pytest.approx(accuracy, abs=1.5 / len(test))


@pytest.mark.parametrize(("name", "kind"), [("dog", optim.DoG), ("dowg", optim.DoWG)])
def test_a_model_is_trained_without_a_learning_rate(name: str, kind: Any) -> None:
    """Against the optimizer by itself, with an adversary who pays too much to move."""
    digits = data.load("digits", seed=0)
    small = dataclasses.replace(
        digits, inputs_train=digits.inputs_train[:32], targets_train=digits.targets_train[:32]
    )
    config = TrainConfig(
        method="gdmax",
        inner_steps=1,
        x_optimizer=name,
        gamma=1e9,
        model="linear",
        batch_size=32,
        max_calls=40,
    )
    trained = train(config, data=small)
    model = models.make("linear", (1, 8, 8), 10, seed=0)
    optimizer = kind(model.parameters())
    for _ in range(trained.x_steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(small.inputs_train), small.targets_train).backward()
        optimizer.step()
    assert trained.x_steps > 10
    for ours, theirs in zip(trained.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


# Verdicts, on rows made up so that every number behind them is known.

Accuracy = Callable[[Any], float]
LEVELS = {1e-4: 0.60, 1e-3: 0.70, 1e-2: 0.75, 1e-1: 0.65}
LOSSES = {1e-3: 0.20, 1e-2: 0.0, 1e-1: 0.10}
"""What Adam with 15 steps loses with an lr_y: 10 points in the mean."""


def made_up(config: Any) -> float:
    if config.name in ("dog", "dowg"):
        return {"dog": 0.73, "dowg": 0.55}[config.name] + 0.001 * config.seed
    if config.name == "default":
        return LEVELS[config.lr_x] + 0.001 * config.seed
    if config.name == "tiada":
        at = LEVELS[round(config.lr_x / 100, 9)]
        return at - 0.05
    # 15 steps: worse everywhere, most at the ends; NeAda-Adam: as the default.
    if config.name == "neada-adam":
        return LEVELS[config.lr_x]
    return LEVELS[config.lr_x] - LOSSES[config.lr_y] - (0.1 if config.lr_x == 1e-4 else 0.0)


def judged(accuracy: Accuracy, seeds: int = 3) -> dict[str, Claim]:
    records = [
        Record(config, [{"calls": config.max_calls, "test_0.1": accuracy(config)}])
        for config in no_learning_rate.configs("standard", range(seeds))
    ]
    claims = no_learning_rate.claims(records)
    return {claim.id.removeprefix("no-learning-rate/"): claim for claim in claims}


def test_the_measured_numbers_are_means_over_seeds() -> None:
    found = judged(made_up)
    assert len(found) == 3 * 4 + 3 + 2
    assert {claim.seeds for claim in found.values()} == {3}
    assert found["not-worse-adam-15-0.001"].measured == pytest.approx(10.1, abs=1e-9)
    assert found["not-worse-adam-15-0.0001"].measured == pytest.approx(20.1, abs=1e-9)
    assert found["not-worse-tiada-0.1"].measured == pytest.approx(5.1, abs=1e-9)
    assert "lr_x = 0.1 (there 10)" in found["not-worse-tiada-0.1"].sentence
    assert found["not-wider-adam-15"].measured == pytest.approx(10.0)
    assert found["not-wider-neada-adam"].measured == pytest.approx(0.0, abs=1e-9)
    assert found["lr-x-can-go-dog"].measured == pytest.approx(-2.0)
    assert found["lr-x-can-go-dowg"].measured == pytest.approx(-20.0)
    assert "70.1 against 60.0" in found["not-worse-adam-15-0.001"].note
    failing = {name for name, claim in found.items() if claim.result == "not supported"}
    assert failing == {"lr-x-can-go-dowg"}
