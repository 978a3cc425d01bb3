"""The metrics for TensorBoard too: an extra, whose failures do not end a training."""

import importlib
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["TensorBoardLog", "check_installed"]


def check_installed() -> Any:
    """The class that writes the log; raises with advice where it is not installed."""
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise ImportError("tensorboard is missing: pip install 'neada[tensorboard]'") from error


class TensorBoardLog:
    """A log that ends with a warning, not with an error, when it cannot be written.

    Args:
        folder: Where it is.
        purge_step: From here on an earlier log counts no more; None if there was none.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        self._writer = check_installed()(folder, purge_step=purge_step)
        # It writes in a thread of its own, whose errors reach us with the next row.
        self._usual_hook, threading.excepthook = threading.excepthook, self._hear

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the numbers of a row at its calls."""
        if self._writer is None:
            return
        try:
            for name, number in row.items():
                if name != "calls":
                    self._writer.add_scalar(name, number, row["calls"])
            self._writer.flush()
        except OSError as error:
            self._writer = None
            warnings.warn(f"TensorBoard's log ends here: {error.strerror or error}", stacklevel=2)

    def close(self) -> None:
        """Let go of the file."""
        threading.excepthook = self._usual_hook
        if self._writer is not None:
            self._writer.close()

    def _hear(self, failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, OSError):
            self._usual_hook(failure)
