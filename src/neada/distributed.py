"""Decisions that every rank takes alike; without a process group, nothing happens here.

All collectives of the library are in this file. A rank that cannot go on says so in the collective
that the others wait in, and its error is raised on all of them. Gradients of parameters that a
wrapper (`DistributedDataParallel`, `fully_shard`) averages are left to it.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if dist.is_available():
    # Its functions have the process group as a default argument: imported after the group was made,
    # as torch's compiler does, it keeps the group and its threads, and the process may end in
    # SIGABRT.
    import torch.distributed.nn

__all__ = [
    "ConnectionLost",
    "Meeting",
    "any_rank",
    "average",
    "bare",
    "communicates",
    "connected",
    "copy_from_first",
    "counted",
    "exchange",
    "from_first",
    "gather",
    "gather_numbers",
    "gather_on_first",
    "idle",
    "is_active",
    "is_of_all_ranks",
    "is_shard",
    "local",
    "mean",
    "num_ranks",
    "rank",
    "squared_norm_of_shards",
    "together",
    "watching_wrappers",
    "wrapped_parameters",
]


Thing = TypeVar("Thing")


class ConnectionLost(RuntimeError):  # noqa: N818 (what has happened)
    """Another rank has ended, or has not answered for too long."""


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """A block in which what the backend raises when a rank has gone is one sentence.

    Raises:
        ConnectionLost: In place of an error of the backend.
    """
    try:
        yield
    except RuntimeError as error:
        is_backend = isinstance(error, dist.DistError) or "gloo" in str(error)
        if not is_active() or not is_backend:
            raise
        reason = re.sub(r"\[\S*:\d+\] ", "", str(error)).partition(". ")[0].splitlines()[0]
        raise ConnectionLost(
            f"another rank does not answer any more ({reason}): the last checkpoint is whole, "
            "resume goes on from there"
        ) from error


def is_active() -> bool:
    """Whether several processes work together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def num_ranks() -> int:
    """How many processes work together; 1 without a process group."""
    return dist.get_world_size() if is_active() else 1


def rank() -> int:
    """The number of this process; 0 without a process group."""
    return dist.get_rank() if is_active() else 0


# Numbers, and errors that come with them.


def mean(number: float, like: Tensor, error: Exception | None = None, weight: float = 1.0) -> float:
    """The mean of a number over all ranks, the same bits on each of them.

    A stopping rule that looks at such a mean fires at the same step everywhere, whatever data the
    ranks have seen.

    Args:
        number: This rank's number.
        like: A tensor on the device that the process group communicates from.
        error: Why this rank has no number; it is raised on every rank.
        weight: What the number counts, such as the samples it is about.
    """
    if not is_active():
        return number
    total, weights = _exchange(number * weight, like, error, weight)
    return total / weights


def any_rank(flag: bool, like: Tensor) -> bool:
    """Whether a flag is set on any rank."""
    return _exchange(float(flag), like)[0] > 0.0 if is_active() else flag


def _exchange(
    number: float, like: Tensor, error: Exception | None = None, weight: float = 1.0
) -> tuple[float, float]:
    """The sums of a number and a weight over all ranks, unless one of them has an error.

    This is the collective that a rank with an error may enter at any time, so it has one form.
    """
    failed = error is not None
    packet = [0.0 if failed else number, weight, float(failed)]
    total = torch.tensor(packet, dtype=torch.float64, device=like.device)
    dist.all_reduce(total)
    number, weight, failures = total.tolist()
    if failures:
        _raise_everywhere(error)
    return number, weight


def _raise_everywhere(error: Exception | None) -> None:
    """Raise the error of the first rank that has one, on all of them."""
    mine: tuple[type[Exception], list[Any]] | None = None
    if isinstance(error, OSError) and error.errno is not None:
        mine = (type(error), [error.errno, error.strerror, error.filename])
    elif error is not None:
        mine = (_portable(type(error)), [str(error)])
    found = gather(mine)
    place, (kind, facts) = next((i, each) for i, each in enumerate(found) if each is not None)
    words = min(1, len(facts) - 1)  # after the number of an OSError
    facts[words] = f"rank {place}: {facts[words]}"
    joint = kind(*facts)
    joint.is_of_all_ranks = True  # type: ignore[attr-defined]
    raise joint from error


