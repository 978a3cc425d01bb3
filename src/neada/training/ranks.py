"""What the ranks of a training run do together: they meet, share a batch, and agree.

Without a process group each function does what a single process does.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from neada import devices, distributed
from neada.checks import environment_number
from neada.inner import BudgetExhausted
from neada.robust import RobustInfo
from neada.training.config import OF_THE_MACHINE, TrainConfig
from neada.training.players import Game

__all__ = ["agreed", "first_then_others", "joint_step", "met", "of_first", "seed_of_rank"]

Thing = TypeVar("Thing")
_MEANS = ("loss", "value", "perturbation", "grad_sq_y")


@contextlib.contextmanager
def met(device: torch.device) -> Iterator[None]:
    """A block in which the processes that torchrun started work together.

    A process group that is there already is used as it is.

    Args:
        device: Of this process.
    """
    is_launched = environment_number("WORLD_SIZE", 1) > 1 and "RANK" in os.environ
    attempt = environment_number("TORCHELASTIC_RESTART_COUNT", 0)
    environment_number("RANK", 0)  # torch reads it
    if not is_launched or dist.is_initialized():
        yield
        return
    devices.make_current(device)
    # torchrun may keep its store over a restart, and with it the addresses of ranks that are gone.
    store, rank, num_ranks = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    store = dist.PrefixStore(f"neada-attempt-{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(store=store, rank=rank, world_size=num_ranks)
    try:
        with distributed.connected():
            yield
    finally:
        dist.destroy_process_group()


def seed_of_rank(seed: int) -> int:
    """A seed for what ranks draw apart from each other, such as dropout."""
    if distributed.rank() == 0:
        return seed
    return int(np.random.SeedSequence((seed, distributed.rank())).generate_state(1, np.uint64)[0])


def of_first(config: TrainConfig) -> TrainConfig:
    """The config of rank 0, with what describes the machine of this rank."""
    own = {name: getattr(config, name) for name in OF_THE_MACHINE}
    return replace(distributed.from_first(config), **own)


def first_then_others(make: Callable[[], Thing]) -> Thing:
    """What a function returns that rank 0 calls before the others, since it may write files."""
    like = torch.zeros(())
    with distributed.together(like):
        made = make() if distributed.rank() == 0 else None
    with distributed.together(like):
        return make() if made is None else made


def agreed(*flags: bool) -> list[bool]:
    """Whether each flag is set on any rank."""
    if not distributed.is_active():
        return list(flags)
    found = distributed.gather_numbers([float(flag) for flag in flags], torch.zeros(()))
    return [any(column) for column in zip(*found, strict=True)]


def joint_step(
    game: Game, model: nn.Module, batch: tuple[Tensor, ...], is_idle: bool
) -> RobustInfo:
    """Move both players on a batch of which this rank has a part.

    Args:
        game: The players; their counters become those of a process that has the whole batch.
        model: The network; running statistics become the mean over the ranks.
        batch: This rank's part.
        is_idle: Whether it stands in for none.

    Returns:
        What the step saw and spent, on all ranks together: the longest inner loop, the sum of the
        samples, means over the samples of the batch.

    Raises:
        BudgetExhausted: On all ranks.
    """
    if not distributed.is_active():
        return game.step(*batch)
    before, now = replace(game.counters), game.counters
    info: RobustInfo | None = None
    over: BudgetExhausted | None = None
    try:
        with distributed.idle() if is_idle else contextlib.nullcontext():
            info = game.step(*batch)
    except BudgetExhausted as caught:
        over = caught
    num_samples = 0 if is_idle else len(batch[0])
    spent = {name: getattr(now, name) - getattr(before, name) for name in now.state_dict()}
    if is_idle:
        spent.update(samples_x=0, samples_y=0)
    means = [0.0 if info is None else getattr(info, name) for name in _MEANS]
    rows = distributed.gather_numbers([num_samples, *means, *spent.values()], batch[0])
    weights, *columns = map(list, zip(*rows, strict=True))
    for name, column in zip(spent, columns[len(means) :], strict=True):
        joint = sum(column) if name.startswith("samples") else max(column)
        spent[name] = int(joint)
        setattr(now, name, getattr(before, name) + int(joint))
    if info is None:
        assert over is not None
        raise over
    total = sum(weights)
    _average_statistics(model, num_samples * len(weights) / total)
    seen = {
        name: sum(w * m for w, m in zip(weights, column, strict=True) if w > 0.0) / total
        for name, column in zip(_MEANS, columns, strict=False)
    }
    spent.pop("outer_steps")
    return replace(info, **seen, **spent)


def _average_statistics(model: nn.Module, share: float) -> None:
    """Let all ranks have the same running statistics, so that one of them can be saved."""
    layers = [layer for layer in model.modules() if isinstance(layer, _NormBase) and layer.training]
    found = [(layer.running_mean, layer.running_var) for layer in layers]
    statistics = [each for pair in found for each in pair if each is not None]
    if statistics:
        with torch.no_grad():
            torch._foreach_mul_(statistics, share)
            distributed.average(statistics, statistics[0].new_zeros(()))
