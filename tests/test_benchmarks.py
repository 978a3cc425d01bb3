"""The benchmarks run, and the loops they compare with compute what they claim to compute."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from neada import models
from reproduction.released import ReleasedTraining

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def quick_numbers(script: str, folder: Path, *arguments: str) -> Any:
    """The numbers that a script measures and writes together with its page."""
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--write", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{script}.json").read_text(encoding="utf-8"))["numbers"]


def test_counts_of_calls_are_the_known_ones(tmp_path: Path) -> None:
    src = str(BENCHMARKS.parent / "src")
    numbers = quick_numbers("minimax_calls", tmp_path, "--quick", "--before", src)
    calls = numbers["calls"]
    # Counted with grid-tuned GDA and nested scipy outside of the benchmark.
    assert [calls["GDA, tuned"][name][0] for name in ("quadratic", "mccormick")] == [8, 40]
    assert calls["nested scipy"]["mixed_units"] == 74
    assert calls["nested scipy"]["ball_constrained"] is None  # scipy supports boxes only
    assert None not in calls["auto"].values()
    assert None not in numbers["constrained"]["hs71"]
    now, before = (numbers["random"][version]["families"] for version in ("now", "before"))
    for family, columns in now.items():
        assert None not in columns["calls"]
        assert columns["calls"] == before[family]["calls"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("attacks_race", ["--quick"]),
        ("batches", ["--quick"]),
        ("estimators", ["--quick"]),
        ("optimizer_steps", ["--rounds", "1"]),
        ("ranks", ["--quick"]),
        ("robust_race", ["--quick"]),
        ("robust_steps", ["--quick"]),
        ("startup", ["--rounds", "1"]),
    ],
)
def test_every_script_measures_and_writes_its_page(
    script: str, arguments: list[str], tmp_path: Path
) -> None:
    assert quick_numbers(script, tmp_path, *arguments)


@pytest.fixture
def race_loops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("race_loops")


def small_problem() -> tuple[torch.nn.Module, tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(6, 1, 8, 8, generator=generator).double()
    targets = torch.randint(10, (6,), generator=generator)
    model = models.make("small-cnn", (1, 8, 8), 10, seed=0).double()
    return model, (inputs, targets, torch.arange(6))


@pytest.mark.parametrize(("name", "num_steps"), [("Adam15", 2), ("Released", 8)])
def test_the_slow_loops_do_what_the_transcription_does(
    race_loops: ModuleType, name: str, num_steps: int
) -> None:
    # In float64: Adam makes steps of the rounding errors of a bias before batch norm.
    (model, (inputs, targets, ids)), (other, _) = small_problem(), small_problem()
    theirs = getattr(race_loops, name)(model, race_loops.Setting(gamma=1.3, eps=0.1))
    x_optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    inner_steps = 15 if name == "Adam15" else None
    ours = ReleasedTraining(other, x_optimizer, 0.01, 1.3, 1000, inner_steps)
    for _ in range(num_steps):
        theirs.step(inputs, targets, ids)
        ours.step(inputs, targets)
    assert theirs.x_steps == num_steps
    assert theirs.calls == ours.calls > 2 * num_steps
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_spectral_ascent_finds_the_maximum_of_every_row(race_loops: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    center = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    curvature = 10.0 ** torch.linspace(-0.5, 0.5, 4, dtype=torch.float64)

    def values(z: Tensor) -> Tensor:
        return -(curvature * (z - center).square()).sum(1)

    start = torch.zeros_like(center)
    found = race_loops.spectral_ascent(values, start, 0.5, 100)
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0.0, atol=1e-10)
    boxed = race_loops.spectral_ascent(values, start, 0.5, 100, lambda z: z.clamp(-0.3, 0.3))
    torch.testing.assert_close(boxed, values(center.clamp(-0.3, 0.3)), rtol=0.0, atol=1e-10)
