"""Perturbations that persist between epochs, in memory or in a file with journals.

A journal is a file of rows that were put since the last commit: rows, then their ids, then a seal.
Rows are written through the file system, not through a map of it: a full disk is then an
`OSError`, and not the end of the process.
"""

import glob
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from neada.checks import check_number
from neada.files import drafts, replacing, sync, sync_folder, write_text

__all__ = ["PerturbationStore"]


_SEAL = struct.Struct("<8sqq")
_MAGIC = b"neadaput"

_Array = np.ndarray[Any, Any]


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
        self._ids: list[_Array] = []
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

    def put(self, ids: _Array, rows: _Array) -> None:
        """Write some rows; new ids go to the end, known ones where they are."""
        ids, last = np.unique(ids[::-1], return_index=True)
        rows = rows[::-1][last]
        known = self._slots[ids] >= 0
        with self.path.open("r+b") as file:
            _write_rows(file, self._slots[ids[known]], rows[known])
            file.seek(self.num_rows * self._row.nbytes)
            file.write(np.ascontiguousarray(rows[~known]).tobytes())
        self._take_slots(ids[~known])

    def overlay(self, ids: _Array, rows: _Array) -> None:
        """Replace those rows that the journal has."""
        slots = self._slots[ids]
        known = np.flatnonzero(slots >= 0)
        if len(known) == 0:
            return
        with self.path.open("rb") as file:
            for place in known:
                rows[place] = self._read(file, slots[place])

    def entries(self) -> Iterator[tuple[_Array, _Array]]:
        """All ids and rows, as they were put."""
        with self.path.open("rb") as file:
            for ids in (part for put in self._ids for part in _pieces(put)):
                yield ids, np.stack([self._read(file, slot) for slot in self._slots[ids]])

    def finish(self, path: Path) -> None:
        """Seal the file and give it its name; from then on it survives a crash."""
        ids = np.concatenate(self._ids).astype("<i8").tobytes()
        with replacing(path, draft=self.path) as file:
            file.seek(self.num_rows * self._row.nbytes)
            file.truncate()
            file.write(ids)
            file.write(_SEAL.pack(_MAGIC, self.num_rows, zlib.crc32(ids)))
        self.path = path

    def delete(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _read(self, file: IO[bytes], slot: int) -> _Array:
        file.seek(int(slot) * self._row.nbytes)
        content = file.read(self._row.nbytes)
        return np.frombuffer(content, dtype=self._row.dtype).reshape(self._row.shape)

    def _take_slots(self, ids: _Array) -> None:
        if len(ids):
            self._slots[ids] = np.arange(self.num_rows, self.num_rows + len(ids))
            self._ids.append(ids)
            self.num_rows += len(ids)


def _pieces(ids: _Array) -> Iterator[_Array]:
    for start in range(0, len(ids), 256):
        yield ids[start : start + 256]


def _write_rows(file: IO[bytes], slots: _Array, rows: _Array, offset: int = 0) -> None:
    """Write each row into its slot of a file that has slots from an offset on."""
    for slot, row in zip(slots, rows, strict=True):
        content = row.tobytes()
        file.seek(offset + int(slot) * len(content))
        file.write(content)


_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float16: np.dtype("<f2"),
    torch.float32: np.dtype("<f4"),
    torch.float64: np.dtype("<f8"),
}


