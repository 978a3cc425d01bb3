"""Attacks that follow the gradient of the loss.

FGSM: Goodfellow, Shlens & Szegedy 2015 (arXiv:1412.6572). PGD: Madry et al. 2018
(arXiv:1706.06083), here with the FGSM point among its starts, so that it is never the weaker one.
"""

import math

import torch
from torch import Tensor

from neada.attacks.ball import Ball, Norm
from neada.attacks.look import Loss, Model, evaluating, look, look_up

__all__ = ["fgsm", "pgd"]


def fgsm(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    epsilon: float,
    *,
    norm: Norm = "linf",
    valid_range: tuple[float, float] | None = None,
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
        epsilon: The largest norm of a sample's perturbation.
        norm: Which norm.
        valid_range: Clip to it; the inputs must lie in it. None does not clip.
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
    ball = Ball.around(inputs, epsilon, norm, valid_range)
    with evaluating(model):
        _, gradient = look_up(model, ball.centre, targets, loss)
        return ball.step(ball.centre, gradient, epsilon)


def pgd(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    epsilon: float,
    *,
    norm: Norm = "linf",
    valid_range: tuple[float, float] | None = None,
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
        epsilon: As in `fgsm`.
        norm: As in `fgsm`.
        valid_range: As in `fgsm`.
        loss: As in `fgsm`.
        num_steps: Steps from each start.
        step_size: The norm of a step; by default 2.5 epsilon / num_steps.
        num_restarts: Random starts besides the FGSM point.
        generator: Of the random starts, on the CPU; by default a new one with seed 0, so that the
            same call gives the same points.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: an argument makes no sense.
        FloatingPointError: the model or its gradient is not finite.
    """
    ball = Ball.around(inputs, epsilon, norm, valid_range)
    if num_steps < 1 or num_restarts < 0:
        raise ValueError(
            "num_steps must be at least 1 and num_restarts at least 0, got "
            f"{num_steps} and {num_restarts}"
        )
    if step_size is None:
        step_size = 2.5 * epsilon / num_steps
    if not 0.0 <= step_size < math.inf:
        raise ValueError(f"step_size must be a finite number, at least 0, got {step_size!r}")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    with evaluating(model):
        best, gradient = look_up(model, ball.centre, targets, loss)
        points = ball.step(ball.centre, gradient, epsilon)
        for restart in range(num_restarts + 1):
            if restart > 0:
                points = ball.sample(generator)
            for _ in range(num_steps):
                seen, gradient = look_up(model, points, targets, loss)
                best = best.better_of(seen)
                points = ball.step(points, gradient, step_size)
            best = best.better_of(look(model, points, targets, loss))
    return best.points
