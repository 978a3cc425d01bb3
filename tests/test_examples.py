"""The examples run, show what they found and refuse nonsense."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
ZOO = EXAMPLES / "zoo.py"


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


def run_on_two_ranks(script: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_several_processes_train_one_robust_model() -> None:
    words = run_on_two_ranks("ddp.py", "--steps", "30").replace(",", "").split()
    clean, attacked = float(words[1]), float(words[-1])
    assert clean > 0.8 and 0.3 < attacked <= clean


def test_a_sharded_model_is_trained() -> None:
    words = run_on_two_ranks("fsdp.py", "--steps", "40").split()
    first, last = float(words[-3]), float(words[-1])
    assert last < 0.9 * first
