"""How much memory a file may ask for: whoever wrote it does not decide that."""

from pathlib import Path
from typing import Any

import numpy as np

from neada.data.dataset import DataError

__all__ = ["DEFLATE_RATIO", "MAX_UNPACKED", "as_float32", "check_entries"]

DEFLATE_RATIO = 1032
"""Deflate cannot pack tighter than this."""
MAX_UNPACKED = 2**28
"""Bytes that a packed array may unpack to: five times the images of MNIST."""
_MAX_ENTRIES = 2**29
"""Numbers of an array that is loaded: 2 GiB in float32."""

_Array = np.ndarray[Any, np.dtype[Any]]


def check_entries(path: Path, num_entries: int) -> None:
    """Raise unless so many numbers may be loaded."""
    if num_entries > _MAX_ENTRIES:
        raise DataError(
            f"{path} announces {num_entries:,} numbers, and at most {_MAX_ENTRIES:,} are loaded; "
            "give a part of them"
        )


def as_float32(path: Path, array: _Array) -> _Array:
    """The same numbers as float32; one that is too large becomes infinite.

    Raises:
        DataError: They do not fit in memory.
    """
    check_entries(path, array.size)
    try:
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    except MemoryError:
        raise DataError(f"{path} does not fit in memory; give a part of it") from None
