"""A bar where somebody sees it, and nowhere else."""

import math
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import neada
from neada import progress
from neada.cli import main
from neada.training import TrainConfig, train

CONFIG = TrainConfig(data="synthetic", max_calls=20, eval_eps=(0.3,))


def open_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython as a notebook has it: with a kernel."""
    shell = types.SimpleNamespace(kernel=object(), config={})
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.mark.parametrize("opened", [open_notebook, open_terminal])
def test_training_shows_a_bar(
    opened: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tqdm")
    opened(monkeypatch)
    result = train(CONFIG, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "0%|" in shown.err and "100%|" in shown.err and "done" in shown.err
    assert result.rows[-1]["calls"] == 20
    train(CONFIG)
    assert capsys.readouterr().err == ""


def test_where_nobody_looks_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", math.inf)
    train(CONFIG, progress=True)
    assert capsys.readouterr().err == ""


def test_long_commands_write_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    run = str(tmp_path / "run")
    train = ["train", "--data", "synthetic", "--max-calls", "10", "--eval-samples", "250"]
    commands = {
        "loss": [*train, "--out", run],
        "evaluation": [*train, "--out", run, "--overwrite"],
        "pgd": ["attack", run, "--attack", "pgd", "--samples", "200"],
    }
    for keyword, command in commands.items():
        assert main(command) == 0
        assert keyword in capsys.readouterr().err
    assert main([*train, "--out", run, "--overwrite", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_minimax_shows_its_line_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = neada.problems.make("mccormick")
    neada.minimax(problem.fun, problem.x0, problem.y0, progress=True)
    assert capsys.readouterr().err == ""
    open_notebook(monkeypatch)
    neada.minimax(problem.fun, problem.x0, problem.y0, progress=True)
    assert "calls" in capsys.readouterr().err
