"""The paper's synthetic data: inside or outside a circle, with a gap between the classes."""

import math

import torch
from torch import Tensor

from neada.data.dataset import Dataset, checksum

__all__ = ["synthetic"]

_RADIUS = math.sqrt(2.0)
_GAP = 1.3
_DRAW = 4096  # always so many at once, so that a longer sample begins with the shorter one


def synthetic(seed: int, num_train: int = 10_000, num_test: int = 4_000) -> Dataset:
    """Standard normal points of the plane, labelled by whether they lie outside the circle.

    The circle has radius sqrt(2); points with a norm strictly between sqrt(2)/1.3 and 1.3 sqrt(2)
    are drawn again, so that a perturbation of moderate size need not change a label.

    Args:
        seed: Of the generator.
        num_train: Points to train on.
        num_test: Points to test on, drawn after them.
    """
    x = _draw(num_train + num_test, torch.Generator().manual_seed(seed))
    y = (x.double().norm(dim=1) > _RADIUS).long()
    return Dataset(
        name="synthetic",
        x_train=x[:num_train],
        y_train=y[:num_train],
        x_test=x[num_train:],
        y_test=y[num_train:],
        num_classes=2,
        source=f"generated, seed {seed}",
        description="points of the plane inside (0) or outside (1) the circle of radius sqrt(2)",
        checksums={"x": checksum(x), "y": checksum(y)},
    )


def _draw(num_points: int, generator: torch.Generator) -> Tensor:
    kept: list[Tensor] = []
    while sum(map(len, kept)) < num_points:
        points = torch.randn(_DRAW, 2, generator=generator, dtype=torch.float32)
        norms = points.double().norm(dim=1)
        kept.append(points[(norms <= _RADIUS / _GAP) | (norms >= _GAP * _RADIUS)])
    return torch.cat(kept)[:num_points]
