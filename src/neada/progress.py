"""A progress bar for a long job, on a terminal or in a notebook."""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["can_be_seen", "progress_bar"]

_LAYOUT = "{desc:22} {percentage:3.0f}%|{bar}| {elapsed} < {remaining}"


def in_notebook() -> bool:
    """Whether this process computes for a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(get_shell(), "kernel")  # a shell on a terminal has none


def can_be_seen() -> bool:
    """Whether somebody sees a line that is written again and again."""
    return sys.stderr.isatty() or in_notebook()


@contextlib.contextmanager
def progress_bar(wanted: bool = True) -> Iterator[Callable[[float, str], None]]:
    """A bar for the whole of a long job.

    Args:
        wanted: Whether there is to be one; there is none either where nobody would see it.

    Yields:
        A function of the part that is done, from 0 to 1, and of a few words on what is at work.
    """
    if not (wanted and can_be_seen()):
        yield lambda part, words: None
        return
    try:
        with warnings.catch_warnings():
            # Without the notebook's widgets the bar is one of characters.
            warnings.simplefilter("ignore")
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        sys.stderr.write("for a progress bar: pip install 'neada[cli]'\n")
        yield lambda part, words: None
        return
    with tqdm(total=1.0, bar_format=_LAYOUT, file=sys.stderr, dynamic_ncols=True) as bar:

        def show(part: float, words: str) -> None:
            bar.set_description_str(words, refresh=False)
            bar.update(part - bar.n)

        yield show
