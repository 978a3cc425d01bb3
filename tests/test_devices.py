"""Devices by name, precision, compilation, and states that belong to no device."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from neada import devices, optim
from neada.attacks import fgsm
from neada.cli import main
from neada.runs import RunFolder, environment
from neada.training import Progress, TrainConfig, open_run, train

DIGITS = TrainConfig(
    data="digits", method="gdmax", inner_steps=2, lr_x=0.005, max_calls=240, eval_eps=(0.05,)
)
SMALL = TrainConfig(data="synthetic", max_calls=40, batch_size=64, eval_eps=(0.5,))


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: v for name, v in row.items() if name != "seconds"} for row in rows]


# Which device.


@pytest.fixture
def two_accelerators(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with cuda:0 and cuda:1 that can add, as far as `choose` can see."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "_knows_float64", lambda device: True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return monkeypatch


def test_without_an_accelerator_there_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert devices.choose() == devices.choose("auto") == devices.choose("cpu")
    assert devices.choose().type == "cpu"
    with pytest.raises(ValueError, match=r"^device 'cuda' is not on this machine.* 'cpu'$"):
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


@pytest.mark.parametrize("name", ["cuda:2", "mps", "gpu", "", "cuda:x", "meta"])
def test_a_device_that_is_not_there_is_one_sentence(
    two_accelerators: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(ValueError, match=r"'cpu', 'cuda', 'cuda:0', 'cuda:1'$"):
        devices.choose(name)


def test_an_accelerator_without_float64_is_not_chosen(
    two_accelerators: pytest.MonkeyPatch,
) -> None:
    two_accelerators.setattr(devices, "_knows_float64", lambda device: False)
    assert devices.choose("auto").type == "cpu"
    with pytest.raises(ValueError, match="'cuda:1' has no float64"):
        devices.choose("cuda:1")


def test_the_environment_lists_every_device(two_accelerators: pytest.MonkeyPatch) -> None:
    two_accelerators.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
    expected = ["cpu", "cuda:0 (card 0)", "cuda:1 (card 1)"]
    assert devices.descriptions() == environment()["devices"] == expected


# What is moved.


class Moves(TorchFunctionMode):
    """Remembers the tensors that are moved to one device object."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.moved: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and any(each is self.device for each in args[1:]):
            self.moved.append(args[0])
        return func(*args, **(kwargs or {}))


def test_model_and_batches_go_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = torch.device("cpu")
    asked: list[str] = []
    monkeypatch.setattr(devices, "choose", lambda name: asked.append(name) or chosen)
    to: list[Any] = []
    monkeypatch.setattr(nn.Module, "to", lambda self, *a, **k: to.append(a[0]) or self)
    with Moves(chosen) as moves:
        result = train(dataclasses.replace(SMALL, device="cuda:7", objective="group"))
    assert asked == ["cuda:7"] and to == [chosen]
    batches = [t for t in moves.moved if len(t) <= SMALL.batch_size]
    # Inputs, targets and groups of every batch; never the ids, which are 64-bit numbers as well.
    assert sum(t.is_floating_point() for t in batches) >= result.x_steps
    whole = [t for t in batches if not t.is_floating_point() and len(t) == SMALL.batch_size]
    assert whole and all(int(t.max()) < 2 for t in whole)


# Random numbers.


def test_seeded_blocks_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    with devices.seeded(torch.device("cpu"), 5):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_random_numbers_go_on_also_from_a_state_of_another_device() -> None:
    cpu = torch.device("cpu")
    with devices.seeded(cpu, 1):
        state = devices.rng_state(cpu)
        expected = torch.rand(4)
        of_elsewhere = {**state, "cuda": torch.zeros(16, dtype=torch.uint8)}
        for saved in (state, of_elsewhere):
            torch.rand(2)
            devices.set_rng_state(cpu, saved)
            assert torch.equal(torch.rand(4), expected)


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
    with pytest.raises(ValueError, match="precision"):
        devices.autocast(cpu, "fp8")


OPTIMIZERS: dict[str, Callable[[list[Tensor], bool], Any]] = {
    "GeneralizedAdaGrad": lambda p, rows: optim.GeneralizedAdaGrad(p, rowwise=rows),
    "AdGD": lambda p, rows: optim.AdGD(p, rowwise=rows),
    "LBFGS": lambda p, rows: optim.LBFGS(p, rowwise=rows),
    "SPG": lambda p, rows: optim.SPG(p, first_move=0.1, rowwise=rows),
    "Backtracking": lambda p, rows: optim.Backtracking(p, rowwise=rows),
    "CoinBetting": lambda p, rows: optim.CoinBetting(p, rowwise=rows),
    "DoWG": lambda p, rows: optim.DoWG(p, rowwise=rows),
}


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_compute_the_same_under_autocast(name: str, rows: bool) -> None:
    def path(precision: str) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        w = torch.randn(6, 40, generator=generator).requires_grad_()
        scale = torch.rand(40, generator=generator) + 0.1

        def loss() -> Tensor:
            values = (scale * w.square()).sum(1) + w.sin().sum(1)
            return values if rows else values.sum()

        optimizer = OPTIMIZERS[name]([w], rows)
        with devices.autocast(torch.device("cpu"), precision):
            for _ in range(8):
                optimizer.zero_grad()
                value = loss()
                value.sum().backward()

                def again() -> Tensor:
                    with torch.no_grad():
                        return loss()

                optimizer.step(again, value=value.detach())
        return w.detach()

    assert torch.equal(path("bf16"), path("fp32"))


