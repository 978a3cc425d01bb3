"""A run goes on to another length as if it had been asked for that length at once."""

import dataclasses
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neada.cli.main import main
from neada.data import Dataset
from neada.runs import Run
from neada.training import Progress, TrainConfig, TrainStatus, train
from neada.training.config import LENGTH, OF_THE_MACHINE, ON_RESUME

BASE = TrainConfig(
    max_calls=40,
    batch_size=8,
    log_every=7,
    eval_every=15,
    eval_eps=(0.1,),
    eval_samples=9,
    final_samples="all",
)
RUNS: dict[str, dict[str, Any]] = {
    "wrm": {"attack": "pgd"},
    "wrm, on disk": {"warm_start": "disk"},
    "wrm, released": {"stop": "released"},
    "gdmax": {"method": "gdmax", "inner_steps": 4, "x_optimizer": "dog"},
    "free": {"method": "free"},
    "tiada": {"method": "tiada"},
    "group": {"objective": "group"},
    "trades": {"objective": "trades"},
    "random": {"objective": "adversarial", "random_start": True},
}


def data() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(63, 4, generator=generator)
    targets = (2 * inputs[:, 0]).long()
    return Dataset(
        "own",
        *(inputs[:43], targets[:43], inputs[43:], targets[43:]),
        num_classes=2,
        bounds=(0.0, 1.0),
    )


def model() -> nn.Module:
    torch.default_generator.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ELU(), nn.Dropout(0.2), nn.Linear(6, 2)
    )


def trained(config: TrainConfig, folder: Path, **options: Any) -> dict[str, Any]:
    result = train(config, folder, model=model(), data=data(), **options)
    assert result.status is TrainStatus.FINISHED
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]
    assert Run(folder).trouble(dataclasses.asdict(config)) == ""
    return {"rows": rows, "calls": result.calls, "model": weights(result.model)}


def weights(network: nn.Module) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in network.state_dict().items()}


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class StopError(Exception):
    """The process dies here."""


def dying_after(x_steps: int) -> Callable[[Progress], None]:
    def progress(at: Progress) -> None:
        if at.x_steps >= x_steps:
            raise StopError

    return progress


@pytest.mark.parametrize(
    ("name", "seconds"), [*((name, 1e9) for name in RUNS), ("wrm", 1e-9), ("wrm, on disk", 1e-9)]
)
def test_a_finished_run_goes_on_bit_for_bit(tmp_path: Path, name: str, seconds: float) -> None:
    asked = dataclasses.replace(BASE, **RUNS[name])
    longer, longest = (dataclasses.replace(asked, max_calls=calls) for calls in (71, 110))
    once = trained(longest, tmp_path / "once")
    folder = tmp_path / "run"
    first = trained(asked, folder, checkpoint_seconds=seconds)
    assert first["calls"] <= 40 and first["rows"] != once["rows"]
    trained(longer, folder, resume=True, checkpoint_seconds=seconds)
    assert trained(longest, folder, resume=True, checkpoint_seconds=seconds) == once
    assert Run(folder).config()["max_calls"] == 110


@pytest.mark.parametrize("name", ["wrm", "wrm, on disk"])
def test_epochs_are_a_length_too(tmp_path: Path, name: str) -> None:
    asked = dataclasses.replace(BASE, max_calls=10_000, epochs=2, **RUNS[name])
    once = trained(dataclasses.replace(asked, epochs=4), tmp_path / "once")
    trained(asked, tmp_path / "run")
    again = trained(dataclasses.replace(asked, epochs=4), tmp_path / "run", resume=True)
    assert again == once


def test_an_unfinished_run_goes_on_to_a_longer_or_shorter_end(tmp_path: Path) -> None:
    for calls in (30, 90):
        asked = dataclasses.replace(BASE, max_calls=calls)
        once = trained(asked, tmp_path / f"once {calls}")
        folder = tmp_path / f"run {calls}"
        with pytest.raises(StopError):
            trained(BASE, folder, checkpoint_seconds=1e-9, progress=dying_after(5))
        assert trained(asked, folder, resume=True) == once


