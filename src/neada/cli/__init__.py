"""The command line: the same functions from a shell."""

from neada.cli.main import main

__all__ = ["main"]
