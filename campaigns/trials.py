"""What all kinds of trials share: counts, children that have everything imported, sentences."""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["HANG", "Child", "Ended", "Tally", "group_members", "in_child", "one_sentence", "words"]

HANG = 1000
"""The exit code of a child that had to be ended because its time was up."""
_CRASH = 70


@dataclass
class Tally:
    """Trials of one kind.

    Attributes:
        kind: Their name.
        num_tried: How many there were.
        failures: What reproduces each one that failed, and how it failed.
    """

    kind: str
    num_tried: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, what: str, trouble: str) -> None:
        """Take a trial into account; trouble is empty where it passed."""
        self.num_tried += 1
        if trouble:
            self.failures.append(f"{what}: {trouble}")
            print(f"FAILED {self.kind}: {what}: {trouble}", flush=True)


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, minus the signal, or `HANG`; and what it wrote."""

    code: int
    output: str
    errors: str


class Child:
    """A function in a forked process, with its own process group and its own standard streams.

    Args:
        function: Its return value is the exit code.
    """

    def __init__(self, function: Callable[[], int | None]) -> None:
        self._files = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function)

    def _run(self, function: Callable[[], int | None]) -> None:
        code: int | None = _CRASH
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, file in enumerate(self._files, start=1):
                os.dup2(file.fileno(), number)
            code = function()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else _CRASH
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code or 0)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 60.0) -> Ended:
        """Wait for its end; a child that takes longer is killed."""
        deadline, pause = time.monotonic() + seconds, 0.001
        code = None
        while code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                code = HANG
            else:
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Ended(code, *texts)


def in_child(function: Callable[[], int | None], seconds: float = 60.0) -> Ended:
    """Call a function in a child and wait for it."""
    return Child(function).wait(seconds)


def group_members(leader: int) -> list[int]:
    """The processes of the group that a child leads, zombies aside."""
    return [pid for pid, state, group in _processes() if group == leader and state != "Z"]


def _processes() -> Iterator[tuple[int, str, int]]:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                facts = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            yield int(path.name), facts[0], int(facts[2])


def one_sentence(text: str) -> str:
    """What is wrong with an error message; empty if it is short, printable and on one line."""
    if not text:
        return "an error without words"
    if len(text) >= 1000:
        return f"a message of {len(text)} characters"
    if not text.isprintable():
        return f"a message that is not printable: {text[:200]!a}"
    return ""


def words(ended: Ended, *, needed: bool = False) -> str:
    """What is wrong with what a command wrote to standard error.

    Args:
        ended: How it ended.
        needed: Whether it had to say something.
    """
    if "Traceback" in ended.errors:
        return f"a traceback: {ended.errors[-300:]!a}"
    lines = ended.errors.splitlines()
    if needed and not lines:
        return f"exit code {ended.code} without a word"
    for line in lines:
        if not line.startswith("neada: "):
            return f"a line that is no sentence of neada: {line[:200]!a}"
        if trouble := one_sentence(line):
            return trouble
    return ""
