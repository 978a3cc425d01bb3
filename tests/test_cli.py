"""The command line end to end: exit codes, one sentence for bad input, nothing half-written."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neada import experiments
from neada.cli import main
from neada.cli.arguments import in_flags
from neada.cli.main import COMMANDS
from neada.runs import RunFolder


def run_cli(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neada", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command said: one line on stderr, nothing on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("neada: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no command given"),
        (["reprodce"], "did you mean 'reproduce'?"),
        (["reproduce", "quadratik"], "did you mean 'quadratic'?"),
        (["reproduce", "zzzzzz"], "must be one of 'quadratic', 'mccormick'"),
        (["reproduce", "--scale", "hug"], "must be one of 'quick', 'standard', 'paper'"),
        (["reproduce", "--seeds", "-3"], "--seeds must be a whole number at least 1, got -3"),
        (["reproduce", "--seeds", "many"], "--seeds must be a whole number at least 1, got 'many'"),
        (["reproduce", "--jobs", "0"], "--jobs must be a whole number at least 1, got 0"),
        (
            ["reproduce", "lemma", "--max-calls", "9"],
            "no-learning-rate, and not for lemma",
        ),
        (["reproduce", "--sead", "1"], "unrecognized arguments: --sead"),
        (["report"], "required: DIR"),
        (["report", "nowhere"], "nowhere is no folder"),
        (["solve"], "required: PROBLEM"),
        (["solve", "mcormick"], "did you mean 'mccormick'?"),
        (["solve", "mccormick", "--method", "nada"], "did you mean 'neada'?"),
        (["solve", "mccormick", "--tol", "-1"], "--tol must be a number greater than 0, got -1.0"),
        (["solve", "mccormick", "--tol", "nan"], "--tol must be a number greater than 0, got nan"),
        (["solve", "mccormick", "--plot", "a.txt"], "--plot writes .png or .svg"),
        (["solve", "mccormick", "--lr-y", "1"], "--lr-y is no option of --method neada"),
        (["completion", "fsh"], "did you mean 'zsh'?"),
    ],
)
def test_bad_usage_is_one_sentence_and_code_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert words in sentence(capsys)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    assert main(["reproduce", "quadratic", "--out", str(file)]) == 2
    assert "is a file" in sentence(capsys)
    assert main(["reproduce", "quadratic", "--out", str(file / "below")]) == 2
    assert "is a file" in sentence(capsys)
    assert file.read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, so the system's answer is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["reproduce", "quadratic", "--out", str(tmp_path / "new")]) == 2
    assert "cannot be written to" in sentence(capsys)
    assert os.listdir(tmp_path) == []


def test_a_reproduction_from_the_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_cli("reproduce", "quadratic", "--out", str(out), "--jobs", "1")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # no bar where there is no terminal
    assert "claims hold" in result.stdout
    assert f"report: {out / 'report.html'}" in result.stdout
    for name in ("figure.png", "figure.svg"):
        assert (out / "quadratic" / name).is_file()
    claims = json.loads((out / "claims.json").read_text())
    assert claims["experiments"]["quadratic"]["num_runs"] == 12
    folders = list((out / "quadratic" / "runs").iterdir())
    before = {folder: (folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders}
    (damaged, *_) = folders
    (damaged / "metrics.jsonl").write_text("rubbish")
    again = run_cli("reproduce", "quadratic", "--out", str(out), "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == json.loads((out / "claims.json").read_text())
    assert f"{damaged.name} was run again: metrics.jsonl was changed" in again.stderr
    after = {folder: (folder / "metrics.jsonl").stat().st_mtime_ns for folder in folders}
    assert {folder for folder in folders if before[folder] != after[folder]} == {damaged}
    redrawn = run_cli("report", str(out))
    assert redrawn.returncode == 0
    assert redrawn.stdout.split("report:")[0] == result.stdout.split("report:")[0]


def test_strict_makes_the_verdicts_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = experiments.make("quadratic")
    only_gda = [c for c in module.configs("quick") if c.label == "GDA"]
    monkeypatch.setattr(module, "configs", lambda scale, seeds=None: only_gda)
    arguments = ["reproduce", "quadratic", "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert main(arguments) == 0
    assert "not run" in capsys.readouterr().out
    assert main([*arguments, "--strict"]) == 1


def test_a_broken_run_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = experiments.make("quadratic")

    def broken(config: object, run: RunFolder, progress: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(module, "run", broken)
    assert main(["reproduce", "quadratic", "--out", str(tmp_path / "out"), "--jobs", "1"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1  # one cause is told once
    assert errors.startswith("neada: quadratic (Adam) and ")
    assert errors.endswith(" more broke: RuntimeError: no luck\n")


def alive_in_group(group: int) -> bool:
    listing = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True).stdout
    found = [line.split() for line in listing.splitlines()]
    return any(int(pgid) == group and not stat.startswith("Z") for pgid, stat in found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "neada", "reproduce", "mccormick", "--out", str(out), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("mccormick/runs/*/result.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Ctrl-C reaches the whole group of processes, `kill` only the one that was named.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "neada: interrupted; what is finished is kept, the same command goes on\n"
    while alive_in_group(process.pid):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.05)
    finished = len(list(out.glob("mccormick/runs/*/result.json")))
    assert 1 <= finished < len(experiments.make("mccormick").configs("quick"))


def test_solve_says_whether_it_solved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "history.svg"
    assert main(["solve", "mccormick", "--json", "--plot", str(plot)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "CONVERGED"
    assert facts["x"] == pytest.approx([-0.289879, -1.089879], abs=1e-5)
    assert "<svg" in plot.read_text()
    assert main(["solve", "mccormick", "--max-calls", "3", "--quiet"]) == 1
    assert "BUDGET" in capsys.readouterr().out
    assert main(["solve", "quadratic", "--method", "gda", "--lr-x", "0.2", "--lr-y", "0.2"]) == 1
    assert "DIVERGED" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["methods", "problems", "info"])
def test_lists_are_for_people_and_for_machines(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5
    assert main([command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_help_has_examples_and_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    for command in ("reproduce", "report", "solve", "methods", "problems", "info", "completion"):
        assert f"    {command}" in text
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["train"], ["data"], ["reproduce"], ["solve"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    script = (
        "import sys; from neada.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: sys.exit(3 * any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--help"], capture_output=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith(b"usage: neada")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: neada {name}")


def test_sentences_speak_of_flags() -> None:
    names = ["regularizer", "method", "inner_steps", "max_calls", "data"]
    said = "use method='gdmax' with inner_steps=1, or regularizer='kl'"
    assert in_flags(said, names) == "use --method gdmax with --inner-steps 1, or --regularizer kl"
    assert in_flags("data must be one of 'a'", names) == "--data must be one of 'a'"
    said = "the data are not those of the max_calls"
    assert in_flags(said, names) == "the data are not those of the --max-calls"


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "reproduce" in script and "max-calls" in script


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m neada methods | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout.startswith("name")
