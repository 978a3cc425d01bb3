"""The short form of the campaign of faults finds nothing, and would find something."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns.damage import DAMAGE, hurt_bytes
from campaigns.run import KINDS, table
from campaigns.trials import Ended, Tally, one_sentence, words

ROOT = Path(__file__).parents[1]
# A defect that is planted before the campaign begins: a reader with a raw error.
PLANTED = """
import sys
import neada.data.readers
from campaigns.run import main

def read_idx(path):
    raise KeyError(path)

neada.data.readers.read_idx = read_idx
sys.exit(main(["--only", "fuzz"]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="trials are forked, see docs")


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: trials are forked from one that has a single thread.
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_short_campaign_finds_nothing() -> None:
    done = campaign("-m", "campaigns", "--length", "short", "--seed", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        assert f"| {kind.replace('_', ' ')}: " in done.stdout


def test_a_planted_defect_is_found() -> None:
    done = campaign("-c", PLANTED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED fuzz: idx of random.Random(" in done.stdout
    assert "KeyError" in done.stdout


def test_the_table_has_what_was_tried_passed_and_failed() -> None:
    text = table([Tally("kills", 1200, ["one"]), Tally("fuzz", 3)])
    lines = text.splitlines()
    assert lines[2].endswith("| 1,200 | 1,199 | 1 |")
    assert lines[3].endswith("| 3 | 3 | 0 |")


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_repeatable(damage: str, tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        path, other = tmp_path / name, tmp_path / "other"
        path.write_bytes(bytes(range(256)) * 8)
        other.write_bytes(b"another run's")
        DAMAGE[damage](path, other, random.Random(3))
        found.append(path.read_bytes() if path.is_file() else None)
    assert found[0] == found[1]
    assert found[0] != bytes(range(256)) * 8


def test_hurt_bytes_are_others() -> None:
    content = bytes(range(256))
    draw = random.Random(0)
    # Two blocks that are swapped may be the same one.
    assert sum(hurt_bytes(content, draw) != content for _ in range(100)) > 90


def test_what_is_no_sentence_is_noticed() -> None:
    assert one_sentence("") and one_sentence("x" * 1000) and one_sentence("a\nb")
    assert not one_sentence("gamma must be a number greater than 0, got -1")
    assert words(Ended(1, "", "Traceback (most recent call last):\n"))
    assert words(Ended(2, "", ""), needed=True)
    assert words(Ended(0, "", "UserWarning: x\n"))
    assert not words(Ended(2, "", "neada: --gamma must be a number\n"), needed=True)
