"""What the command line says: flags instead of Python, and commands that can be copied."""

import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from neada import devices
from neada.cli import main

SYNTHETIC = "train --data synthetic --max-calls 20 --eval-eps 0.3 --quiet"
# Each with what it must say; {run} was trained with wrm, {one} is a file with one sample.
COMMANDS = [
    ("data mnist", "with --download"),
    ("data {one}", "a test share of 0.2"),
    ("data digits --data-seed 1.5", "--data-seed must be"),
    ("train --data mnist", "with --download"),
    ("train --data synthetic --compile --max-calls 9 --out new", "--compile does not work here"),
    ("train --device tpu", "--device 'tpu'"),
    ("train --lr-y 0.1", "--lr-y 0.1 is for a named --y-optimizer"),
    ("train --stop released --per-sample", "leave out --per-sample"),
    (
        "train --objective adversarial --random-start --warm-start disk",
        "leave out --random-start or --warm-start disk",
    ),
    ("train --method tiada --dropout off", "--batch-norm frozen and --dropout off"),
    ("train --method free --objective group", "use --method gdmax with --inner-steps 1"),
    ("train --out {run}", "--resume goes on with it, --overwrite replaces it"),
    ("train --out {run} --resume --gamma 9", "--gamma 9.0 is given, but the run in {run} was"),
    ("train --out {run} --resume --eval-eps 0.1,0.2", "started with --eval-eps 0.3"),
    ("train --out {run} --resume --per-sample", "--per-sample is given"),
    ("train --out {run} --resume --no-per-sample", "--no-per-sample is given"),
    ("train --out {run} --resume --random-start", "was started without it"),
    ("train --out {run} --resume --data-folder /x", "--data-folder /x is given"),
    ("train --data synthetic --resume --lr-x 0.1", "--lr-x 0.1 is given"),
    ("attack {run} --data mnist", "with --download"),
    ("attack {run} --device tpu", "--device 'tpu'"),
    ("attack {run} --attack pgd --steps 0", "--steps must be"),
    ("attack {run} --attack fgsm,,pgd", "--attack"),
    ("attack {run} --attack fgsm,", "--attack"),
    ("attack {run} --eps 0.1,,0.2", "--eps"),
    ("attack {run} --attack fgsm --steps 3", "--steps is for pgd"),
    ("attack {run} --eps 1e39", "--eps must be a number at least 0 and at most 1e+30"),
    ("certify {run} --gamma 0.001", "--gamma 0.001 is not above half the smoothness"),
    ("certify {run} --gamma 1000 --rho -1", "--rho must be"),
    ("solve mccormick --lr-x 1", "--lr-x is no option of --method neada"),
    ("solve mccormick --method gda --lr-x -1", "--lr-x must be"),
    ("reproduce lemma --max-calls 9", "--max-calls can be chosen for"),
    (
        "reproduce mnist-dro --scale paper --seeds 1 --max-calls 9 --jobs 1 --out new",
        "with `neada data NAME --download`",
    ),
]
# name=value, the constants of Python, and names with an underscore.
PYTHON = re.compile(r"\w=\S|\b(True|False|None)\b|(?<![\w/.-])[a-z]+_[a-z_]+(?![\w/.])")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A finished run, in a folder that has the default's beside it, and no data anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEADA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main([*SYNTHETIC.split(), "--out", "run"]) == 0
    assert main([*SYNTHETIC.split()]) == 0
    capsys.readouterr()
    return str(tmp_path / "run")


def test_sentences_speak_of_flags_and_not_of_python(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(devices.torch, "compile", no_compiler)
    np.savez("one.npz", inputs=np.zeros((1, 5)), targets=np.zeros(1, dtype=int))
    for template, words in COMMANDS:
        names = {"run": run, "one": "one.npz"}
        code = main(shlex.split(template.format(**names)))
        errors = capsys.readouterr().err
        assert code in (1, 2), template
        assert words.format(**names) in errors, template
        found = PYTHON.search(errors.replace(str(tmp_path), ""))
        assert found is None, (template, errors)


def test_advice_of_the_solver_speaks_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "mccormick", "--method", "gda", "--max-calls", "5"]) == 1
    assert "raise --max-calls" in capsys.readouterr().out
    assert main(["solve", "mccormick", "--method", "gda", "--lr-x", "9", "--max-calls", "900"]) == 1
    assert "lower --lr-x and --lr-y" in capsys.readouterr().out


def commands_after(output: str) -> list[list[str]]:
    """The commands that a training names at its end, as a shell would read them."""
    (block,) = re.findall(r"^next: (.*\n {6}.*)$", output, re.MULTILINE)
    return [shlex.split(line) for line in block.split("\n")]


@pytest.mark.parametrize("objective", ["wrm", "adversarial"])
def test_a_finished_training_names_two_commands_that_run(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my runs" / "it's $first"
    training = ["train", "--data", "synthetic", "--objective", objective, "--model", "linear"]
    training += ["--max-calls", "20", "--eval-eps", "0.3", "--out", str(folder)]
    assert main(training) == 0
    output = capsys.readouterr().out
    assert f"run: {folder}\n" in output
    commands = commands_after(output)
    assert [arguments[:2] for arguments in commands] == 2 * [["neada", "attack"]]
    for _, *arguments in commands:
        assert arguments[1] == str(folder)
        assert main([*arguments, "--samples", "20"]) == 0
    capsys.readouterr()
    assert main([*training, "--overwrite", "--quiet"]) == 0
    assert "next:" not in capsys.readouterr().out


def test_an_interrupted_training_names_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a run"
    steps: list[object] = []

    def interrupting(*args: object, **kwargs: object) -> torch.Tensor:
        steps.append(args)
        if len(steps) == 20:
            signal.raise_signal(signal.SIGINT)
        return plain(*args, **kwargs)

    plain = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", interrupting)
    training = [*SYNTHETIC.split()[:-1], "--max-calls", "60", "--out", str(folder)]
    assert main(training) == 130
    shown = capsys.readouterr()
    assert "--resume goes on from the last checkpoint" in shown.err
    go_on, attack = commands_after(shown.out)
    assert go_on == ["neada", "train", "--out", str(folder), "--resume"]
    assert attack == ["neada", "attack", str(folder)]
    assert main(go_on[1:]) == 0
    assert "60 gradient calls" in capsys.readouterr().out


def test_a_training_that_broke_names_no_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = [*SYNTHETIC.split()[:-1], "--x-optimizer", "sgd", "--lr-x", "1e30"]
    assert main([*training, "--out", str(tmp_path / "run")]) == 1
    assert "next:" not in capsys.readouterr().out
