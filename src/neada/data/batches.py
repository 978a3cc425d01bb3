"""Batches of tensors in memory, shuffled by seed, that can go on from any batch."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neada.checks import check_flags, check_number

__all__ = ["Batches"]


class Batches:
    """Goes through inputs and targets epoch by epoch, a whole batch at a time.

    Every batch is ``(inputs, targets, ids, *extras)`` with the samples' indices as ids; all are
    copies. ``for batch in batches`` runs to the end of the present epoch, `endless()` for ever;
    both go on where the last loop stopped, which may be inside an epoch.

    The order of an epoch depends only on the seed and the epoch's number, so a position is two
    numbers, and any of them can be sought.

    Args:
        inputs: One per row.
        targets: One per row.
        batch_size: Samples in a batch; the last batch of an epoch may be smaller.
        seed: Which orders.
        shuffle: Whether to shuffle; otherwise every epoch has the order of the rows.
        drop_last: Leave out a last batch that is smaller.
        start: The epoch and the batch to begin with, from 0.
        extras: More tensors to yield rows of, such as group ids.
        part: The number of this rank and the number of ranks. Each rank gets an equal share of
            every batch; the order of an epoch is padded with repeated samples, as
            `torch.utils.data.DistributedSampler` does. `batch_size` counts the samples of all
            ranks and must be divisible by their number.

    Attributes:
        epoch: The epoch of the next batch.
        batch: Its number within the epoch.

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
        shuffle: bool = True,
        drop_last: bool = False,
        start: tuple[int, int] = (0, 0),
        extras: Sequence[Tensor] = (),
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._tensors = (inputs, targets, *extras)
        self._size = _check_tensors(self._tensors)
        check_number("batch_size", batch_size, above=1, strict=False, whole=True)
        check_number("seed", seed, above=0, strict=False, whole=True)
        check_flags(shuffle=shuffle, drop_last=drop_last)
        self.batch_size = int(batch_size)
        self.seed = int(seed)
        self.shuffle = shuffle
        self.drop_last = drop_last
        whole, rest = divmod(self._size, self.batch_size)
        self._num_batches = whole + (rest > 0 and not drop_last)
        if self._num_batches == 0:
            raise ValueError(
                f"drop_last leaves no batch of {batch_size} in {self._size} samples; lower "
                "batch_size"
            )
        if batch_size % part[1]:
            raise ValueError(
                f"batch_size = {batch_size} is not divisible by the number of ranks, {part[1]}"
            )
        self._part = part
        self._known_order: tuple[int, Tensor] | None = None
        self.seek(*start)

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self._num_batches

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches from here to the end of the epoch."""
        epoch = self.epoch
        while self.epoch == epoch:
            yield self._next()

    def endless(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches from here on, epoch after epoch."""
        while True:
            yield self._next()

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Let the next batch be that one.

        Args:
            epoch: Its epoch, from 0.
            batch: Its number within the epoch, from 0.
        """
        for name, number in (("epoch", epoch), ("batch", batch)):
            check_number(name, number, above=0, strict=False, whole=True)
        if batch >= self._num_batches:
            raise ValueError(f"an epoch has {self._num_batches} batches, there is no batch {batch}")
        self.epoch, self.batch = int(epoch), int(batch)

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it refers to."""
        return {"epoch": self.epoch, "batch": self.batch, **self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved position.

        Args:
            state_dict: What `state_dict` gave.

        Raises:
            ValueError: it belongs to other batches: another size, seed or order.
        """
        for key, own in self._identity().items():
            if key not in state_dict or state_dict[key] != own:
                raise ValueError(
                    f"the saved position is of batches with {key} = {state_dict.get(key)!r}, but "
                    f"these have {own!r}; make them alike"
                )
        self.seek(state_dict["epoch"], state_dict["batch"])

    def _identity(self) -> dict[str, Any]:
        return {
            "num_samples": self._size,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def _next(self) -> tuple[Tensor, ...]:
        begin = self.batch * self.batch_size
        rank, num_ranks = self._part
        joint = self._order()[begin : begin + self.batch_size]
        ids = joint.chunk(num_ranks)[rank].clone()
        inputs, targets, *extras = [tensor.index_select(0, ids) for tensor in self._tensors]
        # Before the batch is handed out, so that a position saved while it is used is the next one.
        self.batch += 1
        if self.batch == self._num_batches:
            self.epoch, self.batch = self.epoch + 1, 0
        return (inputs, targets, ids, *extras)

    def _order(self) -> Tensor:
        """The order of the present epoch, padded to a multiple of the number of ranks."""
        epoch = self.epoch if self.shuffle else 0
        if self._known_order is None or self._known_order[0] != epoch:
            device = self._tensors[0].device
            if self.shuffle:
                order = torch.from_numpy(_shuffled(self._size, self.seed, epoch)).to(device)
            else:
                order = torch.arange(self._size, device=device)
            num_padded = -self._size % self._part[1]
            padding = order[torch.arange(num_padded, device=device) % self._size]
            self._known_order = (epoch, torch.cat([order, padding]))
        return self._known_order[1]


def _shuffled(size: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    entropy = np.random.SeedSequence((seed, epoch))
    return np.random.Generator(np.random.PCG64(entropy)).permutation(size)


def _check_tensors(tensors: Sequence[Tensor]) -> int:
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"batches are made of tensors, got {type(tensor).__name__}")
        if tensor.dim() == 0 or len(tensor) == 0:
            raise ValueError("there is no sample to make a batch of")
        if len(tensor) != len(tensors[0]):
            raise ValueError(
                f"there are {len(tensors[0])} inputs but {len(tensor)} of another; give one per "
                "input"
            )
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"the inputs are on {tensors[0].device} but another tensor is on {tensor.device}; "
                "move them together"
            )
    return len(tensors[0])
