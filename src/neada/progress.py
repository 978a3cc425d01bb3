"""The progress of a long job: a bar on a terminal or in a notebook, log lines elsewhere."""

import contextlib
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["can_be_seen", "progress_bar"]

_LOG_SECONDS = 30.0
_LAYOUT = "{desc:22} {percentage:3.0f}%|{bar}| {elapsed} < {remaining}"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(get_shell(), "kernel")  # a shell on a terminal has none


def can_be_seen() -> bool:
    """Whether stderr can show a line that is overwritten: a terminal or a notebook."""
    return sys.stderr.isatty() or in_notebook()


@contextlib.contextmanager
def progress_bar(
    wanted: bool = True, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[float, str], None]]:
    """Show the progress of a long job on stderr.

    On a terminal and in a notebook it is a bar. Elsewhere, and without tqdm, it is a line every 30
    seconds.

    Args:
        wanted: Whether to show anything.
        clock: Returns the time in seconds.

    Yields:
        A function of the completed part, from 0 to 1, and a short description.
    """
    if not wanted:
        yield lambda part, words: None
        return
    if not can_be_seen():
        yield _log(clock)
        return
    try:
        with warnings.catch_warnings():
            # tqdm warns if the notebook's widgets are missing.
            warnings.simplefilter("ignore")
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        sys.stderr.write("for a progress bar: pip install 'neada[cli]'\n")
        yield _log(clock)
        return
    with tqdm(total=1.0, bar_format=_LAYOUT, file=sys.stderr, dynamic_ncols=True) as bar:

        def show(part: float, words: str) -> None:
            bar.set_description_str(words, refresh=False)
            bar.update(part - bar.n)

        yield show


def _log(clock: Callable[[], float]) -> Callable[[float, str], None]:
    """Return a function that writes at most one line every 30 seconds."""
    started = last = clock()

    def show(part: float, words: str) -> None:
        nonlocal last
        now = clock()
        if now - last >= _LOG_SECONDS:
            last = now
            with contextlib.suppress(OSError):  # stderr is closed
                sys.stderr.write(f"neada: {now - started:.0f} s, {part:.0%} done, {words}\n")
                sys.stderr.flush()

    return show
