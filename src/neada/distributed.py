"""Decisions that every rank takes alike; without a process group, the identity."""

import torch
import torch.distributed as dist
from torch import Tensor

from neada.scalars import Scalar

__all__ = ["is_active", "mean", "num_ranks"]


def is_active() -> bool:
    """Whether several processes work together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def num_ranks() -> int:
    """How many processes work together; 1 without a process group."""
    return dist.get_world_size() if is_active() else 1


def mean(number: Scalar, like: Tensor) -> Scalar:
    """The mean of a number over all ranks, the same bits on each of them.

    A stopping rule that looks at such a mean fires at the same step everywhere, whatever data the
    ranks have seen.

    Args:
        number: This rank's number, or one per row.
        like: A tensor on the device that the process group communicates from.
    """
    if not is_active():
        return number
    total = torch.as_tensor(number, dtype=torch.float64, device=like.device).clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    return total if isinstance(number, Tensor) else total.item()
