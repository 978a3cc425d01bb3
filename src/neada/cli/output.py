"""What the commands share: messages, JSON, paths and figures."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neada.checks import printable
from neada.runs import atomic_write, encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "absolute_path",
    "complain",
    "figure_path",
    "is_first_rank",
    "plain_warnings",
    "print_json",
    "save_figure",
]


def is_first_rank() -> bool:
    """Whether this process is rank 0 of `torchrun`, or was not started by it."""
    return os.environ.get("RANK", "0") == "0"


def complain(message: str) -> None:
    """Write a message to stderr, in one line."""
    rank = "" if is_first_rank() else f"rank {os.environ['RANK']}: "
    with contextlib.suppress(OSError):
        sys.stderr.write(f"neada: {rank}{printable(message, 1000)}\n")


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as messages, without the line of the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: complain(str(message))
        yield


def print_json(content: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(encode(content), indent=2))


def absolute_path(option: str, path: str) -> Path:
    """Return the absolute path; raise ValueError if the path is empty."""
    if not path:
        raise ValueError(f"{option} is empty: give a path")
    return Path(path).expanduser().absolute()


def figure_path(option: str, path: str) -> Path:
    """Return the absolute path; raise ValueError unless it ends in .png or .svg."""
    found = absolute_path(option, path)
    if found.suffix not in (".png", ".svg"):
        raise ValueError(f"{option} must be a .png or .svg file, got {path!r}")
    return found


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
