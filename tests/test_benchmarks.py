"""The benchmark of calls runs, and what it prints is computed from its own table."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "minimax_calls.py"


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def cells(page: str, heading: str, row: str) -> list[str]:
    section = page.split(f"## {heading}")[1].split("\n## ")[0]
    (line,) = (line for line in section.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_quick_run_has_every_section_and_known_counts(tmp_path: Path) -> None:
    page_file = tmp_path / "page.md"
    result = run_benchmark("--quick", "--write", str(page_file))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # progress is for terminals
    page = page_file.read_text()
    assert result.stdout == page + "\n"
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
