"""A data set in memory, and how samples are split into its parts."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["DataError", "Dataset", "checksum", "file_checksum", "split_by_seed"]


class DataError(ValueError):
    """A data set was not found, cannot be read, or contradicts itself."""


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """Inputs and class labels, split into parts; immutable and checked.

    Attributes:
        name: The name that it was loaded with.
        inputs_train: Inputs to train on, one per row.
        targets_train: Their class labels, int64.
        inputs_test: Inputs of the test set.
        targets_test: Their class labels.
        num_classes: Labels are 0, ..., num_classes - 1.
        bounds: The smallest and the largest value that an input may have; None for any.
        source: The origin of the data: a folder, a file or a package.
        description: One sentence about the data.
        checksums: SHA-256 by file or array name.
        inputs_held_out: Inputs that are neither for training nor the test set, or None.
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
        if (self.inputs_held_out is None) != (self.targets_held_out is None):
            raise DataError(f"{self.name}: give both held-out inputs and held-out labels")
        for part, (inputs, targets) in self.splits.items():
            groups = {"train": self.groups_train, "test": self.groups_test}.get(part)
            self._check_part(f"{self.name}: the {part} part", inputs, targets, groups)

    def fingerprint(self) -> dict[str, str]:
        """The given checksums or, without any, those of the tensors."""
        if self.checksums:
            return dict(self.checksums)
        given = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        return {name: checksum(part) for name, part in given.items()}

    def _check_part(
        self, what: str, inputs: Tensor, targets: Tensor, groups: Tensor | None
    ) -> None:
        shape = tuple(inputs.shape[1:])
        if inputs.numel() == 0 or not inputs.is_floating_point() or shape != self.input_shape:
            raise DataError(
                f"{what} must have inputs of a floating dtype and of shape {self.input_shape}, got "
                f"{len(inputs)} of {inputs.dtype} and shape {shape}"
            )
        if targets.dtype != torch.int64 or targets.shape != (len(inputs),):
            raise DataError(
                f"{what} needs one int64 label for each of its {len(inputs)} inputs, got "
                f"{targets.dtype} of shape {tuple(targets.shape)}"
            )
        smallest, largest = (int(label) for label in targets.aminmax())
        if smallest < 0 or largest >= self.num_classes:
            raise DataError(
                f"{what} has labels from {smallest} to {largest}; they must be in 0 ... "
                f"{self.num_classes - 1}"
            )
        low, high = (float(number) for number in inputs.aminmax())
        least, most = self.bounds or (-sys.float_info.max, sys.float_info.max)
        if not least <= low <= high <= most:  # also if one is NaN
            raise DataError(
                f"{what} has inputs in [{low:g}, {high:g}], outside of [{least:g}, {most:g}]"
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

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(targets)} {part}" for part, (_, targets) in self.splits.items())
        bounds = "" if self.bounds is None else " in [{:g}, {:g}]".format(*self.bounds)
        groups = "" if self.num_groups is None else f", {self.num_groups} groups"
        return (
            f"Dataset({self.name!r}: {counts}, inputs {self.input_shape}{bounds}, "
            f"{self.num_classes} classes{groups})"
        )


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes."""
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
    """Shuffle samples with a seed and split them into a training and a test set.

    Args:
        name: Name of the data set.
        inputs: All inputs.
        targets: Their class labels.
        source: The origin of the data.
        seed: Seed of the shuffle.
        test_fraction: Fraction of the samples in the test set.
        groups: Their group ids, or None.
        facts: Other attributes of `Dataset`.

    Raises:
        DataError: One of the parts would be empty.
    """
    size = len(inputs)
    num_test = round(size * test_fraction)
    if not 0 < num_test < size:
        raise DataError(
            f"{source}: a test fraction of {test_fraction:g} leaves one part of the {size} samples "
            "empty"
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
