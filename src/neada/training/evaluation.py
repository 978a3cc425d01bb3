"""Accuracies of a model: clean, under attack, and on its worst group."""

import torch
from torch import Tensor, nn

from neada import attacks, devices, parallel
from neada.attacks.gradient import evaluating
from neada.attacks.worst_case import Progress
from neada.data import Dataset
from neada.training.config import TrainConfig
from neada.training.players import groups_of

__all__ = ["accuracy_names", "chunks", "evaluations"]

_CHUNK_CPU, _CHUNK = 100, 1000
"""Samples per batch on the CPU, where small batches are faster, and on other devices."""


def evaluations(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    at_end: bool,
    progress: Progress = lambda part, words: None,
) -> list[dict[str, float]]:
    """Evaluate on ``config.eval_samples`` and, at the end, also on ``config.final_samples``.

    All points of a curve are therefore about the same samples. ``eval_samples`` in the result is
    the number of samples of the test set.

    Args:
        config: The attack, its sizes, and the numbers of samples.
        model: The network.
        data: The data set.
        at_end: Whether this is the last evaluation of the run.
        progress: Called with the completed share of a split and a description; it may raise an
            exception to stop the evaluation.
    """
    largest = max(len(targets) for part, (_, targets) in data.splits.items() if part != "train")
    wanted = [largest if config.eval_samples is None else config.eval_samples]
    if at_end and config.final_samples is not None:
        wanted.append(largest if config.final_samples == "all" else int(config.final_samples))
    sizes = dict.fromkeys(min(size, largest) for size in wanted)
    return [
        {
            **_evaluate(config, model, data, size, progress),
            "eval_samples": len(data.targets_test[:size]),
        }
        for size in sizes
    ]


def accuracy_names(config: TrainConfig, data: Dataset) -> list[str]:
    """Return the names of the accuracies: ``test_clean``, ``test_0.05``, ``held_out_clean``, ...

    With groups, there is also ``test_worst_group``.
    """
    kinds = ["clean", *(f"{eps:g}" for eps in dict.fromkeys(config.eval_eps))]
    kinds += ["worst_group"] if config.has_groups else []
    parts = [part.replace("-", "_") for part in data.splits if part != "train"]
    return [f"{part}_{kind}" for part in parts for kind in kinds]


def chunks(inputs: Tensor, targets: Tensor, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Split samples into batches of a size that is fast on the device."""
    size = _CHUNK_CPU if device.type == "cpu" else _CHUNK
    return list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))


def _evaluate(
    config: TrainConfig, model: nn.Module, data: Dataset, num_samples: int, progress: Progress
) -> dict[str, float]:
    """Return the accuracies on the first samples of each split; each rank evaluates a part."""
    own = slice(parallel.rank(), num_samples, parallel.num_ranks())
    device = devices.of_module(model)
    found: list[float] = []
    for part, (inputs, targets) in data.splits.items():
        if part == "train":
            continue
        batches = chunks(inputs[own], targets[own], device)

        def tell(share: float, words: str, part: str = part) -> None:
            progress(share, f"{part} {words}")

        num_seen, *num_right = _sums(_num_right(config, model, data, batches, tell)).tolist()
        found += [count / num_seen for count in num_right]
        if config.has_groups:
            groups = groups_of(data, part)
            counts = _sums(_by_group(model, batches, groups[own], int(groups.max()) + 1))
            sizes, right = counts[:, counts[0] > 0]
            found.append(float((right / sizes).min()))
    return dict(zip(accuracy_names(config, data), found, strict=True))


def _sums(counts: Tensor) -> Tensor:
    """Return the sums of counts over all ranks."""
    sums = counts.double()
    parallel.average_([sums])
    return (sums * parallel.num_ranks()).round().long()


def _num_right(
    config: TrainConfig,
    model: nn.Module,
    data: Dataset,
    batches: list[tuple[Tensor, Tensor]],
    progress: Progress,
) -> Tensor:
    """Count the samples, and those classified correctly: clean, and at each eps."""
    if not batches[0][0].numel():  # more ranks than samples
        return torch.zeros(2 + len(dict.fromkeys(config.eval_eps)), dtype=torch.int64)
    accuracy = attacks.robust_accuracy(
        model,
        batches,
        config.attack,
        config.eval_eps,
        norm=config.eval_norm,
        bounds=data.bounds if config.eval_clip else None,
        progress=progress,
    )
    shares = torch.tensor([1.0, accuracy.clean, *accuracy.attacked.values()], dtype=torch.float64)
    return (shares * accuracy.num_samples).round().long()


def _by_group(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], groups: Tensor, num_groups: int
) -> Tensor:
    """Count, in two rows, the samples of each group and those classified correctly."""
    device = devices.of_module(model)
    with evaluating(model), torch.no_grad():
        right = [model(inputs.to(device)).argmax(1).cpu() == targets for inputs, targets in batches]
    counted = (groups, groups[torch.cat(right)])
    return torch.stack([torch.bincount(rows, minlength=num_groups) for rows in counted])
