"""The progress of a long job: a bar on a terminal or in a notebook, rare updates elsewhere."""

import contextlib
import importlib
import sys
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
def progress_bar(wanted: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Show the progress of a long job on stderr, with tqdm.

    Where stderr is neither a terminal nor a notebook, the bar is written every 30 seconds.

    Args:
        wanted: Whether to show anything.

    Yields:
        A function of the completed part, from 0 to 1, and a short description.

    Raises:
        ImportError: tqdm is not installed.
    """
    if not wanted:
        yield lambda part, words: None
        return
    try:
        tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ImportError("a progress bar requires tqdm: pip install 'neada[cli]'") from error
    options: dict[str, Any] = {"bar_format": _LAYOUT, "file": sys.stderr, "dynamic_ncols": True}
    options["miniters"] = 0  # the words change also while the completed part does not
    if not can_be_seen():
        options |= {"mininterval": _LOG_SECONDS, "delay": _LOG_SECONDS}
    with tqdm(total=1.0, **options) as bar:

        def show(part: float, words: str) -> None:
            bar.set_description_str(words, refresh=False)
            bar.update(part - bar.n)

        yield show
