"""How good a model is: clean, attacked, and on its worst group."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from neada import attacks
from neada.data import Dataset
from neada.training.config import TrainConfig
from neada.training.players import groups_of

__all__ = ["Interrupted", "accuracy_names", "evaluate"]

_CHUNK = 1000


class Interrupted(Exception):  # noqa: N818 (a signal, not an error)
    """Somebody wants the evaluation to stop."""


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
    found: list[float] = []
    bounds = data.bounds if config.eval_clip else None
    for part, (x, y) in data.splits.items():
        if part == "train":
            continue
        x, y = x[:num_samples], y[:num_samples]
        accuracy = attacks.robust_accuracy(
            model,
            _chunks(x, y, interrupted),
            config.attack,
            config.eval_eps,
            norm=config.eval_norm,
            bounds=bounds,
        )
        found += [accuracy.clean, *accuracy.attacked.values()]
        if config.objective == "group":
            groups = groups_of(data, part)[: len(x)]
            found.append(_worst_group(model, x, y, groups, interrupted))
    return dict(zip(accuracy_names(config, data), found, strict=True))


def accuracy_names(config: TrainConfig, data: Dataset) -> list[str]:
    """What `evaluate` calls its numbers, in their order."""
    kinds = ["clean", *(f"{eps:g}" for eps in dict.fromkeys(config.eval_eps))]
    kinds += ["worst_group"] if config.objective == "group" else []
    parts = [part.replace("-", "_") for part in data.splits if part != "train"]
    return [f"{part}_{kind}" for part in parts for kind in kinds]


def _chunks(
    x: Tensor, y: Tensor, interrupted: Callable[[], bool]
) -> Iterator[tuple[Tensor, Tensor]]:
    for begin in range(0, len(x), _CHUNK):
        if interrupted():
            raise Interrupted
        yield x[begin : begin + _CHUNK], y[begin : begin + _CHUNK]


def _worst_group(
    model: nn.Module, x: Tensor, y: Tensor, groups: Tensor, interrupted: Callable[[], bool]
) -> float:
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            right = torch.cat(
                [model(v).argmax(1) == targets for v, targets in _chunks(x, y, interrupted)]
            )
    finally:
        for part, mode in modes:
            part.training = mode
    totals = torch.bincount(groups)
    hits = torch.bincount(groups[right], minlength=len(totals))
    present = totals > 0
    return float((hits[present] / totals[present]).min())
