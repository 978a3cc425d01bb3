"""Perturbations that persist between epochs, in memory or in a file with journals.

On disk a store is a numpy file, a file with the checksum of each of its rows (`.sums`), and a
journal for each of the latest commits. A journal is written into the file only when it is on disk,
and the checksums of what the file will then be, with the number of the commit, are on disk before
that: whoever finds the journal of that number writes it again. Constructing a store, reading from
it and going back to a state only look at the files; `put`, `commit` and `settle` change them.
"""

import glob
import io
import math
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from neada.checks import check_number
from neada.files import drafts, replacing
from neada.robust.journal import Array, Journal, Sums, checksums, damaged
from neada.tensors import is_whole

__all__ = ["PerturbationStore", "check_dtype", "check_ids"]

_BLOCK = 1024
"""Rows that are verified at a time."""

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float16: np.dtype("<f2"),
    torch.float32: np.dtype("<f4"),
    torch.float64: np.dtype("<f8"),
}


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ValueError unless there can be a store of this dtype."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be torch.float32, float64 or float16, got {dtype}")


class PerturbationStore:
    """One perturbation per sample of a data set, zero at first, found by the sample's id.

    With a path the perturbations live in a memory-mapped file and need not fit in memory. What is
    put goes to a journal; `commit` makes it permanent. Whoever opens the file after a crash finds
    the state of the last commit, and `load_state_dict` goes back to the commit that a checkpoint
    knows: call `commit` before every checkpoint, save `state_dict`, and resume is exact. Every row
    has a checksum, which is verified when the file is opened and when the row is read; a file that
    is not what was written is a ValueError.

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
        check_dtype(dtype)
        self.num_samples = num_samples
        self.sample_shape = tuple(int(size) for size in sample_shape)
        self.dtype = dtype
        self.path = None if path is None else Path(path)
        self.num_kept = num_kept
        self._shape = (num_samples, *self.sample_shape)
        self.generation: int
        self._base: Array
        self._sums: Sums | None
        self._journals: list[Journal]
        self._half_applied: Journal | None
        self._pending: Journal | None
        self._is_settled: bool
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
        if self.path is None:
            return torch.from_numpy(self._base[places])
        rows = np.empty((len(places), *self.sample_shape), dtype=_DTYPES[self.dtype])
        wanted = np.ones(len(places), dtype=bool)
        newest_first = (self._pending, *reversed(self._journals), self._half_applied)
        for journal in newest_first:
            if journal is not None:
                journal.take(places, rows, wanted)
        if wanted.any():
            rows[wanted] = self._base[places[wanted]]
            self._check_rows(places[wanted], rows[wanted])
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
        content = delta.detach().to("cpu", self.dtype)
        if not math.isfinite(content.sum().item()) and not bool(content.isfinite().all()):
            raise ValueError(
                f"the perturbations have NaN or infinite entries as {self.dtype}: store finite ones"
            )
        rows = content.numpy()
        if self.path is None:
            self._base[places] = rows
            return
        self.settle()
        if self._pending is None:
            draft = self._beside(self.path, "pending")
            self._pending = Journal.begin(draft, self._shape, _DTYPES[self.dtype])
        self._pending.put(places, rows)

    def commit(self) -> None:
        """Make everything that was put permanent; without a path there is nothing to do."""
        self.settle()
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
        if self._sums is None:
            raise ValueError(f"{self.path} is missing: put it back, or start again")
        wanted, oldest = int(state_dict["generation"]), self.generation - len(self._journals)
        if not oldest <= wanted <= self.generation:
            raise ValueError(
                f"the state is of commit {wanted}, but {self.path} can be at commits {oldest} to "
                f"{self.generation} only: it belongs to another run, or journals were removed or "
                "damaged"
            )
        del self._journals[wanted - oldest :]
        self.generation = wanted
        self._pending, self._is_settled = None, False

    # The file and its journals.

    def reopen(self) -> None:
        """Forget what is known and look at the file; without one, all perturbations are zero.

        Raises:
            ValueError: The file, or one beside it, is not what was written.
        """
        self._journals, self._half_applied, self._pending, self.generation = [], None, None, 0
        self._sums = None
        self._is_settled = self.path is None
        if self.path is None:
            self._base = np.zeros(self._shape, dtype=_DTYPES[self.dtype])
        else:
            self._look(self.path)

    def settle(self) -> None:
        """Bring the files to the state that the store is at; `put` and `commit` begin with this."""
        if self._is_settled or self.path is None:
            return
        if self._sums is None:
            self._create(self.path)
        for name in (self.path.name, self._beside(self.path, "sums").name):
            for left in drafts(self.path.parent, glob.escape(name)):
                left.unlink(missing_ok=True)
        self._beside(self.path, "pending").unlink(missing_ok=True)
        if self._half_applied is not None:
            self._half_applied.write_into(self.path, self._known_sums.offset)
            self._half_applied = None
        kept = {journal.path for journal in self._journals}
        for path in set(self._journal_files(self.path)) - kept:
            path.unlink(missing_ok=True)  # of a later state, or in the file already
        self._is_settled = True

    @property
    def _known_sums(self) -> Sums:
        assert self._sums is not None
        return self._sums

    def _look(self, path: Path) -> None:
        """Find what is on disk and verify it; nothing is changed."""
        sums = self._beside(path, "sums")
        if not path.is_file():
            journals = self._journal_files(path)
            if journals or (sums.is_file() and Sums.read(sums).generation > 0):
                left = journals[0] if journals else sums
                raise ValueError(
                    f"{path} is missing, and {left.name} belongs to it: put it back, or remove "
                    "that too and start again"
                )
            self._base = np.broadcast_to(np.zeros((), dtype=_DTYPES[self.dtype]), self._shape)
            return
        if not sums.is_file():
            raise ValueError(
                f"{path} is not a perturbation store with its checksums: remove it or use another "
                "path"
            )
        self._sums = Sums.read(sums)
        self._base = self._map(path, self._sums)
        self.generation = self._sums.generation
        # The sums are written before the journal's rows: where it is still there, those may not be.
        self._half_applied = self._load(path, self.generation)
        for start in range(0, self.num_samples, _BLOCK):
            ids = np.arange(start, min(start + _BLOCK, self.num_samples))
            if self._half_applied is not None:
                ids = ids[~self._half_applied.has(ids)]
            self._check_rows(ids, self._base[ids])
        while (journal := self._load(path, self.generation + 1)) is not None:
            self._journals.append(journal)
            self.generation += 1

    def _map(self, path: Path, sums: Sums) -> Array:
        """The rows of the file, without reading them into memory."""
        with path.open("rb") as file:
            header = file.read(sums.offset)
        if zlib.crc32(header) != sums.header:
            raise damaged(path, "its header")
        shape, dtype = _read_header(header)
        if (shape, dtype) != (self._shape, _DTYPES[self.dtype]):
            raise ValueError(
                f"{path} holds perturbations of shape {shape} and dtype {dtype}, not "
                f"{self._shape} and {_DTYPES[self.dtype]}: remove it or use another path"
            )
        if path.stat().st_size != sums.offset + dtype.itemsize * math.prod(shape):
            raise damaged(path, "its length")
        return np.memmap(path, dtype, "r", sums.offset, shape)

    def _check_rows(self, ids: Array, rows: Array) -> None:
        """Raise unless rows of the file are what was written; of a new store they are zeros."""
        if self._sums is None or not len(ids):
            return
        wrong = checksums(rows) != self._sums.rows[ids]
        if wrong.any():
            assert self.path is not None
            raise damaged(self.path, f"the row of sample {ids[wrong.argmax()]}")

    def _create(self, path: Path) -> None:
        """Write a file of zeros, its checksums before it."""
        dtype = _DTYPES[self.dtype]
        header = _make_header(self._shape, dtype)
        of_zeros = checksums(np.zeros((1, *self.sample_shape), dtype=dtype))
        sums = Sums(0, len(header), zlib.crc32(header), of_zeros.repeat(self.num_samples))
        sums.write(self._beside(path, "sums"))
        size = len(header) + dtype.itemsize * math.prod(self._shape)
        with replacing(path) as file:
            file.write(header)
            _allocate(file, size)
        self._sums, self._base = sums, self._map(path, sums)

    def _load(self, path: Path, generation: int) -> Journal | None:
        file = self._beside(path, f"{generation}.journal")
        return Journal.load(file, self._shape, _DTYPES[self.dtype]) if file.is_file() else None

    def _apply_oldest(self, path: Path) -> None:
        """Write the oldest journal into the file, which can then be at no earlier commit."""
        oldest, before = self._journals[0], self._known_sums
        generation = self.generation - len(self._journals) + 1
        sums = Sums(generation, before.offset, before.header, oldest.added_to(before.rows))
        sums.write(self._beside(path, "sums"))
        self._sums = sums
        oldest.write_into(path, sums.offset)
        self._journals.pop(0).delete()

    def _journal_files(self, path: Path) -> list[Path]:
        pattern = re.compile(re.escape(path.name) + r"\.\d+\.journal")
        found = path.parent.glob(f"{glob.escape(path.name)}.*")
        return sorted(each for each in found if pattern.fullmatch(each.name) and each.is_file())

    @staticmethod
    def _beside(path: Path, name: str) -> Path:
        return path.with_name(f"{path.name}.{name}")

    def _places(self, ids: Tensor) -> Array:
        check_ids(ids)
        places = ids.detach().to("cpu", torch.int64).numpy()
        if len(places) and not 0 <= places.min() <= places.max() < self.num_samples:
            raise ValueError(
                f"ids must be from 0 to {self.num_samples - 1}, got {places.min()} to "
                f"{places.max()}"
            )
        return places


def check_ids(ids: object) -> None:
    """Raise TypeError unless these can be the ids of samples."""
    if not isinstance(ids, Tensor) or ids.dim() != 1 or not is_whole(ids):
        raise TypeError("ids must be a tensor of whole numbers, one per sample")


def _make_header(shape: Sequence[int], dtype: np.dtype[Any]) -> bytes:
    content = io.BytesIO()
    header = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(content, header)
    return content.getvalue()


def _read_header(content: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype that `_make_header` was given."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype


def _allocate(file: IO[bytes], size: int) -> None:
    """Extend a file by zeros, with the disk space for other numbers."""
    file.truncate(size)
    if hasattr(os, "posix_fallocate"):
        # A hole that the disk cannot fill later would be a crash.
        os.posix_fallocate(file.fileno(), 0, size)
