"""The entry point: parse, run one command, turn trouble into one sentence and an exit code."""

import argparse
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TextIO

import neada
from neada.cli.arguments import Parser, UsageError, complain, rank_of_launch

__all__ = ["COMMANDS", "add_completion", "main", "make_parser"]

_DESCRIPTION = """\
Solve min_x max_y f(x, y) without asking anyone for the problem's constants, and judge the claims
of the paper behind it (Yang, Li & He, NeurIPS 2022)."""
_EPILOG = """\
examples:
  neada reproduce                  run every experiment at its smallest scale, and the report
  neada train                      train a network robustly on real digits
  neada solve mccormick            solve a test problem
  neada methods                    what each method needs to know
  neada completion bash            completion for your shell: source <(neada completion bash)

`neada COMMAND --help` explains a command."""


# In the order of the help: the module of neada.cli whose `add_NAME` fills the parser, and words.
COMMANDS = {
    "reproduce": ("reproduce", "run the paper's experiments and judge its claims"),
    "report": ("reproduce", "judge and draw a reproduction anew, without running anything"),
    "train": ("train", "train a network robustly"),
    "attack": ("attack", "measure the accuracy of a trained run under attack"),
    "certify": ("attack", "bound the loss of a trained run under every shift of its data"),
    "data": ("data", "show where a data set is and what is in it"),
    "solve": ("solve", "solve a problem of the zoo"),
    "methods": ("solve", "list the methods and what each needs to know"),
    "problems": ("solve", "list the problems of the zoo"),
    "info": ("solve", "show versions, threads and devices"),
    "completion": ("main", "print a completion script for a shell"),
}


def make_parser(*, complete: bool = False) -> Parser:
    """The whole command line.

    Args:
        complete: Fill the parsers of all commands now, not each when it is used.
    """
    parser = Parser(prog="neada", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"neada {neada.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="name", title="commands")
    for name, (_, words) in COMMANDS.items():
        command = commands.add_parser(name, help=words, description=f"{words.capitalize()}.")
        command.fill = partial(_fill, name)
        if complete:
            command.filled()
    return parser


def _fill(name: str, parser: Parser) -> None:
    module = importlib.import_module(f"neada.cli.{COMMANDS[name][0]}")
    getattr(module, f"add_{name}")(parser)


def add_completion(parser: Parser) -> None:
    """Fill the command `completion`."""
    parser.description = (
        "Print a completion script. Load it with `source <(neada completion bash)`."
    )
    parser.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh"
    )
    parser.set_defaults(command=_completion)


def _completion(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise UsageError("completion needs shtab: pip install 'neada[cli]'") from error
    print(shtab.complete(make_parser(complete=True), args.shell))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 ran, 1 ran and failed, 2 wrong usage, 130 interrupted.
    """
    _prepare_streams()
    os.environ["MPLBACKEND"] = "agg"  # figures go to files, whatever a shell has set for windows
    try:
        return _run(arguments)
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)


def _prepare_streams() -> None:
    """Let nothing go wrong with streams that are closed, or do not know a character of a path."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # Python has None for a stream that is closed
            os.set_inheritable(null, True)  # no file of a worker shall get its number
            setattr(sys, name, os.fdopen(null, "r" if name == "stdin" else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush(stream: TextIO) -> None:
    """Write what is left; if it cannot be written, nothing more is tried at the exit."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        args = make_parser().parse_args(arguments)
        if args.name is None:
            raise UsageError("no command given: `neada --help` lists them")
        with _terminating_like_ctrl_c():
            code: int = args.command(args)
            sys.stdout.flush()
        return code
    except UsageError as error:
        return _complain(str(error), 2)
    except ImportError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted; what is finished is kept, the same command goes on", 130)
    except BrokenPipeError:
        return 0  # the reader of our output has gone
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # of a variable; flags are looked at before
            return _complain(f"{error.strerror}: give a shorter one than {error.filename}", 2)
        return _complain(_disk_trouble(error), 1)


@contextlib.contextmanager
def _terminating_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that no worker process is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(sentence: str, code: int) -> int:
    place = rank_of_launch()
    complain(f"rank {place}: {sentence}" if place else sentence)
    return code


def _disk_trouble(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}; nothing that was finished is lost"
