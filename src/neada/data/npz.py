"""Your own data: an `.npz` archive with arrays `x` and `y`, and perhaps `groups`."""

import hashlib
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neada.data.dataset import DataError, Dataset, split_by_seed
from neada.data.idx import require_regular_file
from neada.data.limits import DEFLATE_RATIO, MAX_UNPACKED, as_float32, check_entries

__all__ = ["npz"]

_Array = np.ndarray[Any, np.dtype[Any]]


def npz(path: Path, seed: int, test_fraction: float) -> Dataset:
    """The arrays of an archive, shuffled and split by seed.

    Args:
        path: Of the archive.
        seed: Of the split.
        test_fraction: The share of the test part.
    """
    length = require_regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {
                name: _read_member(path, archive, name, length)
                for name in ("x", "y", "groups")
                if name != "groups" or "groups.npy" in archive.namelist()
            }
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the parsers of zip and npy fail in many ways on hostile bytes
        raise DataError(
            f"{path} is no intact .npz archive ({error}); write it with numpy.savez"
        ) from error
    x, valid_range = _inputs(path, arrays["x"])
    y = _indices(path, "y", arrays["y"], len(x))
    groups = _indices(path, "groups", arrays["groups"], len(x)) if "groups" in arrays else None
    train, test = split_by_seed(len(x), test_fraction, seed, path.name)
    return Dataset(
        name=path.stem,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        num_classes=int(y.max()) + 1,
        valid_range=valid_range,
        source=str(path),
        description=f"{len(x)} samples, split with seed {seed}",
        checksums={path.name: sha256},
        groups_train=None if groups is None else groups[train],
        groups_test=None if groups is None else groups[test],
    )


def _read_member(path: Path, archive: zipfile.ZipFile, name: str, length: int) -> _Array:
    """One array, after what its headers announce has been compared with what there is."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        found = ", ".join(sorted(archive.namelist())[:5]) or "nothing"
        raise DataError(
            f"{path} has no array {name!r} (it has {found}); write it with numpy.savez(path, x=x, "
            "y=y)"
        ) from None
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path} is packed in a way numpy does not use; write it with numpy.savez")
    is_packed = info.compress_type == zipfile.ZIP_DEFLATED
    can_hold = info.compress_size * (DEFLATE_RATIO if is_packed else 1)
    if info.compress_size > length or info.file_size > can_hold:
        raise DataError(f"{path} announces more of {name!r} than it can hold; write it again")
    if is_packed and info.file_size > MAX_UNPACKED:
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
            raise DataError(f"{path}: {name!r} has dtype {dtype}; give an array of real numbers")
        announced = dtype.itemsize * math.prod(shape)
        if min(shape, default=1) < 0 or member.tell() + announced != info.file_size:
            raise DataError(f"{path}: {name!r} is not of the size {shape} that it announces")
        check_entries(path, math.prod(shape))
    with archive.open(info) as member:
        array: _Array = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _inputs(path: Path, array: _Array) -> tuple[Tensor, tuple[float, float] | None]:
    if array.ndim < 2 or array.size == 0:
        raise DataError(
            f"{path}: x has shape {array.shape}; give one row per sample, such as "
            "x.reshape(len(x), -1)"
        )
    x = as_float32(path, array)
    if array.dtype == np.uint8:
        return torch.from_numpy(x).div_(255.0), (0.0, 1.0)
    if not np.isfinite(x).all():
        raise DataError(f"{path}: x has entries that are not finite as float32")
    return torch.from_numpy(x), None


def _indices(path: Path, name: str, array: _Array, size: int) -> Tensor:
    if array.shape != (size,):
        raise DataError(
            f"{path}: {name} has shape {array.shape} but x has {size} samples; give one per sample"
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
