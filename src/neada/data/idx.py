"""Arrays in the IDX format of MNIST, gzipped or not, read as if a stranger had sent them.

A file announces its size in its first bytes. Nothing is allocated before what it announces has
been compared with what it can hold: exactly its length, or, gzipped, what its length can unpack to.
"""

import gzip
import math
import os
import stat
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from neada.data.dataset import DataError
from neada.data.limits import DEFLATE_RATIO, MAX_UNPACKED

__all__ = ["read_idx", "require_regular_file"]

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 8
_CHUNK = 2**22


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """The array in an IDX file: mapped from disk, read-only, unless it is gzipped.

    Numbers of several bytes keep the file's byte order.

    Args:
        path: A file, gzipped or not; what it is, is seen from its first bytes.

    Raises:
        DataError: the file is missing, no IDX file, truncated, too long or too large.
    """
    length = require_regular_file(path)
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
        raise DataError(f"{path} is a damaged gzip file ({error}); fetch it again") from error
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


def require_regular_file(path: Path) -> int:
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


def _unpack(path: Path, file: gzip.GzipFile, length: int) -> np.ndarray[Any, np.dtype[Any]]:
    dtype, shape, _ = _read_header(path, file)
    announced = dtype.itemsize * math.prod(shape)
    if announced > DEFLATE_RATIO * length:
        raise DataError(
            f"{path} announces {announced:,} bytes, more than {length:,} gzipped bytes can hold; "
            "fetch it again"
        )
    if announced > MAX_UNPACKED:
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
