"""`neada train`, `attack`, `certify` and `data` as people type them."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from neada.cli import main

SYNTHETIC = [
    *("train", "--data", "synthetic", "--lr-x", "0.02", "--max-calls", "90"),
    *("--method", "gdmax", "--inner-steps", "2", "--y-optimizer", "adam", "--lr-y", "0.05"),
    *("--eval-eps", "0.3", "0.5", "--final-samples", "all"),
]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "neada", *arguments]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "synthetic"
    assert main([*SYNTHETIC, "--out", str(folder), "--quiet"]) == 0
    return folder


def test_training_on_digits_from_the_shell(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    options = ["--max-calls", "150", "--method", "gdmax", "--inner-steps", "2"]
    options += ["--lr-x", "0.005", "--eval-eps", "0.05", "0.1", "--eval-every", "150"]
    done = subprocess.run(
        command("train", *options),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    title, numbers = done.stdout.splitlines()[:2]
    assert title.split() == ["accuracy", "clean", "fgsm", "0.05", "fgsm", "0.1"]
    clean, *attacked = (float(number) for number in numbers.split()[1:])
    assert clean > 85.0
    assert clean >= attacked[0] > 50.0
    folder = tmp_path / "runs" / "train" / "digits-wrm-gdmax-2-adam-seed-0"
    assert f"run: {folder}" in done.stdout
    last = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["calls"] == 150 and round(100 * last["test_clean"], 1) == clean


def test_a_terminated_training_exits_130_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_steps = itertools.count(1)

    def terminate(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if next(num_steps) == 20:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = register_optimizer_step_post_hook(terminate)
    try:
        assert main([*SYNTHETIC, "--out", str(tmp_path / "run"), "--quiet"]) == 130
    finally:
        hook.remove()
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "resume" in errors
    assert not (tmp_path / "run" / "result.json").exists()
    # The saved configuration provides the defaults; other values are errors.
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--quiet"]) == 0
    assert (tmp_path / "run" / "result.json").exists()
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--gamma", "9"]) == 2
    longer = ["train", "--out", str(tmp_path / "run"), "--resume", "--max-calls", "120", "--json"]
    capsys.readouterr()
    assert main(longer) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 120


def test_json_says_everything(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(trained), "--resume", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "FINISHED" and facts["calls"] == 90
    assert set(facts["accuracies"]) == {"test_clean", "test_0.3", "test_0.5"}
    assert facts["config"]["lr_y"] == 0.05


def test_a_loss_that_is_not_finite_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SYNTHETIC, "--x-optimizer", "sgd", "--lr-x", "1e30", "--out", str(tmp_path)]
    assert main([*arguments, "--quiet"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "NaN" in errors


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--data", "mnits"], "mnist"),
        (["--method", "adam-15"], "--method"),
        (["--eval-eps", "0.1;0.2"], "--eval-eps"),
        (["--gamma", "-2"], "gamma"),
        (["--data", "synthetic", "--model", "cnn"], "images"),
        (["--data", "missing.npz"], "missing.npz"),
        (["--device", "tpu"], "tpu"),
        (["--resume", "--overwrite", "--out", "run"], "--resume"),
        (["--resume"], "--out"),
    ],
    ids=str,
)
def test_bad_usage_is_a_message_and_code_2(
    arguments: list[str],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    errors = capsys.readouterr().err
    assert word in errors and "Traceback" not in errors
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        100_000 * b"[",
        b'{"gamma": "inf"}',
        b'{"other": 1}',
    ],
    ids=lambda content: repr(content[:20]),
)
def test_config_with_invalid_contents(
    content: bytes, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "config.json").write_bytes(content)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for arguments in (["attack"], ["certify"], ["train", "--resume", "--quiet", "--out"]):
        assert main([*arguments, str(folder)]) == 2
        errors = capsys.readouterr().err
        assert errors and "Traceback" not in errors
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_attack_measures_what_training_did(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(trained), "--attack", "fgsm", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    last = json.loads((trained / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert facts["clean"] == last["test_clean"] and facts["num_samples"] == 4000
    for eps in ("0.3", "0.5"):
        assert facts["attacked"]["fgsm"][eps] == last[f"test_{eps}"]
    small = ["attack", str(trained), "--eps", "0.1", "--norm", "l2", "--samples", "20"]
    assert main([*small, "--attack", "fgsm", "ensemble"]) == 0
    printed = capsys.readouterr().out
    assert "20 samples (test), l2" in printed and printed.count("\n") == 4


def test_certify_bounds_the_loss(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["certify", str(trained), "--samples", "200", "--rho", "0.05"]
    assert main([*arguments, "--gamma", "0.001"]) == 2
    assert "smoothness" in capsys.readouterr().err
    assert main([*arguments, "--gamma", "1000", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "certified" and facts["num_samples"] == 200
    assert facts["value"] == pytest.approx(facts["surrogate"] + facts["gap"] + 1000 * 0.05)
    assert main([*arguments, "--gamma", "1000"]) == 0
    assert capsys.readouterr().out.startswith("certified: the mean loss is at most 50.")


@pytest.mark.parametrize("name", ["attack", "certify"])
def test_other_data_and_a_device_can_be_looked_at(
    trained: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(50, 2)).astype(np.float32)
    np.savez(tmp_path / "other.npz", inputs=inputs, targets=rng.permutation(50) % 2)
    gamma = ["--gamma", "1000"] if name == "certify" else ["--eps", "0.1"]
    other = [name, str(trained), *gamma, "--data", str(tmp_path / "other.npz")]
    assert main([*other, "--part", "train", "--device", "cpu", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    facts = json.loads(shown.out)
    assert facts["data"] == "other" and 25 <= facts["num_samples"] < 50
    assert main([name, str(trained), *gamma, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "synthetic"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--data", "digits"], "digits"),
        (["--data-seed", "3"], "--data-seed"),
        (["--device", "tpu"], "tpu"),
        (["--part", "tset"], "test"),
        (["--samples", "-1"], "samples"),
    ],
    ids=str,
)
def test_data_and_devices_that_do_not_fit_are_an_error(
    trained: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    assert main(["attack", str(trained), *arguments]) == 2
    errors = capsys.readouterr().err
    assert word in errors and "Traceback" not in errors


def test_data_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert main(["data", "digits", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["parts"] == {"train": 1438, "test": 359} and facts["shape"] == [1, 8, 8]
    assert sum(facts["train_per_class"]) == 1438 and len(facts["checksums"]["inputs"]) == 64
    assert main(["data", "synthetic"]) == 0
    assert "10000 train, 4000 test" in capsys.readouterr().out
    assert main(["data"]) == 0
    assert "digits" in capsys.readouterr().out.splitlines()
