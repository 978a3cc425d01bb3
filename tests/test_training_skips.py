"""Training with `on_nonfinite="skip"`: batches are left out whole, counted, and by all ranks."""

import dataclasses
import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from neada.data import Batches, Dataset
from neada.training import Progress, TrainConfig, TrainResult, TrainStatus, train
from neada.training.players import make_game

ASKED = TrainConfig(
    objective="adversarial",
    eps=0.01,
    batch_size=8,
    epochs=6,
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
def test_what_is_skipped_might_as_well_not_be_there(kind: str, tmp_path: Path) -> None:
    asked, parts = dataclasses.replace(ASKED, **KINDS[kind]), data()
    found = train(asked, tmp_path / "run", data=parts, model=Undefined())
    model, num_skipped = Undefined(), 0
    game = make_game(asked, model, parts)
    labels = parts.targets_train
    batches = Batches(parts.inputs_train, labels, asked.batch_size, seed=0, extras=[labels])
    for _, (inputs, targets, ids, groups) in zip(range(6 * 6), batches.endless(), strict=False):
        if bool((inputs[:, 0] > 0.9).any()):
            num_skipped += 1
            continue
        game.step(inputs, targets, ids, groups)
    assert found.status is TrainStatus.FINISHED
    assert 0 < num_skipped < 30
    assert found.rows[-1]["skipped"] == num_skipped
    assert found.x_steps == game.x_steps
    assert found.calls >= game.calls, "evaluations of skipped batches are counted"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, found.model.state_dict()[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_skips_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    asked, parts = dataclasses.replace(ASKED, **KINDS[kind]), data()
    whole = outcome(train(asked, tmp_path / "whole", data=parts, model=Undefined()))

    def kill(at: Progress) -> None:
        if at.x_steps >= kills[0]:
            kills.pop(0)
            raise KilledError

    last = whole["rows"][-1]["x_steps"]
    kills = [last // 5, last // 3, last // 2, last - 1]
    where, often = tmp_path / "killed", 1e-9  # a checkpoint before every batch
    for _ in range(4):
        with pytest.raises(KilledError):
            train(
                *(asked, where),
                data=parts,
                model=Undefined(),
                resume=True,
                progress=kill,
                checkpoint_seconds=often,
            )
    kills = [10**9]
    assert outcome(train(asked, where, data=parts, model=Undefined(), resume=True)) == whole


def test_ten_in_a_row_stop_the_run(tmp_path: Path) -> None:
    model = Undefined()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = train(ASKED, tmp_path, data=data(num_bad=48), model=model)
    assert result.status is TrainStatus.NON_FINITE
    assert "batches" in result.message
    assert result.x_steps == 0
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_by_default_the_first_one_stops_the_run_and_rows_have_no_such_column() -> None:
    stopping = dataclasses.replace(ASKED, on_nonfinite="stop")
    assert TrainConfig().on_nonfinite == "stop"
    result = train(stopping, data=data(), model=Undefined())
    assert result.status is TrainStatus.NON_FINITE
    clean = train(stopping, data=data(num_bad=0), model=Undefined())
    assert clean.status is TrainStatus.FINISHED
    assert not any("skipped" in row for row in clean.rows)


# Two ranks.

ON_RANKS = [kind for kind in KINDS if kind != "tiada"]  # which needs a single process


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(minutes=10)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timeout
    )
    found = {}
    for kind in ON_RANKS:
        asked = dataclasses.replace(ASKED, **KINDS[kind])
        place = Path(folder) / f"two, {kind}"
        found[kind] = outcome(train(asked, place, data=data(), model=Undefined()))
    every = data(num_bad=48)
    found["all"] = outcome(train(ASKED, Path(folder) / "all", data=every, model=Undefined()))
    dist.barrier()
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def test_all_ranks_skip_a_batch_of_which_one_has_a_bad_part(tmp_path: Path) -> None:
    mp.spawn(work, (str(tmp_path),), nprocs=2)
    first, second = (
        json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)
    )
    assert first == second
    assert first["all"]["status"] == "NON_FINITE"
    for kind in ON_RANKS:
        asked = dataclasses.replace(ASKED, **KINDS[kind])
        alone = outcome(train(asked, tmp_path / f"one, {kind}", data=data(), model=Undefined()))
        assert first[kind]["status"] == alone["status"] == "FINISHED"
        assert first[kind]["rows"][-1]["skipped"] == alone["rows"][-1]["skipped"] > 0
        assert first[kind]["rows"][-1]["x_steps"] == alone["rows"][-1]["x_steps"]
