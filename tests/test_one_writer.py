"""A folder has one writer: the second is refused, and nobody outlives the process that began."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neada import files
from neada.cli import main
from neada.experiments import run_folder
from neada.experiments.quadratic import configs
from neada.runs import Run
from neada.training import TrainConfig, train

TRAIN = ["train", "--data", "synthetic", "--eval-eps", "0.5", "--quiet", "--max-calls"]


def everything_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): path.read_bytes() for path in paths}


@contextmanager
def running(*arguments: str, until: Callable[[], bool]) -> Iterator["subprocess.Popen[bytes]"]:
    """The command line in a process group of its own, once something has happened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "neada", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        yield process
    finally:
        for pid in group(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def group(leader: int) -> list[int]:
    """The processes of a group that are alive."""
    listing = subprocess.run(["ps", "-eo", "pgid=,pid=,stat="], capture_output=True, text=True)
    found = (line.split() for line in listing.stdout.splitlines())
    return [int(pid) for pgid, pid, stat in found if int(pgid) == leader and stat[0] != "Z"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says: one sentence, with exit code 2."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_a_second_training_is_refused_and_a_killed_one_is_not_in_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    arguments = [*TRAIN, "100000", "--checkpoint-seconds", "0.01", "--out", str(folder)]
    with running(*arguments, until=lambda: bool(list(folder.glob("checkpoint-*.pt")))) as process:
        for flag in ("--overwrite", "--resume"):
            said = refusal(capsys, *arguments, flag)
            assert f"{folder} is in use by process {process.pid}: wait" in said
        assert process.poll() is None
        with pytest.raises(files.FolderInUse, match=f"process {process.pid}"):
            train(TrainConfig(data="synthetic"), folder, overwrite=True)
        process.kill()
        process.wait()
        files.write_text(folder / ".neada-lock", "1 elsewhere\n")  # a number proves nothing
        (folder / ".metrics.jsonl.0123abcd.neada-tmp").touch()  # as a kill leaves it
        assert main([*TRAIN, "30", "--out", str(folder), "--overwrite"]) == 0
    assert Run(folder).rows()[-1]["calls"] == 30
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_reproduction_has_its_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["reproduce", "quadratic", "--out", str(out), "--jobs", "1", "--quiet"]
    with files.locked(out):
        said = refusal(capsys, *arguments)
        assert f"{out} is in use by process {os.getpid()}" in said
        assert os.listdir(out) == [".neada-lock"]
    # A single run of it is guarded too, and the others go on.
    config = configs("quick")[0]
    with files.locked(run_folder(out, "quadratic", config)):
        assert main(arguments) == 1
        assert f"({config.label}) broke: FolderInUse: " in capsys.readouterr().err
    assert main(arguments) == 0
    assert not list(out.rglob(".*"))


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["reproduce", "mccormick", "--out", str(out), "--jobs", "2", "--quiet"]

    def some_are_done() -> bool:
        return bool(list(out.glob("mccormick/runs/*/result.json")))

    with running(*arguments, until=some_are_done) as process:
        assert len(group(process.pid)) >= 3
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 20
        while group(process.pid):
            assert time.monotonic() < deadline, "a worker is left"
            time.sleep(0.05)
    with files.locked(out):  # and nobody holds anything
        for run in out.glob("mccormick/runs/*"):
            with files.locked(run):
                pass


def test_training_and_reproduction_do_not_share_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, reproduced = tmp_path / "trained", tmp_path / "reproduced"
    assert main([*TRAIN, "30", "--out", str(trained)]) == 0
    arguments = ["reproduce", "quadratic", "--jobs", "1", "--quiet", "--out"]
    assert main([*arguments, str(reproduced)]) == 0
    before = everything_in(tmp_path)
    said = refusal(capsys, *arguments, str(trained))
    assert f"{trained} holds a run, not a reproduction: use another folder" in said
    for flags in ([], ["--overwrite"], ["--resume"]):
        said = refusal(capsys, *TRAIN, "30", "--out", str(reproduced), *flags)
        assert f"{reproduced} holds a reproduction: use another folder" in said
    assert everything_in(tmp_path) == before


def test_the_lock_of_a_training_is_taken_before_the_folder_is_looked_at(tmp_path: Path) -> None:
    config = TrainConfig(data="synthetic", max_calls=20, eval_eps=(0.5,))
    with files.locked(tmp_path), pytest.raises(files.FolderInUse):
        train(config, tmp_path)
    assert train(config, tmp_path).calls == 20
    assert re.fullmatch(r"checkpoint-.*\.pt", sorted(os.listdir(tmp_path))[0])


def test_the_first_rank_holds_the_lock_for_all(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "neada", *TRAIN, "30", "--batch-size", "64", "--out", str(tmp_path / "run")),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with files.locked(tmp_path / "run"):
        refused = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert refused.returncode != 0
        assert refused.stderr.count(f"is in use by process {os.getpid()}") == 1
        assert os.listdir(tmp_path / "run") == [".neada-lock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").exists()
    assert not list((tmp_path / "run").glob(".*"))


def test_a_lock_that_was_removed_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    first, second = files.locked(tmp_path), files.locked(tmp_path)
    first.__enter__()
    (tmp_path / ".neada-lock").unlink()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(files.FolderInUse), files.locked(tmp_path):
        pass
    second.__exit__(None, None, None)
