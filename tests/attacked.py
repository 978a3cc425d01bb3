"""Networks to attack, and exact sizes of perturbations."""

import functools
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from neada import data, models
from neada.attacks import fgsm

NORMS = pytest.mark.parametrize("norm", ["linf", "l2"])


@functools.cache
def digits(kind: str = "robust") -> tuple[nn.Module, Tensor, Tensor]:
    """A network for digits and 200 test images: trained plainly, or with FGSM examples."""
    found = data.load("digits", seed=0)
    inputs, targets = found.splits["train"]
    model = models.make("mlp", tuple(inputs.shape[1:]), 10, seed=0, hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        rows = torch.randint(len(inputs), (128,), generator=generator)
        batch = inputs[rows]
        if kind == "robust":
            batch = fgsm(model, batch, targets[rows], 0.1, bounds=(0.0, 1.0))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets[rows]).backward()
        optimizer.step()
    inputs, targets = found.splits["test"]
    return model.eval(), inputs[:200], targets[:200]


def right(model: nn.Module, points: Tensor, targets: Tensor) -> Tensor:
    with torch.no_grad():
        return model(points).argmax(1) == targets


def largest_share(points: Tensor, centers: Tensor, norm: str, eps: float) -> Fraction:
    """The largest size of a perturbation over eps (squared for l2), in exact arithmetic."""
    shares = []
    for row, center in zip(points.flatten(1).tolist(), centers.flatten(1).tolist(), strict=True):
        apart = [Fraction(a) - Fraction(b) for a, b in zip(row, center, strict=True)]
        if norm == "linf":
            shares.append(max(map(abs, apart)) / Fraction(eps))
        else:
            shares.append(sum(d * d for d in apart) / Fraction(eps) ** 2)
    return max(shares)
