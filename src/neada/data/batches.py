"""Batches of tensors in memory, in an order given by a seed, that can resume at any batch."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neada.checks import check_number

__all__ = ["Batches"]


class Batches:
    """Iterate over inputs and targets epoch by epoch, one batch at a time.

    Every batch is ``(inputs, targets, ids, *extras)`` with the samples' indices as ids; all are
    copies. ``for batch in batches`` ends with the current epoch, `endless()` never ends; both
    continue where the last loop stopped, which may be inside an epoch.

    The order of an epoch depends only on the seed and the number of the epoch, so a position is
    the pair of `epoch` and `batch`.

    Args:
        inputs: One per row.
        targets: One per row.
        batch_size: Samples in a batch; the last batch of an epoch may be smaller.
        seed: Seed of the orders.
        extras: More tensors with one row per sample, such as group ids.
        part: The rank of this process and the number of ranks. Each rank gets an equal share of
            every batch; the order of an epoch is padded with repeated samples, as in
            `torch.utils.data.DistributedSampler`. `batch_size` counts the samples of all ranks
            and must be divisible by their number.

    Attributes:
        epoch: The epoch of the next batch.
        batch: The number of the next batch within the epoch.

    Example:
        >>> import torch
        >>> points = torch.arange(10.0).reshape(5, 2)
        >>> batches = Batches(points, torch.arange(5), 2, seed=0)
        >>> [len(inputs) for inputs, targets, ids in batches]
        [2, 2, 1]
        >>> batches.epoch, batches.batch
        (1, 0)
        >>> inputs, targets, ids = next(batches.endless())
        >>> bool((inputs == points[ids]).all()), batches.state_dict()["batch"]
        (True, 1)
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int,
        *,
        seed: int = 0,
        extras: Sequence[Tensor] = (),
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._tensors = (inputs, targets, *extras)
        self._size = len(inputs)
        if self._size == 0 or any(len(tensor) != self._size for tensor in self._tensors):
            raise ValueError(
                "all tensors need the same number of rows, at least 1, got "
                f"{[len(tensor) for tensor in self._tensors]}"
            )
        check_number("batch_size", batch_size, above=1, strict=False, whole=True)
        check_number("seed", seed, above=0, strict=False, whole=True)
        self.batch_size = batch_size
        self.seed = seed
        self._num_batches = math.ceil(self._size / batch_size)
        if batch_size % part[1]:
            raise ValueError(
                f"batch_size = {batch_size} is not divisible by the number of ranks, {part[1]}"
            )
        self._part = part
        self._known_order: tuple[int, Tensor] | None = None
        self.epoch = self.batch = 0

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._num_batches

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """The remaining batches of the epoch."""
        epoch = self.epoch
        while self.epoch == epoch:
            yield self._next()

    def endless(self) -> Iterator[tuple[Tensor, ...]]:
        """The remaining batches of this epoch and of all later ones."""
        while True:
            yield self._next()

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Continue with a given batch.

        Args:
            epoch: Its epoch, from 0.
            batch: Its number within the epoch, from 0.
        """
        check_number("epoch", epoch, above=0, strict=False, whole=True)
        check_number("batch", batch, above=0, below=self._num_batches, strict=False, whole=True)
        self.epoch, self.batch = epoch, batch

    def state_dict(self) -> dict[str, Any]:
        """The position, and the arguments on which the order depends."""
        return {"epoch": self.epoch, "batch": self.batch, **self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at a saved position.

        Raises:
            ValueError: it was saved with another number of samples, seed or order.
        """
        for key, own in self._identity().items():
            saved = state_dict.get(key)
            if saved != own:
                raise ValueError(f"the position was saved with {key} = {saved!r}, not {own!r}")
        self.seek(state_dict["epoch"], state_dict["batch"])

    def _identity(self) -> dict[str, Any]:
        return {"num_samples": self._size, "batch_size": self.batch_size, "seed": self.seed}

    def _next(self) -> tuple[Tensor, ...]:
        begin = self.batch * self.batch_size
        rank, num_ranks = self._part
        joint = self._order()[begin : begin + self.batch_size]
        ids = joint.chunk(num_ranks)[rank].clone()
        inputs, targets, *extras = [tensor.index_select(0, ids) for tensor in self._tensors]
        # Before the batch is returned: a position that is saved while it is used is the next one.
        self.batch += 1
        if self.batch == self._num_batches:
            self.epoch, self.batch = self.epoch + 1, 0
        return (inputs, targets, ids, *extras)

    def _order(self) -> Tensor:
        """The order of the current epoch, padded to a multiple of the number of ranks."""
        if self._known_order is None or self._known_order[0] != self.epoch:
            generator = np.random.default_rng((self.seed, self.epoch))
            order = torch.from_numpy(generator.permutation(self._size))
            padding = order[torch.arange(-self._size % self._part[1]) % self._size]
            joint = torch.cat([order, padding]).to(self._tensors[0].device)
            self._known_order = (self.epoch, joint)
        return self._known_order[1]
