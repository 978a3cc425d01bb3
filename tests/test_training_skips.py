"""Training with `on_nonfinite="skip"`: bad batches have no effect and are counted."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neada.data import Batches, Dataset
from neada.training import Progress, TrainConfig, TrainResult, TrainStatus, train
from neada.training.players import Game

BASE = TrainConfig(
    objective="adversarial",
    eps=0.01,
    batch_size=8,
    epochs=4,
    log_every=10,
    eval_eps=(0.1,),
    on_nonfinite="skip",
    lr_x=0.01,
)
KINDS: dict[str, dict[str, Any]] = {
    "neada": {},
    "kept": {"warm_start": "memory"},
    "tiada": {"method": "tiada"},
    "group": {"objective": "group", "eps": 0.1},
}


class KilledError(Exception):
    """In place of a signal."""


class Undefined(nn.Module):
    """A network with batch norm that has no value for inputs whose first number is large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        is_bad = self.training & (inputs[:, :1] > 0.9)
        return torch.where(is_bad, math.nan, outputs)


def data(num_bad: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs = 0.1 + 0.5 * torch.rand(60, 3, generator=generator)
    targets = (inputs[:, 1] > inputs[:, 2]).long()
    inputs[:num_bad, 0] = 1.0
    parts = inputs[:48], targets[:48], inputs[48:], targets[48:]
    return Dataset("own", *parts, num_classes=2, bounds=(0.0, 1.0))


def outcome(result: TrainResult) -> dict[str, Any]:
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]
    weights = {name: tensor.tolist() for name, tensor in result.model.state_dict().items()}
    return {"status": result.status.name, "rows": rows, "weights": weights}


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_batch_has_no_effect(kind: str) -> None:
    asked, parts = dataclasses.replace(BASE, **KINDS[kind]), data()
    found = train(asked, data=parts, model=Undefined())
    model, num_skipped = Undefined(), 0
    game = Game(asked, model, parts)
    labels = parts.targets_train
    batches = Batches(parts.inputs_train, labels, asked.batch_size, seed=0, extras=[labels])
    for _, (inputs, targets, ids, groups) in zip(range(4 * 6), batches.endless(), strict=False):
        if bool((inputs[:, 0] > 0.9).any()):
            num_skipped += 1
            continue
        game.step(inputs, targets, ids, groups)
    assert found.status is TrainStatus.FINISHED
    assert 0 < num_skipped < 20
    assert found.rows[-1]["skipped"] == num_skipped
    assert found.x_steps == game.x_steps
    assert found.calls >= game.calls, "evaluations of skipped batches are counted"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, found.model.state_dict()[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_skips_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    asked, parts = dataclasses.replace(BASE, **KINDS[kind]), data()
    whole = outcome(train(asked, data=parts, model=Undefined()))

    last = whole["rows"][-1]["x_steps"]
    for x_steps in (last // 3, last - 1):

        def die(at: Progress, x_steps: int = x_steps) -> None:
            if at.x_steps >= x_steps:
                raise KilledError

        given: dict[str, Any] = {"data": parts, "resume": True, "checkpoint_seconds": 1e-9}
        with pytest.raises(KilledError):
            train(asked, tmp_path / "killed", model=Undefined(), progress=die, **given)
    result = train(asked, tmp_path / "killed", data=parts, model=Undefined(), resume=True)
    assert outcome(result) == whole


def test_ten_in_a_row_stop_the_run() -> None:
    model = Undefined()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = train(BASE, data=data(num_bad=48), model=model)
    assert result.status is TrainStatus.NON_FINITE
    assert "batches" in result.message
    assert result.x_steps == 0
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_by_default_the_first_bad_batch_stops_the_run() -> None:
    stopping = dataclasses.replace(BASE, on_nonfinite="stop")
    assert TrainConfig().on_nonfinite == "stop"
    result = train(stopping, data=data(), model=Undefined())
    assert result.status is TrainStatus.NON_FINITE
    clean = train(stopping, data=data(num_bad=0), model=Undefined())
    assert clean.status is TrainStatus.FINISHED
    assert not any("skipped" in row for row in clean.rows)
