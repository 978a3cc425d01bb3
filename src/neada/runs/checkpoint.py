"""Checkpoints that are whole or not there, the last two of them."""

import contextlib
import errno
import hashlib
import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from neada.runs.files import replacing

__all__ = ["Checkpoints"]

_NAME = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{16})\.pt")


class Checkpoints:
    """The checkpoints in a folder: written atomically, numbered, with a checksum in their names.

    A checkpoint is on disk before it gets its name, and those before it are removed only then, so
    that a crash, or a full disk, leaves the ones that were there. States are tensors, numbers,
    strings and None in dictionaries and lists: they are read with ``weights_only=True``, which
    runs no code from the file, and ``torch.load`` reads them as well.

    Args:
        folder: Where they are; it must exist when one is saved.
        num_kept: How many to keep.

    Example:
        >>> import tempfile
        >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
        >>> for t in range(5):
        ...     path = checkpoints.save({"t": t, "weight": torch.ones(2)})
        >>> len(checkpoints.paths()), checkpoints.load()["t"]
        (2, 4)
    """

    def __init__(self, folder: Path, num_kept: int = 2) -> None:
        if num_kept < 1:
            raise ValueError(f"num_kept must be at least 1, got {num_kept}")
        self.folder = Path(folder)
        self.num_kept = num_kept
        self._whole: list[Path] = []

    def paths(self) -> list[Path]:
        """The checkpoints, oldest first, whole or not."""
        try:
            found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(found)

    def save(self, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint; only then are older ones removed.

        Raises:
            OSError: It could not be written, because the disk is full for example; the
                checkpoints that were there still are.
        """
        content = io.BytesIO()
        torch.save(dict(state), content)
        known = self.paths()
        number = _number(known[-1]) + 1 if known else 1
        path = self.folder / f"checkpoint-{number:08d}-{_checksum(content.getbuffer())}.pt"
        try:
            with replacing(path) as file:
                file.write(content.getbuffer())
        except OSError as error:
            if error.errno == errno.ENOSPC:
                sentence = "the disk is full, so there is no new checkpoint; free some space and"
                raise OSError(errno.ENOSPC, f"{sentence} resume", str(path)) from error
            raise
        self._whole = [*self._whole, path][-self.num_kept :]
        self._tidy(keep=set(self._whole))
        return path

    def load(self) -> dict[str, Any] | None:
        """The state of the newest checkpoint that is whole; None if there is none at all.

        A damaged one is passed over with a warning.

        Raises:
            ValueError: There are checkpoints, but none is whole.
        """
        paths = self.paths()
        for path in reversed(paths):
            state = _read(path)
            if state is not None:
                self._whole = [path]
                return state
            warnings.warn(f"{path} is damaged; the checkpoint before it is used", stacklevel=2)
        if paths:
            raise ValueError(f"no checkpoint in {self.folder} is whole: start again")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._whole = []
        self._tidy(keep=set())

    def _tidy(self, keep: set[Path]) -> None:
        """Remove other checkpoints, and what a process that was killed left half-written."""
        for path in (*self.paths(), *self.folder.glob(".checkpoint-*")):
            if path not in keep:
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """A checkpoint's state; None if the file is not what was written."""
    name = _NAME.fullmatch(path.name)
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
    if name is None or _checksum(content) != name[2]:
        return None
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch raises a dozen kinds for content it does not accept
        return None
    return state if isinstance(state, dict) else None


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _number(path: Path) -> int:
    name = _NAME.fullmatch(path.name)
    assert name is not None
    return int(name[1])
