"""SIGINT and SIGTERM during training."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from neada import parallel

__all__ = ["Interruption", "listening"]


class Interruption:
    """Whether SIGINT or SIGTERM has been received."""

    received = False


@contextlib.contextmanager
def listening(active: bool) -> Iterator[Interruption]:
    """Let SIGINT and SIGTERM set a flag; a second signal has its usual effect.

    Ignored signals stay ignored, and outside the main thread nothing is changed. With several ranks
    a second signal does nothing, since `torchrun` repeats the signal of the terminal.
    """
    interruption = Interruption()
    if not active or threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        interruption.received = True
        if not parallel.is_active():
            restore()

    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, receive)
    try:
        yield interruption
    finally:
        restore()
