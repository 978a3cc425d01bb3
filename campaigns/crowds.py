"""Several processes on one folder, and disks that are full, read-only or slow."""

import contextlib
import functools
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from campaigns import reproductions, trainings
from campaigns.disk import Mode
from campaigns.trainings import command
from campaigns.trials import Child, Ended, Tally, group_members, in_child, words
from neada import cli

__all__ = ["run"]

_NUM = {"short": (1, 3, 1), "full": (8, 25, 6)}
"""Rounds of crowds, troubles with the disk of every way to train, killed parents."""
_SECONDS_TO_END = 15.0


class _Run(NamedTuple):
    """A command that fills a folder, and what reads the result of it."""

    line: Callable[[Path], list[str]]
    result: Callable[[Path, Ended], str]


def run(tally: Tally, length: str, seed: int, scratch: Path) -> None:
    """Count the trials of this kind."""
    draw = random.Random(seed)
    data = trainings.make_data(scratch)
    num_crowds, num_disks, num_parents = _NUM[length]
    training = _Run(lambda out: trainings.arguments("disk store", data, out), trainings.result_of)
    reproduction = _Run(reproductions.arguments, _claims)
    for number in range(num_crowds):
        for first, second in ((training, True), (reproduction, True), (training, False)):
            _two_writers(tally, first, second, f"round {number}", scratch)
        _foreign(tally, training, reproduction, scratch)
    ways = ("plain", "disk store", "tensorboard") if length == "short" else trainings.WAYS
    for way in ways:
        _disks(tally, way, data, num_disks, draw, scratch)
    for _ in range(num_parents):
        _killed_parent(tally, draw.uniform(1.0, 3.0 if length == "short" else 8.0), scratch)


def _claims(out: Path, ended: Ended) -> str:
    if ended.code != 0:
        return f"exit code {ended.code}: {ended.errors[-300:]!a}"
    return reproductions.claims_of(json.loads((out / "claims.json").read_text(encoding="utf-8")))


def _two_writers(tally: Tally, kind: _Run, resume: bool, name: str, scratch: Path) -> None:
    """Two processes want one folder: one gets it, the other is told so."""
    alone, shared = scratch / "alone", scratch / "shared"
    expected = kind.result(alone, command(kind.line(alone)).wait(120))
    slow = command(kind.line(shared), shared, "slow")
    while not shared.exists() and group_members(slow.pid):
        time.sleep(0.005)
    line = kind.line(shared)
    if resume and line[0] == "train":
        line.append("--resume")
    late = command(line).wait(120)
    overlapped = bool(group_members(slow.pid))
    ended = slow.wait(120)
    trouble = words(ended) or words(late, needed=late.code != 0)
    if not trouble and late.code not in (0, 2):
        trouble = f"the second ended with {late.code}: {late.errors[-300:]!a}"
    if not trouble and overlapped and late.code == ended.code == 0:
        trouble = "both wrote in the folder at the same time"
    # The one that made the folder may find it taken: somebody was in between.
    found = kind.result(shared, late if ended.code == 2 else ended)
    if not trouble and found != expected:
        trouble = f"the one that got it came to another result ({found[:200]})"
    tally.count(f"{line[0]} twice{' --resume' * resume}, {name}", trouble)
    for folder in (alone, shared):
        shutil.rmtree(folder)


def _foreign(tally: Tally, training: _Run, reproduction: _Run, scratch: Path) -> None:
    """A folder of one command is refused by the other, whatever the flags."""
    for first, second in ((training, reproduction), (reproduction, training)):
        folder = scratch / "foreign"
        command(first.line(folder)).wait(120)
        for flag in ([], ["--overwrite"]):
            before = trainings.snapshot(folder)
            line = [*second.line(folder), *flag]
            ended = command(line).wait(120)
            trouble = words(ended, needed=True)
            if not trouble and ended.code != 2:
                trouble = f"exit code {ended.code}: {ended.errors[-300:]!a}"
            if not trouble and trainings.snapshot(folder) != before:
                trouble = "refused, but the folder has changed"
            name = first.line(folder)[0]
            tally.count(f"{' '.join([line[0], *flag])} into the folder of a {name}", trouble)
        shutil.rmtree(folder)


def _disks(
    tally: Tally, way: str, data: Path, num_trials: int, draw: random.Random, scratch: Path
) -> None:
    whole, hurt = scratch / "whole", scratch / "hurt"
    ended = command(trainings.arguments(way, data, whole), whole).wait()
    expected, num_operations = trainings.result_of(whole, ended), int(ended.output.split()[-1])
    line = trainings.arguments(way, data, hurt)
    modes: tuple[Mode, ...] = ("full", "read-only")
    for mode in modes:
        for _ in range(num_trials):
            at = 1 + draw.randrange(num_operations)
            ended = command(line, hurt, mode, at).wait()
            what = f"{way}, {mode} from operation {at}"
            tally.count(what, _goes_on(line, hurt, ended, expected))
    for _ in range(num_trials):
        size = draw.randrange(1, 30_000)
        ended = in_child(functools.partial(_with_small_files, line, size))
        what = f"{way}, no file longer than {size} bytes"
        tally.count(what, _goes_on(line, hurt, ended, expected))
    ended = command(line, hurt, "slow").wait()
    found = trainings.result_of(hurt, ended)
    tally.count(f"{way}, slow", words(ended) or ("" if found == expected else found))
    shutil.rmtree(hurt)
    _untouched(tally, way, [*trainings.arguments(way, data, whole), "--resume"], whole, (0, 1, 2))
    _untouched(tally, way, ["attack", str(whole), "--attack", "fgsm", "--quiet"], whole, (0,))
    shutil.rmtree(whole)


def _with_small_files(line: list[str], size: int) -> int:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return cli.main(line)


def _goes_on(line: list[str], folder: Path, ended: Ended, expected: str) -> str:
    """What is wrong with a run that met a bad disk, and with how it goes on with a good one."""
    trouble = words(ended, needed=ended.code != 0)
    if not trouble and ended.code not in (0, 1, 2):
        trouble = f"exit code {ended.code}"
    if not trouble:
        ended = command([*line, "--resume"]).wait()
        found = trainings.result_of(folder, ended)
        if found != expected:
            trouble = f"with a good disk it goes on to another end ({found[:300]})"
    shutil.rmtree(folder, ignore_errors=True)
    return trouble


def _untouched(
    tally: Tally, way: str, line: list[str], folder: Path, codes: tuple[int, ...]
) -> None:
    """A finished run on a read-only disk stays as it is, and can be read."""
    before = trainings.snapshot(folder)
    ended = command(line, folder, "read-only").wait()
    trouble = words(ended, needed=ended.code != 0)
    if not trouble and ended.code not in codes:
        trouble = f"exit code {ended.code}: {ended.errors[-300:]!a}"
    if not trouble and trainings.snapshot(folder) != before:
        trouble = "the folder has changed"
    tally.count(f"{line[0]} of a finished run, {way}, read-only", trouble)


def _killed_parent(tally: Tally, seconds: float, scratch: Path) -> None:
    """No worker outlives a reproduction that is killed."""
    folder = scratch / "parent"
    child: Child = command(reproductions.arguments(folder, jobs=2))
    time.sleep(seconds)
    child.kill(signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + _SECONDS_TO_END
    while (left := group_members(child.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    trouble = f"{len(left)} processes are left" if left else ""
    tally.count(f"reproduce --jobs 2, SIGKILL after {seconds:.2f} s", trouble)
    shutil.rmtree(folder, ignore_errors=True)
