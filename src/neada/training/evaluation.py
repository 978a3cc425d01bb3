"""How good a model is: clean, attacked, and on its worst group."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from neada import attacks, devices, parallel, tables
from neada.attacks.gradient import evaluating
from neada.attacks.worst_case import Progress
from neada.data import Dataset
from neada.training.config import TrainConfig
from neada.training.players import groups_of

__all__ = ["Chunks", "Interrupted", "accuracy_names", "evaluate", "evaluations"]

_CHUNK_CPU, _CHUNK = 100, 1000
"""Samples per batch on the CPU, where small batches are faster, and on other devices."""


class Interrupted(Exception):  # noqa: N818 (a signal, not an error)
    """Somebody wants the evaluation to stop."""


def evaluations(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    at_end: bool,
    interrupted: Callable[[], bool] = lambda: False,
    progress: Progress = lambda part, words: None,
) -> list[dict[str, float]]:
    """Evaluate on ``config.eval_samples`` and, at the end, also on ``config.final_samples``.

    Every curve is therefore about the same samples from its first point to its last. The result
    ``eval_samples`` is the number of samples of the test set.

    Args:
        config: Which attack, which eps, how many samples.
        model: The network.
        data: What it was trained on.
        at_end: Whether this is the last evaluation of the run.
        interrupted: Asked between chunks whether to give up.
        progress: Called with the part that is done, from 0 to 1, and a description.

    Raises:
        Interrupted: `interrupted` said so.
    """
    largest = max(len(targets) for part, (_, targets) in data.splits.items() if part != "train")
    asked = [largest if config.eval_samples is None else config.eval_samples]
    if at_end and config.final_samples is not None:
        asked.append(largest if config.final_samples == "all" else int(config.final_samples))
    sizes = list(dict.fromkeys(min(size, largest) for size in asked))
    return [
        {
            **evaluate(config, model, data, size, interrupted, progress),
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
    progress: Progress = lambda part, words: None,
) -> dict[str, float]:
    """Accuracies on the test set and, where there is one, on the held-out part.

    Args:
        config: Which attack, which eps.
        model: The network.
        data: What it was trained on.
        num_samples: How many samples of each part to look at; None for all.
        interrupted: Asked between chunks whether to give up.
        progress: Called with the part of a split that is done, from 0 to 1, and a description.

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
        batches = Chunks(inputs[own], targets[own], devices.of_module(model), interrupted)

        def tell(share: float, words: str, part: str = part) -> None:
            progress(share, f"{part} {words}")

        num_seen, *num_right = _sums(_num_right(config, model, data, batches, tell)).tolist()
        found += [count / num_seen for count in num_right]
        if has_groups:
            groups = groups_of(data, part)
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


class Chunks:
    """A part of the data in batches for evaluations.

    Args:
        inputs: All inputs.
        targets: All targets.
        device: Where the model is; the size of the batches depends on it.
        interrupted: Asked before every batch whether to give up.

    Raises:
        Interrupted: `interrupted` said so; raised by the iterator.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        device: torch.device,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        size = _CHUNK_CPU if device.type == "cpu" else _CHUNK
        self.num_samples = len(inputs)
        self._batches = list(
            zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        )
        self._interrupted = interrupted

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches:
            if self._interrupted():
                raise Interrupted
            yield batch


def _num_right(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    batches: Chunks,
    progress: Progress,
) -> Tensor:
    """How many samples there are, and how many are right: clean, and at each eps."""
    levels = dict.fromkeys(config.eval_eps)
    if batches.num_samples == 0:  # more ranks than samples
        return torch.zeros(2 + len(levels), dtype=torch.int64)
    accuracy = attacks.robust_accuracy(
        model,
        batches,
        config.attack,
        config.eval_eps,
        norm=config.eval_norm,
        bounds=data.bounds if config.eval_clip else None,
        progress=progress,
    )
    shares = [accuracy.clean, *accuracy.attacked.values()]
    num_samples = accuracy.num_samples
    return torch.tensor([num_samples, *(round(share * num_samples) for share in shares)])


def _by_group(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], groups: Tensor, num_groups: int
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
