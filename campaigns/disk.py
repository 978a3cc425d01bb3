"""A disk that counts what is done to it, and ends the process, fails or dawdles at a chosen moment.

The functions of Python that change files are replaced in this process, which is a child that ends
soon. An operation is the opening of a file for writing, a write, a truncation, a sync, a new name,
a removal, a new folder.
"""

import builtins
import errno
import io
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

__all__ = ["Disk"]

Mode = Literal["count", "kill", "term", "full", "read-only", "slow"]
_GROWS = ("open", "write", "mkdir", "posix_fallocate")


class Disk:
    """Stands between this process and the files below a folder.

    Args:
        folder: Only operations on names in it count, and all syncs.
        mode: "count" does no harm; "kill" ends the process with SIGKILL at operation `at`, in the
            middle of it if it is a write; "term" sends SIGTERM there; from operation `at` on there
            is no space ("full") or nothing may be changed ("read-only"); "slow" sleeps in syncs.
        at: The number of an operation, from 1.

    Attributes:
        num_operations: So far.
    """

    def __init__(self, folder: Path, mode: Mode = "count", at: int = 1) -> None:
        self.folder, self.mode, self.at = str(folder), mode, at
        self.num_operations = 0

    def install(self) -> None:
        """Take the place of what Python has; there is no way back."""
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "truncate"):
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        for name in ("fsync", "fdatasync", "posix_fallocate"):
            setattr(os, name, self._wrapped(name, getattr(os, name), by_path=False))
        os_open = os.open

        def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._is_inside(path):
                self.operation("open")
            return os_open(path, flags, *args, **kwargs)

        os.open = open_descriptor
        io.open = builtins.open = self._make_open(builtins.open)

    def operation(self, name: str, half: Callable[[], object] | None = None) -> None:
        """Count an operation, and do what the mode wants.

        Args:
            name: Of the operation.
            half: Does a part of it, for a process that ends in the middle.
        """
        self.num_operations += 1
        if self.mode == "slow" and name == "fsync":
            time.sleep(0.01)
        if self.num_operations < self.at:
            return
        if self.mode in ("kill", "term") and self.num_operations == self.at:
            if self.mode == "kill" and half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL if self.mode == "kill" else signal.SIGTERM)
        if self.mode == "full" and name in _GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.mode == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder)

    def _wrapped(
        self, name: str, function: Callable[..., Any], by_path: bool = True
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not by_path or self._is_inside(args[0]):
                self.operation(name)
            return function(*args, **kwargs)

        return call

    def _make_open(self, plain_open: Callable[..., Any]) -> Callable[..., Any]:
        disk = self

        class File(io.FileIO):
            def write(self, content: Any) -> int:
                half = memoryview(content)[: len(content) // 2]
                disk.operation("write", lambda: io.FileIO.write(self, half))
                return super().write(content)

            def truncate(self, size: int | None = None) -> int:
                disk.operation("truncate")
                return super().truncate(size)

        def open_file(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if not set(mode) & set("wxa+") or not disk._is_inside(file):
                return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            disk.operation("open")
            raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return binary
            return io.TextIOWrapper(binary, encoding, errors, newline, line_buffering=False)

        return open_file
