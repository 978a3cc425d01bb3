"""How an unconstrained online learner plays on a set (Cutkosky & Orabona 2018; Cutkosky 2020).

The learner proposes a point outside; its projection is played; and the learner is told a
gradient that also punishes the distance to the set.
"""

from typing import Literal

import torch
from torch import Tensor

from neada import tensors
from neada.scalars import Scalar, divide, minimum, sqrt, where

__all__ = ["Reduction", "surrogate_gradient"]

Reduction = Literal["half", "cut"]


def surrogate_gradient(
    gradient: list[Tensor],
    proposed: list[Tensor],
    played: list[Tensor],
    rule: Reduction,
    rowwise: bool,
) -> list[Tensor]:
    r"""The gradient to feed back to the learner, as new tensors.

    With :math:`e` the unit vector from the played to the proposed point (0 if they coincide),
    "half" is :math:`(g + \|g\| e)/2` and "cut" is :math:`g - \min(\langle g, e\rangle, 0)\, e`.

    Args:
        gradient: The gradient at the played point.
        proposed: What the learner proposed.
        played: Its projection.
        rule: Which of the two.
        rowwise: Whether every row is its own problem.
    """
    outward = tensors.difference(proposed, played)
    distance = sqrt(tensors.squared_norm(outward, rowwise))
    # A projection may change the last bits of a feasible point: that is no distance.
    rounding = 8.0 * torch.finfo(played[0].dtype).eps
    size = sqrt(tensors.squared_norm(proposed, rowwise))
    tensors.scale_(outward, where(distance > rounding * size, divide(1.0, distance), 0.0))
    fed_back = tensors.clone(gradient)
    if rule == "half":
        norm = sqrt(tensors.squared_norm(gradient, rowwise))
        tensors.add_scaled_(fed_back, outward, norm)
        tensors.scale_(fed_back, 0.5)
    else:
        inward: Scalar = minimum(tensors.dot(gradient, outward, rowwise), 0.0)
        tensors.add_scaled_(fed_back, outward, -inward)
    return fed_back
