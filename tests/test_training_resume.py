"""Resuming a training run: bit for bit, after kills and damage, to another length, on ranks."""

import dataclasses
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neada.cli import main
from neada.data import Dataset
from neada.runs import RunFolder
from neada.training import Progress, TrainConfig, TrainResult, TrainStatus, train
from tests.launch import TORCHRUN, run_python

BASE = TrainConfig(
    max_calls=40,
    batch_size=8,
    log_every=7,
    eval_every=15,
    eval_eps=(0.1,),
    eval_samples=9,
)
KINDS: dict[str, dict[str, Any]] = {
    "wrm": {},
    "wrm, per sample": {"per_sample": True},
    "wrm, kept": {"warm_start": "memory"},
    "wrm, adam": {"y_optimizer": "adam"},
    "gdmax": {"method": "gdmax", "inner_steps": 4, "x_optimizer": "dog"},
    "amsgrad": {"x_optimizer": "amsgrad", "y_optimizer": "amsgrad"},
    "tiada": {"method": "tiada"},
    "group": {"objective": "group"},
    "group, tiada": {"objective": "group", "method": "tiada"},
    "trades": {"objective": "trades"},
    "random": {"objective": "adversarial", "random_start": True, "attack": "pgd"},
}


def data(num_train: int = 43) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(num_train + 20, 4, generator=generator)
    targets = (2 * inputs[:, 0]).long()
    parts = inputs[:num_train], targets[:num_train], inputs[num_train:], targets[num_train:]
    return Dataset("own", *parts, num_classes=2, bounds=(0.0, 1.0))


def model() -> nn.Module:
    """A network with dropout and batch norm, whose state a resume could lose."""
    torch.default_generator.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ELU(), nn.Dropout(0.2), nn.Linear(6, 2)
    )


def outcome(result: TrainResult) -> dict[str, Any]:
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]
    weights = {name: t.flatten().tolist() for name, t in result.model.state_dict().items()}
    return {"status": result.status.name, "rows": rows, "weights": weights}


def trained(config: TrainConfig, folder: Path | None, **options: Any) -> dict[str, Any]:
    result = train(config, folder, **{"model": model(), "data": data(), **options})
    assert result.status is TrainStatus.FINISHED
    if folder is not None:
        assert RunFolder(folder).problem(dataclasses.asdict(config)) == ""
    return outcome(result)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class DiedError(Exception):
    """In place of a kill."""


def dying_after(x_steps: int) -> Callable[[Progress], None]:
    def progress(at: Progress) -> None:
        if at.x_steps >= x_steps:
            raise DiedError

    return progress


def interrupting_after(x_steps: int, active: bool = True) -> Callable[[Progress], None]:
    def progress(at: Progress) -> None:
        if active and at.x_steps == x_steps:
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


# Bit for bit.


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_died_resumes_bit_for_bit(tmp_path: Path, kind: str) -> None:
    config = dataclasses.replace(BASE, max_calls=50, **KINDS[kind])
    whole = trained(config, None)
    for x_steps, seconds in ((2, 1e-9), (5, 1e9)):
        folder = tmp_path / str(x_steps)
        with pytest.raises(DiedError):
            trained(config, folder, progress=dying_after(x_steps), checkpoint_seconds=seconds)
        torch.rand(7)
        assert trained(config, folder, resume=True) == whole
        rows = [{k: v for k, v in r.items() if k != "seconds"} for r in RunFolder(folder).rows()]
        assert rows == whole["rows"]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = train(BASE, tmp_path, model=model(), data=data())
    before = contents(tmp_path)
    again = train(BASE, tmp_path, model=model(), data=data(), resume=True)
    assert again.rows == first.rows and outcome(again) == outcome(first)
    after = contents(tmp_path)
    assert before.pop("result.json") and after.pop("result.json")
    assert after == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def interrupt(at: Progress) -> None:
        if at.x_steps == 4:
            os.kill(os.getpid(), number)

    result = train(BASE, tmp_path, model=model(), data=data(), progress=interrupt)
    assert result.status is TrainStatus.INTERRUPTED and result.x_steps == 4
    assert signal.getsignal(number) == before
    assert next(RunFolder(tmp_path).checkpoints()).state["calls"] == result.calls
    assert not (tmp_path / "result.json").exists()
    assert trained(BASE, tmp_path, resume=True) == trained(BASE, None)


def test_a_signal_stops_an_evaluation(tmp_path: Path) -> None:
    class Signalling(nn.Linear):
        num_evaluated = 0

        def forward(self, inputs: Tensor) -> Tensor:
            if not self.training:
                Signalling.num_evaluated += 1
                if Signalling.num_evaluated == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
            return super().forward(inputs)

    def network() -> nn.Module:
        torch.default_generator.manual_seed(2)
        return Signalling(4, 2)

    broken = train(BASE, tmp_path, data=data(), model=network())
    assert broken.status is TrainStatus.INTERRUPTED
    resumed = trained(BASE, tmp_path, model=network(), resume=True)
    assert resumed == trained(BASE, None, model=network())


