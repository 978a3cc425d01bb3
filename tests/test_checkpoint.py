"""Checkpoints: atomic, two of them, with checksums; and disks that do not play along."""

import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from neada import files, runs
from neada.runs import Checkpoints, Run


def state(t: int) -> dict[str, Any]:
    return {"t": t, "weight": torch.full((3,), float(t)), "nested": {"none": None, "list": [t]}}


def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    for t in range(4):
        checkpoints.save(state(t))
    assert len(list(tmp_path.iterdir())) == 2
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded["t"] == 3 and loaded["nested"] == {"none": None, "list": [3]}
    assert torch.equal(loaded["weight"], torch.full((3,), 3.0))


def test_torch_itself_reads_a_checkpoint(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(state(7))
    assert torch.load(path, weights_only=True)["t"] == 7


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path).save(state(0))
    again = Checkpoints(tmp_path)
    assert again.load() is not None
    second = again.save(state(1))
    assert second.name > first.name
    assert again.paths() == [first, second]


@pytest.mark.parametrize("harm", ["flip", "truncate", "empty"])
def test_a_damaged_newest_falls_back_with_a_warning(tmp_path: Path, harm: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    older, newest = checkpoints.save(state(0)), checkpoints.save(state(1))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flip": bytes(content), "truncate": bytes(content[:-9]), "empty": b""}[harm]
    newest.write_bytes(damaged)
    again = Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="damaged"):
        loaded = again.load()
    assert loaded is not None and loaded["t"] == 0
    # The next one replaces the damaged one, not the whole one.
    third = again.save(state(2))
    assert again.paths() == [older, third]


def test_no_whole_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(state(0)).write_bytes(b"rubbish")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="no checkpoint in .* is whole"),
    ):
        Checkpoints(tmp_path).load()


@pytest.mark.parametrize(
    ("format_number", "sentence"),
    [
        (
            None,
            r"by an older version of neada \(no format number; .* reads format 2\): finish the run",
        ),
        (1, r"by an older version of neada \(format 1; .* reads format 2\): finish the run"),
        (3, r"by a newer version of neada \(format 3; this version reads format 2\): update neada"),
    ],
)
def test_another_format_is_one_sentence_and_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_number: int | None, sentence: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(0))
    save = torch.save
    written = {**state(1), "format": format_number}
    if format_number is None:
        del written["format"]
    monkeypatch.setattr(runs.torch, "save", lambda content, file: save(written, file))
    path = checkpoints.save(state(1))
    with pytest.raises(ValueError, match=sentence) as caught:
        Checkpoints(tmp_path).load()
    assert str(path) in str(caught.value) and "start again" in str(caught.value)


def test_the_format_is_in_the_file_and_not_in_the_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert torch.load(checkpoints.save(state(0)), weights_only=True)["format"] == 2
    loaded = checkpoints.load()
    assert loaded is not None and loaded.keys() == state(0).keys()
    with pytest.raises(ValueError, match="name this part differently"):
        checkpoints.save({"format": 3})


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("owned",)


def test_a_checkpoint_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"evil": _Evil()})
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match="whole"):
        Checkpoints(tmp_path).load()
    assert not (tmp_path / "owned").exists()


class _Large:
    """As much memory as it likes, from a file of a few bytes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (2**40,)


def test_a_checkpoint_takes_no_more_memory_than_its_file(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path / "large").folder
    saved.mkdir()
    whole = Checkpoints(saved).save(state(0))
    packed = tmp_path / "packed"
    packed.mkdir()
    content = io.BytesIO()
    with (
        zipfile.ZipFile(whole) as source,
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    name = f"checkpoint-00000001-{hashlib.sha256(content.getvalue()).hexdigest()[:16]}.pt"
    (packed / name).write_bytes(content.getvalue())
    whole.unlink()
    Checkpoints(saved).save({"large": _Large()})
    for folder in (saved, packed):
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match="whole"):
            Checkpoints(folder).load()


def test_a_full_disk_is_a_sentence_and_destroys_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(0))
    checkpoints.save(state(1))
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="the disk is full") as caught:
        checkpoints.save(state(2))
    assert caught.value.errno == errno.ENOSPC
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    monkeypatch.undo()
    assert Checkpoints(tmp_path).load() is not None


def test_a_really_full_file_system_is_a_sentence(tmp_path: Path) -> None:
    # The limit on the size of a file stands in for a small disk, in a process of its own.
    code = f"""
import resource, signal, sys, torch
from pathlib import Path
from neada.runs import Checkpoints
folder = Path({str(tmp_path)!r})
checkpoints = Checkpoints(folder)
checkpoints.save({{"t": 0}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    checkpoints.save({{"t": 1, "big": torch.zeros(100000)}})
except OSError as error:
    print(len(checkpoints.paths()), checkpoints.load()["t"], len(list(folder.iterdir())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "0", "1"], done.stderr


def test_what_a_killed_writer_left_does_not_count(tmp_path: Path) -> None:
    code = f"""
import torch
from pathlib import Path
from neada.runs import Checkpoints
checkpoints = Checkpoints(Path({str(tmp_path)!r}))
t = 0
while True:
    checkpoints.save({{"t": t, "big": torch.full((300_000,), float(t))}})
    t += 1
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    while len(Checkpoints(tmp_path).paths()) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.15)
    process.send_signal(signal.SIGKILL)
    process.wait()
    checkpoints = Checkpoints(tmp_path)
    loaded = checkpoints.load()
    assert loaded is not None
    assert torch.equal(loaded["big"], torch.full((300_000,), float(loaded["t"])))
    checkpoints.save(state(0))
    assert len(list(tmp_path.iterdir())) == 2


def test_clear_removes_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / "checkpoint-notes.txt"
    other.write_text("mine", encoding="utf-8")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(0))
    checkpoints.clear()
    assert list(tmp_path.iterdir()) == [other]


def test_metrics_are_cut_at_the_mark(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.start({})
    run.append([{"t": 0}, {"t": 1}])
    mark = run.mark()
    run.append([{"t": 2}])
    with run.metrics_file.open("a", encoding="utf-8") as file:
        file.write('{"t": 3, "unfini')
    run.go_on(mark, seconds=100.0)
    assert run.rows() == [{"t": 0}, {"t": 1}]
    assert run.elapsed() >= 100.0
    run.append([{"t": 2}])
    run.seal()
    assert run.trouble({}) == ""
    files.write_text(run.metrics_file, "")
    with pytest.raises(ValueError, match="shorter"):
        run.go_on(mark)
