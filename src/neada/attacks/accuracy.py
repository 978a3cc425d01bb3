"""Accuracy under attack for several sizes of the perturbation."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neada.attacks.auto_pgd import LossName, apgd
from neada.attacks.ball import Ball, Norm
from neada.attacks.gradient import Loss, Model, differentiate, evaluate, evaluating, fgsm, pgd
from neada.attacks.losses import dlr
from neada.attacks.worst_case import PARTS, Progress, attack_in_turn
from neada.checks import check_choice

__all__ = ["RobustAccuracy", "robust_accuracy"]

ATTACKS: dict[str, Callable[..., Any]] = {
    "fgsm": fgsm,
    "pgd": pgd,
    "apgd": apgd,
    "ensemble": attack_in_turn,
}
_MANY_ZERO_GRADIENTS = 0.1
_MANY_BROKEN_BY_SQUARE = 0.01


@dataclass(frozen=True)
class RobustAccuracy:
    """Shares of correctly classified samples.

    Attributes:
        clean: On the inputs themselves.
        attacked: Under attack, by eps.
        num_samples: How many samples there were.
        survivors: With attack="ensemble", by eps: the number of samples that are classified
            correctly after each of its attacks.
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

    Warns about masked gradients, which make a model look more robust than it is: if more than a
    tenth of the samples have a gradient of exactly zero (all named attacks), or if Square breaks a
    hundredth or more of the samples that the gradient attacks have left ("ensemble").

    Args:
        model: A classifier: the largest output is the class. Batches are moved to the device of the
            parameters of a module.
        data: Yields ``(inputs, targets, ...)``, such as a `DataLoader` or `Batches`.
        attack: "fgsm" (one gradient per batch is used for all eps), "pgd", "apgd" or "ensemble",
            or a function of model, inputs, targets and eps.
        eps: The largest norms of the perturbations; or one.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: As in `fgsm`, and with "apgd" as there.
        progress: Called with the completed share of the work, if `data` has a length, and the name
            of the current attack.
        options: More arguments of the named attack; one generator is used for all batches.

    Returns:
        The accuracies.

    Raises:
        ValueError: An argument is invalid, or there are no data.
        TypeError: The named attack has no such argument.
        FloatingPointError: The output of the model is NaN, or its gradient is NaN or Inf.
    """
    if isinstance(attack, str):
        check_choice("attack", attack, ATTACKS)
        if isinstance(loss, str) and attack != "apgd":
            raise ValueError(f"loss={loss!r} is for attack='apgd'; others take a function")
        options.update(norm=norm, bounds=bounds, loss=loss)
        make = ATTACKS[attack]
        signature = inspect.signature(make)
        signature.bind_partial(**options)  # raises TypeError for an argument of another attack
        if "generator" in signature.parameters:
            options.setdefault("generator", torch.Generator().manual_seed(0))
    else:
        make = attack
    own_loss = None if isinstance(loss, str) else loss
    follows = dlr if loss in ("dlr", "targeted-dlr") else own_loss
    levels = [float(e) for e in dict.fromkeys([eps] if isinstance(eps, int | float) else eps)]
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    device = next((parameter.device for parameter in parameters), None)
    num_batches = len(data) if isinstance(data, Sized) else 0
    num_samples = num_clean = num_flat = 0
    num_right = dict.fromkeys(levels, 0)
    survivors = {eps: dict.fromkeys(PARTS, 0) for eps in levels if attack == "ensemble"}
    with evaluating(model):
        for i, batch in enumerate(data):
            inputs, targets = batch[0].to(device=device), batch[1].to(device=device)
            if targets.is_floating_point() or targets.shape != (len(inputs),):
                raise ValueError("accuracy needs one class label per input as targets")
            targets = targets.long().clone()  # a copy of an inference tensor is a normal one
            if isinstance(attack, str):
                clean, gradient = differentiate(model, inputs, targets, follows)
                num_flat += int((~gradient.flatten(1).any(1)).sum())
            else:
                clean = evaluate(model, inputs, targets, own_loss)
            num_samples += len(inputs)
            num_clean += clean.num_right
            for j, eps in enumerate(levels):

                def report(part: float, name: str, done: float = i + j / len(levels)) -> None:
                    if progress is not None and num_batches:
                        progress((done + part / len(levels)) / num_batches, name)

                if attack == "fgsm":
                    ball = Ball.around(inputs, eps, norm, bounds)
                    points = ball.step(ball.center, gradient, eps)
                elif attack == "ensemble":
                    points, counts = make(model, inputs, targets, eps, progress=report, **options)
                    for name, count in zip(PARTS, counts[1:], strict=True):
                        survivors[eps][name] += count
                else:
                    points = make(model, inputs, targets, eps, **options)
                num_right[eps] += evaluate(model, points, targets, own_loss).num_right
                report(1.0, attack if isinstance(attack, str) else "attack")
    if num_samples == 0:
        raise ValueError("data yielded no samples; note that an iterator can be used only once")
    _warn_of_masked_gradients(num_flat / num_samples, survivors)
    attacked = {eps: count / num_samples for eps, count in num_right.items()}
    return RobustAccuracy(num_clean / num_samples, attacked, num_samples, survivors)


def _warn_of_masked_gradients(flat_share: float, survivors: dict[float, dict[str, int]]) -> None:
    if flat_share > _MANY_ZERO_GRADIENTS:
        warnings.warn(
            f"the gradient of the loss is exactly zero at {100.0 * flat_share:.0f} % of the "
            "inputs: gradient attacks fail there, and the accuracy is unreliable",
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
