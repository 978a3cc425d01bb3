"""The example runs, shows its table and refuses nonsense."""

import subprocess
import sys
from pathlib import Path

ZOO = Path(__file__).parents[1] / "examples" / "zoo.py"


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ZOO), *arguments], capture_output=True, text=True, check=False
    )


def test_the_example_prints_every_optimizer_with_its_needs() -> None:
    result = run_example("--max-calls", "60")
    assert result.returncode == 0, result.stderr
    rows = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert "the strong-convexity modulus" in rows["SCAdaNGD"]
    assert rows["KT"].split()[1:4] == ["-", "-", "-"]
    # AdGD solves the box and the regression within 60 calls, the quadratic needs hundreds.
    quadratic, box, logistic = rows["AdGD"].split()[1:4]
    assert quadratic == "-"
    assert int(box) <= 60
    assert int(logistic) <= 60


def test_a_bad_number_of_calls_is_refused() -> None:
    result = run_example("--max-calls", "0")
    assert result.returncode == 2
    assert "--max-calls must be at least 1" in result.stderr
    assert "Traceback" not in result.stderr