class PerturbationStore:
    """One perturbation per sample of a data set, zero at first, found by the sample's id.

    With a path the perturbations live in a memory-mapped file and need not fit in memory. What is
    put goes to a journal; `commit` makes it permanent. Whoever opens the file after a crash finds
    the state of the last commit, and `load_state_dict` goes back to the commit that a checkpoint
    knows: call `commit` before every checkpoint, save `state_dict`, and resume is exact.

    Args:
        num_samples: How many samples there are; ids are from 0 to one less.
        sample_shape: The shape of one sample.
        dtype: float32, float64 or float16.
        path: The file; None to keep everything in memory. An existing one is opened.
        num_kept: How many of the latest commits can be gone back to, with a path.

    Example:
        >>> store = PerturbationStore(1000, (1, 28, 28))
        >>> ids = torch.tensor([3, 7])
        >>> store.put(ids, torch.ones(2, 1, 28, 28))
        >>> store.get(torch.tensor([7, 8])).mean(dim=(1, 2, 3))
        tensor([1., 0.])
    """

    def __init__(
        self,
        num_samples: int,
        sample_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        path: str | os.PathLike[str] | None = None,
        *,
        num_kept: int = 2,
    ) -> None:
        check_number("num_samples", num_samples, above=1, strict=False, whole=True)
        check_number("num_kept", num_kept, above=1, strict=False, whole=True)
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be torch.float32, float64 or float16, got {dtype}")
        self.num_samples = num_samples
        self.sample_shape = tuple(int(size) for size in sample_shape)
        self.dtype = dtype
        self.path = None if path is None else Path(path)
        self.num_kept = num_kept
        self._shape = (num_samples, *self.sample_shape)
        self._base: _Array
        self._journals: list[Journal]
        self._pending: Journal | None
        self.reopen()

    def __repr__(self) -> str:
        place = "in memory" if self.path is None else f"in {self.path}"
        return (
            f"{type(self).__name__}({self.num_samples} samples of shape {self.sample_shape}, "
            f"{str(self.dtype).removeprefix('torch.')}, {place})"
        )

    def get(self, ids: Tensor) -> Tensor:
        """The perturbations of some samples, one row each, on the cpu."""
        places = self._places(ids)
        rows = np.asarray(self._base[places])
        for journal in (*self._journals, *([self._pending] if self._pending else [])):
            journal.overlay(places, rows)
        return torch.from_numpy(rows)

    def put(self, ids: Tensor, delta: Tensor) -> None:
        """Set the perturbations of some samples; of an id that comes twice the last one counts."""
        places = self._places(ids)
        if tuple(delta.shape) != (len(places), *self.sample_shape):
            raise ValueError(
                f"the perturbations have shape {tuple(delta.shape)}, but {len(places)} samples of "
                f"shape {self.sample_shape} were announced: pass one row per id"
            )
        if not len(places):
            return
        rows = delta.detach().to("cpu", self.dtype).numpy()
        if self.path is None:
            self._base[places] = rows
            return
        if self._pending is None:
            draft = self._beside(self.path, "pending")
            self._pending = Journal.begin(draft, self._shape, _DTYPES[self.dtype])
        self._pending.put(places, rows)

    def commit(self) -> None:
        """Make everything that was put permanent; without a path there is nothing to do."""
        if self.path is None or self._pending is None:
            return
        self._pending.finish(self._beside(self.path, f"{self.generation + 1}.journal"))
        self.generation += 1
        self._journals.append(self._pending)
        self._pending = None
        while len(self._journals) > self.num_kept:
            self._apply_oldest(self.path)

    def state_dict(self) -> dict[str, Any]:
        """The perturbations, or with a path the number of the last commit."""
        if self._pending is not None:
            raise RuntimeError(
                f"{self._pending.num_rows} perturbations are not committed: call commit() before "
                "saving the state"
            )
        if self.path is None:
            return {"values": torch.from_numpy(self._base.copy())}
        return {"generation": self.generation}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to a saved state; what was put or committed later is dropped."""
        if self.path is None:
            values = state_dict.get("values")
            if values is None or tuple(values.shape) != self._shape:
                raise ValueError(
                    "this state is not of a store in memory with these samples: construct the "
                    "store as it was when the state was saved"
                )
            self._base[...] = values.to("cpu", self.dtype).numpy()
            return
        if "generation" not in state_dict:
            raise ValueError(
                "this state is of a store in memory, and this one has a file: construct it without "
                "a path"
            )
        wanted, oldest = int(state_dict["generation"]), self.generation - len(self._journals)
        if not oldest <= wanted <= self.generation:
            raise ValueError(
                f"the state is of commit {wanted}, but {self.path} can be at commits {oldest} to "
                f"{self.generation} only: it belongs to another run, or journals were removed"
            )
        if self._pending is not None:
            self._pending.delete()
            self._pending = None
        while self.generation > wanted:
            self._journals.pop().delete()
            self.generation -= 1

    # The file and its journals.

    def reopen(self) -> None:
        """Forget what is known and look at the file; without one, all perturbations are zero."""
        self._journals, self._pending, self.generation = [], None, 0
        if self.path is None:
            self._base = np.zeros(self._shape, dtype=_DTYPES[self.dtype])
        else:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        expected = _DTYPES[self.dtype]
        if not path.exists():
            with replacing(path) as file:
                _write_zeros(file, self._shape, expected)
        try:
            self._base = np.lib.format.open_memmap(path, mode="r")
        except ValueError as error:
            raise ValueError(
                f"{path} is not a perturbation store: remove it or use another path"
            ) from error
        fits = self._base.shape == self._shape and self._base.dtype == expected
        if not (fits and self._base.flags.c_contiguous):
            raise ValueError(
                f"{path} holds perturbations of shape {self._base.shape} and dtype "
                f"{self._base.dtype}, not {self._shape} and {expected}: remove it or use another "
                "path"
            )
        for name in (path.name, self._beside(path, "oldest").name):
            for left in drafts(path.parent, glob.escape(name)):
                left.unlink(missing_ok=True)
        self._beside(path, "pending").unlink(missing_ok=True)
        self._open_journals(path)

    def _open_journals(self, path: Path) -> None:
        """Take up the journals that follow on each other; of an unfinished apply, the rest too."""
        note = self._beside(path, "oldest")
        try:
            self.generation = int(note.read_text()) if note.exists() else 0
        except ValueError:
            raise ValueError(f"{note} is damaged: remove the store, or use another path") from None
        half_applied = self._load(path, self.generation)
        if half_applied is not None:
            self._write_into_file(path, half_applied)
            half_applied.delete()
        while (journal := self._load(path, self.generation + 1)) is not None:
            self._journals.append(journal)
            self.generation += 1

    def _load(self, path: Path, generation: int) -> Journal | None:
        file = self._beside(path, f"{generation}.journal")
        return Journal.load(file, self._shape, _DTYPES[self.dtype]) if file.exists() else None

    def _apply_oldest(self, path: Path) -> None:
        """Write the oldest journal into the file, which can then be at no earlier commit."""
        oldest = self.generation - len(self._journals) + 1
        write_text(self._beside(path, "oldest"), str(oldest))
        self._write_into_file(path, self._journals[0])
        self._journals.pop(0).delete()

    def _write_into_file(self, path: Path, journal: Journal) -> None:
        assert isinstance(self._base, np.memmap)
        with path.open("r+b") as file:
            for ids, rows in journal.entries():
                _write_rows(file, ids, rows, offset=self._base.offset)
            sync(file)

    @staticmethod
    def _beside(path: Path, name: str) -> Path:
        return path.with_name(f"{path.name}.{name}")

    def _places(self, ids: Tensor) -> _Array:
        if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.is_floating_point():
            raise TypeError("ids must be a tensor of whole numbers, one per sample")
        places = ids.detach().to("cpu", torch.int64).numpy()
        if len(places) and not 0 <= places.min() <= places.max() < self.num_samples:
            raise ValueError(
                f"ids must be from 0 to {self.num_samples - 1}, got {places.min()} to "
                f"{places.max()}"
            )
        return places


def _write_zeros(file: IO[bytes], shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Make a file an array of zeros, with the disk space for other numbers."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, header)
    size = file.tell() + dtype.itemsize * math.prod(shape)
    file.truncate(size)
    if hasattr(os, "posix_fallocate"):
        # A hole that the disk cannot fill later would be a crash.
        os.posix_fallocate(file.fileno(), 0, size)
