"""Arguments as users type them, with one sentence for what is wrong; and the progress bar."""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from neada.checks import not_one_of

__all__ = [
    "Commands",
    "Parser",
    "UsageError",
    "add_output_options",
    "check_choice",
    "natural",
    "numbers",
    "output_folder",
    "positive",
    "progress_bar",
]


class UsageError(Exception):
    """What the user asked for makes no sense; the message is the one sentence to show."""


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one sentence and exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"formatter_class": layout, "allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Say what is wrong; no usage dump."""
        raise UsageError(f"{message.removeprefix('argument ')} (see `{self.prog} --help`)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            name = action.metavar or "/".join(action.option_strings) or action.dest
            raise UsageError(not_one_of(str(name), value, choices))


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Raise a usage error with the nearest name unless the value is one of the choices."""
    if value not in choices:
        raise UsageError(not_one_of(what, value, choices))


def natural(what: str) -> Callable[[str], int]:
    """A parser of whole numbers from 1 up."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise UsageError(f"{what} must be a whole number, got {text!r}") from None
        if number < 1:
            raise UsageError(f"{what} must be at least 1, got {number}")
        return number

    return parse


def positive(what: str, or_zero: bool = False) -> Callable[[str], float]:
    """A parser of positive numbers, perhaps with zero."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"{what} must be a number, got {text!r}") from None
        if not (math.isfinite(number) and (number > 0.0 or (or_zero and number == 0.0))):
            words = "at least 0" if or_zero else "positive"
            raise UsageError(f"{what} must be {words} and finite, got {text}")
        return number

    return parse


def numbers(what: str) -> Callable[[str], tuple[float, ...]]:
    """A parser of non-negative numbers with commas between them."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            found = tuple(float(part) for part in text.split(",") if part.strip())
        except ValueError:
            raise UsageError(f"{what} must be numbers with commas between, got {text!r}") from None
        if not found or not all(0.0 <= number < float("inf") for number in found):
            raise UsageError(f"{what} must be finite numbers, at least 0, got {text!r}")
        if len({f"{number:g}" for number in found}) < len(set(found)):
            raise UsageError(f"{what} must differ in six digits, got {text!r}")
        return found

    return parse


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress, only the result")


def output_folder(path: Path) -> Path:
    """A folder that can be written to; it need not exist yet, and is not made here."""
    folder = path.expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{path} is a file: give a folder with --out")
    nearest = folder
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise UsageError(f"{nearest} is a file, so there can be no folder {path}: choose another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"{nearest} cannot be written to: choose another folder with --out")
    return folder


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
