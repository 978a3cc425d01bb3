"""The benchmarks run, what they print is computed from their tables, and rivals are as they say."""

import dataclasses
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
from torch.nn.functional import cross_entropy

from neada import models, robust
from neada.inner import InnerOptions
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
    assert cells(page, calls, "problem")[:3] == ["neada", "GDA, tuned", "nested scipy"]
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


def test_bad_arguments_are_refused() -> None:
    result = run_benchmark("--max-calls", "0")
    assert result.returncode == 2
    assert "--max-calls must be at least 1" in result.stderr
    assert "Traceback" not in result.stderr
    result = run_benchmark("--quick", "--write")  # would replace what was measured
    assert result.returncode == 2 and "give --write a folder" in result.stderr
    result = run_benchmark("--render", "--write", "nowhere")
    assert result.returncode == 1 and "is not there; run the script" in result.stderr


RACE = ("Adam, 15 steps", "NeAda as released", "Fast-AT", "Free-AT, 4 replays", "`WRM`")


@pytest.mark.slow
def test_the_quick_race_has_every_loop_and_ratios_of_its_seconds(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    arguments = ("--quick", "--write", str(tmp_path), "--runs", str(runs))
    result = run_benchmark(*arguments, "--figures", str(tmp_path), script="robust_race.py")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    page = (tmp_path / "benchmarks-race.md").read_text(encoding="utf-8")
    assert result.stdout == page + "\n"
    assert (tmp_path / "robust-race-digits.png").stat().st_size > 10_000
    # Every accuracy is at least 0, so all arrive at the middle evaluation: 8 steps of x, with 15
    # steps and one of y and x, one and one, and replays that serve both.
    calls = [int(cells(page, "Digits", name)[1].split("(")[1].strip(")")) for name in RACE[:4]]
    assert calls[0] == 8 * 16
    assert 8 * 2 <= calls[1] <= 8 + 1 + sum(range(8))
    assert calls[2:] == [16, 16]
    seconds = {name: float(cells(page, "Digits", name)[1].split(" ")[0]) for name in RACE}
    for name in RACE:
        seeds, _, _, pgd, *ratios = cells(page, "Digits", name)
        assert (seeds, pgd) == ("1", "-")
        for rival, ratio in zip(RACE[:2], ratios, strict=True):
            assert float(ratio) == pytest.approx(seconds[rival] / seconds[name], rel=0.02, abs=0.01)
        clean, reached, best, relative, gain = map(float, cells(page, "Digits", name, 1))
        assert relative == pytest.approx(reached / best, abs=2e-3)
        assert gain == pytest.approx((reached - clean) / (best - clean), abs=0.05, rel=0.1)
    against = float(cells(page, "Digits", "`WRM`")[4])
    verdict = "target met" if against >= 1.0 else "missed"
    assert f"target 1, goal 1e+09: **{verdict}**." in page
    # Finished runs are read, not run again: the tables are the same to the last digit of a second.
    again = run_benchmark("--quick", "--runs", str(runs), "--kept-only", script="robust_race.py")
    assert again.stdout.splitlines()[3:] == result.stdout.splitlines()[3:]
    kept = runs / "robust_race_digits_fast_at_0.json"
    content = json.loads(kept.read_text(encoding="utf-8"))
    assert [point["steps"] for point in content["points"]] == [4, 8, 12]


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
    return robust.WRM(
        model,
        cross_entropy,
        1.3,
        y_optimizer=lambda params: torch.optim.Adam(params, lr=0.01, maximize=True),
        stopping=FixedSteps(15),
        batch_norm="batch",
        inner=InnerOptions(measure="batch", dropout="on"),
    )


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


def test_an_accuracy_is_reached_in_the_middle_of_three_and_other_runs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runs: Any = importlib.import_module("race_runs")
    pgd = [0.5, None, 0.7, None, 0.9]
    accuracies = [0.1, 0.9, 0.2, 0.6, 0.7]
    curve = runs.Curve(
        [
            runs.Point(10 * i, 20.0 * i, float(i), 1.0, accuracy, accuracy, pgd[i])
            for i, accuracy in enumerate(accuracies)
        ]
    )
    assert curve.arrival("fgsm", 0.39).steps == 10
    assert curve.arrival("fgsm", 0.5).steps == 20
    assert curve.arrival("fgsm", 0.6) is None
    assert curve.arrival("pgd", 0.7 - 1e-9).seconds == 2.0
    task = dataclasses.asdict(runs.QUICK) | {"gamma": 5.0}
    kept = tmp_path / "run.json"
    kept.write_text(json.dumps({"task": task, "points": [], "inner": None}), encoding="utf-8")
    with pytest.raises(SystemExit, match="was run with gamma = 5.0, not"):
        runs.read(kept, runs.QUICK)


@pytest.mark.slow
def test_the_quick_race_of_attacks_has_both_ways_and_keeps_what_it_measured(
    tmp_path: Path,
) -> None:
    arguments = ("--quick", "--write", str(tmp_path), "--runs", str(tmp_path / "runs"))
    result = run_benchmark(*arguments, script="attacks_race.py")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    page = (tmp_path / "benchmarks-attacks.md").read_text(encoding="utf-8")
    assert result.stdout == page + "\n"
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| digits")]
    assert [line[2] for line in lines][:2] == ["neada", "neada, all queries"]
    for line in lines:
        assert line[1] == "20" and 0.0 <= float(line[4]) <= float(line[3]) <= 100.0
    again = run_benchmark(*arguments, script="attacks_race.py")
    assert again.stdout == result.stdout  # read from the files, to the last digit of a second
    refused = run_benchmark("--models", "resnet", script="attacks_race.py")
    assert refused.returncode == 2 and "there is no resnet" in refused.stderr


def test_the_quick_comparison_of_estimators_has_every_row(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", minversion="1.6", reason="estimators need scikit-learn")
    result = run_benchmark("--quick", "--write", str(tmp_path), script="estimators.py")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    page = (tmp_path / "benchmarks-estimators.md").read_text(encoding="utf-8")
    assert result.stdout == page + "\n"
    rows = json.loads((tmp_path / "estimators.json").read_text(encoding="utf-8"))["numbers"]["rows"]
    assert len(rows) == 8 + 6
    for row in rows:
        shown = cells(page, row["data"].capitalize(), row["model"])
        if row["trouble"]:
            assert row["trouble"] == "not installed" and "dro" in row["model"]
            assert shown == ["not installed", "-", "-", "-"]
            continue
        clean, l2, linf, seconds = row["splits"][0]
        assert clean >= max(l2, linf) and seconds > 0.0
        shift = 0.06 if row["data"] == "wine" else 6e-4
        assert [float(cell) for cell in shown[:3]] == pytest.approx([clean, l2, linf], abs=shift)


@pytest.mark.slow
def test_the_quick_table_of_robustness_goes_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "robustness.md"
    page.write_text(
        "before\n<!-- begin robustness -->\nold\n<!-- end robustness -->\nafter\n", encoding="utf-8"
    )
    result = run_benchmark("--quick", "--write", str(tmp_path), script="robustness.py")
    assert result.returncode == 0, result.stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- begin robustness -->\nWritten by")
    assert text.endswith("<!-- end robustness -->\nafter\n") and "old" not in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "| digits" in line]
    assert len(rows) == 5 and all(len(row) == 7 for row in rows)
    for row in rows:
        clean, fgsm, pgd, ensemble = (float(cell) for cell in row[1:5])
        assert ensemble <= clean and pgd <= fgsm <= clean
    assert rows[4][0] == "digits, linear, WRM" and rows[4][6].endswith("certified")
    for row in rows:
        if row[6] != "none":
            assert float(row[6].split(",")[0]) >= float(row[5])  # above the loss itself


def test_the_quick_run_of_two_ranks_has_efficiencies_of_its_raw_times(tmp_path: Path) -> None:
    result = run_benchmark("--quick", "--write", str(tmp_path), script="ranks.py")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "benchmarks-ranks.md").read_text(encoding="utf-8")
    assert result.stdout == page + "\n"
    raw = json.loads((tmp_path / "ranks.json").read_text(encoding="utf-8"))["numbers"]
    (times,) = raw["rounds"]
    alone = [sum(step["seconds"] for step in times[f"alone {r}"][r]) for r in (0, 1)]
    assert times["alone 0"][1] is None and times["alone 1"][0] is None
    for name in ("two, independent", "two ranks, plain", "two ranks, DDP"):
        both = [sum(step["seconds"] for step in steps) for steps in times[name]]
        expected = (alone[0] / both[0] + alone[1] / both[1]) / 2
        assert float(cells(page, "Efficiency", name)[0].split()[0]) == pytest.approx(
            expected, abs=0.0051
        )
    for steps in times["two ranks, plain"]:
        for step in steps:
            assert sum(step["parts"].values()) == pytest.approx(step["seconds"])
            assert min(step["parts"].values()) > 0.0
    # The model is at rest, so that all ways do the same evaluations of the same samples.
    for rank in (0, 1):
        done = {
            json.dumps([step["rows"] for step in times[name][rank]])
            for name in (f"alone {rank}", "two, independent", "two ranks, plain")
        }
        assert len(done) == 1
    num_parameters = 16 * 9 + 32 * 16 * 9 + 2 * 32 * 4 * 4 * 5 + 10 + 3 * (16 + 32)
    assert raw["num_parameters"] == num_parameters
    # The gradients, the loss and a flag in one reduction; DDP has the gradients alone.
    # It copies buffers in its forward pass, so that the ranks meet before and after that.
    for name, extra, met in (("two ranks, plain", 2, 1), ("two ranks, DDP", 0, 2)):
        numbers, number_bytes, _, gradient_bytes, _ = cells(page, "Bytes per outer step", name)
        assert (numbers, number_bytes) == (str(met), str(24 * met))
        assert int(gradient_bytes.replace(",", "")) == 4 * (num_parameters + extra)
    again = run_benchmark("--render", "--write", str(tmp_path), script="ranks.py")
    assert again.stdout == result.stdout


