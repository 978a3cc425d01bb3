"""Many short trials in one process, which is watched from outside: time, memory, open files."""

import functools
import gc
import json
import mmap
import os
import resource
import signal
import struct
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple

from campaigns.trials import Child, Ended, Tally

__all__ = ["Trial", "in_batches"]

_SECONDS = 20
"""That one trial may take."""
_MEGABYTES = 300
"""By which a batch may grow the memory of the process."""


class Trial(NamedTuple):
    """Something to do, and what reproduces it; it returns what went wrong."""

    name: str
    act: Callable[[], str]


class _TimeIsUpError(BaseException):
    pass


def in_batches(tally: Tally, trials: Sequence[Trial], size: int) -> None:
    """Do trials in children, so many in each, and count them."""
    start = 0
    while start < len(trials):
        batch = trials[start : start + size]
        place = mmap.mmap(-1, 8)
        child = Child(functools.partial(_play, batch, place))
        ended = child.wait(_SECONDS * 1.5 + _SECONDS * len(batch) / 4)
        done = _done(ended)
        for trial, trouble in zip(batch, done, strict=False):
            tally.count(trial.name, trouble)
        start += len(done)
        if len(done) < len(batch):  # the process has ended in a trial; the next one does the rest
            (number,) = struct.unpack("q", place[:8])
            errors = ascii(ended.errors[-300:])
            tally.count(batch[number].name, f"the process ended with {ended.code}: {errors}")
            start += 1
        place.close()


def _done(ended: Ended) -> list[str]:
    lines = [line for line in ended.output.splitlines() if line.startswith('{"trouble"')]
    return [json.loads(line)["trouble"] for line in lines]


def _play(batch: Sequence[Trial], place: mmap.mmap) -> int:
    def time_is_up(number: int, frame: FrameType | None) -> None:
        raise _TimeIsUpError

    signal.signal(signal.SIGALRM, time_is_up)
    num_files, memory = 0, 0
    for number, trial in enumerate(batch):
        place[:8] = struct.pack("q", number)
        try:
            signal.alarm(_SECONDS)
            trouble = trial.act()
            signal.alarm(0)
        except _TimeIsUpError:
            trouble = f"not done after {_SECONDS} s"
        except Exception as error:
            signal.alarm(0)
            trouble = f"{type(error).__name__}: {str(error)[:200]!a}"
        if number == 0:  # what is loaded when it is first used is loaded now
            num_files, memory = _num_files(), _megabytes()
        elif number == len(batch) - 1 and (more := _num_files() - num_files) > 0:
            trouble = (
                trouble or f"{more} files are left open by this or an earlier trial of a batch"
            )
        elif number == len(batch) - 1 and (grown := _megabytes() - memory) > _MEGABYTES:
            trouble = trouble or f"the process has grown by {grown} MB in a batch"
        print(json.dumps({"trouble": trouble}), flush=True)
    return 0


def _num_files() -> int:
    gc.collect()  # of maps that nobody uses any more
    return len(os.listdir("/proc/self/fd"))


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
