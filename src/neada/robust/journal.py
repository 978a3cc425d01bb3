"""Rows of a perturbation store on disk, each with its checksum.

A journal has the rows that were put since the last commit: rows, their ids, their checksums, a
seal. The sums are the checksums of all rows of the store's file. Rows are written through the file
system, not through a map of it: a full disk is then an `OSError`, and not the end of the process.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from neada.files import replacing, sync, sync_folder

__all__ = ["Array", "Journal", "Sums", "checksums", "damaged"]

_SEAL = struct.Struct("<8sqq")
_MAGIC = b"neadapt2"
_HEAD = struct.Struct("<8sqqqq")
_SUMS_MAGIC = b"neadasum"
_CHUNK = 256
"""Rows that are read at a time."""

Array: TypeAlias = np.ndarray[Any, Any]


def checksums(rows: Array) -> Array:
    """The CRC-32 of every row."""
    content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    size = rows[:1].nbytes
    starts = range(0, rows.nbytes, size)
    return np.array([zlib.crc32(content[i : i + size]) for i in starts], dtype="<u4")


def damaged(path: Path, what: str) -> ValueError:
    """The error for a file of a store that is not what was written."""
    return ValueError(
        f"{path} is damaged ({what}): put it back as it was, or remove the store and start again"
    )


@dataclass(frozen=True)
class Sums:
    """The checksums of a store's file.

    Attributes:
        generation: The commit that they are of.
        offset: How long the header of the file is.
        header: The checksum of the header.
        rows: The checksum of every row.
    """

    generation: int
    offset: int
    header: int
    rows: Array

    def write(self, path: Path) -> None:
        """Write them atomically."""
        head = _HEAD.pack(_SUMS_MAGIC, self.generation, self.offset, self.header, len(self.rows))
        content = head + self.rows.tobytes()
        with replacing(path) as file:
            file.write(content + struct.pack("<q", zlib.crc32(content)))

    @classmethod
    def read(cls, path: Path) -> "Sums":
        """What `write` wrote.

        Raises:
            ValueError: The file is not what was written.
        """
        content = path.read_bytes()
        whole, seal = content[:-8], content[-8:]
        if len(whole) < _HEAD.size or seal != struct.pack("<q", zlib.crc32(whole)):
            raise damaged(path, "its checksum does not fit")
        magic, generation, offset, header, num_rows = _HEAD.unpack_from(whole)
        rows = np.frombuffer(whole[_HEAD.size :], dtype="<u4")
        if magic != _SUMS_MAGIC or len(rows) != num_rows:
            raise damaged(path, "it has another format")
        return cls(generation, offset, header, rows)


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
        self._sums = np.zeros(shape[0], dtype="<u4")
        self._ids: list[Array] = []
        self.num_rows = 0

    @classmethod
    def begin(cls, path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> "Journal":
        """An empty journal in a new file."""
        path.write_bytes(b"")
        return cls(path, shape, dtype)

    @classmethod
    def load(cls, path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> "Journal | None":
        """A finished journal; None if the file is not a whole one of such rows."""
        journal = cls(path, shape, dtype)
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - _SEAL.size))
            seal = file.read()
            if len(seal) != _SEAL.size:
                return None
            magic, num_rows, checksum = _SEAL.unpack(seal)
            if magic != _MAGIC or not 0 <= num_rows <= shape[0]:
                return None
            if size != num_rows * (journal._row.nbytes + 8 + 4) + _SEAL.size:
                return None
            file.seek(num_rows * journal._row.nbytes)
            table = file.read(num_rows * (8 + 4))
        if zlib.crc32(table) != checksum:
            return None
        ids = np.frombuffer(table, dtype="<i8", count=num_rows)
        if num_rows and (ids.min() < 0 or ids.max() >= shape[0]):
            return None
        journal._take_slots(ids, np.frombuffer(table, dtype="<u4", offset=8 * num_rows))
        try:
            for _ in journal.entries():
                pass
        except ValueError:
            return None
        return journal

    def put(self, ids: Array, rows: Array) -> None:
        """Write some rows; new ids go to the end, known ones where they are."""
        ids, last = np.unique(ids[::-1], return_index=True)
        rows = rows[::-1][last]
        sums = checksums(rows)
        known = self.has(ids)
        with self.path.open("r+b") as file:
            _write_rows(file, self._slots[ids[known]], rows[known])
            file.seek(self.num_rows * self._row.nbytes)
            file.write(np.ascontiguousarray(rows[~known]).tobytes())
        self._sums[ids[known]] = sums[known]
        self._take_slots(ids[~known], sums[~known])

    def has(self, ids: Array) -> Array:
        """Which of some ids it has rows of."""
        found: Array = self._slots[ids] >= 0
        return found

    def take(self, ids: Array, rows: Array, wanted: Array) -> None:
        """Fill in the rows that are wanted and that it has; those are then no longer wanted.

        Raises:
            ValueError: A row is not what was written.
        """
        places = np.flatnonzero(wanted & self.has(ids))
        if len(places):
            rows[places] = self._read(ids[places])
            wanted[places] = False

    def entries(self) -> Iterator[tuple[Array, Array]]:
        """All ids and rows, as they were put.

        Raises:
            ValueError: A row is not what was written.
        """
        for put in self._ids:
            for start in range(0, len(put), _CHUNK):
                ids = put[start : start + _CHUNK]
                yield ids, self._read(ids)

    def added_to(self, sums: Array) -> Array:
        """The checksums of a file's rows once those of the journal are written into it."""
        return np.where(self._slots >= 0, self._sums, sums)

    def write_into(self, path: Path, offset: int) -> None:
        """Write the rows into a file that has all rows from an offset on."""
        with path.open("r+b") as file:
            for ids, rows in self.entries():
                _write_rows(file, ids, rows, offset)
            sync(file)

    def finish(self, path: Path) -> None:
        """Seal the file and give it its name; from then on it survives a crash."""
        ids = np.concatenate(self._ids)
        table = ids.astype("<i8").tobytes() + self._sums[ids].tobytes()
        with replacing(path, draft=self.path) as file:
            file.seek(self.num_rows * self._row.nbytes)
            file.truncate()
            file.write(table)
            file.write(_SEAL.pack(_MAGIC, self.num_rows, zlib.crc32(table)))
        self.path = path

    def delete(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _read(self, ids: Array) -> Array:
        rows = np.empty((len(ids), *self._row.shape), dtype=self._row.dtype)
        with self.path.open("rb") as file:
            for place, slot in enumerate(self._slots[ids]):
                file.seek(int(slot) * self._row.nbytes)
                content = file.read(self._row.nbytes)
                if zlib.crc32(content) != self._sums[ids[place]]:
                    raise damaged(self.path, f"the row of sample {ids[place]}")
                rows[place] = np.frombuffer(content, self._row.dtype).reshape(self._row.shape)
        return rows

    def _take_slots(self, ids: Array, sums: Array) -> None:
        if len(ids):
            self._slots[ids] = np.arange(self.num_rows, self.num_rows + len(ids))
            self._sums[ids] = sums
            self._ids.append(ids)
            self.num_rows += len(ids)


def _write_rows(file: IO[bytes], slots: Array, rows: Array, offset: int = 0) -> None:
    """Write each row into its slot of a file that has slots from an offset on."""
    for slot, row in zip(slots, rows, strict=True):
        content = row.tobytes()
        file.seek(offset + int(slot) * len(content))
        file.write(content)
