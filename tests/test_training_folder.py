"""Run folders of training: nothing is lost before everything has been checked."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from neada.cli.main import main
from neada.runs import Run
from neada.training import TrainConfig, open_run, train

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

# No file may be longer than metrics need; the log of TensorBoard has several records per row.
LIMITED = """
import resource, sys
from neada.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (45_000, 45_000))
sys.exit(main(sys.argv[1:]))
"""

CONFIG = TrainConfig(data="synthetic", max_calls=30, batch_size=64, eval_eps=(0.5,))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    train(CONFIG, folder)
    return folder


def own_data(path: Path, num_features: int = 3, gap: bool = False) -> Path:
    rng = np.random.default_rng(0)
    groups = rng.integers(2, size=60) * (2 if gap else 1)
    np.savez(path, x=rng.random((60, num_features)), y=rng.integers(2, size=60), groups=groups)
    return path


def test_a_replacement_that_cannot_begin_leaves_the_old_run(finished: Path) -> None:
    before = everything_in(finished)
    data = own_data(finished.parent / "gap.npz", gap=True)
    asked = TrainConfig(data=str(data), objective="group", max_calls=20)
    with pytest.raises(ValueError, match="group 1 has no training samples"):
        train(asked, finished, overwrite=True)
    assert everything_in(finished) == before
    with pytest.raises(ValueError, match="group 1 has no training samples"):
        train(asked, finished.parent / "new")
    assert not (finished.parent / "new").exists()


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_without_its_config_is_not_emptied(finished: Path, resume: bool) -> None:
    (finished / "config.json").unlink()
    before = everything_in(finished)
    with pytest.raises(ValueError, match="but no config.json"):
        train(CONFIG, finished, resume=resume)
    assert everything_in(finished) == before
    assert train(CONFIG, finished, overwrite=True).calls == 30


def test_files_of_somebody_else_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has metrics.jsonl but no config.json"):
        train(CONFIG, tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == "mine\n"


def test_a_run_removes_only_files_of_a_run(tmp_path: Path) -> None:
    names = [".bashrc.20241117", ".config.json.0123abcd", "perturbations.npy.bak"]
    names += ["perturbations-mine.npy", "checkpoint-best.pt", ".notes.0123abcd.neada-tmp"]
    for name in names:
        (tmp_path / name).write_text("mine")
    arguments = ["train", "--data", "synthetic", "--max-calls", "10", "--out", str(tmp_path)]
    for flags in ([], ["--overwrite"], ["--resume", "--max-calls", "20"]):
        assert main([*arguments, *flags, "--quiet"]) == 0
    assert [name for name in names if not (tmp_path / name).exists()] == []


@pytest.mark.parametrize("name", ["config.json", "environment.json", "metrics.jsonl"])
def test_files_of_another_program_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"scripts": {}}')
    for flags in ([], ["--overwrite"], ["--resume"]):
        assert main(["train", "--data", "synthetic", "--out", str(tmp_path), *flags]) == 2
    assert everything_in(tmp_path) == {name: b'{"scripts": {}}'}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "is missing"), (b"\xff not json\n" * 500, "not JSON"), (b"", "shorter than it was")],
)
def test_a_refused_resume_leaves_the_run_sealed(
    finished: Path, content: bytes | None, sentence: str
) -> None:
    metrics = finished / "metrics.jsonl"
    if content is None:
        metrics.unlink()
    else:
        metrics.write_bytes(content)
    before = everything_in(finished)
    with pytest.raises(ValueError, match=sentence):
        train(CONFIG, finished, resume=True)
    assert everything_in(finished) == before


def test_other_data_or_another_model_leave_the_run_sealed(tmp_path: Path) -> None:
    data, folder = own_data(tmp_path / "own.npz"), tmp_path / "run"
    asked = TrainConfig(data=str(data), max_calls=20, eval_eps=(0.1,))
    train(asked, folder)
    before = everything_in(folder)
    with pytest.raises(ValueError, match=r"checkpoint-.* does not fit the run \(model has another"):
        train(asked, folder, resume=True, model=nn.Linear(3, 2))
    with pytest.raises(ValueError, match="of another model than its config and the data make"):
        open_run(folder, model=nn.Linear(3, 2))
    own_data(data, num_features=4)
    with pytest.raises(ValueError, match="not those that the run was started with"):
        train(asked, folder, resume=True)
    assert everything_in(folder) == before
    with (
        pytest.warns(UserWarning, match="the data are not those"),
        pytest.raises(ValueError, match=r"inputs of shape \(4,\) in 2 classes, but the run"),
    ):
        open_run(folder)


@pytest.mark.parametrize("fields", [{"data": 5}, {"gamma": "large"}, {"color": 1}, []])
def test_a_config_of_something_else_is_one_sentence(finished: Path, fields: Any) -> None:
    (finished / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(ValueError, match="holds no training run"):
        open_run(finished)


def test_calls_without_a_step_of_the_model_makes_nothing_up(tmp_path: Path) -> None:
    result = train(
        dataclasses.replace(CONFIG, method="gdmax", inner_steps=15, max_calls=5), tmp_path
    )
    assert result.x_steps == 0
    assert all("loss" not in row for row in result.rows)
    assert "test_clean" in Run(tmp_path).rows()[-1]


def test_a_run_on_a_file_can_be_opened_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_data(tmp_path / "own.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", "own.npz", "--max-calls", "20", "--out", "run", "--quiet"]) == 0
    assert "own by neada adam" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["attack", "../run", "--eps", "0.1"]) == 0
    assert main(["train", "--out", "../run", "--resume", "--quiet"]) == 0


def test_an_attack_whose_size_would_overflow_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(finished), "--eps", "1e300"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(resource is None, reason="there is no RLIMIT_FSIZE here")
def test_a_tensorboard_log_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard")
    run = subprocess.run(
        [
            *(sys.executable, "-c", LIMITED, "train", "--data", "synthetic", "--max-calls", "480"),
            *("--method", "gdmax", "--inner-steps", "1", "--log-every", "1", "--eval-every", "480"),
            *("--tensorboard", "--quiet"),
            *("--out", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == "neada: TensorBoard's log ends here: File too large\n"
    assert len(Run(tmp_path / "run").rows()) > 100


def test_rows_report_the_inner_gradient(finished: Path) -> None:
    assert all(row["grad_sq_y"] > 0.0 for row in Run(finished).rows())
