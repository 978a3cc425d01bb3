"""Runs are done once, resumed after an interruption, and repaired when damaged."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neada.runs import RunFolder
from reproduction.__main__ import main
from reproduction.experiment import Claim, Record, make, run_folder
from reproduction.report import collect
from reproduction.runner import last_request, reproduce

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Config:
    number: int
    seeds: int

    @property
    def label(self) -> str:
        return f"number {self.number}"


def counting_experiment(fails_at: int = -1, interrupts_at: int = -1) -> Any:
    done: list[int] = []

    def run(config: Config, run: RunFolder) -> None:
        if config.number == fails_at:
            raise ValueError("a number\nnobody likes")
        if config.number == interrupts_at:
            raise KeyboardInterrupt
        run.append([{"square": config.number**2}])
        done.append(config.number)

    def claims(records: Sequence[Record]) -> list[Claim]:
        total = sum(r.rows[0]["square"] for r in records) if records else None
        return [Claim("toy/sum", "the sum of squares", "toy", total, "<=", 14.0)]

    return SimpleNamespace(
        TITLE="toy",
        WHERE="toy",
        PAPER="toy",
        configs=lambda scale, seeds=None: [Config(n, len(seeds or [0])) for n in range(4)],
        run=run,
        claims=claims,
        figure=lambda records: None,
        done=done,
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    experiment = counting_experiment()
    install(monkeypatch, experiment)
    return experiment


def install(monkeypatch: pytest.MonkeyPatch, experiment: Any) -> None:
    monkeypatch.setattr("reproduction.experiment.EXPERIMENTS", ("toy",))
    monkeypatch.setitem(sys.modules, "reproduction.toy", experiment)


def test_what_is_there_is_not_run_again(toy: Any, tmp_path: Path) -> None:
    first = reproduce(["toy"], "quick", tmp_path)
    assert (first.num_run, first.num_kept) == (4, 0)
    again = reproduce(["toy"], "quick", tmp_path)
    assert (again.num_run, again.num_kept) == (0, 4)
    assert toy.done == [0, 1, 2, 3]


def test_force_runs_everything_again(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path)
    assert reproduce(["toy"], "quick", tmp_path, overwrite=True).num_run == 4


def test_files_of_the_user_are_left_alone(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path)
    kept = [tmp_path / ".bashrc.20241117", tmp_path / "toy" / ".figure.png.0123abcd"]
    kept.append(run_folder(tmp_path, "toy", toy.configs("quick")[0]) / ".notes.20241117")
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    reproduce(["toy"], "quick", tmp_path, overwrite=True)
    assert all(path.exists() for path in kept)


def test_a_folder_with_other_files_is_left_alone(toy: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(ValueError, match="reproduction"):
        reproduce(["toy"], "quick", tmp_path, overwrite=True)
    assert path.read_text() == "mine"


def test_other_settings_are_other_runs(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path, seeds=[0])
    assert reproduce(["toy"], "quick", tmp_path, seeds=[0, 1]).num_run == 4
    asked = {"names": ["toy"], "scale": "quick", "seeds": [0, 1], "max_calls": None}
    assert last_request(tmp_path) == asked


def test_a_budget_is_another_run_where_one_can_be_chosen(toy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="toy"):
        reproduce(["toy"], "quick", tmp_path, max_calls=5)
    toy.configs = lambda scale, seeds=None, max_calls=None: [Config(max_calls or 1, 1)]
    assert reproduce(["toy"], "quick", tmp_path).num_run == 1
    assert reproduce(["toy"], "quick", tmp_path, max_calls=5).num_run == 1
    (section,) = collect(tmp_path)[1]
    assert [run.record.config.number for run in section.runs] == [5]


def test_a_damaged_run_is_found_and_done_again(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path)
    folder = run_folder(tmp_path, "toy", Config(2, 1))
    (folder / "metrics.jsonl").write_text('{"square": 1000}\n', encoding="utf-8")
    outcome = reproduce(["toy"], "quick", tmp_path)
    assert outcome.num_run == 1
    assert RunFolder(folder).rows() == [{"square": 4}]


def test_after_an_interruption_the_rest_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, counting_experiment(interrupts_at=2))
    with pytest.raises(KeyboardInterrupt):
        reproduce(["toy"], "quick", tmp_path)
    rest = counting_experiment()
    install(monkeypatch, rest)
    assert reproduce(["toy"], "quick", tmp_path).num_kept == 2
    assert rest.done == [2, 3]


def test_a_broken_run_is_told_in_one_line_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment = counting_experiment(fails_at=1)
    install(monkeypatch, experiment)
    outcome = reproduce(["toy"], "quick", tmp_path)
    assert outcome.broken == [("toy (number 1)", "ValueError: a number nobody likes")]
    assert experiment.done == [0, 2, 3]


def test_processes_give_the_same_files_as_one(tmp_path: Path) -> None:
    from reproduction import quadratic, runner

    configs = [
        dataclasses.replace(c, max_calls=((1.0, 60),)) for c in quadratic.configs("quick")[:3]
    ]
    tasks = [runner.Task("quadratic", config) for config in configs]
    for folder, jobs in (("one", 1), ("two", 2)):
        assert runner._execute(tasks, tmp_path / folder, jobs) == []
    for config in configs:
        one, two = (
            RunFolder(run_folder(tmp_path / folder, "quadratic", config))
            .path.joinpath("metrics.jsonl")
            .read_bytes()
            for folder in ("one", "two")
        )
        assert one == two != b""


# The command line.


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reproduction", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["quadratik"], "quadratic"),
        (["--scale", "hug"], "quick"),
        (["--seeds", "-3"], "--seeds"),
        (["--seeds", "3,3"], "--seeds"),
        (["lemma", "--max-calls", "9"], "lemma"),
        (["--sead", "1"], "--sead"),
        (["--report-only", "--out", "nowhere"], "nowhere"),
        (["quadratic", "--out", "file"], "file"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_bad_usage_is_a_message_and_code_2(
    arguments: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("precious", encoding="utf-8")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and word in captured.err
    assert os.listdir(tmp_path) == ["file"]
    assert Path("file").read_text(encoding="utf-8") == "precious"


def test_a_reproduction_from_the_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_cli("quadratic", "--out", str(out), "--jobs", "1")
    assert result.returncode == 0, result.stderr
    assert "\r" not in result.stderr  # no bar where there is no terminal
    assert "claims of the paper" in result.stdout
    assert f"report: {out / 'report.html'}" in result.stdout
    for name in ("figure.png", "figure.svg"):
        assert (out / "quadratic" / name).is_file()
    claims = json.loads((out / "claims.json").read_text(encoding="utf-8"))
    assert claims["experiments"]["quadratic"]["num_runs"] == 8
    folders = list((out / "quadratic" / "runs").iterdir())
    before = {folder: (folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders}
    (damaged, *_) = folders
    (damaged / "metrics.jsonl").write_text("rubbish", encoding="utf-8")
    again = run_cli("quadratic", "--out", str(out))
    assert again.returncode == 0
    after = {folder: (folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders}
    assert {folder for folder in folders if before[folder] != after[folder]} == {damaged}
    redrawn = run_cli("--report-only", "--out", str(out))
    assert redrawn.returncode == 0
    assert redrawn.stdout.split("report:")[0] == result.stdout.split("report:")[0]


def test_a_broken_run_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make("quadratic")

    def broken(config: object, run: RunFolder) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(module, "run", broken)
    assert main(["quadratic", "--out", str(tmp_path / "out"), "--jobs", "1"]) == 1
    errors = capsys.readouterr().err
    assert "no luck" in errors


# Workers import the script too: the first run finishes, and the others wait for the signal.
BLOCKING = """
import sys, threading
from reproduction.__main__ import main
from reproduction.experiment import make

module = make("mccormick")
run, first = module.run, module.configs("quick")[0]

def run_the_first(config, *rest):
    if config != first:
        threading.Event().wait()
    run(config, *rest)

module.run = run_the_first
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, number: signal.Signals) -> None:
    script, out = tmp_path / "blocking.py", tmp_path / "out"
    script.write_text(BLOCKING)
    process = subprocess.Popen(
        [sys.executable, script, "mccormick", "--out", out, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        start_new_session=True,
    )
    while not list(out.glob("mccormick/runs/*/result.json")):
        assert process.poll() is None
        time.sleep(0.05)
    # Ctrl-C reaches the whole group of processes, `kill` only the one that was named.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, errors = process.communicate()  # ends when no worker has the pipe open
    assert process.returncode == 130
    assert errors.count("\n") == 1 and "interrupted" in errors
    assert len(list(out.glob("mccormick/runs/*/result.json"))) == 1
