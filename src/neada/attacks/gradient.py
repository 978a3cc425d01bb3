"""Attacks that follow the gradient of the loss, inside a ball around each input.

FGSM: Goodfellow, Shlens & Szegedy 2015 (arXiv:1412.6572). PGD: Madry et al. 2018
(arXiv:1706.06083), here with the FGSM point among its starts, so that it is never the weaker one.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neada.attacks.ball import Ball, Norm, per_row
from neada.folding import folded

__all__ = [
    "Loss",
    "Model",
    "Seen",
    "evaluating",
    "fgsm",
    "look",
    "look_up",
    "pgd",
]


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
    torch.clear_autocast_cache()  # the parameters may have moved since they were cast
    outputs = model(points)
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))  # under autocast
    has_classes = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    if has_classes and len(targets) and not 0 <= targets.min() <= targets.max() < outputs.shape[1]:
        raise ValueError(
            f"targets must be classes from 0 to {outputs.shape[1] - 1}, as the model has outputs, "
            f"got {int(targets.min())} to {int(targets.max())}"
        )
    if loss is None:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    else:
        losses = loss(outputs, targets)
    if losses.shape != (len(points),):
        raise ValueError("loss must give one number per sample, such as reduction='none' does")
    if bool(outputs.isnan().any() | losses.isnan().any()):
        raise FloatingPointError("the model's output is not a number; check its weights")
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
        torch.clear_autocast_cache()


def fgsm(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    eps: float,
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    loss: Loss | None = None,
) -> Tensor:
    r"""One step along the gradient of the loss, as long as allowed.

    .. math::
        z = v + \epsilon\,\mathrm{sign}(\nabla_v\ell) \quad\text{("linf")}, \qquad
        z = v + \epsilon\,\nabla_v\ell/\|\nabla_v\ell\|_2 \quad\text{("l2")}

    A sample whose gradient is zero stays where it is.

    Args:
        model: Any module or function; a module is in evaluation mode meanwhile, and afterwards,
            also after an exception, in the mode it was. No parameter gradient is computed.
        inputs: The batch, float32 or float64, one sample per row.
        targets: What the loss compares the outputs with.
        eps: The largest norm of a sample's perturbation.
        norm: Which norm.
        bounds: Clip to it; the inputs must lie in it. None does not clip.
        loss: Of outputs and targets, one number per sample; by default cross-entropy.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: an argument makes no sense.
        FloatingPointError: the model or its gradient is not finite.

    Example:
        >>> weight = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
        >>> fgsm(lambda v: v @ weight.T, torch.zeros(1, 2), torch.tensor([0]), 0.5)
        tensor([[-0.5000,  0.5000]])
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    with evaluating(model):
        _, gradient = look_up(model, ball.center, targets, loss)
        return ball.step(ball.center, gradient, eps)


def pgd(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    eps: float,
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    loss: Loss | None = None,
    num_steps: int = 20,
    step_size: float | None = None,
    num_restarts: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Projected gradient ascent from the FGSM point and from random points of the ball.

    Returned is, sample by sample, the best point that was seen: one that is misclassified before
    one that is not, then by loss. The input itself and the FGSM point are among them.

    Args:
        model: As in `fgsm`.
        inputs: As in `fgsm`.
        targets: As in `fgsm`.
        eps: As in `fgsm`.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: As in `fgsm`.
        num_steps: Steps from each start.
        step_size: The norm of a step; by default 2.5 eps / num_steps.
        num_restarts: Random starts besides the FGSM point.
        generator: Of the random starts, on the CPU; by default a new one with seed 0, so that the
            same call gives the same points.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: an argument makes no sense.
        FloatingPointError: the model or its gradient is not finite.
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    if num_steps < 1 or num_restarts < 0:
        raise ValueError(
            "num_steps must be at least 1 and num_restarts at least 0, got "
            f"{num_steps} and {num_restarts}"
        )
    if step_size is None:
        step_size = 2.5 * eps / num_steps
    if not 0.0 <= step_size < math.inf:
        raise ValueError(f"step_size must be a finite number, at least 0, got {step_size!r}")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    with evaluating(model), folded(model) as fast:
        start, gradient = look_up(model, ball.center, targets, loss)
        points = first = ball.step(ball.center, gradient, eps)
        best = start
        for restart in range(num_restarts + 1):
            if restart > 0:
                points = ball.sample(generator)
            for _ in range(num_steps):
                seen, gradient = look_up(fast, points, targets, loss)
                best = best.better_of(seen)
                points = ball.step(points, gradient, step_size)
            best = best.better_of(look(fast, points, targets, loss))
        if fast is not model:
            # The network itself judges, whatever was rounded on the way.
            best = look(model, best.points, targets, loss)
            best = start.better_of(look(model, first, targets, loss)).better_of(best)
    return best.points
