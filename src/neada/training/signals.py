"""Signals that ask a run to stop: heard, and answered when the batch is done."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["Stop", "listening"]


class Stop:
    """Whether somebody asked to stop.

    Attributes:
        asked: True once a signal has come.
    """

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """The same as `asked`."""
        return self.asked


@contextlib.contextmanager
def listening(active: bool) -> Iterator[Stop]:
    """Let SIGINT and SIGTERM only set a flag; a second one acts as usual.

    Signals that are ignored stay ignored, and outside of the main thread, where Python has no
    handlers, nothing is changed.

    Args:
        active: Whether to listen at all.
    """
    stop = Stop()
    if not active or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

    def hear(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        restore()

    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, hear)
    try:
        yield stop
    finally:
        restore()
