"""Readers of data files: IDX (MNIST's format) and `.npz` archives."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neada.data.dataset import DataError, Dataset, file_checksum, split_by_seed

__all__ = ["read_idx", "read_npz"]

_Array = np.ndarray[Any, np.dtype[Any]]


def read_idx(path: Path) -> _Array:
    """Read the array of bytes in an IDX file, gzipped or not.

    Raises:
        DataError: the file cannot be read, is damaged, or is not an IDX file of bytes.
    """
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an IDX file of bytes; download it again")
    start = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + math.prod(sizes)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content):,} bytes, but its header requires {expected:,}; "
            "download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def read_npz(path: Path, seed: int, test_fraction: float) -> Dataset:
    """Read `inputs`, `targets` and optionally `groups` from an archive, and split them by seed.

    The names `x` and `y` are accepted for the first two.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile and numpy raise many kinds for damaged files
        raise DataError(f"{path} is not a readable .npz archive ({error})") from error
    inputs_given = arrays.get("inputs", arrays.get("x"))
    targets_given = arrays.get("targets", arrays.get("y"))
    if inputs_given is None or targets_given is None:
        raise DataError(
            f"{path} must have the arrays 'inputs' and 'targets', got {sorted(arrays)}; write it "
            "with numpy.savez(path, inputs=inputs, targets=targets)"
        )
    inputs, bounds = _inputs(path, inputs_given)
    targets = _indices(path, "targets", targets_given, len(inputs))
    groups = arrays.get("groups")
    return split_by_seed(
        path.stem,
        inputs,
        targets,
        source=str(path),
        seed=seed,
        test_fraction=test_fraction,
        groups=None if groups is None else _indices(path, "groups", groups, len(inputs)),
        num_classes=int(targets.max()) + 1,
        bounds=bounds,
        description=f"{len(inputs)} samples, split with seed {seed}",
        checksums={path.name: file_checksum(path)},
    )


def _inputs(path: Path, array: _Array) -> tuple[Tensor, tuple[float, float] | None]:
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: inputs must be numbers with one row per sample, got {array.dtype} of shape "
            f"{array.shape}"
        )
    inputs = torch.from_numpy(array.astype(np.float32))
    if array.dtype == np.uint8:
        return inputs.div_(255.0), (0.0, 1.0)
    return inputs, None


def _indices(path: Path, name: str, array: _Array, size: int) -> Tensor:
    if array.shape != (size,) or array.dtype.kind not in "iub":
        raise DataError(
            f"{path}: {name} must be one whole number for each of the {size} inputs, got "
            f"{array.dtype} of shape {array.shape}"
        )
    # A model has one output per class: a stray large label would make it huge.
    if array.max() >= max(size, 2):
        raise DataError(
            f"{path}: {name} has the entry {array.max()} for {size} inputs; number them from 0"
        )
    return torch.from_numpy(array.astype(np.int64))
