"""What several problems are made of: constants of block matrices, random matrices, scalar roots."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neada.sets import Set

__all__ = [
    "bounded_bumps",
    "check_count",
    "check_positive",
    "increasing_root",
    "joint_smoothness",
    "orthogonal",
    "project_rows",
    "random_generator",
    "random_vector",
    "spectral_norm",
    "with_singular_values",
]


def check_positive(name: str, value: float, above: float = 0.0) -> None:
    """Raise a `ValueError` unless the value is finite and above a bound."""
    if not (math.isfinite(value) and value > above):
        raise ValueError(f"{name} must be finite and above {above:g}, got {value}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise a `ValueError` unless the value is an integer and large enough."""
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value}")


def random_generator(seed: int) -> torch.Generator:
    """A source of randomness of its own, so that no global one is touched."""
    return torch.Generator().manual_seed(seed)


def random_vector(size: int, generator: torch.Generator) -> Tensor:
    """A standard normal vector in float64."""
    return torch.randn(size, generator=generator, dtype=torch.float64)


def orthogonal(size: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix."""
    gaussian = torch.randn(size, size, generator=generator, dtype=torch.float64)
    matrix: Tensor = torch.linalg.qr(gaussian).Q
    return matrix


def with_singular_values(
    num_rows: int, num_columns: int, values: Tensor, generator: torch.Generator
) -> Tensor:
    """A random matrix with the given singular values, as many as its smaller dimension."""
    left, right = orthogonal(num_rows, generator), orthogonal(num_columns, generator)
    return left[:, : len(values)] * values @ right[: len(values)]


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def joint_smoothness(
    most_convex: float,
    most_concave: float,
    coupling: float,
    strong_concavity: float,
    concavity: float,
) -> float:
    r"""A bound on the norm of all Hessians :math:`\begin{pmatrix} A & B^T\\ B & -C \end{pmatrix}`.

    A unit vector (u, v) with :math:`|u| = \cos t` gives a quadratic form of at most
    :math:`a\cos^2 t + 2b\sin t\cos t - \mu\sin^2 t`, whose maximum is the larger eigenvalue of a
    2 x 2 matrix; from below likewise. The bound is attained where the extremes come together.

    Args:
        most_convex: a, the largest eigenvalue of A.
        most_concave: Minus the smallest eigenvalue of A.
        coupling: b, the norm of B.
        strong_concavity: mu, the smallest eigenvalue of C.
        concavity: The largest eigenvalue of C.
    """

    def larger_eigenvalue(p: float, q: float) -> float:
        return (p + q) / 2 + math.hypot((p - q) / 2, coupling)

    return max(
        larger_eigenvalue(most_convex, -strong_concavity),
        larger_eigenvalue(most_concave, concavity),
    )


def bounded_bumps(x: Tensor, sharpness: float = 1.0) -> Tensor:
    r""":math:`\sum_i a x_i^2 / (1 + a x_i^2)`: bounded, second derivatives in [-a/2, 2a]."""
    squares = sharpness * x.square()
    return (squares / (1.0 + squares)).sum(-1)


def project_rows(rows: Set, points: Tensor) -> Tensor:
    """The projection of every vector along the last dimension, by a set with one part per row."""
    return rows.project(points.reshape(-1, points.shape[-1])).reshape(points.shape)


def increasing_root(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where an elementwise increasing function crosses zero, by bisection to rounding."""
    for _ in range(80):
        middle = (low + high) / 2
        below = function(middle) < 0.0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
