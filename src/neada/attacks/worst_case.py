"""The ensemble: several attacks in turn, each on the samples that are still classified correctly.

As in AutoAttack (Croce & Hein 2020, arXiv:2003.01690): APGD with cross-entropy, APGD towards the
likely wrong classes, and Square, which needs no gradients. The fourth attack, FAB, is not included,
and Square stops early where it makes no progress.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from neada.attacks.auto_pgd import apgd
from neada.attacks.ball import Ball, Norm
from neada.attacks.gradient import Loss, Model, evaluate, evaluating
from neada.attacks.square import check_queries, square

__all__ = ["PARTS", "Progress", "Survivors", "attack_in_turn"]

Progress = Callable[[float, str], None]
"""Called with the completed share of the work and the name of the current attack."""

PARTS = ("apgd-ce", "apgd-targeted-dlr", "square")


class Survivors(NamedTuple):
    """The result of the ensemble.

    Attributes:
        points: The perturbed batch.
        counts: How many samples are classified correctly: at first and after each of `PARTS`.
    """

    points: Tensor
    counts: tuple[int, ...]


def attack_in_turn(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    eps: float,
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    loss: Loss | None = None,
    num_steps: int = 100,
    num_targets: int = 9,
    num_queries: int = 5000,
    patience: int | None = 500,
    generator: torch.Generator | None = None,
    progress: Progress = lambda part, words: None,
) -> Survivors:
    """The worst case over APGD with cross-entropy, APGD with the targeted DLR, and Square.

    Misclassified samples take no part in the following attacks.

    Args:
        model: As in `fgsm`; a classifier.
        inputs: As in `fgsm`.
        targets: The classes.
        eps: As in `fgsm`.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: The loss of the first attack; by default cross-entropy.
        num_steps: Steps of each ascent of APGD.
        num_targets: How many wrong classes APGD tries.
        num_queries: As in `square`.
        patience: As in `square`, which detects masked gradients early; None uses all queries.
        generator: As in `square`.
        progress: Called with the completed share of the work and the name of the attack.

    Returns:
        The perturbed batch, and the number of survivors of each attack. A sample that survives all
        attacks has the point with the largest loss that the first attack found.

    Raises:
        ValueError: An argument is invalid.
        FloatingPointError: The output of the model is NaN, or its gradient is NaN or Inf.
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    check_queries(num_queries, patience)  # before the long ascents
    steps = partial(apgd, norm=norm, bounds=bounds, num_steps=num_steps)
    attacks: dict[str, Callable[..., Tensor]] = {
        "apgd-ce": partial(steps, loss=loss),
        "apgd-targeted-dlr": partial(steps, loss="targeted-dlr", num_targets=num_targets),
        "square": partial(
            square,
            norm=norm,
            bounds=bounds,
            num_queries=num_queries,
            patience=patience,
            generator=generator,
        ),
    }
    with evaluating(model):
        points = ball.center.clone()
        fooled = evaluate(model, points, targets, None).fooled
        counts = [int((~fooled).sum())]
        for i, (name, attack) in enumerate(attacks.items()):
            progress(i / len(attacks), name)
            left = (~fooled).nonzero()[:, 0]
            if len(left):
                found = attack(model, ball.center[left], targets[left], eps)
                broken = evaluate(model, found, targets[left], None).fooled
                take = broken | (i == 0)
                points[left[take]] = found[take]
                fooled[left] = broken
            counts.append(int((~fooled).sum()))
    return Survivors(points, tuple(counts))
