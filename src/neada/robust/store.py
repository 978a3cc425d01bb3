"""Perturbations that are kept between epochs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from neada import parallel
from neada.tensors import is_whole

__all__ = ["PerturbationStore"]


class PerturbationStore:
    """One perturbation per sample of a data set, zero at first, in one tensor on the CPU.

    With several ranks every rank holds the perturbations of all samples.

    Args:
        num_samples: The number of samples; ids are 0, ..., num_samples - 1.
        sample_shape: The shape of one sample.
        dtype: The dtype of the perturbations.

    Example:
        >>> store = PerturbationStore(1000, (1, 28, 28))
        >>> store.put(torch.tensor([3, 7]), torch.ones(2, 1, 28, 28))
        >>> store.get(torch.tensor([7, 8])).mean(dim=(1, 2, 3))
        tensor([1., 0.])
    """

    def __init__(
        self, num_samples: int, sample_shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> None:
        self.values = torch.zeros(num_samples, *sample_shape, dtype=dtype)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        num_samples, *shape = self.values.shape
        return f"PerturbationStore({num_samples} samples of shape {tuple(shape)}, {dtype})"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the perturbations."""
        return self.values.dtype

    def get(self, ids: Tensor) -> Tensor:
        """Return the perturbations of some samples, one row each."""
        return self.values[_checked(ids)]

    def put(self, ids: Tensor, delta: Tensor) -> None:
        """Set the perturbations of some samples, and with several ranks those of all ranks."""
        ids, delta = parallel.gather_rows(_checked(ids)), parallel.gather_rows(delta.detach())
        self.values[ids.cpu()] = delta.to(self.values)

    def state_dict(self) -> dict[str, Any]:
        """Return the perturbations."""
        return {"values": self.values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore saved perturbations.

        Raises:
            ValueError: They have another shape.
        """
        values = state_dict["values"]
        if values.shape != self.values.shape:
            raise ValueError(
                f"the saved perturbations have shape {tuple(values.shape)}, but the store has "
                f"shape {tuple(self.values.shape)}"
            )
        self.values.copy_(values)


def _checked(ids: Tensor) -> Tensor:
    """The ids on the CPU; booleans would select rows by a mask."""
    if not isinstance(ids, Tensor) or ids.dim() != 1 or not is_whole(ids):
        raise TypeError("ids must be a tensor of whole numbers, one per sample")
    return ids.cpu()
