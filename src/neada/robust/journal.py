"""A file of rows that were put since the last commit: rows, then their ids, then a seal.

Rows are written through the file system, not through a map of it: a full disk is then an
`OSError`, and not the end of the process.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = ["Array", "Journal", "sync_directory", "write_rows"]

_SEAL = struct.Struct("<8sqq")
_MAGIC = b"neadaput"

Array = np.ndarray[Any, Any]


class Journal:
    """Rows by id, the last one that was put.

    Args:
        path: The file.
        shape: The number of samples, and the shape of each.
        dtype: The dtype of the rows.
    """

    def __init__(self, path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.path = path
        self._row = np.empty(shape[1:], dtype=dtype)
        self._slots = np.full(shape[0], -1, dtype=np.int64)
        self._ids: list[Array] = []
        self.num_rows = 0

    @classmethod
    def begin(cls, path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> "Journal":
        """An empty journal in a new file."""
        path.write_bytes(b"")
        return cls(path, shape, dtype)

    @classmethod
    def load(cls, path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> "Journal | None":
        """A finished journal; None if the file is not a complete one of such rows."""
        journal = cls(path, shape, dtype)
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - _SEAL.size))
            seal = file.read()
            if len(seal) != _SEAL.size:
                return None
            magic, num_rows, checksum = _SEAL.unpack(seal)
            expected = num_rows * (journal._row.nbytes + 8) + _SEAL.size
            if magic != _MAGIC or num_rows < 0 or size != expected:
                return None
            file.seek(num_rows * journal._row.nbytes)
            ids = file.read(num_rows * 8)
        places = np.frombuffer(ids, dtype="<i8")
        outside = num_rows and (places.min() < 0 or places.max() >= shape[0])
        if zlib.crc32(ids) != checksum or outside:
            return None
        journal._take_slots(places)
        return journal

    def put(self, ids: Array, rows: Array) -> None:
        """Write some rows; new ids go to the end, known ones where they are."""
        ids, last = np.unique(ids[::-1], return_index=True)
        rows = rows[::-1][last]
        known = self._slots[ids] >= 0
        with self.path.open("r+b") as file:
            write_rows(file, self._slots[ids[known]], rows[known])
            file.seek(self.num_rows * self._row.nbytes)
            file.write(np.ascontiguousarray(rows[~known]).tobytes())
        self._take_slots(ids[~known])

    def overlay(self, ids: Array, rows: Array) -> None:
        """Replace those rows that the journal has."""
        slots = self._slots[ids]
        known = np.flatnonzero(slots >= 0)
        if len(known) == 0:
            return
        with self.path.open("rb") as file:
            for place in known:
                rows[place] = self._read(file, slots[place])

    def entries(self) -> Iterator[tuple[Array, Array]]:
        """All ids and rows, as they were put."""
        with self.path.open("rb") as file:
            for ids in (part for put in self._ids for part in _pieces(put)):
                yield ids, np.stack([self._read(file, slot) for slot in self._slots[ids]])

    def finish(self, path: Path) -> None:
        """Seal the file and give it its name; from then on it survives a crash."""
        ids = np.concatenate(self._ids).astype("<i8").tobytes()
        with self.path.open("r+b") as file:
            file.seek(self.num_rows * self._row.nbytes)
            file.truncate()
            file.write(ids)
            file.write(_SEAL.pack(_MAGIC, self.num_rows, zlib.crc32(ids)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path, path)
        sync_directory(path)
        self.path = path

    def delete(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path)

    def _read(self, file: BinaryIO, slot: int) -> Array:
        file.seek(int(slot) * self._row.nbytes)
        content = file.read(self._row.nbytes)
        return np.frombuffer(content, dtype=self._row.dtype).reshape(self._row.shape)

    def _take_slots(self, ids: Array) -> None:
        if len(ids):
            self._slots[ids] = np.arange(self.num_rows, self.num_rows + len(ids))
            self._ids.append(ids)
            self.num_rows += len(ids)


def _pieces(ids: Array) -> Iterator[Array]:
    for start in range(0, len(ids), 256):
        yield ids[start : start + 256]


def write_rows(file: BinaryIO, slots: Array, rows: Array, offset: int = 0) -> None:
    """Write each row into its slot of a file that has slots from an offset on."""
    for slot, row in zip(slots, rows, strict=True):
        content = row.tobytes()
        file.seek(offset + int(slot) * len(content))
        file.write(content)


def sync_directory(path: Path) -> None:
    """Make what happened to a file's name durable, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
