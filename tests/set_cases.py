"""The table of sets and helpers on points: a new set earns the battery of `test_sets.py` by a row.

The judge of feasibility and optimality is `Case.inequalities`/`equalities`: the set written down in
numpy, sharing no code with `neada.sets`. The L1 ball, for one, is the intersection of 2^n
half-spaces there.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from neada.sets import (
    Box,
    HalfSpace,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    Product,
    Set,
    Simplex,
    WholeSpace,
)

INF = math.inf


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def rows_of(arrays):
    return np.concatenate([a.reshape(len(a), -1) for a in arrays], axis=1)


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def none(arrays):
    return np.zeros(0)


def l1_faces(rows, radii):
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=rows.shape[1])))
    return (np.reshape(radii, (-1, 1)) - rows @ signs.T).ravel()


@dataclass(frozen=True)
class Case:
    """A set, the shapes of its points, and its definition in numpy (>= 0 and == 0)."""

    name: str
    set: Set
    shapes: list[tuple[int, ...]]
    inequalities: Callable[[list[np.ndarray]], np.ndarray] = none
    equalities: Callable[[list[np.ndarray]], np.ndarray] = none
    scale: float = field(default=1.0, kw_only=True)  # largest coordinate of a feasible point

    def __str__(self):
        return self.name


CENTER = vector(0.5, -1.0, 0.25, 2.0)
ROW_CENTER = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 8
RADII = vector(0.5, 1.0, 2.0, 3.0)
RADII_NUMPY = RADII.numpy()
NORMAL = vector(1.0, -2.0, 0.5, 3.0)

CASES = [
    Case("whole space", WholeSpace(), [(5,), (2, 2)]),
    Case("box", Box(-0.5, 0.75), [(4,)], lambda a: np.r_[flat(a) + 0.5, 0.75 - flat(a)]),
    Case(
        "box, tensors",
        Box(vector(-1.0, -INF, 0.5, 0.0), vector(1.0, 2.0, INF, 0.0)),
        [(2, 4)],
        lambda a: np.r_[a[0][:, 0] + 1, 1 - a[0][:, 0], 2 - a[0][:, 1], a[0][:, 2] - 0.5],
        lambda a: a[0][:, 3],
        scale=2.0,
    ),
    Case(
        "box, list",
        Box([vector(0.0, 0.0), vector(-2.0)], 1.0),
        [(2,), (3,)],
        lambda a: np.r_[a[0], 1 - a[0], a[1] + 2, 1 - a[1]],
        scale=2.0,
    ),
    Case("nonnegative", NonNegative(), [(3,), (2, 2)], flat),
    Case(
        "half-space",
        HalfSpace(NORMAL, 1.5),
        [(4,)],
        lambda a: np.array([1.5 - NORMAL.numpy() @ a[0]]),
    ),
    Case(
        "half-space, list",
        HalfSpace([NORMAL[:2], NORMAL[2:].reshape(2, 1)], -0.5),
        [(2,), (2, 1)],
        lambda a: np.array([-0.5 - NORMAL.numpy() @ flat(a)]),
    ),
    Case(
        "half-space, float", HalfSpace(-2.0, 1.0), [(3,)], lambda a: np.array([1 + 2 * a[0].sum()])
    ),
    Case("L2", L2Ball(1.5), [(2,), (2, 1)], lambda a: np.array([1.5 - np.linalg.norm(flat(a))])),
    Case(
        "L2, center",
        L2Ball(0.75, center=CENTER),
        [(4,)],
        lambda a: np.array([0.75 - np.linalg.norm(a[0] - CENTER.numpy())]),
        scale=3.0,
    ),
    Case(
        "L2, per sample",
        L2Ball(RADII, center=[ROW_CENTER, ROW_CENTER[:, :1]], per_sample=True),
        [(4, 3), (4, 1)],
        lambda a: (
            RADII_NUMPY
            - np.linalg.norm(
                rows_of(a) - rows_of([ROW_CENTER.numpy(), ROW_CENTER[:, :1].numpy()]), axis=1
            )
        ),
        scale=5.0,
    ),
    Case(
        "Linf",
        LinfBall(0.75, center=1.0),
        [(2,), (1, 2)],
        lambda a: np.r_[flat(a) - 0.25, 1.75 - flat(a)],
        scale=2.0,
    ),
    Case(
        "Linf, per sample",
        LinfBall(RADII, center=ROW_CENTER, per_sample=True),
        [(4, 3)],
        lambda a: (RADII_NUMPY[:, None] - abs(a[0] - ROW_CENTER.numpy())).ravel(),
        scale=5.0,
    ),
    Case("L1", L1Ball(1.25), [(2,), (2,)], lambda a: l1_faces(flat(a)[None], 1.25)),
    Case(
        "L1, center",
        L1Ball(1.0, center=CENTER),
        [(4,)],
        lambda a: l1_faces((a[0] - CENTER.numpy())[None], 1.0),
        scale=3.0,
    ),
    Case(
        "L1, per sample",
        L1Ball(RADII, center=0.5, per_sample=True),
        [(4, 1, 2), (4,)],
        lambda a: l1_faces(rows_of(a) - 0.5, RADII_NUMPY),
        scale=4.0,
    ),
    Case("simplex", Simplex(), [(2,), (1, 3)], flat, lambda a: np.array([flat(a).sum() - 1.0])),
    Case(
        "simplex, per sample",
        Simplex(RADII, per_sample=True),
        [(4, 2), (4, 1)],
        flat,
        lambda a: rows_of(a).sum(axis=1) - RADII_NUMPY,
        scale=3.0,
    ),
    Case(
        "product",
        Product([L2Ball(1.0), Simplex(2.0), WholeSpace(), L1Ball(1.0, per_sample=True)]),
        [(3,), (3,), (2,), (2, 2)],
        lambda a: np.r_[1 - np.linalg.norm(a[0]), a[1], l1_faces(a[3], np.ones(2))],
        lambda a: np.array([a[1].sum() - 2.0]),
        scale=2.0,
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def draw(case, seed, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in case.shapes]


def feasible(case, seed, dtype=torch.float64):
    """A point of the interior or the boundary: the mean of two projections."""
    pairs = zip(*(case.set.project(draw(case, seed + i, 2.0, dtype)) for i in (0, 1)), strict=True)
    return [(a + b) / 2 for a, b in pairs]


def joined(tensors):
    return torch.cat([tensor.reshape(-1).double() for tensor in tensors])


def violation(case, tensors):
    arrays = [tensor.double().numpy() for tensor in tensors]
    return max(
        float(np.max(-case.inequalities(arrays), initial=0.0)),
        float(np.max(np.abs(case.equalities(arrays)), initial=0.0)),
    )


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def everywhere(flag):
    return bool(torch.as_tensor(flag).all())


def eps(dtype):
    return torch.finfo(dtype).eps