def test_the_prediction_for_many_ranks_follows_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    prediction: Any = importlib.import_module("ranks_prediction")
    assert prediction.counts_of([5, 3, 3, 1]) == [1, 1, 3, 3, 4]
    assert prediction.fitted([1, 2, 4], [3.0, 5.0, 9.0]) == pytest.approx((1.0, 2.0))
    # 64 MB of 16 M parameters take 2 * 7/8 * 64 MB / 1.25 GB/s, in 3 buckets and a decision.
    seconds = prediction.reduction(16_000_000, 8, 10)
    assert seconds == pytest.approx(0.0896 + 4 * 14 * prediction.LATENCY)
    load = prediction.Loads(mean=1.0, slowest=2.0, model=3.0, backward=2.0)
    assert prediction.efficiencies(load, 1.0, 5.0) == pytest.approx((4 / 10, 4 / 8))
    assert prediction.efficiencies(load, 2.0, 3.0) == pytest.approx((8 / 13, 8 / 10))
    # Half of the samples take 1 evaluation, half take 3; one sample per rank, two ranks.
    costs = prediction.Costs(call=1.0, sample=1.0, model=0.0, backward=0.0)
    pool = torch.tensor([1.0, 3.0])
    mean, slowest = prediction.stragglers(pool, costs, 2, 1)
    assert mean == pytest.approx(4.0, abs=0.3)
    assert slowest == pytest.approx(5.0, abs=0.3)
    mean, slowest = prediction.stragglers(pool, costs, 1, 4)
    assert mean == slowest
