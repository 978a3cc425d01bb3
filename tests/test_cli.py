"""The command line end to end: exit codes, messages, files."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import neada
from neada.cli import main
from neada.cli.main import COMMANDS
from neada.training.config import TrainConfig


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that failed: on stderr, without a traceback."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err and "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "subcommand"),
        (["slove"], "solve"),
        (["solve", "mccormick", "--method", "nada"], "neada"),
        (["solve", "mccormick", "--tol", "nan"], "tol"),
        (["solve", "mccormick", "--plot", "a.txt"], "--plot"),
        (["solve", "mccormick", "--lr-y", "1"], "lr_y"),
        (["train", "--out", ""], "--out"),
        (["train", "--gamma", "\x1b[31m\n\n" + 9999 * "x"], "--gamma"),
        (["attack", "run"], "run"),
        (["attack", "run", "--attack"], "--attack"),
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
    assert main(arguments) == 2
    assert word in message(capsys)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--out", "file"],
        ["train", "--out", "file/below", "--overwrite"],
        ["attack", "file"],
        ["data", "mnist", "--data-folder", "file"],
        ["solve", "mccormick", "--plot", "file/plot.svg"],
        ["solve", "mccormick", "--plot", "folder.png"],
        ["data", "folder.npz"],
    ],
    ids=" ".join,
)
def test_file_in_place_of_a_folder(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("precious", encoding="utf-8")
    for folder in ("folder.png", "folder.npz"):
        Path(folder).mkdir()
    assert main(arguments) == 2
    assert message(capsys)
    assert Path("file").read_text(encoding="utf-8") == "precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.npz", "folder.png"]


def test_solve_says_whether_it_solved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "history.svg"
    assert main(["solve", "mccormick", "--json", "--plot", str(plot)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "CONVERGED"
    assert facts["x"] == pytest.approx([-0.289879, -1.089879], abs=1e-5)
    assert "<svg" in plot.read_text(encoding="utf-8")
    assert main(["solve", "mccormick", "--max-calls", "3", "--quiet"]) == 1
    assert "BUDGET" in capsys.readouterr().out
    assert main(["solve", "quadratic", "--method", "gda", "--lr-x", "0.2", "--lr-y", "0.2"]) == 1
    assert "DIVERGED" in capsys.readouterr().out


def test_lists_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("methods", "problems", "info"):
        assert main([command]) == 0
        assert len(capsys.readouterr().out.splitlines()) > 5
        assert main([command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)


def test_help_requires_no_torch() -> None:
    script = (
        "import sys; from neada.cli import main; from neada.cli.main import COMMANDS\n"
        "codes = [main([*name.split(), '--help']) for name in ['', *COMMANDS]]\n"
        "sys.exit(any(codes) or 3 * any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"usage: neada {name}".encode() in done.stdout for name in COMMANDS)


def test_every_field_of_the_config_is_an_option_with_a_description(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--help"]) == 0
    printed = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for field in dataclasses.fields(TrainConfig):
        flag = f"--{field.name.replace('_', '-')}"
        assert re.search(rf" {flag}[ ,][^(]*[a-z]", printed), flag


def test_the_version_and_a_missing_tyro(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"neada {neada.__version__}\n"
    assert main(["info"]) == 2
    assert "pip install 'neada[cli]'" in message(capsys)


def test_only_the_first_rank_prints_usage_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    for option in ("--gama", "--gamma"):
        assert main(["train", option, "-1"]) == 2
        assert capsys.readouterr() == ("", "")


SHELL = {
    "neada problems | true": 0,
    "neada --help | true": 0,
    "neada methods >/dev/full": 1,
}


def test_closed_pipes_and_full_disks_are_no_traceback() -> None:
    neada = f'neada() {{ "{sys.executable}" -m neada "$@"; }}; set -o pipefail; '
    for command, code in SHELL.items():
        if "/dev/full" in command and not Path("/dev/full").exists():
            continue
        done = subprocess.run(
            ["bash", "-c", neada + command], capture_output=True, text=True, check=False
        )
        assert done.stderr.count("\n") == (1 if code == 1 else 0), command
        assert done.returncode == code, command
