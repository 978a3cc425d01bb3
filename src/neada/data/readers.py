"""Readers of data files that need not be trusted: IDX (MNIST's format) and `.npz` archives.

A file announces its size in its first bytes. Nothing is allocated before what it announces has
been compared with what it can hold: exactly its length, or, packed, what its length can unpack to.
"""

import gzip
import math
import os
import stat
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from neada.checks import printable, shown
from neada.data.dataset import DataError, Dataset, file_checksum, split_by_seed

__all__ = ["as_float32", "npz", "read_idx"]

_Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 8
_CHUNK = 2**22
_DEFLATE_RATIO = 1032
"""Deflate cannot pack tighter than this."""
_MAX_UNPACKED = 2**28
"""Bytes that a packed array may unpack to: five times the images of MNIST."""
_MAX_ENTRIES = 2**29
"""Numbers of an array that is loaded: 2 GiB in float32."""


def read_idx(path: Path) -> _Array:
    """The array in an IDX file: mapped from disk, read-only, unless it is gzipped.

    Numbers of several bytes keep the file's byte order.

    Args:
        path: A file, gzipped or not; what it is, is seen from its first bytes.

    Raises:
        DataError: the file is missing, no IDX file, truncated, too long or too large.
    """
    length = _require_regular_file(path)
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if is_gzip:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    return _unpack(path, unpacked, length)
            if path.suffix == ".gz":
                raise DataError(f"{path} is not gzipped although its name says so; fetch it again")
            dtype, shape, offset = _read_header(path, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        words = printable(str(error))
        raise DataError(f"{path} is a damaged gzip file ({words}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError:
        raise DataError(f"{path} does not fit in memory; gunzip it") from None
    announced = offset + dtype.itemsize * math.prod(shape)
    if announced > length:
        raise _truncated(path, announced, length)
    if announced < length:
        raise _too_long(path, announced)
    return np.memmap(path, dtype, "r", offset, shape)


def _require_regular_file(path: Path) -> int:
    """The length of a file that is a file, not a folder, a pipe or a device.

    Args:
        path: Of the file.

    Raises:
        DataError: it is none, or may not be looked at.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} is not a regular file; give the path of one")
    return status.st_size


def _read_header(
    path: Path, file: IO[bytes] | gzip.GzipFile
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES:
        raise DataError(f"{path} is not an IDX file: it begins with {magic.hex() or 'nothing'}")
    num_dimensions = magic[3]
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise DataError(
            f"{path} announces {num_dimensions} dimensions; an IDX file with 1 to "
            f"{_MAX_DIMENSIONS} is needed"
        )
    sizes = file.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise DataError(f"{path} is truncated: it ends inside its header; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    if 0 in shape:
        raise DataError(f"{path} announces the shape {shape}, which holds nothing")
    return np.dtype(_DTYPES[magic[2]]), shape, 4 + len(sizes)


def _unpack(path: Path, file: gzip.GzipFile, length: int) -> _Array:
    dtype, shape, _ = _read_header(path, file)
    announced = dtype.itemsize * math.prod(shape)
    if announced > _DEFLATE_RATIO * length:
        raise DataError(
            f"{path} announces {announced:,} bytes, more than {length:,} gzipped bytes can hold; "
            "fetch it again"
        )
    if announced > _MAX_UNPACKED:
        raise DataError(
            f"{path} announces {announced:,} bytes, too many to unpack in memory; gunzip it, and "
            "it will be mapped from disk"
        )
    content = np.empty(announced, np.uint8)
    done = 0
    while done < announced:
        piece = file.read(min(_CHUNK, announced - done))
        if not piece:
            raise _truncated(path, announced, done)
        content[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    if file.read(1):  # at the end this also compares gzip's own checksum
        raise _too_long(path, announced)
    return content.view(dtype).reshape(shape)


def _truncated(path: Path, announced: int, found: int) -> DataError:
    return DataError(
        f"{path} is truncated: it announces {announced:,} bytes and has {found:,}; fetch it again"
    )


def _too_long(path: Path, announced: int) -> DataError:
    return DataError(f"{path} has more than the {announced:,} bytes it announces; fetch it again")


def _check_entries(path: Path, num_entries: int) -> None:
    """Raise unless so many numbers may be loaded."""
    if num_entries > _MAX_ENTRIES:
        raise DataError(
            f"{path} announces {num_entries:,} numbers, and at most {_MAX_ENTRIES:,} are loaded; "
            "give a part of them"
        )


def as_float32(path: Path, array: _Array) -> Tensor:
    """The same numbers as float32; one that is too large becomes infinite.

    Raises:
        DataError: They do not fit in memory.
    """
    _check_entries(path, array.size)
    try:
        with np.errstate(over="ignore"):
            return torch.from_numpy(array.astype(np.float32))
    except MemoryError:
        raise DataError(f"{path} does not fit in memory; give a part of it") from None


def npz(path: Path, seed: int, test_fraction: float) -> Dataset:
    """The arrays `inputs`, `targets` and perhaps `groups` of an archive, split by seed.

    The names `x` and `y`, which many archives have, do as well for the first two.

    Args:
        path: Of the archive.
        seed: Of the split.
        test_fraction: The share of the test part.
    """
    length = _require_regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            names = [
                second if f"{second}.npy" in members and f"{first}.npy" not in members else first
                for first, second in (("inputs", "x"), ("targets", "y"))
            ]
            if "groups.npy" in members:
                names.append("groups")
            arrays = [(name, _read_member(path, archive, name, length)) for name in names]
        checksum = file_checksum(path)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the parsers of zip and npy fail in many ways on hostile bytes
        raise DataError(
            f"{path} is no intact .npz archive ({printable(str(error))}); write it with numpy.savez"
        ) from error
    inputs, bounds = _inputs(path, *arrays[0])
    targets, *groups = (_indices(path, *array, len(inputs)) for array in arrays[1:])
    return split_by_seed(
        path.stem,
        inputs,
        targets,
        source=str(path),
        seed=seed,
        test_fraction=test_fraction,
        groups=groups[0] if groups else None,
        num_classes=int(targets.max()) + 1,
        bounds=bounds,
        description=f"{len(inputs)} samples, split with seed {seed}",
        checksums={path.name: checksum},
    )


def _read_member(path: Path, archive: zipfile.ZipFile, name: str, length: int) -> _Array:
    """One array, after what its headers announce has been compared with what there is."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        found = printable(", ".join(sorted(archive.namelist())[:5])) or "nothing"
        raise DataError(
            f"{path} has no array {name!r} (it has {found}); write it with numpy.savez(path, "
            "inputs=inputs, targets=targets)"
        ) from None
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path} is packed in a way numpy does not use; write it with numpy.savez")
    is_packed = info.compress_type == zipfile.ZIP_DEFLATED
    can_hold = info.compress_size * (_DEFLATE_RATIO if is_packed else 1)
    if info.compress_size > length or info.file_size > can_hold:
        raise DataError(f"{path} announces more of {name!r} than it can hold; write it again")
    if is_packed and info.file_size > _MAX_UNPACKED:
        raise DataError(
            f"{path} announces {info.file_size:,} bytes of {name!r}, too many to unpack; write it "
            "with numpy.savez, uncompressed"
        )
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(member)
        else:
            raise DataError(f"{path}: {name!r} has fields; give a plain array of numbers")
        if dtype.kind not in "biuf":
            raise DataError(
                f"{path}: {name!r} has dtype {printable(str(dtype))}; give an array of real numbers"
            )
        announced = dtype.itemsize * math.prod(shape)
        if min(shape, default=1) < 0 or member.tell() + announced != info.file_size:
            raise DataError(f"{path}: {name!r} is not of the size {shown(shape)} that it announces")
        _check_entries(path, math.prod(shape))
    with archive.open(info) as member:
        array: _Array = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _inputs(path: Path, name: str, array: _Array) -> tuple[Tensor, tuple[float, float] | None]:
    if array.ndim < 2 or array.size == 0:
        raise DataError(
            f"{path}: {name} has shape {array.shape}; give one row per sample, such as "
            f"{name}.reshape(len({name}), -1)"
        )
    inputs = as_float32(path, array)
    if array.dtype == np.uint8:
        return inputs.div_(255.0), (0.0, 1.0)
    if not bool(inputs.isfinite().all()):
        raise DataError(f"{path}: {name} has entries that are not finite as float32")
    return inputs, None


def _indices(path: Path, name: str, array: _Array, size: int) -> Tensor:
    if array.shape != (size,):
        raise DataError(
            f"{path}: {name} has shape {array.shape} but there are {size} inputs; give one for each"
        )
    if array.dtype.kind not in "iub":
        raise DataError(
            f"{path}: {name} has dtype {array.dtype}; give whole numbers from 0, such as "
            f"{name}.astype(int)"
        )
    smallest, largest = int(array.min()), int(array.max())
    # A model has an output per class, so a stray large label would cost memory without end.
    if smallest < 0 or largest >= max(size, 2):
        raise DataError(
            f"{path}: {name} runs from {smallest} to {largest}; number the {size} samples' "
            "classes from 0 without gaps"
        )
    return torch.from_numpy(array.astype(np.int64))
