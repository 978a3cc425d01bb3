"""What the adversary of one batch maximises, and what a batch must be like."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from neada import tensors
from neada.robust.losses import take_rows
from neada.sets import Box, Set

__all__ = ["Problem", "checked_inputs", "row_sums"]


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

    def take(self, rows: Tensor) -> "Problem":
        """The problems of some samples."""
        clean = self.clean[rows]
        targets = take_rows(self.targets, rows)
        return replace(self, clean=clean, targets=targets, region=self.region_around(clean))


def checked_inputs(inputs: Tensor, box: Box | None) -> Tensor:
    """The clean inputs of a batch, or one sentence about what is wrong with them."""
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


def row_sums(tensor: Tensor) -> Tensor:
    """The sum of each row, whatever the memory format."""
    return tensor if tensor.dim() == 1 else tensor.sum(dim=tuple(range(1, tensor.dim())))
