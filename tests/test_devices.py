"""Devices by name, precision, compilation, and states that belong to no device."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neada import devices
from neada.training import Progress, TrainConfig, open_run, train

DIGITS = TrainConfig(
    data="digits",
    method="gdmax",
    inner_steps=2,
    lr_x=0.005,
    max_calls=240,
    eval_every=120,
    eval_eps=(0.05,),
)
SMALL = TrainConfig(data="synthetic", max_calls=40, batch_size=64, eval_eps=(0.5,))


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]


# Which device.


@pytest.fixture
def two_accelerators(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with cuda:0 and cuda:1 as far as `choose` can see."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return monkeypatch


def test_without_an_accelerator_there_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert devices.choose() == devices.choose("auto") == devices.choose("cpu")
    assert devices.choose().type == "cpu"
    with pytest.raises(ValueError, match="device"):
        devices.choose("cuda")


@pytest.mark.parametrize(
    ("name", "local_rank", "expected"),
    [
        ("cpu", None, "cpu"),
        ("auto", None, "cuda"),
        ("cuda", None, "cuda"),
        ("cuda:1", None, "cuda:1"),
        ("auto", "1", "cuda:1"),
        ("cuda", "0", "cuda:0"),
        ("cuda", "3", "cuda:1"),
        ("cuda:0", "1", "cuda:0"),
        ("cpu", "1", "cpu"),
    ],
)
def test_names_and_ranks_choose_the_accelerator(
    two_accelerators: pytest.MonkeyPatch, name: str, local_rank: str | None, expected: str
) -> None:
    if local_rank is not None:
        two_accelerators.setenv("LOCAL_RANK", local_rank)
    assert devices.choose(name) == torch.device(expected)


@pytest.mark.parametrize("name", ["cuda:2", "mps", "", "cuda:x"])
def test_a_device_that_is_not_there_is_one_sentence(
    two_accelerators: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(ValueError, match="cpu"):
        devices.choose(name)


# Precision.


def test_precision_is_that_of_the_evaluation_alone() -> None:
    cpu, model = torch.device("cpu"), nn.Linear(3, 2)
    with devices.autocast(cpu, "fp32"):
        assert model(torch.ones(1, 3)).dtype == torch.float32
    with devices.autocast(cpu, "bf16"):
        assert model(torch.ones(1, 3)).dtype == torch.bfloat16
        before = model(torch.ones(1, 3)).float()
        with torch.no_grad():
            model.weight += 1.0
        assert bool((model(torch.ones(1, 3)).float() - before > 2.0).all())
    assert model.weight.dtype == torch.float32


class _Stop(Exception):  # noqa: N818
    pass


def test_training_in_half_precision_is_as_good_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    asked = dataclasses.replace(DIGITS, precision="bf16")
    exact, whole = train(DIGITS), train(asked)
    assert exact.accuracies["test_clean"] > 0.9
    for name, accuracy in exact.accuracies.items():
        assert abs(whole.accuracies[name] - accuracy) < 0.03, name
    assert without_times(whole.rows) != without_times(exact.rows)
    assert all(p.dtype == torch.float32 for p in whole.model.parameters())

    def stop(at: Progress) -> None:
        if at.x_steps >= 30:
            raise _Stop

    with pytest.raises(_Stop):
        train(asked, tmp_path, progress=stop, checkpoint_seconds=1e-9)
    result = train(asked, tmp_path, resume=True)
    assert without_times(result.rows) == without_times(whole.rows)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor), name


# Compilation.

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler here"
)


# Torch's own packages warn of each other when they are imported.
ignoring_torch = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@needs_compiler
@ignoring_torch
@pytest.mark.slow
def test_training_compiled_is_training(tmp_path: Path) -> None:
    plain = train(SMALL)
    result = train(dataclasses.replace(SMALL, compile=True), tmp_path)
    assert result.calls == plain.calls
    for ours, theirs in zip(result.rows, plain.rows, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() & {"loss", "test_clean"}:
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4), name
    assert open_run(tmp_path).complete