def is_of_all_ranks(error: Exception) -> bool:
    """Whether every rank has raised this error."""
    return getattr(error, "is_of_all_ranks", False)


def _portable(kind: type[Exception]) -> type[Exception]:
    """The class of an error, or RuntimeError where another process could not make one."""
    try:
        kind("words")
    except TypeError:
        return RuntimeError
    return kind if kind.__module__.partition(".")[0] in ("builtins", "neada") else RuntimeError


class _Here:
    """What this process is doing.

    Attributes:
        meeting: Of the outermost block of `together`, if it is in one.
        is_idle: Whether its samples count for nothing.
    """

    meeting: "Meeting | None" = None
    is_idle = False


@dataclass
class Meeting:
    """What the ranks have told each other at the end of a block of `together`.

    Attributes:
        share: The samples of this rank, divided by the mean over the ranks: a mean over its
            samples that is multiplied by this is averaged over the ranks to the joint mean.
    """

    share: float = 1.0


@contextlib.contextmanager
def together(like: Tensor, num_samples: int = 1) -> Iterator[Meeting]:
    """An error of one rank in the block is raised on every rank; takes one reduction.

    Inside, ranks may do different things as long as they communicate by `mean` and `any_rank`
    alone. Of nested blocks only the outermost counts.

    Args:
        like: A tensor on the device that the process group communicates from.
        num_samples: How many samples of this rank the block is about.

    Yields:
        What is known about all ranks after the outermost block.
    """
    if not is_active() or _Here.meeting is not None:
        yield _Here.meeting or Meeting()
        return
    error: Exception | None = None
    _Here.meeting = meeting = Meeting()
    try:
        yield meeting
    except Exception as caught:
        if is_of_all_ranks(caught):
            raise
        error = caught
    finally:
        _Here.meeting = None
    num_counted = counted(num_samples)
    _, total = _exchange(0.0, like, error, num_counted)
    meeting.share = num_counted * dist.get_world_size() / total


@contextlib.contextmanager
def idle() -> Iterator[None]:
    """In the block the samples of this rank stand in for none, and count for nothing.

    A rank without samples of a batch takes part in everything that the ranks do together, with any
    one of the others' samples.
    """
    _Here.is_idle = True
    try:
        yield
    finally:
        _Here.is_idle = False


def counted(num_samples: int) -> int:
    """How many of a number of samples count."""
    return 0 if _Here.is_idle else num_samples


# Objects.


def gather(thing: Thing) -> list[Thing]:
    """Something of every rank, in the order of the ranks; it must be possible to pickle it."""
    if not is_active():
        return [thing]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, thing)
    return found


def from_first(thing: Thing) -> Thing:
    """Something of rank 0, on every rank."""
    if not is_active():
        return thing
    found = [thing]
    dist.broadcast_object_list(found)
    return found[0]


# Tensors.


