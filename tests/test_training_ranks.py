"""Training on two ranks gives the rows of one process, and goes on with any number of them."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from neada.data import Dataset
from neada.training import TrainConfig, train
from neada.training.record import Progress

# 41 samples in batches of 8: the last batch of an epoch has one sample, and a rank has none.
GAMES: dict[str, dict[str, Any]] = {
    "wrm": {},
    "wrm, memory": {"warm_start": "memory"},
    "wrm, disk": {"warm_start": "disk"},
    "wrm, released": {"stop": "released", "clip": True},
    "wrm, free": {"method": "free"},
    "wrm, tiada": {"method": "tiada"},
    "adversarial": {"objective": "adversarial"},
    "group": {"objective": "group"},
    "group, tiada": {"objective": "group", "method": "tiada"},
}
RESUMED = ("wrm", "wrm, memory", "wrm, disk", "wrm, tiada", "group")
LENGTHENED = ("wrm", "wrm, disk")
RESTLESS = ("dropout", "trades")


def config(game: str) -> TrainConfig:
    asked: dict[str, Any] = {
        "dropout": {"dropout": "on"},
        "trades": {"objective": "trades"},
        **GAMES,
    }[game]
    return TrainConfig(
        epochs=4, max_calls=10_000, batch_size=8, log_every=20, eval_every=40, model="mlp", **asked
    )


def data() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(71, 6, generator=generator)
    targets = (3 * inputs[:, 0]).long().clamp(max=2)
    return Dataset(
        "own",
        *(inputs[:41], targets[:41], inputs[41:], targets[41:]),
        num_classes=3,
        bounds=(0.0, 1.0),
    )


class InterruptAfter:
    """Sends this process a signal after so many steps of the model."""

    def __init__(self, x_steps: int, active: bool = True) -> None:
        self.x_steps, self.active = x_steps, active

    def __call__(self, at: Progress) -> None:
        if self.active and at.x_steps == self.x_steps:
            os.kill(os.getpid(), signal.SIGTERM)


def outcome(result: Any) -> dict[str, Any]:
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]
    weights = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    return {"status": result.status.name, "rows": rows, "weights": weights.tolist()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timeout
    )
    place, found = Path(folder), {}
    for game in GAMES:
        found[game] = outcome(train(config(game), place / f"two, {game}", data=data()))
    for game in (*RESUMED, *RESTLESS):
        # The signal comes to one of the ranks only.
        stopping = InterruptAfter(9, active=rank == 1)
        where = place / f"interrupted by two, {game}"
        assert outcome(train(config(game), where, data=data(), progress=stopping))["status"] == (
            "INTERRUPTED"
        )
    dist.barrier()
    for game in (*RESUMED, *RESTLESS):
        where = place / f"interrupted by two, {game}, go on"
        if rank == 0:
            _copy(place / f"interrupted by two, {game}", where)
        dist.barrier()
        found[f"{game}, go on"] = outcome(train(config(game), where, data=data(), resume=True))
    for game in RESTLESS:
        found[game] = outcome(train(config(game), place / f"two, {game}", data=data()))
    for game in RESUMED:
        where = place / f"interrupted by one, {game}"
        found[f"{game}, of one"] = outcome(train(config(game), where, data=data(), resume=True))
    for game in LENGTHENED:
        where = place / f"lengthened by two, {game}"
        train(replace(config(game), epochs=2), where, data=data())
        found[f"{game}, lengthened"] = outcome(train(config(game), where, data=data(), resume=True))
    (place / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training-ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    for game in RESUMED:
        where = folder / f"interrupted by one, {game}"
        stopped = train(config(game), where, data=data(), progress=InterruptAfter(9))
        assert stopped.status.name == "INTERRUPTED"
    mp.spawn(work, (str(folder),), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        game: outcome(train(config(game), folder / f"one, {game}", data=data())) for game in GAMES
    }


def assert_equal_to_rounding(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["status"] == expected["status"] == "FINISHED"
    assert len(found["rows"]) == len(expected["rows"])
    for row, other in zip(found["rows"], expected["rows"], strict=True):
        assert row == pytest.approx(other, rel=2e-4, abs=2e-5)
        assert (row["calls"], row["x_steps"]) == (other["calls"], other["x_steps"])
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("game", GAMES)
def test_two_ranks_have_the_rows_of_one_process(ranks: Any, alone: Any, game: str) -> None:
    assert ranks[0][game] == ranks[1][game]
    assert_equal_to_rounding(ranks[0][game], alone[game])


@pytest.mark.parametrize("game", [*RESUMED, *RESTLESS])
def test_a_signal_to_one_rank_stops_both_and_resume_is_bit_for_bit(ranks: Any, game: str) -> None:
    assert ranks[0][f"{game}, go on"] == ranks[0][game]


@pytest.mark.parametrize("game", LENGTHENED)
def test_two_ranks_go_on_to_another_length_bit_for_bit(ranks: Any, game: str) -> None:
    assert ranks[0][f"{game}, lengthened"] == ranks[0][game]
    assert ranks[1][f"{game}, lengthened"] == ranks[0][game]


@pytest.mark.parametrize("game", RESUMED)
def test_two_ranks_go_on_with_a_run_of_one_process(ranks: Any, alone: Any, game: str) -> None:
    assert_equal_to_rounding(ranks[0][f"{game}, of one"], alone[game])


@pytest.mark.parametrize("game", RESUMED)
def test_one_process_goes_on_with_a_run_of_two_ranks(
    ranks: Any, alone: Any, folder: Path, game: str
) -> None:
    where = folder / f"interrupted by two, {game}"
    found = outcome(train(config(game), where, data=data(), resume=True))
    assert_equal_to_rounding(found, alone[game])


def test_a_complete_run_of_two_ranks_stays_as_it_is(ranks: Any, folder: Path) -> None:
    where = folder / "two, wrm, disk"
    before = {path.name: path.read_bytes() for path in where.iterdir()}
    found = outcome(train(config("wrm, disk"), where, data=data(), resume=True))
    assert {path.name: path.read_bytes() for path in where.iterdir()} == before
    assert found == ranks[0]["wrm, disk"]


def test_a_killed_rank_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    asked = "--data synthetic --epochs 15 --max-calls 100000 --batch-size 500 --eval-samples 100"
    asked += " --quiet --warm-start disk"

    def command(out: str) -> list[str]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        port = ["--master-port", str(20000 + os.getpid() % 20000), "--max-restarts", "1"]
        return [*launch, *port, "-m", "neada", "train", *asked.split(), "--out", out]

    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command("whole"), cwd=tmp_path, env=quiet, check=True, capture_output=True)
    process = subprocess.Popen(
        command("killed"), cwd=tmp_path, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    give_up = time.monotonic() + 60.0
    while not list(tmp_path.glob("killed/checkpoint*")) and time.monotonic() < give_up:
        time.sleep(0.02)
    workers = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    words = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 0, words
    assert "Traceback" not in words
    for name in ("whole", "killed"):
        assert (tmp_path / name / "result.json").exists()
    rows = {
        name: [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for name in ("whole", "killed")
    }
    assert rows["whole"] == rows["killed"]
