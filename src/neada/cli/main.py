"""The entry point: parse, run one command, turn trouble into one sentence and an exit code."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

import neada
from neada.cli.arguments import Parser, UsageError
from neada.cli.attack import add_attack, add_certify
from neada.cli.data import add_data
from neada.cli.reproduce import add_report, add_reproduce
from neada.cli.solve import add_lists, add_solve
from neada.cli.train import add_train

__all__ = ["main", "make_parser"]

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


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="neada", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"neada {neada.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="name", title="commands")
    add_reproduce(commands)
    add_report(commands)
    add_train(commands)
    add_attack(commands)
    add_certify(commands)
    add_data(commands)
    add_solve(commands)
    add_lists(commands)
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Print a completion script. Load it with `source <(neada completion bash)`.",
    )
    completion.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), metavar="SHELL", help="bash, zsh or tcsh"
    )
    completion.set_defaults(command=_completion)
    return parser


def _completion(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise UsageError("completion needs shtab: pip install 'neada[cli]'") from error
    print(shtab.complete(make_parser(), args.shell))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 ran, 1 ran and failed, 2 wrong usage, 130 interrupted.
    """
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
        # Whoever read us has had enough; nothing more may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
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
    sys.stderr.write(f"neada: {sentence}\n")
    return code


def _disk_trouble(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}; nothing that was finished is lost"
