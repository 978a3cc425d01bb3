"""What a model makes of points: losses, whether it is fooled, and the gradient at the points."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neada.attacks.ball import per_row

__all__ = ["Loss", "Model", "Seen", "evaluating", "look", "look_up"]

Model = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class Seen(NamedTuple):
    """Points and what the model makes of them."""

    points: Tensor
    losses: Tensor
    fooled: Tensor

    @property
    def num_right(self) -> int:
        """How many rows the model classifies as their targets say."""
        return len(self.fooled) - int(self.fooled.sum())

    def better_of(self, other: "Seen") -> "Seen":
        """Row by row the point that fools the model, or has the larger loss."""
        as_good = other.fooled == self.fooled
        take = (other.fooled & ~self.fooled) | (as_good & (other.losses > self.losses))
        points = torch.where(per_row(take, self.points), other.points, self.points)
        losses = torch.where(take, other.losses, self.losses)
        return Seen(points, losses, self.fooled | other.fooled)


@torch.no_grad()
def look(model: Model, points: Tensor, targets: Tensor, loss: Loss | None) -> Seen:
    """Evaluate the model and its losses at points."""
    return _judge(model, points, targets, loss)


@torch.enable_grad()
def look_up(
    model: Model, points: Tensor, targets: Tensor, loss: Loss | None
) -> tuple[Seen, Tensor]:
    """Look, and find the gradient of the losses: with respect to the points and nothing else."""
    leaf = points.detach().clone().requires_grad_()
    seen = _judge(model, leaf, targets, loss)
    if not seen.losses.requires_grad:
        raise ValueError("the loss does not depend on the inputs; does the model detach them?")
    (gradient,) = torch.autograd.grad(seen.losses.sum(), leaf, materialize_grads=True)
    if not bool(gradient.isfinite().all()):
        raise FloatingPointError("the gradient of the loss at the inputs is not finite")
    return Seen(points.detach(), seen.losses.detach(), seen.fooled), gradient


def _judge(model: Model, points: Tensor, targets: Tensor, loss: Loss | None) -> Seen:
    outputs = model(points)
    if loss is None:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    else:
        losses = loss(outputs, targets)
    if losses.shape != (len(points),):
        raise ValueError("loss must give one number per sample, such as reduction='none' does")
    if bool(outputs.isnan().any() | losses.isnan().any()):
        raise FloatingPointError("the model's output is not a number; check its weights")
    has_classes = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    fooled = outputs.argmax(1) != targets if has_classes else torch.zeros_like(losses).bool()
    return Seen(points, losses, fooled)


@contextlib.contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode for every part of a module, and each its own mode again afterwards."""
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [(part, part.training) for part in parts]
    try:
        for part in parts:
            part.training = False
        with torch.inference_mode(False):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
