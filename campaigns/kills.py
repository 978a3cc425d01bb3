"""SIGKILL and SIGTERM, at every file operation and at random moments; then resume and compare."""

import json
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from campaigns import reproductions, trainings
from campaigns.disk import Mode
from campaigns.trainings import command
from campaigns.trials import Ended, Tally, words
from neada import files

__all__ = ["run"]

_PLAN = {"short": (1, 1, 1), "full": (None, 15, 15)}
"""Of every command: kills at operations (None for each), at random moments, SIGTERMs."""
_CALLS = 16
"""Enough for a store to write journals into its file several times."""
_LEFT = files.draft_pattern("*")


class Trial(NamedTuple):
    """A signal at an operation, or after some seconds; and perhaps one more while it goes on."""

    mode: Mode
    at: int = 0
    seconds: float = 0.0
    again_at: int = 0

    def words(self) -> str:
        """What reproduces it."""
        when = f"at operation {self.at}" if self.at else f"after {self.seconds:.4f} s"
        again = f", then SIGKILL at operation {self.again_at}" if self.again_at else ""
        return f"SIG{self.mode.upper()} {when}{again}"


def run(tally: Tally, length: str, seed: int, scratch: Path) -> None:
    """Count the trials of this kind."""
    draw = random.Random(seed)
    data = trainings.make_data(scratch)
    for way in trainings.WAYS:
        _kill_training(tally, way, data, length, draw, scratch)
    _kill_reproduction(tally, length, draw, scratch)


def _kill_training(
    tally: Tally, way: str, data: Path, length: str, draw: random.Random, scratch: Path
) -> None:
    whole, hurt = scratch / "whole", scratch / "hurt"
    started = time.perf_counter()
    ended = command(trainings.arguments(way, data, whole, max_calls=_CALLS), whole).wait()
    duration = time.perf_counter() - started
    expected = trainings.result_of(whole, ended)
    shutil.rmtree(whole)
    line = trainings.arguments(way, data, hurt, max_calls=_CALLS)
    for trial in _trials(int(ended.output.split()[-1]), duration, length, draw):
        shutil.rmtree(hurt, ignore_errors=True)
        trouble = _hit(line, hurt, trial)
        if not trouble and trial.again_at and (hurt / "config.json").exists():
            trouble = _hit([*line, "--resume"], hurt, Trial("kill", trial.again_at))
        if not trouble:
            ended = command([*line, "--resume"]).wait()
            trouble = _compare(trainings.result_of(hurt, ended), expected) or words(ended)
        if not trouble and (left := list(hurt.glob(_LEFT))):
            trouble = f"{left[0].name} is left behind"
        tally.count(f"train, {way}, {trial.words()}", trouble)


def _trials(
    num_operations: int, duration: float, length: str, draw: random.Random
) -> Iterator[Trial]:
    num_kills, num_random, num_terms = _PLAN[length]
    step = 1 if num_kills is None else num_operations // num_kills
    for at in range(1 + draw.randrange(step), num_operations + 1, step):
        yield Trial("kill", at, again_at=draw.choice((0, 0, 1 + draw.randrange(num_operations))))
    for _ in range(num_random):
        yield Trial("kill", seconds=draw.uniform(0.0, duration))
    for _ in range(num_terms):
        yield Trial("term", 1 + draw.randrange(num_operations))


def _hit(line: list[str], folder: Path, trial: Trial) -> str:
    """Start a command and hit it; what is wrong with how it ended."""
    child = command(line, folder, trial.mode, trial.at or 10**9)
    if not trial.at:
        time.sleep(trial.seconds)
        child.kill(signal.SIGKILL)
    ended = child.wait()
    # A signal that comes late, or outside of the loop, finds a command that ends as usual.
    allowed = (-signal.SIGKILL, 0) if trial.mode == "kill" else (0, 130, -signal.SIGTERM)
    if ended.code not in allowed:
        return f"it ended with {ended.code}: {ended.errors[-300:]!a}"
    return words(ended)


def _compare(found: str, expected: str) -> str:
    if found == expected:
        return ""
    return found if ":" in found else "after going on, rows or weights are others"


def _kill_reproduction(tally: Tally, length: str, draw: random.Random, scratch: Path) -> None:
    whole, hurt = scratch / "reproduced", scratch / "reproduced_hurt"
    started = time.perf_counter()
    ended = command(reproductions.arguments(whole), whole).wait(120)
    duration = time.perf_counter() - started
    expected = _reproduced(whole, ended)
    for trial in _trials(int(ended.output.split()[-1]), duration, length, draw):
        shutil.rmtree(hurt, ignore_errors=True)
        jobs = 1 if trial.at else 2  # workers are processes without a disk of ours
        if jobs == 2:
            trial = Trial("kill", seconds=draw.uniform(1.0, 6.0))
        trouble = _hit(reproductions.arguments(hurt, jobs), hurt, trial)
        if not trouble and trial.again_at:
            trouble = _hit(reproductions.arguments(hurt), hurt, Trial("kill", trial.again_at))
        if not trouble:
            ended = command(reproductions.arguments(hurt, jobs)).wait(120)
            trouble = _compare(_reproduced(hurt, ended), expected) or words(ended)
        if not trouble and (left := list(hurt.rglob(_LEFT))):
            trouble = f"{left[0].relative_to(hurt)} is left behind"
        tally.count(f"reproduce --jobs {jobs}, {trial.words()}", trouble)


def _reproduced(out: Path, ended: Ended) -> str:
    if ended.code != 0:
        return f"exit code {ended.code}: {ended.errors[-300:]!a}"
    claims = reproductions.claims_of(json.loads((out / "claims.json").read_text(encoding="utf-8")))
    return json.dumps([claims, reproductions.rows_of(out)], sort_keys=True)
