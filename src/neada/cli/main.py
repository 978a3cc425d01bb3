"""The entry point: parse the arguments, run a command, return an exit code."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import neada
from neada.cli.attack import attack, certify
from neada.cli.data import data
from neada.cli.output import complain, is_first_rank
from neada.cli.solve import info, methods, problems, solve
from neada.cli.train import train, with_saved_config

__all__ = ["COMMANDS", "main"]

_DESCRIPTION = """\
Min-max optimization and robust training without problem constants.

Exit codes: 0 success, 1 the command ran and failed, 2 bad usage, 130 interrupted."""

COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "attack": attack,
    "certify": certify,
    "data": data,
    "solve": solve,
    "methods": methods,
    "problems": problems,
    "info": info,
}

_PATH_ERRORS = (
    *(FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError),
    PermissionError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 success, 1 ran and failed, 2 bad usage, 130 interrupted.
    """
    os.environ["MPLBACKEND"] = "agg"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have any characters
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.nullcontext() if is_first_rank() else _silence():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
        _flush()
    except BrokenPipeError:
        return 0  # `neada methods | head`
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except (ValueError, TypeError, ImportError, *_PATH_ERRORS) as error:
        complain(str(error))
        return 2
    except OSError as error:
        complain(str(error))
        return 1
    return code


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"neada {neada.__version__}")
        return 0
    try:
        import tyro
    except ImportError:
        raise ImportError("the command line requires tyro: pip install 'neada[cli]'") from None
    name, options = (arguments or [""])[0], arguments[1:]
    settings: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,)}
    try:
        if name in COMMANDS:
            command = with_saved_config(options) if name == "train" else COMMANDS[name]
            code: int = tyro.cli(command, prog=f"neada {name}", args=options, **settings)
        else:  # the help, shell completion, or a mistake
            code = tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="neada", description=_DESCRIPTION, args=arguments, **settings
            )
    except SystemExit as end:
        code = int(end.code or 0)
    return code


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard the output of a rank other than 0."""
    with (
        open(os.devnull, "w", encoding="utf-8") as null,
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        yield


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        # Otherwise Python tries again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
