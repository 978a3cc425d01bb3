"""The benchmarks run, what they print is computed from their tables, and rivals are as they say."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from neada import models, robust
from neada.stopping import FixedSteps

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(
    *arguments: str, script: str = "minimax_calls.py"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def cells(page: str, heading: str, row: str, number: int = 0) -> list[str]:
    """A row of a section, the first or a later one that begins so."""
    section = page.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in lines[number].strip("|").split("|")][1:]


def test_the_quick_run_has_every_section_and_known_counts(tmp_path: Path) -> None:
    result = run_benchmark("--quick", "--write", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # progress is for terminals
    page = (tmp_path / "benchmarks-minimax.md").read_text(encoding="utf-8")
    assert result.stdout == page + "\n"
    again = run_benchmark("--render", "--write", str(tmp_path))
    assert again.stdout == result.stdout  # from the numbers alone
    calls = "Calls to 1e-06"
    assert cells(page, calls, "problem")[:3] == ["auto", "GDA, tuned", "nested scipy"]
    # The counts of grid-tuned GDA that were known before there was a benchmark.
    assert cells(page, calls, "quadratic")[1] == "8"
    assert cells(page, calls, "mccormick")[1] == "40"
    assert cells(page, calls, "mixed_units")[1:3] == ["", "74"]  # scipy's was known, too
    assert cells(page, calls, "ball_constrained")[2] == "-"  # scipy has no balls
    assert cells(page, calls, "solved")[:3] == ["4 of 4", "3 of 3", "3 of 4"]
    assert "Unsolved by the default: 0." in page
    assert "last edition plus 40: none." in page
    assert "Rows solved: 20 of 20." in page
    assert page.count("Target (") == 7
    assert cells(page, "Every other method", "problem") == ["gda", "tiada"]
    constrained = "Constraints: `minimize` against SLSQP"
    assert cells(page, constrained, "solved")[:2] == ["2 of 2", "2 of 2"]
    ratios = [cells(page, constrained, name) for name in ("lagrangian", "hs71")]
    assert all(
        float(row[2]) == pytest.approx(int(row[0]) / int(row[1]), abs=0.01) for row in ratios
    )
    for column, words, names in (
        (1, "that both solve: ", ("quadratic", "mccormick", "ball_constrained")),
        (2, "that scipy solves: ", ("quadratic", "mccormick", "mixed_units")),
    ):
        product = 1.0
        for name in names:
            row = cells(page, calls, name)
            product *= int(row[0]) / int(row[column])
        mean = float(page.split(words)[1].split(". ")[0])
        assert mean == pytest.approx(product ** (1 / 3), abs=1e-3)
    for name in ("quadratic", "mccormick", "mixed_units"):
        assert float(cells(page, "Time per call", name)[2]) > 0.0


@pytest.fixture
def race_loops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("race_loops")


def small_problem() -> tuple[torch.nn.Module, tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(6, 1, 8, 8, generator=generator)
    targets = torch.randint(10, (6,), generator=generator)
    return models.make("small-cnn", (1, 8, 8), 10, seed=0), (inputs, targets, torch.arange(6))


def library_loop(model: torch.nn.Module, name: str) -> robust.WRM:
    if name == "Released":
        return robust.WRM.released(model, cross_entropy, 1.3, lr=0.01)
    adversary = robust.Adversary(
        optimizer=lambda params: torch.optim.Adam(params, lr=0.01, maximize=True),
        stopping=FixedSteps(15),
        batch_norm="batch",
        dropout="on",
        measure="batch",
    )
    return robust.WRM(model, cross_entropy, 1.3, adversary=adversary)


@pytest.mark.parametrize(("name", "num_steps"), [("Adam15", 2), ("Released", 8)])
def test_the_slow_loops_do_what_the_library_does(
    race_loops: ModuleType, name: str, num_steps: int
) -> None:
    # In float64: Adam makes steps of the rounding errors of a bias before batch norm.
    (model, (inputs, targets, ids)), (other, _) = small_problem(), small_problem()
    model, other, inputs = model.double(), other.double(), inputs.double()
    theirs = getattr(race_loops, name)(model, race_loops.Setting(gamma=1.3, eps=0.1))
    ours = library_loop(other, name)
    x_optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    for _ in range(num_steps):
        theirs.step(inputs, targets, ids)
        ours.step(x_optimizer, inputs, targets)
    assert theirs.x_steps == num_steps
    assert theirs.calls == ours.calls_x + ours.calls_y > 2 * num_steps
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_the_loops_with_a_ball_stay_in_it_and_count(race_loops: ModuleType) -> None:
    for name, x_steps, calls in (("FastAT", 1, 2), ("FreeAT", 4, 8)):
        model, batch = small_problem()
        loop = getattr(race_loops, name)(model, race_loops.Setting(gamma=1.3, eps=0.1))
        loop.step(*batch)
        assert (loop.x_steps, loop.calls) == (x_steps, calls)
        moved = (loop.perturb(*batch) - batch[0]).abs()
        assert 0.0 < float(moved.max()) <= 0.1 + 1e-6


def test_the_judge_finds_the_maximum_of_every_row(race_loops: ModuleType) -> None:
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
