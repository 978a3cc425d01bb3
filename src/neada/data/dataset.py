"""What a data set is, once it is in memory, and how much memory a file may ask for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "DEFLATE_RATIO",
    "MAX_UNPACKED",
    "DataError",
    "Dataset",
    "as_float32",
    "check_entries",
    "checksum",
    "split_by_seed",
]


class DataError(ValueError):
    """A data set that cannot be found, read or trusted; the message says what to do."""


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Inputs and class labels, split into parts; frozen and checked.

    Attributes:
        name: What it was loaded as.
        inputs_train: Inputs to train on, one per row.
        targets_train: Their class labels, int64.
        inputs_test: Inputs of the test set.
        targets_test: Their class labels.
        num_classes: Labels are 0, ..., num_classes - 1.
        bounds: The smallest and the largest value an input may have; None if there is no
            such range.
        source: Where the data come from: a folder, a file or a package.
        description: What the data are, in a sentence.
        checksums: SHA-256 by file or array name.
        inputs_held_out: Inputs kept from training that are not the test set, or None.
        targets_held_out: Their class labels, or None.
        groups_train: One group id per training input, or None.
        groups_test: One group id per test input, or None.

    Example:
        >>> import torch
        >>> x, y = torch.rand(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> Dataset("mine", x[:4], y[:4], x[4:], y[4:], num_classes=2, bounds=(0.0, 1.0))
        Dataset('mine': 4 train, 2 test, inputs (2,) in [0, 1], 2 classes)
    """

    name: str
    inputs_train: Tensor
    targets_train: Tensor
    inputs_test: Tensor
    targets_test: Tensor
    num_classes: int
    bounds: tuple[float, float] | None = None
    source: str = ""
    description: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    inputs_held_out: Tensor | None = None
    targets_held_out: Tensor | None = None
    groups_train: Tensor | None = None
    groups_test: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.inputs_held_out is None) != (self.targets_held_out is None):
            raise DataError(f"{self.name}: held-out inputs and labels come together or not at all")
        for part, (x, y) in self.splits.items():
            self._check_part(part, x, y)
        for part, groups in (("train", self.groups_train), ("test", self.groups_test)):
            _check_groups(f"{self.name}: {part}", groups, len(self.splits[part][0]))

    def _check_part(self, part: str, x: Tensor, y: Tensor) -> None:
        what = f"{self.name}: the {part} part"
        if x.dim() == 0 or len(x) == 0:
            raise DataError(f"{what} has no inputs")
        if not x.is_floating_point():
            raise DataError(f"{what} has inputs of {x.dtype}; convert them to a floating dtype")
        if x.shape[1:] != self.inputs_train.shape[1:]:
            raise DataError(
                f"{what} has inputs of shape {tuple(x.shape[1:])}, but training inputs have "
                f"{tuple(self.inputs_train.shape[1:])}"
            )
        if y.dtype != torch.int64 or y.shape != (len(x),):
            raise DataError(
                f"{what} needs one int64 label for each of its {len(x)} inputs, got {y.dtype} of "
                f"shape {tuple(y.shape)}"
            )
        smallest, largest = (int(label) for label in y.aminmax())
        if smallest < 0 or largest >= self.num_classes:
            raise DataError(
                f"{what} has labels from {smallest} to {largest}; they must lie in 0 ... "
                f"{self.num_classes - 1}"
            )
        if x.numel() == 0:
            raise DataError(f"{what} has inputs of shape {tuple(x.shape[1:])}, which hold nothing")
        low, high = (float(bound) for bound in x.aminmax())
        if not (abs(low) < float("inf") and abs(high) < float("inf")):
            raise DataError(f"{what} has inputs that are not finite")
        if self.bounds is not None:
            lower, upper = self.bounds
            if not lower <= low <= high <= upper:
                raise DataError(
                    f"{what} has inputs in [{low:g}, {high:g}], outside the valid range "
                    f"[{lower:g}, {upper:g}]"
                )

    @property
    def splits(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Inputs and labels by part: "train", "test" and, where there is one, "held-out"."""
        parts = {
            "train": (self.inputs_train, self.targets_train),
            "test": (self.inputs_test, self.targets_test),
        }
        if self.inputs_held_out is not None and self.targets_held_out is not None:
            parts["held-out"] = (self.inputs_held_out, self.targets_held_out)
        return parts

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs_train.shape[1:])

    @property
    def num_groups(self) -> int | None:
        """How many groups there are, or None without group ids."""
        known = [g for g in (self.groups_train, self.groups_test) if g is not None]
        return 1 + max(int(groups.max()) for groups in known) if known else None

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Dataset":
        """The same data with all tensors on a device, and the inputs in a dtype.

        Args:
            device: Where to; None leaves them where they are.
            dtype: A floating dtype for the inputs; None leaves it.
        """

        def moved(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        tensors = {key: moved(v) for key, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(x)} {part}" for part, (x, _) in self.splits.items())
        bounds = "" if self.bounds is None else " in [{:g}, {:g}]".format(*self.bounds)
        groups = "" if self.num_groups is None else f", {self.num_groups} groups"
        return (
            f"Dataset({self.name!r}: {counts}, inputs {self.input_shape}{bounds}, "
            f"{self.num_classes} classes{groups})"
        )


def _check_groups(what: str, groups: Tensor | None, size: int) -> None:
    if groups is None:
        return
    if groups.dtype != torch.int64 or groups.shape != (size,) or int(groups.min()) < 0:
        raise DataError(f"{what} needs one int64 group id, at least 0, for each of {size} inputs")


def checksum(tensor: Tensor) -> str:
    """SHA-256 of a tensor's numbers in their own byte order."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def split_by_seed(size: int, test_fraction: float, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the test part of a shuffled data set.

    Args:
        size: How many samples there are.
        test_fraction: The share of the test part.
        seed: Which shuffle.
        name: Of the data, for the message.

    Raises:
        DataError: one of the parts would be empty.
    """
    num_test = round(size * test_fraction)
    if not 0 < num_test < size:
        raise DataError(
            f"{name}: {size} samples cannot be split with test_fraction={test_fraction:g}; both "
            "parts need at least one"
        )
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return order[num_test:], order[:num_test]


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
