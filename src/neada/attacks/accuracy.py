"""Accuracy under attack, for several sizes of the perturbation at once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neada.attacks.ball import Ball, Norm, check_eps
from neada.attacks.gradient import Loss, Model, evaluating, look, look_up
from neada.checks import check_choice
from neada.tables import ATTACKS, resolve

__all__ = ["RobustAccuracy", "robust_accuracy"]


@dataclass(frozen=True)
class RobustAccuracy:
    """Shares of correctly classified samples.

    Attributes:
        clean: On the inputs themselves.
        attacked: Under attack, by eps.
        num_samples: How many samples there were.
    """

    clean: float
    attacked: dict[float, float]
    num_samples: int


def robust_accuracy(
    model: Model,
    data: Iterable[Sequence[Any]],
    attack: str | Callable[[Model, Tensor, Tensor, float], Tensor],
    eps: float | Iterable[float],
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    loss: Loss | None = None,
    **options: Any,
) -> RobustAccuracy:
    """Accuracy without and under attack, for several eps in one pass over the data.

    Args:
        model: A classifier: the largest output is the class. A module's batches are moved to the
            device of its parameters.
        data: Yields ``(inputs, targets, ...)``, such as a `DataLoader` or `Batches`.
        attack: A name in `neada.tables.ATTACKS` (with "fgsm" one gradient per batch serves all
            eps), or a function of model, inputs, targets and eps.
        eps: The largest norms of the perturbations; or one.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: As in `fgsm`.
        options: More arguments of the named attack; one generator serves all batches.

    Returns:
        The accuracies.

    Raises:
        ValueError: an argument makes no sense, or there are no data.
        FloatingPointError: the model or its gradient is not finite.
    """
    own: tuple[str, ...] = ()
    if callable(attack):
        make = attack
    else:
        check_choice("attack", attack, ATTACKS)
        own = ATTACKS[attack].options
        make = partial(resolve(ATTACKS[attack].function), norm=norm, bounds=bounds, loss=loss)
    if unknown := set(options) - set(own):
        raise ValueError(f"{', '.join(sorted(unknown))}: attack={attack!r} takes no such argument")
    if "generator" in own and options.get("generator") is None:
        options["generator"] = torch.Generator().manual_seed(0)
    several = [eps] if isinstance(eps, int | float) else eps
    levels = [check_eps(eps) for eps in several]
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    device = next((parameter.device for parameter in parameters), None)
    num_samples = num_clean = 0
    num_right = dict.fromkeys(levels, 0)
    with evaluating(model):
        for batch in data:
            if not isinstance(batch, Sequence) or len(batch) < 2:
                raise TypeError("data must yield (inputs, targets, ...)")
            inputs, targets = batch[0].to(device=device), batch[1].to(device=device)
            if targets.is_floating_point() or targets.shape != (len(inputs),):
                raise ValueError("accuracy needs one class label per input as targets")
            if attack == "fgsm":
                clean, gradient = look_up(model, inputs, targets, loss)
            else:
                clean = look(model, inputs, targets, loss)
            num_samples += len(inputs)
            num_clean += clean.num_right
            for eps in levels:
                if attack == "fgsm":
                    ball = Ball.around(inputs, eps, norm, bounds)
                    points = ball.step(ball.center, gradient, eps)
                else:
                    points = make(model, inputs, targets, eps, **options)
                num_right[eps] += look(model, points, targets, loss).num_right
    if num_samples == 0:
        raise ValueError("data yielded no samples; note that an iterator can be used only once")
    attacked = {eps: count / num_samples for eps, count in num_right.items()}
    return RobustAccuracy(num_clean / num_samples, attacked, num_samples)
