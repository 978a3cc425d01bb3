"""The run folder: round trips, atomic writes, damage, locks, links, and files of the user."""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from neada.runs import (
    RunFolder,
    atomic_write,
    environment,
    locked,
    read_json,
    write_json,
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.start({"lr": 0.1, "sizes": (1, 2)})
    return found


def newest(run: RunFolder) -> dict[str, Any]:
    return next(run.checkpoints()).state


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        ) and one.numpy(force=True).tobytes() == other.numpy(force=True).tobytes()
    if isinstance(one, dict):
        keys = list(one) == list(other) and list(map(type, one)) == list(map(type, other))
        return keys and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and all(same(a, b) for a, b in pairs)
    return type(one) is type(other) and repr(one) == repr(other)


# Checkpoints.


def test_a_state_survives_the_round_trip(run: RunFolder) -> None:
    state = {
        "keys": {0: "int", "0": "str", (1, 2): "tuple", None: 1, True: 2, "$tensor": 3, "a.b": 4},
        "tuples": ((1, (2.0, [3])), (), [()]),
        "numbers": [math.nan, math.inf, -math.inf, -0.0, 1e-320, 2**70, True, None, "nan"],
        "tensors": [
            torch.tensor([math.nan, -0.0, math.inf]),
            torch.tensor(3),
            torch.zeros(0, 2),
            torch.tensor([True, False]),
            torch.arange(3, dtype=torch.uint8),
            torch.ones(2, dtype=torch.float64),
            torch.arange(6.0).reshape(2, 3).t(),
            torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        ],
        "a": {"b": torch.ones(1)},
        "a.b": torch.zeros(1),
    }
    run.save_checkpoint(state)
    assert same(newest(run), state)


def test_tied_overlapping_and_expanded_tensors_keep_their_values(run: RunFolder) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"tied": [base, base], "views": [base[0], base[1], base.view(-1), base[:, 1]]}
    state["expanded"] = [torch.ones(1).expand(5)]
    run.save_checkpoint(state)
    found = newest(run)
    for name, tensors in state.items():
        assert all(map(torch.equal, found[name], tensors))
    assert found["tied"][0] is found["tied"][1]


def test_bfloat16_is_kept(run: RunFolder) -> None:
    run.save_checkpoint({"x": torch.tensor([1.5, math.nan], dtype=torch.bfloat16)})
    assert newest(run)["x"].dtype == torch.bfloat16


def test_other_tools_read_the_weights(run: RunFolder) -> None:
    model = nn.Linear(2, 3)
    run.save_checkpoint({"model": model.state_dict(), "step": 3})
    (file,) = (run.path / "checkpoint").glob("*.safetensors")
    assert torch.equal(load_file(file)["model.weight"], model.weight)
    assert json.loads(file.with_suffix(".json").read_text())["state"]["step"] == 3


def test_nothing_that_needs_pickle_is_saved(run: RunFolder) -> None:
    run.save_checkpoint({"step": 1})
    with pytest.raises(TypeError):
        run.save_checkpoint({"model": nn.Linear(1, 1)})
    assert newest(run) == {"step": 1}