# Kills. Each child sends SIGKILL to itself at a given moment; it is forked by a process that has
# imported torch, so that a kill costs little time.

MOMENTS = {
    "before the first checkpoint is renamed": (os, "replace", "before", 4),
    "after a step": (torch.optim.Adam, "step", "after", 3),
    "while tensors are written": (os, "fsync", "before", 6),
    "between tensors and JSON": (os, "replace", "after", 8),
    "while old files are removed": (Path, "unlink", "after", 5),
    "while rows are written": (RunFolder, "append", "after", 2),
}


def kill_at(owner: Any, name: str, when: str, count: int) -> None:
    """Let this process kill itself before or after a number of calls of a function."""
    function, num_calls = getattr(owner, name), itertools.count(1)

    def called(*args: Any, **kwargs: Any) -> Any:
        is_last = next(num_calls) == count
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*args, **kwargs)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, name, called)


def run_in_child(moment: str | None, config: TrainConfig, folder: Path) -> int:
    """Resume the run in a child process and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if moment is not None:
                kill_at(*MOMENTS[moment])
            given = {"model": model(), "data": data()}
            train(config, folder, resume=True, checkpoint_seconds=1e-9, **given)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_runs(folder: Path) -> None:
    for kind in ("wrm, kept", "trades"):
        config = dataclasses.replace(BASE, max_calls=90, **KINDS[kind])
        train(dataclasses.replace(config, max_calls=4), model=model(), data=data())  # imports
        assert run_in_child(None, config, folder / kind / "whole") == 0
        for moment in MOMENTS:
            code = run_in_child(moment, config, folder / kind / "killed")
            assert code == -signal.SIGKILL, (moment, code)
        assert run_in_child(None, config, folder / kind / "killed") == 0


def test_kills_change_nothing(tmp_path: Path) -> None:
    module = "import sys, pathlib, tests.test_training_resume as module"
    subprocess.run(
        [sys.executable, "-c", f"{module}; module.kill_runs(pathlib.Path(sys.argv[1]))", tmp_path],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # a fork with threads could hang
        check=True,
    )
    for kind in ("wrm, kept", "trades"):
        whole, killed = (RunFolder(tmp_path / kind / name) for name in ("whole", "killed"))
        rows = [[{**row, "seconds": 0.0} for row in run.rows()] for run in (whole, killed)]
        assert len(rows[0]) > 10 and rows[0] == rows[1]
        states = [next(run.checkpoints()).state for run in (whole, killed)]
        for name in ("model", "game", "rng"):
            assert repr(states[0][name]) == repr(states[1][name])
        assert not list(killed.path.rglob("*.neada-tmp"))
        assert len(list(killed.path.glob("checkpoint/*"))) == 4


# Damage.


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, warm_start="memory")
    with pytest.raises(DiedError):
        trained(config, tmp_path, progress=dying_after(6), checkpoint_seconds=1e-9)
    files = sorted((tmp_path / "checkpoint").glob("*.safetensors"))
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged"):
        assert trained(config, tmp_path, resume=True) == trained(config, None)


def test_without_an_intact_checkpoint_there_is_one_error(tmp_path: Path) -> None:
    trained(BASE, tmp_path)
    for path in (tmp_path / "checkpoint").glob("*.json"):
        path.write_text("{}")
    before = contents(tmp_path)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match="intact"):
        trained(BASE, tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_another_configuration_data_or_model_is_an_error(tmp_path: Path) -> None:
    trained(BASE, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="gamma"):
        trained(dataclasses.replace(BASE, gamma=7.0), tmp_path, resume=True)
    with pytest.raises(FileExistsError):
        trained(BASE, tmp_path)
    with pytest.raises(ValueError, match="data"):
        trained(BASE, tmp_path, data=data(44), resume=True)
    with pytest.raises(ValueError, match="fit"):
        trained(BASE, tmp_path, model=nn.Linear(4, 2), resume=True)
    assert contents(tmp_path) == before


def test_device_and_threads_may_change_but_not_the_precision(tmp_path: Path) -> None:
    with pytest.raises(DiedError):
        trained(BASE, tmp_path, progress=dying_after(3), checkpoint_seconds=1e-9)
    with pytest.raises(ValueError, match="precision"):
        trained(dataclasses.replace(BASE, precision="bf16"), tmp_path, resume=True)
    moved = dataclasses.replace(BASE, device="cpu", threads=1)
    result = train(moved, tmp_path, resume=True, model=model(), data=data())
    assert outcome(result) == trained(BASE, None)


def test_metrics_without_a_checkpoint_are_not_overwritten(tmp_path: Path) -> None:
    trained(BASE, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="no checkpoint"):
        trained(BASE, tmp_path, resume=True)
    (tmp_path / "metrics.jsonl").write_text("")
    assert trained(BASE, tmp_path, resume=True) == trained(BASE, None)


# Another length.


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
@pytest.mark.parametrize("kind", ["wrm, kept", "group", "trades"])
def test_a_longer_run_equals_one_of_that_length(tmp_path: Path, kind: str, seconds: float) -> None:
    config = dataclasses.replace(BASE, **KINDS[kind])
    longer, longest = (dataclasses.replace(config, max_calls=calls) for calls in (71, 110))
    for each, resume in ((config, False), (longer, True)):
        trained(each, tmp_path, resume=resume, checkpoint_seconds=seconds)
    found = trained(longest, tmp_path, resume=True, checkpoint_seconds=seconds)
    assert found == trained(longest, None)
    assert RunFolder(tmp_path).config()["max_calls"] == 110


def test_an_unfinished_run_gets_a_longer_or_shorter_length(tmp_path: Path) -> None:
    for calls in (30, 90):
        with pytest.raises(DiedError):
            trained(BASE, tmp_path / str(calls), checkpoint_seconds=1e-9, progress=dying_after(5))
        config = dataclasses.replace(BASE, max_calls=calls)
        assert trained(config, tmp_path / str(calls), resume=True) == trained(config, None)


def test_intervals_that_came_from_the_first_length_stay(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, log_every=None, eval_every=None, max_calls=200)
    trained(config, tmp_path)
    longer = trained(dataclasses.replace(config, max_calls=400), tmp_path, resume=True)["rows"]
    evaluated = [row["calls"] // 20 for row in longer if "test_clean" in row]
    assert evaluated[:20] == [*range(1, 21)]


def test_a_length_that_is_done_is_an_error(tmp_path: Path) -> None:
    trained(BASE, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="max_calls = 39"):
        trained(dataclasses.replace(BASE, max_calls=39), tmp_path, resume=True)
    with pytest.raises(ValueError, match="max_calls = 40"):
        trained(dataclasses.replace(BASE, epochs=9), tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_a_crash_at_any_moment_leaves_one_length_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(BASE, eval_every=1000, max_calls=16)
    long = dataclasses.replace(short, max_calls=26)
    ends = {each.max_calls: trained(each, tmp_path / str(each.max_calls)) for each in (short, long)}
    left = [math.inf]

    def dying(function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                raise DiedError
            return function(*args, **kwargs)

        return called

    seen = set()
    for moment in range(1, 200, 2):
        folder = tmp_path / f"run {moment}"
        shutil.copytree(tmp_path / "16", folder)
        with monkeypatch.context() as patched:
            for module, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
                patched.setattr(module, name, dying(getattr(module, name)))
            left[:] = [moment]
            try:
                trained(long, folder, resume=True, checkpoint_seconds=1e9)
                break
            except DiedError:
                pass
        known = TrainConfig.from_dict(RunFolder(folder).config())
        assert trained(known, folder, resume=True) == ends[known.max_calls]
        assert trained(long, folder, resume=True) == ends[26]
        seen.add(known.max_calls)
    assert moment > 10 and seen == {16, 26}


# Restarts by torchrun.


def test_a_restart_resumes_what_its_launch_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    line = ["train", "--data", "synthetic", "--max-calls", "20", "--out", str(out)]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    assert main(line) == 0
    before = (out / "metrics.jsonl").read_bytes()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert main([*line, "--overwrite"]) == 0
    assert (out / "metrics.jsonl").read_bytes() == before
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    assert main(line) == 2
    assert "overwrite" in capsys.readouterr().err
    assert main([*line, "--overwrite"]) == 0
    assert (out / "metrics.jsonl").read_bytes() != before


# Rank 1 leaves a note and kills itself after the eighth step of the model, unless it is a restart.
KILLED_ONCE = """
import itertools, os, signal, sys
from torch.optim import Adam
from torch.optim.optimizer import register_optimizer_step_post_hook
from neada.cli import main

steps = itertools.count(1)

def kill(optimizer, args, kwargs):
    if isinstance(optimizer, Adam) and next(steps) == 8:
        open("note", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    register_optimizer_step_post_hook(kill)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank_and_the_run_resumes(tmp_path: Path) -> None:
    line = "train --data synthetic --epochs 3 --max-calls 100000 --batch-size 1000 --quiet"
    line += " --eval-samples 100 --warm-start memory --checkpoint-seconds 1e-9 --out"
    script = tmp_path / "killed_once.py"
    script.write_text(KILLED_ONCE)
    for name, program in (("whole", ["-m", "neada"]), ("killed", [str(script)])):
        run_python([*TORCHRUN, "--max-restarts=1", *program, *line.split(), name], tmp_path)
    rows = [
        [{**row, "seconds": 0.0} for row in RunFolder(tmp_path / name).rows()]
        for name in ("whole", "killed")
    ]
    assert rows[0] == rows[1]
    assert (tmp_path / "note").exists()
