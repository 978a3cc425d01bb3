"""Accuracy under attack, for several sizes of the perturbation at once."""

import warnings
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neada.attacks.auto_pgd import LossName
from neada.attacks.ball import Ball, Norm, check_eps
from neada.attacks.gradient import Loss, Model, evaluating, look, look_up
from neada.attacks.losses import dlr
from neada.attacks.worst_case import PARTS, Progress, attack_in_turn
from neada.checks import check_choice
from neada.tables import ATTACKS, resolve

__all__ = ["RobustAccuracy", "robust_accuracy"]

_MANY_ZERO_GRADIENTS = 0.1
_MANY_BROKEN_BY_SQUARE = 0.01


@dataclass(frozen=True)
class RobustAccuracy:
    """Shares of correctly classified samples.

    Attributes:
        clean: On the inputs themselves.
        attacked: Under attack, by eps.
        num_samples: How many samples there were.
        survivors: With attack="ensemble", by eps: how many samples are classified correctly after
            each of its attacks.
    """

    clean: float
    attacked: dict[float, float]
    num_samples: int
    survivors: dict[float, dict[str, int]] = field(default_factory=dict)


def robust_accuracy(
    model: Model,
    data: Iterable[Sequence[Any]],
    attack: str | Callable[[Model, Tensor, Tensor, float], Tensor],
    eps: float | Iterable[float],
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    loss: Loss | LossName | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RobustAccuracy:
    """Accuracy without and under attack, for several eps in one pass over the data.

    Masked gradients make a model look better than it is, and there is a warning for what they look
    like: more than a tenth of the samples have a gradient of exactly zero (all named attacks), or
    Square breaks a hundredth or more of what the gradient attacks have left ("ensemble").

    Args:
        model: A classifier: the largest output is the class. A module's batches are moved to the
            device of its parameters.
        data: Yields ``(inputs, targets, ...)``, such as a `DataLoader` or `Batches`.
        attack: A name in `neada.tables.ATTACKS` (with "fgsm" one gradient per batch serves all
            eps), or a function of model, inputs, targets and eps.
        eps: The largest norms of the perturbations; or one.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: As in `fgsm`, and with "apgd" as there.
        progress: Told which part is done, where `data` has a length, and what is at work.
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
        if isinstance(loss, str) and attack != "apgd":
            raise ValueError(f"loss={loss!r} is for attack='apgd'; others take a function")
        own = ATTACKS[attack].options
        make = partial(resolve(ATTACKS[attack].function), norm=norm, bounds=bounds, loss=loss)
    if unknown := set(options) - set(own):
        raise ValueError(f"{', '.join(sorted(unknown))}: attack={attack!r} takes no such argument")
    if "generator" in own and options.get("generator") is None:
        options["generator"] = torch.Generator().manual_seed(0)
    judged_by = loss if callable(loss) else None
    follows = dlr if isinstance(loss, str) and loss != "ce" else judged_by
    several = [eps] if isinstance(eps, int | float) else eps
    levels = list(dict.fromkeys(check_eps(eps) for eps in several))
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    device = next((parameter.device for parameter in parameters), None)
    num_batches = len(data) if isinstance(data, Sized) else 0
    num_samples = num_clean = num_flat = 0
    num_right = dict.fromkeys(levels, 0)
    survivors = {eps: dict.fromkeys(PARTS, 0) for eps in levels if attack == "ensemble"}
    with evaluating(model):
        for i, batch in enumerate(data):
            if not isinstance(batch, Sequence) or len(batch) < 2:
                raise TypeError("data must yield (inputs, targets, ...)")
            inputs, targets = batch[0].to(device=device), batch[1].to(device=device)
            if targets.is_floating_point() or targets.shape != (len(inputs),):
                raise ValueError("accuracy needs one class label per input as targets")
            targets = targets.long().clone()  # a copy of an inference tensor is a usual one
            if isinstance(attack, str):
                clean, gradient = look_up(model, inputs, targets, follows)
                num_flat += int((~gradient.flatten(1).any(1)).sum())
            else:
                clean = look(model, inputs, targets, judged_by)
            num_samples += len(inputs)
            num_clean += clean.num_right
            for j, eps in enumerate(levels):
                begun = i + j / len(levels)

                def show(part: float, words: str, begun: float = begun) -> None:
                    if progress is not None and num_batches:
                        progress((begun + part / len(levels)) / num_batches, words)

                if attack == "fgsm":
                    ball = Ball.around(inputs, eps, norm, bounds)
                    points = ball.step(ball.center, gradient, eps)
                elif attack == "ensemble":
                    points, counts = attack_in_turn(
                        model,
                        inputs,
                        targets,
                        eps,
                        norm=norm,
                        bounds=bounds,
                        loss=judged_by,
                        progress=show,
                        **options,
                    )
                    for name, count in zip(PARTS, counts[1:], strict=True):
                        survivors[eps][name] += count
                else:
                    tick = {"tick": partial(show, words="apgd")} if attack == "apgd" else {}
                    points = make(model, inputs, targets, eps, **options, **tick)
                num_right[eps] += look(model, points, targets, judged_by).num_right
                show(1.0, attack if isinstance(attack, str) else "attack")
    if num_samples == 0:
        raise ValueError("data yielded no samples; note that an iterator can be used only once")
    _warn_of_masked_gradients(num_flat / num_samples, survivors)
    attacked = {eps: count / num_samples for eps, count in num_right.items()}
    return RobustAccuracy(num_clean / num_samples, attacked, num_samples, survivors)


def _warn_of_masked_gradients(flat_share: float, survivors: dict[float, dict[str, int]]) -> None:
    if flat_share > _MANY_ZERO_GRADIENTS:
        warnings.warn(
            f"the gradient of the loss is exactly zero at {100.0 * flat_share:.0f} % of the "
            "inputs: attacks that follow it are blind there, and the accuracy says little",
            stacklevel=3,
        )
    for eps, left in survivors.items():
        _, before, after = left.values()
        if before > after and before - after >= _MANY_BROKEN_BY_SQUARE * before:
            warnings.warn(
                f"Square, which needs no gradients, broke {before - after} of the {before} samples "
                f"that the gradient attacks left at eps {eps:g}: the gradients are masked, and the "
                "accuracy is too high",
                stacklevel=3,
            )