def test_the_previous_checkpoint_is_kept(run: RunFolder) -> None:
    for step in range(5):
        run.save_checkpoint({"step": step})
    assert [checkpoint.state["step"] for checkpoint in run.checkpoints()] == [4, 3]
    assert len(list((run.path / "checkpoint").iterdir())) == 4


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing", "folder", "swap"])
def test_a_damaged_checkpoint_is_skipped(run: RunFolder, suffix: str, damage: str) -> None:
    run.save_checkpoint({"step": 1, "x": torch.ones(3)})
    run.save_checkpoint({"step": 2, "x": torch.zeros(3)})
    older, file = sorted((run.path / "checkpoint").glob(f"*.{suffix}"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"flip": bytes(content), "cut": bytes(content[:-9]), "empty": b""}
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "swap":  # the number of the checkpoint is part of the checksum
        file.write_bytes(older.read_bytes())
    elif damage in changed:
        file.write_bytes(changed[damage])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert newest(run)["step"] == 1
    assert len(caught) == (0 if (suffix, damage) == ("json", "missing") else 1)


def test_another_format_is_one_error(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neada.runs._FORMAT", 99)
    run.save_checkpoint({"step": 1})
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 99"):
        newest(run)


def test_resuming_drops_later_rows_and_checkpoints(run: RunFolder) -> None:
    for step in range(3):
        run.append([{"step": step, "loss": math.nan}])
        run.save_checkpoint({"step": step})
    run.finish()
    again = RunFolder(run.path)
    older = list(again.checkpoints())[1]
    again.resume(older)
    assert [row["step"] for row in again.rows()] == [0, 1]
    assert [checkpoint.number for checkpoint in again.checkpoints()] == [2]
    assert not (run.path / "result.json").exists()
    again.append([{"step": 9}])
    again.save_checkpoint({"step": 9})
    assert [checkpoint.num_rows for checkpoint in again.checkpoints()] == [3, 2]


def test_missing_rows_are_an_error(run: RunFolder) -> None:
    run.append([{"step": 0}])
    run.save_checkpoint({})
    (run.path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="rows"):
        run.resume(next(run.checkpoints()))


# Files.


def test_a_write_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_others(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save_checkpoint({"step": 1})
    before = contents(run.path)

    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="space"):
        run.save_checkpoint({"step": 2})
    assert contents(run.path) == before


def test_hard_links_and_symbolic_links_are_not_written_through(
    run: RunFolder, tmp_path: Path
) -> None:
    run.append([{"step": 1}])
    run.save_checkpoint({"step": 1})
    subprocess.run(["cp", "-al", run.path, tmp_path / "copy"], check=True)
    before = contents(tmp_path / "copy")
    run.append([{"step": 2}])
    run.save_checkpoint({"step": 2})
    run.write_config({"lr": 0.2})
    run.finish()
    run.start({"lr": 0.3}, overwrite=True)
    assert contents(tmp_path / "copy") == before

    target = tmp_path / "target"
    target.write_text("mine")
    for name in ("config.json", "metrics.jsonl", "result.json"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(target)
    run.start({"lr": 0.4}, overwrite=True)
    run.append([{"step": 3}])
    run.finish()
    assert target.read_text() == "mine"
    assert run.problem({"lr": 0.4}) == ""


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json", "checkpoint"])
def test_something_else_in_the_place_of_a_file_is_an_error(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    if name == "checkpoint":
        (tmp_path / "elsewhere").mkdir()
        (run.path / name).symlink_to(tmp_path / "elsewhere")
    else:
        (run.path / name).mkdir()
    with pytest.raises(ValueError, match=name):
        run.start({}, overwrite=True)
    assert run.problem({}) != ""


def test_files_of_the_user_are_left_alone(run: RunFolder) -> None:
    names = [".bashrc.20241117", ".notes.0123abcd", "notes.neada-tmp", "checkpoint/7.json"]
    run.save_checkpoint({"step": 1})
    for name in (*names, "checkpoint/best.safetensors"):
        (run.path / name).write_text("mine")
    left = run.path / ".config.json.0123abcd.neada-tmp"
    left.write_text("half")
    run.start({}, overwrite=True)
    assert not left.exists()
    for name in (*names, "checkpoint/best.safetensors"):
        assert (run.path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["config.json", "environment.json", "metrics.jsonl"])
def test_files_that_are_not_part_of_a_run_are_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=name):
        RunFolder(tmp_path).start({}, overwrite=True)
    assert contents(tmp_path) == {name: b'{"mine": 1}'}


def test_a_run_is_replaced_only_on_request(run: RunFolder) -> None:
    run.append([{"step": 1}])
    run.save_checkpoint({})
    before = contents(run.path)
    for missing in ("", "config.json", "metrics.jsonl"):
        if missing:
            (run.path / missing).unlink()
            del before[missing]
        with pytest.raises(FileExistsError):
            RunFolder(run.path).start({})
        assert contents(run.path) == before
    run.start({"lr": 1.0}, overwrite=True)
    assert run.rows() == [] and list(run.checkpoints()) == []


def test_json_has_nan_and_infinity(tmp_path: Path) -> None:
    content = {"a": [1.0, math.inf, -math.inf], "b": "text"}
    write_json(tmp_path / "file", content)
    assert read_json(tmp_path / "file") == content
    assert "Infinity" not in (tmp_path / "file").read_text()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1, 2]"])
def test_invalid_json_is_an_error(run: RunFolder, content: bytes) -> None:
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="config.json"):
        run.config()
    assert "config.json" in run.problem({})


def test_problems_of_a_run(run: RunFolder) -> None:
    config = {"lr": 0.1, "sizes": (1, 2)}
    assert "result.json" in run.problem(config)
    run.append([{"step": 1}])
    run.finish()
    assert run.problem(config) == ""
    assert "configuration" in run.problem({"lr": 0.2})
    (run.path / "metrics.jsonl").write_text('{"step": 2}\n')
    assert "metrics.jsonl" in run.problem(config)


# Locks and the environment.


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom neada.runs import locked\n"
        "with locked(Path(sys.argv[1])):\n    pass\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with locked(tmp_path):
        with pytest.raises(ValueError, match="in use"), locked(tmp_path):
            pass
        assert b"in use" in subprocess.run(command, capture_output=True, check=False).stderr
    assert (tmp_path / ".neada-lock").exists()
    with locked(tmp_path):
        pass


def test_the_environment_is_recorded(run: RunFolder) -> None:
    assert run.environment() == environment()
    assert run.environment()["packages"]["torch"]