def average(tensors: Sequence[Tensor], value: Tensor, error: Exception | None = None) -> Tensor:
    """Average tensors in place, and a value, over all ranks by one reduction.

    The ranks must do so one after the other with tensors of the same shapes. A rank with an error
    takes part with whatever is there, and all of them raise it.

    Args:
        tensors: Replaced by their means.
        value: Of this rank; one number or one per row.
        error: Why this rank cannot go on.

    Returns:
        The mean of the values.
    """
    if not is_active():
        if error is not None:
            raise error
        return value
    parts = [*tensors, value]
    dtype = torch.float32
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    flat = torch.cat(
        [
            *(part.detach().reshape(-1).to(dtype) for part in parts),
            torch.full((1,), float(error is not None), dtype=dtype, device=value.device),
        ]
    )
    dist.all_reduce(flat)
    if flat[-1].item():
        _raise_everywhere(error)
    flat /= dist.get_world_size()
    pieces = torch.split(flat[:-1], [part.numel() for part in parts])
    for tensor, piece in zip(tensors, pieces, strict=False):
        tensor.copy_(piece.view_as(tensor))
    return pieces[-1].view_as(value).to(value.dtype)


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Give tensors the values that they have on rank 0."""
    if is_active():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def gather_numbers(numbers: Sequence[float], like: Tensor) -> list[list[float]]:
    """Some numbers of every rank, in the order of the ranks."""
    own = torch.tensor(numbers, dtype=torch.float64, device=like.device)
    if not is_active():
        return [own.tolist()]
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return [each.tolist() for each in found]


def exchange(rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Send rows to the ranks: the first ones to rank 0, and so on.

    Args:
        rows: On the cpu, with a backend that communicates from there.
        counts: How many go to each rank.

    Returns:
        The rows that came, those of rank 0 first, and how many came from each rank.
    """
    incoming = torch.empty(dist.get_world_size(), dtype=torch.int64)
    dist.all_to_all_single(incoming, torch.tensor(counts))
    arrived = incoming.tolist()
    received = rows.new_empty((sum(arrived), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), arrived, list(counts))
    return received, arrived


def gather_on_first(tensor: Tensor) -> list[Tensor]:
    """The tensors of all ranks, whose lengths may differ, on rank 0; an empty list elsewhere."""
    counts = [0] * dist.get_world_size()
    counts[0] = len(tensor)
    received, arrived = exchange(tensor, counts)
    return list(torch.split(received, arrived)) if rank() == 0 else []


# Wrappers.


def bare(model: nn.Module) -> nn.Module:
    """The network without `DistributedDataParallel`, which communicates in its `forward`."""
    inside = getattr(model, "_orig_mod", model)  # of a compiled module
    return inside.module if isinstance(inside, DistributedDataParallel) else model


def communicates(model: nn.Module) -> bool:
    """Whether the model's `forward` has collectives of its own: gathers, or copies buffers."""
    inside = getattr(model, "_orig_mod", model)
    copies = isinstance(inside, DistributedDataParallel) and any(True for _ in inside.buffers())
    return copies or any(is_shard(parameter) for parameter in model.parameters())


def is_shard(tensor: Tensor) -> bool:
    """Whether this is one rank's part of a tensor, as `fully_shard` leaves it."""
    module = sys.modules.get("torch.distributed.tensor")  # not loaded: there is none
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The part of each tensor that this rank has, in the same memory."""
    return [t.to_local() if is_shard(t) else t for t in tensors]  # type: ignore[attr-defined]


def wrapped_parameters(modules: Iterable[nn.Module]) -> set[int]:
    """The ids of the parameters whose gradients `DistributedDataParallel` averages."""
    wrappers = [getattr(module, "_orig_mod", module) for module in modules]
    return {
        id(parameter)
        for wrapper in wrappers
        if isinstance(wrapper, DistributedDataParallel)
        for parameter in wrapper.parameters()
    }


@contextlib.contextmanager
def watching_wrappers() -> Iterator[list[nn.Module]]:
    """A list of the `DistributedDataParallel` modules that are evaluated in the block."""
    seen: list[nn.Module] = []

    def look(module: nn.Module, inputs: object) -> None:
        if isinstance(module, DistributedDataParallel):
            seen.append(module)

    handle = nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def squared_norm_of_shards(tensors: Sequence[Tensor]) -> float:
    """The squared norm of tensors that are spread over the ranks, the same on each of them."""
    norm = torch.nn.utils.get_total_norm(tensors)
    whole: Tensor = norm.full_tensor() if is_shard(norm) else norm  # type: ignore[attr-defined]
    return whole.item() ** 2
