"""Progress on a terminal; silence elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """A bar for the whole of a long job, told which part is done and what is at work."""
    if quiet or not sys.stderr.isatty():
        yield lambda part, words: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        sys.stderr.write("for a progress bar: pip install 'neada[cli]'\n")
        yield lambda part, words: None
        return
    layout = "{desc:22} {percentage:3.0f}%|{bar}| {elapsed} < {remaining}"
    with tqdm(total=1.0, bar_format=layout, file=sys.stderr, dynamic_ncols=True) as bar:

        def show(part: float, words: str) -> None:
            bar.set_description_str(words, refresh=False)
            bar.update(part - bar.n)

        yield show
