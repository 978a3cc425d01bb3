"""What the processes ("ranks") of one training run must agree on.

Every rank takes the same steps in the same order. `agree` makes stopping decisions joint, and
`average_` averages the gradients of modules without a wrapper; `DistributedDataParallel` and
`fully_shard` average their own. With one process, every function returns its argument unchanged.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if dist.is_available():
    # Its functions have the process group as a default argument. If torch's compiler imports it
    # after the group is created, the group outlives `destroy_process_group` and the process may
    # abort on exit.
    import torch.distributed.nn

__all__ = [
    "agree",
    "any_shard",
    "average_",
    "average_gradients_",
    "copy_from_first_",
    "from_first",
    "gather_rows",
    "is_active",
    "is_shard",
    "local_parts",
    "num_ranks",
    "process_group",
    "rank",
    "squared_norm_of_shards",
    "unwrapped",
]

Thing = TypeVar("Thing")


def is_active() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def num_ranks() -> int:
    """The number of processes."""
    return dist.get_world_size() if is_active() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if is_active() else 0


def agree(number: float, weight: float = 1.0) -> float:
    """Return the weighted mean of a number over all ranks, bitwise equal on each of them.

    NaN on one rank is NaN on all of them, so all ranks raise together.
    """
    if not is_active():
        return number
    sums = torch.tensor([number * weight, weight], dtype=torch.float64, device=_device())
    dist.all_reduce(sums)
    total, weights = sums.tolist()
    return float(total / weights)


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all ranks, with one reduction."""
    if not is_active() or not tensors:
        return
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    flat = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))


def average_gradients_(params: Sequence[Tensor], *others: Tensor) -> None:
    """Average `.grad` over the ranks, with one reduction; a missing gradient counts as zero.

    Shards are left alone. Averaging again what a wrapper has averaged changes nothing.

    Args:
        params: The tensors whose gradients are averaged.
        others: More tensors to average.
    """
    if not is_active():
        return
    own = [param for param in params if param.requires_grad and not is_shard(param)]
    for param in own:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    average_([*(param.grad for param in own if param.grad is not None), *others])


def gather_rows(tensor: Tensor) -> Tensor:
    """Concatenate the rows of all ranks, which must have equally many."""
    if not is_active():
        return tensor
    tensor = tensor.detach().to(_device()).contiguous()
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return torch.cat(found)


def from_first(thing: Thing) -> Thing:
    """Return the object of rank 0 on every rank."""
    if not is_active():
        return thing
    found = [thing]
    dist.broadcast_object_list(found)
    return found[0]


def copy_from_first_(tensors: Sequence[Tensor]) -> None:
    """Give tensors the values that they have on rank 0."""
    if is_active():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside `DistributedDataParallel`, which synchronizes in `forward`."""
    inside = getattr(model, "_orig_mod", model)  # of a compiled module
    return inside.module if isinstance(inside, DistributedDataParallel) else model


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is a `DTensor`, as `fully_shard` makes of parameters."""
    module = sys.modules.get("torch.distributed.tensor")  # importing it takes most of a second
    return module is not None and isinstance(tensor, module.DTensor)


def any_shard(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors is a shard."""
    return is_active() and any(map(is_shard, tensors))


def squared_norm_of_shards(tensors: Sequence[Tensor]) -> float:
    """Return the squared norm of tensors that are spread over the ranks."""
    norm = torch.nn.utils.get_total_norm(tensors)
    whole: Tensor = norm.full_tensor() if is_shard(norm) else norm  # type: ignore[attr-defined]
    return whole.item() ** 2


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the part of each tensor that this rank holds, sharing its memory."""
    return [t.to_local() if is_shard(t) else t for t in tensors]  # type: ignore[attr-defined]


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the process group of `torchrun` for the duration of the block.

    An existing group is used as it is; a process that `torchrun` did not start works alone.

    Args:
        device: The device of this process.
    """
    if (
        "RANK" not in os.environ
        or os.environ.get("WORLD_SIZE", "1") == "1"
        or dist.is_initialized()
    ):
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # After a restart, torchrun's store may still have the addresses of ranks that are gone.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, place, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    store = dist.PrefixStore(f"neada-attempt-{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(store=store, rank=place, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _device() -> torch.device:
    """The device that the process group communicates from."""
    return torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
