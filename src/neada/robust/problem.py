"""What the adversary of one batch maximises, and what a batch must be like."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neada import tensors
from neada.robust.losses import take_rows
from neada.sets import Box, Set

__all__ = ["Problem", "checked_groups", "checked_inputs", "row_sums"]


@dataclass(frozen=True)
class Problem:
    """One maximisation problem per sample.

    Attributes:
        evaluate: The objective of each sample, with its graph, from y, clean inputs and targets.
        region_around: Where the samples live, from their clean inputs.
        clean: The clean inputs.
        targets: What the loss compares with.
        region: `region_around(clean)`.
    """

    evaluate: Callable[[Tensor, Tensor, Any], Tensor]
    region_around: Callable[[Tensor], Set | None]
    clean: Tensor
    targets: Any
    region: Set | None

    def values(self, y: Tensor) -> Tensor:
        """The objective of each sample."""
        return self.evaluate(y, self.clean, self.targets)

    def moved(self, delta: Tensor) -> Tensor:
        """The clean inputs plus stored perturbations."""
        if delta.shape != self.clean.shape:
            raise ValueError(
                f"the store has perturbations of shape {tuple(delta.shape)} for a batch of shape "
                f"{tuple(self.clean.shape)}: construct it for these data"
            )
        return self.clean + delta.to(self.clean)

    def take(self, rows: Tensor) -> "Problem":
        """The problems of some samples."""
        clean = self.clean[rows]
        targets = take_rows(self.targets, rows)
        return replace(self, clean=clean, targets=targets, region=self.region_around(clean))


def checked_inputs(inputs: Tensor, box: Box | None) -> Tensor:
    """The clean inputs of a batch, or one sentence about what is wrong with them."""
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"inputs must be a tensor with samples first, not {type(inputs).__name__}: what the "
            "adversary leaves alone can be part of the targets or of the model"
        )
    tensors.check_player([inputs], rowwise=True, what="inputs")
    if len(inputs) == 0:
        raise ValueError("the batch has no samples")
    clean = inputs.detach()
    if not math.isfinite(clean.sum().item()) and (bad := int((~clean.isfinite()).sum())):
        raise ValueError(f"the inputs have {bad} NaN or infinite entries: clean the data first")
    if box is not None and not box.contains(clean):
        raise ValueError(
            f"the inputs leave the box: they are between {clean.min():g} and {clean.max():g}, "
            f"and it is {box!r}; give the range that the inputs really have"
        )
    return clean


def checked_groups(
    groups: Tensor | Sequence[int], num_samples: int, num_groups: int, device: torch.device
) -> Tensor:
    """The group ids of a batch as int64, or one sentence about what is wrong with them."""
    ids = torch.as_tensor(groups, device=device)
    if num_samples == 0:
        raise ValueError("the batch has no samples")
    if ids.shape != (num_samples,) or ids.is_floating_point() or ids.is_complex():
        raise ValueError(
            f"groups must be whole numbers, one for each of the {num_samples} samples, got shape "
            f"{tuple(ids.shape)} and dtype {ids.dtype}"
        )
    ids = ids.long()
    if not 0 <= int(ids.min()) <= int(ids.max()) < num_groups:
        raise ValueError(
            f"group ids must be from 0 to {num_groups - 1}, got {int(ids.min())} to "
            f"{int(ids.max())}"
        )
    return ids


def row_sums(tensor: Tensor) -> Tensor:
    """The sum of each row, whatever the memory format."""
    return tensor if tensor.dim() == 1 else tensor.sum(dim=tuple(range(1, tensor.dim())))
