"""Constraint sets: Euclidean projection, membership, gradient mapping.

Pass a set to a player, or use it directly:

>>> import torch
>>> from neada.sets import L2Ball
>>> L2Ball(radius=1.0).project(torch.tensor([3.0, 4.0]))
tensor([0.6000, 0.8000])

A point is a tensor or a sequence of tensors. A set on several tensors is joint over them (one
norm, one sum); `Product` gives each tensor its own set. With `per_sample=True` every row of the
point has its own ball or simplex.
"""

from neada.sets.balls import L1Ball, L2Ball, LinfBall
from neada.sets.base import Set
from neada.sets.boxes import Box, NonNegative, WholeSpace
from neada.sets.halfspace import HalfSpace
from neada.sets.product import Product
from neada.sets.simplex import Simplex

__all__ = [
    "Box",
    "HalfSpace",
    "L1Ball",
    "L2Ball",
    "LinfBall",
    "NonNegative",
    "Product",
    "Set",
    "Simplex",
    "WholeSpace",
]