def test_intervals_that_came_from_the_first_length_stay(tmp_path: Path) -> None:
    asked = dataclasses.replace(BASE, log_every=None, eval_every=None, max_calls=200)
    first = trained(asked, tmp_path)["rows"]
    longer = trained(dataclasses.replace(asked, max_calls=400), tmp_path, resume=True)["rows"]
    ends = [row["calls"] for row in first[:-2]]  # the two last rows are those of the end
    assert [row["calls"] for row in longer if row["calls"] <= ends[-1]] == ends
    evaluated = [row["calls"] // 20 for row in longer if "test_clean" in row]
    assert evaluated == [*range(1, 21), 20]  # and at the end on all samples


def test_the_length_is_all_that_changes_in_the_config(tmp_path: Path) -> None:
    trained(BASE, tmp_path)
    before = Run(tmp_path).config()
    moved = dataclasses.replace(BASE, max_calls=60, threads=1)
    train(moved, tmp_path, model=model(), data=data(), resume=True)
    assert Run(tmp_path).config() == {**before, "max_calls": 60}


@pytest.mark.parametrize("calls", [39, 12, 1])
def test_a_length_that_is_done_already_is_a_sentence(tmp_path: Path, calls: int) -> None:
    trained(BASE, tmp_path)
    before = files_in(tmp_path)
    asked = dataclasses.replace(BASE, max_calls=calls)
    with pytest.raises(ValueError, match=rf"max_calls = {calls} is no more than what .* \(40\)"):
        train(asked, tmp_path, model=model(), data=data(), resume=True)
    asked = dataclasses.replace(BASE, epochs=9)
    with pytest.raises(ValueError, match="max_calls = 40 is no more than what the run"):
        train(asked, tmp_path, model=model(), data=data(), resume=True)
    assert files_in(tmp_path) == before


def test_without_a_checkpoint_before_the_end_it_is_a_sentence(tmp_path: Path) -> None:
    trained(BASE, tmp_path)
    oldest, _ = sorted(tmp_path.glob("checkpoint-*"))
    oldest.unlink()
    before = files_in(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint in .* is from before the end of the run"):
        train(
            dataclasses.replace(BASE, max_calls=80),
            tmp_path,
            model=model(),
            data=data(),
            resume=True,
        )
    assert files_in(tmp_path) == before


def test_a_crash_at_any_moment_leaves_a_run_of_one_length_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(BASE, warm_start="disk", eval_every=1000, max_calls=16)
    long = dataclasses.replace(short, max_calls=26)
    ends = {
        config.max_calls: trained(config, tmp_path / str(config.max_calls))
        for config in (short, long)
    }
    left = [math.inf]

    def dying(function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                raise StopError
            return function(*args, **kwargs)

        return called

    seen = set()
    for moment in range(1, 200):
        folder = tmp_path / f"run {moment}"
        shutil.copytree(tmp_path / "16", folder)
        with monkeypatch.context() as patched:
            for module, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
                patched.setattr(module, name, dying(getattr(module, name)))
            left[:] = [moment]
            try:
                found = trained(long, folder, resume=True, checkpoint_seconds=1e9)
            except StopError:
                found = None
        if found is not None:
            break
        # As the command line does: the folder knows its length.
        known = TrainConfig.from_dict(Run(folder).config())
        assert trained(known, folder, resume=True) == ends[known.max_calls]
        assert trained(long, folder, resume=True) == ends[26]
        seen.add(known.max_calls)
    assert moment > 15 and seen == {16, 26}


def test_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_into = ["train", "--data", "synthetic", "--quiet", "--eval-eps", "0.5", "--out"]
    intervals = ["--log-every", "10", "--eval-every", "30"]
    once, run = str(tmp_path / "once"), str(tmp_path / "run")
    assert main([*train_into, once, *intervals, "--max-calls", "60"]) == 0
    assert main([*train_into, run, *intervals, "--max-calls", "25"]) == 0
    assert main(["train", "--out", run, "--resume", "--max-calls", "20", "--quiet"]) == 2
    assert "--max-calls = 20 is no more than what the run" in capsys.readouterr().err
    assert main(["train", "--out", run, "--resume", "--max-calls", "60", "--quiet"]) == 0
    rows = [[{**row, "seconds": 0.0} for row in Run(Path(folder)).rows()] for folder in (once, run)]
    assert rows[0] == rows[1]
    assert main(["train", "--out", run, "--resume", "--quiet"]) == 0


def test_the_table_of_what_may_differ_has_the_length_and_the_machine() -> None:
    assert set(ON_RESUME) == {*LENGTH, *OF_THE_MACHINE}
    assert ON_RESUME.keys() <= {field.name for field in dataclasses.fields(TrainConfig)}