@pytest.mark.parametrize("objective", ["wrm", "trades", "group"])
def test_losses_are_wide_where_the_network_is_not(
    monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    pytest.importorskip("sklearn")
    made: set[torch.dtype] = set()
    seen: set[tuple[torch.dtype, torch.dtype]] = set()
    log_softmax, linear = torch.nn.functional.log_softmax, torch.nn.functional.linear

    class Watch(TorchFunctionMode):
        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = f(*args, **(kwargs or {}))
            if f is linear:
                made.add(found.dtype)
            if f in (nn.functional.cross_entropy, log_softmax):
                wide = (kwargs or {}).get("dtype") or args[0].dtype
                seen.add((wide, found.dtype))
            return found

    changes = {"precision": "bf16", "objective": objective, "max_calls": 12, "model": "mlp"}
    with Watch():
        train(dataclasses.replace(DIGITS, **changes))
    assert made == {torch.bfloat16}
    assert seen == {(torch.float32, torch.float32)}


class _Stop(Exception):  # noqa: N818
    pass


def test_training_in_half_precision_is_as_good_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
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


def test_attacks_judge_outputs_of_half_precision_in_float32() -> None:
    model, inputs = nn.Linear(4, 3), torch.rand(5, 4)
    seen: list[torch.dtype] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    with devices.autocast(torch.device("cpu"), "bf16"):
        fgsm(model, inputs, torch.zeros(5, dtype=torch.int64), 0.1, loss=loss)
    assert set(seen) == {torch.float32}


# Compilation.

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler here"
)


# Torch's own packages warn of each other when they are imported.
ignoring_torch = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@ignoring_torch
def test_the_network_is_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call: compile_with(call, backend=backend))
    model = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2))
    inputs, names = torch.rand(3, 4), list(model.state_dict())
    expected = model(inputs)
    try:
        devices.compile_in_place(model, inputs)
        assert graphs == [3]
        assert list(model.state_dict()) == names
        assert torch.equal(model(inputs), expected)
    finally:
        torch._dynamo.reset()


@needs_compiler
@pytest.mark.slow
def test_a_compiled_model_is_the_same_module(tmp_path: Path) -> None:
    code = """
import torch, torch._dynamo
from torch import nn
from neada import devices
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2))
inputs, names = torch.rand(3, 4), list(model.state_dict())
expected = model(inputs)
devices.compile_in_place(model, inputs)
assert list(model.state_dict()) == names
assert torch._dynamo.utils.counters["stats"]["calls_captured"] == 3
with torch.no_grad():
    assert torch.allclose(model(inputs), expected, atol=1e-6)
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


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


def test_compilation_without_a_compiler_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "neada", "train", "--data", "synthetic", "--max-calls", "10"),
            *("--compile", "--device", "cpu", "--out", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            **{"CXX": str(tmp_path / "none"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        },
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("neada: --compile does not work here")
    assert "C++ compiler" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_compiled_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any) -> Any:
        raise RuntimeError("\n\nno such thing\nin many lines")

    monkeypatch.setattr(torch, "compile", fails)
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"compile=True .*RuntimeError: no such thing\)"):
        devices.compile_in_place(model, torch.ones(1, 2))
    assert model(torch.ones(1, 2)).shape == (1, 2)


# What describes the machine and not the run.


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    def stop(at: Progress) -> None:
        if at.x_steps >= 3:
            raise _Stop

    folder = tmp_path / "run"
    with pytest.raises(_Stop):
        train(SMALL, folder, progress=stop, checkpoint_seconds=1e-9)
    return folder


def test_a_run_goes_on_with_another_device_and_other_threads(interrupted: Path) -> None:
    before = (interrupted / "config.json").read_bytes()
    moved = dataclasses.replace(SMALL, device="cpu", threads=1)
    result = train(moved, interrupted, resume=True)
    assert without_times(result.rows) == without_times(train(SMALL).rows)
    assert (interrupted / "config.json").read_bytes() == before


def test_from_the_shell_too(interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume = ["train", "--out", str(interrupted), "--resume", "--quiet"]
    assert main([*resume, "--precision", "bf16"]) == 2
    assert "--precision bf16 is given, but the run" in capsys.readouterr().err
    assert main([*resume, "--device", "cuda:9"]) == 2
    assert "--device 'cuda:9' is not on this machine" in capsys.readouterr().err
    assert main([*resume, "--device", "cpu", "--threads", "1"]) == 0
    assert RunFolder(interrupted).config()["device"] == "auto"


def test_another_precision_is_another_run(interrupted: Path) -> None:
    with pytest.raises(ValueError, match="has precision = 'fp32', not 'bf16'"):
        train(dataclasses.replace(SMALL, precision="bf16"), interrupted, resume=True)
