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
from neada.progress import progress_bar
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


def test_without_a_terminal_there_is_a_line_every_30_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = iter([0.0, 1.0, 29.9, 30.5, 31.0, 60.4, 60.5, 200.0])
    with progress_bar(clock=lambda: next(times)) as show:
        for number in range(1, 8):
            show(number / 10, f"step {number}")
    lines = capsys.readouterr().err.splitlines()
    assert ["step 3" in lines[0], "step 6" in lines[1], "step 7" in lines[2]] == 3 * [True]
    assert len(lines) == 3 and "60%" in lines[1]
    with progress_bar(wanted=False, clock=lambda: 100.0 * len(lines)) as show:
        show(0.5, "half")
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
        lines = capsys.readouterr().err.splitlines()
        assert [line for line in lines if keyword in line], keyword
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
