"""Several attacks in turn, each on the samples that have withstood those before it.

As in AutoAttack (Croce & Hein 2020, arXiv:2003.01690): APGD on the cross-entropy, APGD towards the
likely wrong classes, and Square, which needs no gradients. Its fourth attack, FAB, is left out,
and Square ends early where it gets nowhere.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from neada.attacks.auto_pgd import apgd
from neada.attacks.ball import Ball, Norm
from neada.attacks.gradient import Loss, Model, evaluating, look
from neada.attacks.square import check_queries, square

__all__ = ["PARTS", "Progress", "Survivors", "attack_in_turn"]

Progress = Callable[[float, str], None]
"""Is told which part of the work is done, and what is at work."""

PARTS = ("apgd-ce", "apgd-targeted-dlr", "square")


class Survivors(NamedTuple):
    """What is left of a batch.

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

    Samples that are misclassified, at first or after one of the attacks, are left alone afterwards.

    Args:
        model: As in `fgsm`; a classifier.
        inputs: As in `fgsm`.
        targets: The classes.
        eps: As in `fgsm`.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: Of the first attack; by default cross-entropy.
        num_steps: Of each ascent of APGD.
        num_targets: Wrong classes that APGD tries.
        num_queries: Of Square.
        patience: End Square when so many queries in turn have broken no sample of the batch (more
            in small ones): it is there for masked gradients, which it finds early. None spends all
            queries.
        generator: Of Square, on the CPU; by default a new one with seed 0.
        progress: Called with the completed share of the work and the name of the attack.

    Returns:
        The perturbed batch, and the number of survivors of each attack. A sample that withstands
        all attacks has the point with the largest loss that the first attack found.

    Raises:
        ValueError: an argument makes no sense.
        FloatingPointError: the model or its gradient is not finite.
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    check_queries(num_queries, patience)
    steps = partial(apgd, num_steps=num_steps)
    attacks: dict[str, Callable[..., Tensor]] = {
        "apgd-ce": partial(steps, loss=loss),
        "apgd-targeted-dlr": partial(steps, loss="targeted-dlr", num_targets=num_targets),
        "square": partial(square, num_queries=num_queries, patience=patience, generator=generator),
    }
    with evaluating(model):
        points = ball.center.clone()
        fooled = look(model, points, targets, None).fooled
        counts = [int((~fooled).sum())]
        for i, (name, attack) in enumerate(attacks.items()):
            left = (~fooled).nonzero()[:, 0]

            def tick(part: float, i: int = i, name: str = name) -> None:
                progress((i + part) / len(attacks), name)

            if len(left):
                found = attack(
                    model,
                    ball.center[left],
                    targets[left],
                    eps,
                    norm=norm,
                    bounds=bounds,
                    tick=tick,
                )
                broken = look(model, found, targets[left], None).fooled
                take = broken | (i == 0)
                points[left[take]] = found[take]
                fooled[left] = broken
            tick(1.0)
            counts.append(int((~fooled).sum()))
    return Survivors(points, tuple(counts))
