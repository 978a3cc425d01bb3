"""Flags as users type them, with one sentence for what is wrong."""

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from neada.checks import check_path, environment_number, nearest, not_one_of, printable
from neada.training.config import Option

__all__ = [
    "DOWNLOAD",
    "Parser",
    "UsageError",
    "add_flag",
    "add_output_options",
    "check_choice",
    "complain",
    "in_flags",
    "output_file",
    "output_folder",
    "plain_warnings",
    "rank_of_launch",
    "read_path",
    "refusals",
    "was_restarted",
]


_LONGEST = 1000
_LONGEST_FILE = 235  # of 255, since the temporary file has a longer name


DOWNLOAD = Option("download", "allow to download missing data", False, bool)
"""Applies to the command that it is given to; a run folder does not record it."""


def complain(sentence: str) -> None:
    """Say something on stderr in one line, whatever it quotes, and if anybody is left to read."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"neada: {printable(sentence, _LONGEST)}\n")


class UsageError(Exception):
    """What the user asked for makes no sense; the message is the one sentence to show."""


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one sentence and exit code 2.

    Attributes:
        fill: Adds what the parser takes, when it is first used; a command that is not asked for
            need not be imported.
    """

    def __init__(self, **kwargs: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"formatter_class": layout, "allow_abbrev": False, **kwargs})
        self.fill: Callable[[Parser], None] | None = None

    def filled(self) -> "Parser":
        """The parser with all that it takes."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in `argparse`, but what is not known is a mistake here already."""
        namespace, rest = super(Parser, self.filled()).parse_known_args(args, namespace)
        if rest:
            near = nearest(rest[0].split("=")[0], self._option_string_actions)
            advice = "" if near is None else f"; did you mean {near}?"
            self.error(f"unrecognized arguments: {' '.join(rest)}{advice}")
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Say what is wrong; no usage dump."""
        raise UsageError(f"{message.removeprefix('argument ')} (see `{self.prog} --help`)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None:
            name = action.metavar or "/".join(action.option_strings) or action.dest
            check_choice(str(name), value, action.choices)


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise a usage error with the nearest name unless the value is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise UsageError(not_one_of(what, value, choices))


_METAVARS = {int: "N", float: "X", tuple: "X,X", str: "NAME"}


def add_flag(
    parser: "argparse._ActionsContainer", option: Option, *, or_none: bool = False
) -> None:
    """Add the flag of an option.

    Args:
        parser: Takes it.
        option: Its name, words, kind, choices and range.
        or_none: Leave None where the flag is not given, instead of the default.
    """
    default = None if or_none else option.default
    if option.kind is bool:
        switch: Any = argparse.BooleanOptionalAction if option.default is not False else None
        action = switch or "store_true"
        parser.add_argument(option.flag, action=action, default=default, help=option.words)
        return
    shown = option.default
    if isinstance(shown, tuple):
        shown = ",".join(f"{number:g}" for number in shown)
    elif isinstance(shown, float):
        shown = f"{shown:g}"

    def parse(text: str) -> Any:
        with refusals():
            if option.name.endswith("folder"):
                check_path(option.flag, text)
            return option.parse(text)

    choices = tuple(option.choices) if option.choices and not option.or_file else None
    metavar = "DIR" if option.name.endswith("folder") else _METAVARS[option.kind]
    parser.add_argument(
        option.flag,
        type=parse,
        choices=choices,
        default=default,
        metavar=None if choices else metavar,
        help=option.words + ("" if shown is None else f" (default: {shown})"),
    )


@contextlib.contextmanager
def refusals(names: Collection[str] = ()) -> Iterator[None]:
    """What the library refuses is wrong usage; the sentence speaks of flags instead of arguments.

    Args:
        names: The names of arguments that have a flag.
    """
    try:
        yield
    except ValueError as error:
        raise UsageError(in_flags(str(error), names)) from error


def in_flags(sentence: str, names: Collection[str]) -> str:
    """A sentence about arguments as one about flags.

    Args:
        sentence: What the library says.
        names: The names of arguments that have a flag. A download, which only some commands do,
            is left to `neada data` where it is not among them.

    Example:
        >>> in_flags("stop='released' fits no per_sample=True", ["stop", "per_sample"])
        '--stop released fits no --per-sample'
        >>> in_flags("lr_y must be a number", ["lr_y"])
        '--lr-y must be a number'
    """
    if "download" not in names:
        sentence = sentence.replace("download=True", "`neada data NAME --download`")
    for name in sorted(names, key=len, reverse=True):
        flag = "--" + name.replace("_", "-")
        sentence = re.sub(rf"\b(?<!-){name}=True\b", flag, sentence)
        sentence = re.sub(rf"\b(?<!-){name}='?([^\s',:;]+)'?", rf"{flag} \1", sentence)
        # A name that is also a word is one only where a sentence is about it.
        place = r"\b(?<!-)" if "_" in name else "^"
        sentence = re.sub(rf"{place}{name}\b(?!=)", flag, sentence)
    return sentence


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress, only the result")


def read_path(flag: str, text: str) -> Path:
    """A path as it was typed after a flag, with ~ for the user's folder."""
    with refusals():
        return check_path(flag, os.path.expanduser(text))


def output_folder(path: Path) -> Path:
    """A folder that can be written to; it need not exist yet, and is not made here."""
    folder = path.absolute()
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{path} is a file: give a folder with --out")
        nearest = folder
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.is_dir():
            sentence = f"{nearest} is a file, so there can be no folder {path}: choose another"
            raise UsageError(sentence)
    except OSError as error:
        sentence = f"there can be no folder {path} ({error.strerror or error}): choose another"
        raise UsageError(sentence) from error
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"{nearest} cannot be written to: choose another folder with --out")
    return folder


def output_file(path: Path, flag: str, kinds: Collection[str]) -> None:
    """Raise a usage error unless a file of one of some kinds can be written there."""
    if path.suffix not in kinds:
        raise UsageError(f"{flag} writes {' or '.join(kinds)}, not {path.suffix or path}")
    if len(os.fsencode(path.name)) > _LONGEST_FILE:
        raise UsageError(f"{flag} takes names of at most {_LONGEST_FILE} bytes, not {path.name}")
    output_folder(path.parent)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a file with {flag}")


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as sentences, without the place in the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: complain(str(message))
        yield


def rank_of_launch() -> int:
    """The number that torchrun gave this process; 0 without it."""
    with contextlib.suppress(ValueError):  # training says so
        return environment_number("RANK", 0)
    return 0


def was_restarted() -> bool:
    """Whether torchrun has started this process again after a failure."""
    with contextlib.suppress(ValueError):
        return environment_number("TORCHELASTIC_RESTART_COUNT", 0) > 0
    return False
