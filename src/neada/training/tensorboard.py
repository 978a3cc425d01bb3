"""The rows of a training run as a log of TensorBoard."""

import contextlib
import importlib
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["TensorBoardLog", "tensorboard_module"]


def tensorboard_module(module: str) -> Any:
    """A module of TensorBoard, or advice where it is not installed."""
    try:
        return importlib.import_module(f"tensorboard.{module}")
    except ImportError as error:
        raise ImportError("tensorboard is missing: pip install 'neada[tensorboard]'") from error


class TensorBoardLog:
    """A log that ends with a warning, not with an error, when it cannot be written.

    Rows are written at once: the usual writer has a thread, whose errors would not be seen.

    Args:
        folder: Where it is.
        purge_step: TensorBoard ignores what earlier logs have from this step on.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        self._proto = tensorboard_module("compat.proto.event_pb2")
        self._records: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / f"events.out.tfevents.{time.time():017.6f}.neada").open("xb")
        except OSError as error:
            self._end(error)
            return
        self._records = tensorboard_module("summary.writer.record_writer").RecordWriter(file)
        self._write([self._proto.Event(wall_time=time.time(), file_version="brain.Event:2")])
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write([self._event(purge_step, session_log=start)])

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the numbers of a row at its calls."""
        make = tensorboard_module("compat.proto.summary_pb2").Summary
        values = [
            make.Value(tag=name, simple_value=number)
            for name, number in row.items()
            if name != "calls"
        ]
        self._write([self._event(row["calls"], summary=make(value=[value])) for value in values])

    def close(self) -> None:
        """Let go of the file."""
        if self._records is not None:
            with contextlib.suppress(OSError):
                self._records.close()
            self._records = None

    def _event(self, step: int, **content: Any) -> Any:
        return self._proto.Event(wall_time=time.time(), step=step, **content)

    def _write(self, events: Iterable[Any]) -> None:
        if self._records is None:
            return
        try:
            for event in events:
                self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        self.close()
        warnings.warn(f"TensorBoard's log ends here: {error.strerror or error}", stacklevel=2)
