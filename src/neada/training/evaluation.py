"""How good a model is: clean, attacked, and on its worst group."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from neada import attacks, devices, parallel, tables
from neada.attacks.gradient import evaluating
from neada.data import Dataset
from neada.training.config import TrainConfig
from neada.training.players import groups_of

__all__ = ["Interrupted", "accuracy_names", "chunks", "evaluate", "evaluations"]

_CHUNK = 1000


class Interrupted(Exception):  # noqa: N818 (a signal, not an error)
    """Somebody wants the evaluation to stop."""


def evaluations(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    at_end: bool,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[dict[str, float]]:
    """What `evaluate` finds on the config's number of samples and, at the end, on all.

    So every curve is about the same samples from its first point to its last; how many there were
    of the test set is said in ``eval_samples``.

    Args:
        config: Which attack, which eps, how many samples.
        model: The network.
        data: What it was trained on.
        at_end: Whether to look at all samples, too.
        interrupted: Asked between chunks whether to give up.

    Raises:
        Interrupted: `interrupted` said so.
    """
    parts = [len(targets) for part, (_, targets) in data.splits.items() if part != "train"]
    few = config.eval_samples
    sizes: list[int | None] = [few if few is not None and few < max(parts) else None]
    if at_end and sizes != [None]:
        sizes.append(None)
    return [
        {
            **evaluate(config, model, data, size, interrupted),
            "eval_samples": len(data.targets_test[:size]),
        }
        for size in sizes
    ]


def evaluate(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    num_samples: int | None,
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Accuracies on the test set and, where there is one, on the held-out part.

    Args:
        config: Which attack, which eps.
        model: The network.
        data: What it was trained on.
        num_samples: How many samples of each part to look at; None for all.
        interrupted: Asked between chunks whether to give up.

    Returns:
        ``test_clean``, ``test_0.05`` and so on, ``held_out_...`` likewise; with groups also
        ``test_worst_group``.

    Raises:
        Interrupted: `interrupted` said so.
    """
    has_groups = tables.OBJECTIVES[config.objective].has_groups
    own = slice(parallel.rank(), num_samples, parallel.num_ranks())
    found: list[float] = []
    for part, (inputs, targets) in data.splits.items():
        if part == "train":
            continue
        inputs, targets = inputs[own], targets[own]
        num_seen, *num_right = _sums(
            _num_right(config, model, data, inputs, targets, interrupted)
        ).tolist()
        found += [count / num_seen for count in num_right]
        if has_groups:
            groups = groups_of(data, part)
            batches = chunks(inputs, targets, interrupted)
            counts = _sums(_by_group(model, batches, groups[own], int(groups.max()) + 1))
            sizes, right = counts[:, counts[0] > 0]
            found.append(float((right / sizes).min()))
    return dict(zip(accuracy_names(config, data), found, strict=True))


def _sums(counts: Tensor) -> Tensor:
    """The sums of counts over all ranks."""
    sums = counts.double()
    parallel.average_([sums])
    return (sums * parallel.num_ranks()).round().long()


def accuracy_names(config: TrainConfig, data: Dataset) -> list[str]:
    """What `evaluate` calls its numbers, in their order."""
    kinds = ["clean", *(f"{eps:g}" for eps in dict.fromkeys(config.eval_eps))]
    kinds += ["worst_group"] if tables.OBJECTIVES[config.objective].has_groups else []
    parts = [part.replace("-", "_") for part in data.splits if part != "train"]
    return [f"{part}_{kind}" for part in parts for kind in kinds]


def chunks(
    inputs: Tensor, targets: Tensor, interrupted: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Tensor, Tensor]]:
    """A part of the data in batches that fit into memory.

    Args:
        inputs: All inputs.
        targets: All targets.
        interrupted: Asked before every batch whether to give up.

    Raises:
        Interrupted: `interrupted` said so.
    """
    for batch in zip(torch.split(inputs, _CHUNK), torch.split(targets, _CHUNK), strict=True):
        if interrupted():
            raise Interrupted
        yield batch


def _num_right(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    inputs: Tensor,
    targets: Tensor,
    interrupted: Callable[[], bool],
) -> Tensor:
    """How many samples there are, and how many are right: clean, and at each eps."""
    levels = dict.fromkeys(config.eval_eps)
    if len(inputs) == 0:  # more ranks than samples
        return torch.zeros(2 + len(levels), dtype=torch.int64)
    accuracy = attacks.robust_accuracy(
        model,
        chunks(inputs, targets, interrupted),
        config.attack,
        config.eval_eps,
        norm=config.eval_norm,
        bounds=data.bounds if config.eval_clip else None,
    )
    shares = [accuracy.clean, *accuracy.attacked.values()]
    num_samples = accuracy.num_samples
    return torch.tensor([num_samples, *(round(share * num_samples) for share in shares)])


def _by_group(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], groups: Tensor, num_groups: int
) -> Tensor:
    """Two rows: how many samples every group has, and how many of them are right."""
    device = devices.of_module(model)
    with evaluating(model), torch.no_grad():
        found = [(model(inputs.to(device)).argmax(1).cpu(), targets) for inputs, targets in batches]
    if not found:  # more ranks than samples
        return torch.zeros(2, num_groups, dtype=torch.int64)
    right = torch.cat([classes == targets for classes, targets in found]).nonzero().squeeze(1)
    counts = [torch.bincount(groups[rows], minlength=num_groups) for rows in (slice(None), right)]
    return torch.stack(counts)
