"""Attacks that follow the gradient of the loss, inside a ball around each input.

FGSM: Goodfellow, Shlens & Szegedy 2015 (arXiv:1412.6572). PGD: Madry et al. 2018
(arXiv:1706.06083), here with the FGSM point among its starts, so that it is never weaker.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neada.attacks.ball import Ball, Norm, per_row
from neada.checks import check_number
from neada.folding import folded

__all__ = ["Loss", "Model", "Outcome", "differentiate", "evaluate", "evaluating", "fgsm", "pgd"]

Model = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class Outcome(NamedTuple):
    """Points with the losses of the model at them, and whether it misclassifies them."""

    points: Tensor
    losses: Tensor
    fooled: Tensor

    @property
    def num_right(self) -> int:
        """How many points are classified correctly."""
        return int((~self.fooled).sum())

    def rows(self, rows: Tensor) -> "Outcome":
        """Some of the rows: their indices, or a mask."""
        return Outcome(*(field[rows] for field in self))

    def better_of(self, other: "Outcome") -> "Outcome":
        """For each row the point that is misclassified, or has the larger loss."""
        as_good = other.fooled == self.fooled
        take = (other.fooled & ~self.fooled) | (as_good & (other.losses > self.losses))
        points = torch.where(per_row(take, self.points), other.points, self.points)
        losses = torch.where(take, other.losses, self.losses)
        return Outcome(points, losses, self.fooled | other.fooled)


@torch.no_grad()
def evaluate(model: Model, points: Tensor, targets: Tensor, loss: Loss | None) -> Outcome:
    """Evaluate the model and its losses at points."""
    return _outcome(model, points, targets, loss)


@torch.enable_grad()
def differentiate(
    model: Model, points: Tensor, targets: Tensor, loss: Loss | None
) -> tuple[Outcome, Tensor]:
    """Evaluate, and compute the gradient of the losses with respect to the points only."""
    leaf = points.detach().clone().requires_grad_()
    outcome = _outcome(model, leaf, targets, loss)
    (gradient,) = torch.autograd.grad(outcome.losses.sum(), leaf, materialize_grads=True)
    if not bool(gradient.isfinite().all()):
        raise FloatingPointError("the gradient of the loss at the inputs is NaN or Inf")
    return Outcome(points.detach(), outcome.losses.detach(), outcome.fooled), gradient


def _outcome(model: Model, points: Tensor, targets: Tensor, loss: Loss | None) -> Outcome:
    torch.clear_autocast_cache()  # the parameters may have moved since they were cast
    outputs = model(points)
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))  # under autocast
    if loss is None:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    else:
        losses = loss(outputs, targets)
    if losses.shape != (len(points),):
        raise ValueError("loss must return one number per sample: use reduction='none'")
    if bool(outputs.isnan().any() | losses.isnan().any()):
        raise FloatingPointError("the output of the model or its loss is NaN; check its weights")
    has_classes = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    fooled = outputs.argmax(1) != targets if has_classes else torch.zeros_like(losses).bool()
    return Outcome(points, losses, fooled)


@contextlib.contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode for every submodule; each has its own mode again afterwards."""
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
    r"""One step along the gradient of the loss, of length eps.

    .. math::
        z = v + \epsilon\,\mathrm{sign}(\nabla_v\ell) \quad\text{("linf")}, \qquad
        z = v + \epsilon\,\nabla_v\ell/\|\nabla_v\ell\|_2 \quad\text{("l2")}

    A sample whose gradient is zero stays where it is.

    Args:
        model: Any module or function. A module is evaluated in evaluation mode and has its own mode
            again afterwards. No parameter gradient is computed.
        inputs: The batch, float32 or float64, one sample per row.
        targets: The classes, or other targets of the loss.
        eps: The largest norm of a sample's perturbation.
        norm: The norm, "linf" or "l2".
        bounds: The valid range ``(low, high)`` of the inputs, to which points are clipped; or None.
        loss: A function of outputs and targets that returns one number per sample; by default
            cross-entropy.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: An argument is invalid.
        FloatingPointError: The output of the model is NaN, or its gradient is NaN or Inf.

    Example:
        >>> weight = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
        >>> fgsm(lambda v: v @ weight.T, torch.zeros(1, 2), torch.tensor([0]), 0.5)
        tensor([[-0.5000,  0.5000]])
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    with evaluating(model):
        _, gradient = differentiate(model, ball.center, targets, loss)
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

    Returns for each sample the best point seen: a misclassified one, if there is any, and otherwise
    the one with the largest loss. The input itself and the FGSM point are among them.

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
        generator: For the random starts, on the CPU; by default a new one with seed 0.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: An argument is invalid.
        FloatingPointError: The output of the model is NaN, or its gradient is NaN or Inf.
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    check_number("num_steps", num_steps, above=1, strict=False, whole=True)
    check_number("num_restarts", num_restarts, strict=False, whole=True)
    if step_size is None:
        step_size = 2.5 * eps / num_steps
    check_number("step_size", step_size, strict=False)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    with evaluating(model):
        fast = folded(model)
        start, gradient = differentiate(model, ball.center, targets, loss)
        points = first = ball.step(ball.center, gradient, eps)
        best = start
        for restart in range(num_restarts + 1):
            if restart > 0:
                points = ball.sample(generator)
            for _ in range(num_steps):
                here, gradient = differentiate(fast, points, targets, loss)
                best = best.better_of(here)
                points = ball.step(points, gradient, step_size)
            best = best.better_of(evaluate(fast, points, targets, loss))
        if fast is not model:
            # The folded network differs by rounding, so the network itself compares.
            best = evaluate(model, best.points, targets, loss)
            best = start.better_of(evaluate(model, first, targets, loss)).better_of(best)
    return best.points
