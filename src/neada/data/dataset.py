"""What a data set is, once it is in memory, and how one is split."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["DataError", "Dataset", "checksum", "file_checksum", "split_by_seed"]


class DataError(ValueError):
    """A data set that cannot be found, read or trusted; the message says what to do."""


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Inputs and class labels, split into parts; frozen and checked.

    Arrays of numpy are accepted where tensors are, and copied.

    Attributes:
        name: What it was loaded as.
        inputs_train: Inputs to train on, one per row.
        targets_train: Their class labels, int64.
        inputs_test: Inputs of the test set.
        targets_test: Their class labels.
        num_classes: Labels are 0, ..., num_classes - 1.
        bounds: The smallest and the largest value an input may have; None for any.
        source: Where the data come from: a folder, a file or a package.
        description: What the data are, in a sentence.
        checksums: SHA-256 by file or array name.
        inputs_held_out: Inputs kept from training that are not the test set, or None.
        targets_held_out: Their class labels, or None.
        groups_train: One group id per training input, or None.
        groups_test: One group id per test input, or None.

    Example:
        >>> import torch
        >>> inputs, targets = torch.rand(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> parts = inputs[:4], targets[:4], inputs[4:], targets[4:]
        >>> Dataset("mine", *parts, num_classes=2, bounds=(0.0, 1.0))
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
        for name, given in list(vars(self).items()):
            if isinstance(given, np.ndarray):
                object.__setattr__(self, name, _as_tensor(f"{self.name}: {name}", given))
        if (self.inputs_held_out is None) != (self.targets_held_out is None):
            raise DataError(f"{self.name}: held-out inputs and labels come together or not at all")
        for part, (inputs, targets) in self.splits.items():
            groups = {"train": self.groups_train, "test": self.groups_test}.get(part)
            self._check_part(f"{self.name}: the {part} part", inputs, targets, groups)

    def fingerprint(self) -> dict[str, str]:
        """The checksums that it came with; without any, those of its tensors."""
        if self.checksums:
            return dict(self.checksums)
        given = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        return {name: checksum(part) for name, part in given.items()}

    def _check_part(
        self, what: str, inputs: Tensor, targets: Tensor, groups: Tensor | None
    ) -> None:
        if inputs.dim() == 0 or len(inputs) == 0:
            raise DataError(f"{what} has no inputs")
        shape = tuple(inputs.shape[1:])
        if not inputs.is_floating_point():
            raise DataError(
                f"{what} has inputs of {inputs.dtype}; convert them to a floating dtype"
            )
        if shape != self.input_shape:
            raise DataError(
                f"{what} has inputs of shape {shape}, but training inputs have {self.input_shape}"
            )
        if targets.dtype != torch.int64 or targets.shape != (len(inputs),):
            raise DataError(
                f"{what} needs one int64 label for each of its {len(inputs)} inputs, got "
                f"{targets.dtype} of shape {tuple(targets.shape)}"
            )
        smallest, largest = (int(label) for label in targets.aminmax())
        if smallest < 0 or largest >= self.num_classes:
            raise DataError(
                f"{what} has labels from {smallest} to {largest}; they must lie in 0 ... "
                f"{self.num_classes - 1}"
            )
        if inputs.numel() == 0:
            raise DataError(f"{what} has inputs of shape {shape}, which hold nothing")
        low, high = (float(number) for number in inputs.aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise DataError(f"{what} has inputs that are not finite")
        if self.bounds is not None and not self.bounds[0] <= low <= high <= self.bounds[1]:
            raise DataError(
                f"{what} has inputs in [{low:g}, {high:g}], outside the bounds "
                "[{:g}, {:g}]".format(*self.bounds)
            )
        if groups is not None and (
            groups.dtype != torch.int64 or groups.shape != targets.shape or int(groups.min()) < 0
        ):
            raise DataError(
                f"{what} needs one int64 group id, at least 0, for each of its {len(inputs)} inputs"
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
        moved: dict[str, Any] = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in vars(self).items()
            if isinstance(tensor, Tensor)
        }
        return replace(self, **moved)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(targets)} {part}" for part, (_, targets) in self.splits.items())
        bounds = "" if self.bounds is None else " in [{:g}, {:g}]".format(*self.bounds)
        groups = "" if self.num_groups is None else f", {self.num_groups} groups"
        return (
            f"Dataset({self.name!r}: {counts}, inputs {self.input_shape}{bounds}, "
            f"{self.num_classes} classes{groups})"
        )


def _as_tensor(what: str, array: "np.ndarray[Any, Any]") -> Tensor:
    """A copy of an array; whole numbers, which are labels or group ids, as int64."""
    if array.dtype.kind not in "fiu":
        raise DataError(f"{what} is an array of {array.dtype}: give one of numbers")
    dtype = np.int64 if array.dtype.kind in "iu" else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(dtype))


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(tensor: Tensor) -> str:
    """SHA-256 of a tensor's numbers in their own byte order."""
    content = tensor.detach().cpu().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
    return hashlib.sha256(content.numpy().data).hexdigest()


def split_by_seed(
    name: str,
    inputs: Tensor,
    targets: Tensor,
    *,
    source: str,
    seed: int,
    test_fraction: float,
    groups: Tensor | None = None,
    **facts: Any,
) -> Dataset:
    """A data set from samples that are not split yet: shuffled, and cut in two.

    Args:
        name: Of the data set.
        inputs: All inputs.
        targets: Their class labels.
        source: Where they come from.
        seed: Which shuffle.
        test_fraction: The share of the test part.
        groups: Their group ids, or None.
        facts: What else a `Dataset` has.

    Raises:
        DataError: One of the parts would be empty.
    """
    size = len(inputs)
    num_test = round(size * test_fraction)
    if not 0 < num_test < size:
        raise DataError(
            f"{source}: {size} samples cannot be split with a test share of {test_fraction:g}; "
            "both parts need at least one"
        )
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    test, train = order[:num_test], order[num_test:]
    return Dataset(
        name=name,
        inputs_train=inputs[train],
        targets_train=targets[train],
        inputs_test=inputs[test],
        targets_test=targets[test],
        source=source,
        groups_train=None if groups is None else groups[train],
        groups_test=None if groups is None else groups[test],
        **facts,
    )
