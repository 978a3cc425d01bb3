"""Figures 1 and 2 as one would write them: a Python loop per run, with `torch.optim`.

The baseline of `figures_1_and_2.py` and the judge of `reproduction.sweeps`; it imports nothing
of neada. Noise comes from a numpy generator, two numbers per gradient, so that both sides can draw
the same.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Gradient = Callable[[Tensor, Tensor], Tensor]


def quadratic(x: Tensor, y: Tensor) -> Tensor:
    return (-(y**2) / 2 + 2 * x * y - 2 * x**2).sum()


def mccormick(x: Tensor, y: Tensor) -> Tensor:
    surface = torch.sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1
    return surface + x @ y - (y @ y) / 2


def optimizer(family: str, player: Tensor, lr: float, eps: float) -> torch.optim.Optimizer:
    if family == "gda":
        return torch.optim.SGD([player], lr=lr)
    if family == "adagrad":
        return torch.optim.Adagrad([player], lr=lr)
    return torch.optim.Adam([player], lr=lr, eps=eps, amsgrad=family == "amsgrad")


def play(
    f: Callable[[Tensor, Tensor], Tensor],
    start: tuple[list[float], list[float]],
    family: str,
    nested: bool,
    lr_x: float,
    lr_y: float,
    max_calls: int,
    *,
    eps: float = 1e-8,
    count_scale: float = 1.0,
    text: bool = False,
    noise_std: float = 0.0,
    generator: np.random.Generator | None = None,
) -> list[tuple[int, float]]:
    """The calls before every x step, and the noiseless gradient norm of x there."""
    x = torch.tensor(start[0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor(start[1], dtype=torch.float64, requires_grad=True)
    x_optimizer = optimizer(family, x, lr_x, eps)
    y_optimizer = optimizer(family, y, lr_y, eps)

    def noise(gradient: Tensor) -> Tensor:
        if generator is None:
            return gradient
        return gradient + noise_std * torch.from_numpy(generator.standard_normal(len(gradient)))

    def norm_of_x() -> float:
        return float(torch.autograd.grad(f(x, y), x)[0].norm())

    norms = []
    calls = t = 0
    while calls < max_calls:
        if nested:
            k = 0
            while text or k < count_scale * t:
                (gradient,) = torch.autograd.grad(f(x, y), y)
                gradient = noise(gradient)
                y.grad = -gradient
                y_optimizer.step()
                calls += 1
                k += 1
                size = float(gradient.norm())
                if calls >= max_calls:
                    return norms
                if text and (size * t <= 1.0 or k > t):
                    break
                if not text and size**2 <= 1.0 / (t + 1):
                    break
            norms.append((calls, norm_of_x()))
            (gradient,) = torch.autograd.grad(f(x, y), x)
            x.grad = noise(gradient)
            x_optimizer.step()
            calls += 1
        else:
            norms.append((calls, norm_of_x()))
            x_gradient, y_gradient = torch.autograd.grad(f(x, y), (x, y))
            x.grad = noise(x_gradient)
            y.grad = -noise(y_gradient)
            x_optimizer.step()
            y_optimizer.step()
            calls += 2
        t += 1
        if not math.isfinite(norms[-1][1]):
            return norms
    return norms
