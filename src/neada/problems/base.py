"""What a test problem is, and the pieces that several problems are made of."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neada.sets import L1Ball, L2Ball, Set, Simplex

__all__ = [
    "Objective",
    "Problem",
    "bounded_bumps",
    "increasing_root",
    "joint_smoothness",
    "orthogonal",
    "per_row",
    "project_rows",
    "random_generator",
    "random_vector",
    "spectral_norm",
    "with_singular_values",
]


Objective = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    r"""One problem :math:`\min_x \max_y f(x, y)` and what is known about it.

    The last dimension of `x` and `y` is the variable; leading dimensions are a batch of rows, each
    a point of its own, and numbers about them have the shape of the leading dimensions. Functions
    work in the dtype and on the device of their arguments.

    Attributes:
        name: The name in the zoo.
        fun: f(x, y), differentiable in both arguments.
        x0: A start, one float64 vector.
        y0: Likewise for y.
        x_set: Where x lives, for a single vector; None is the whole space.
        y_set: Likewise for y.
        smoothness: A Lipschitz constant l of the joint gradient on the sets; None if there is no
            finite one.
        strong_concavity: The modulus mu of f in y on the sets; None if f is not strongly concave.
        pl_modulus: The Polyak-Lojasiewicz modulus of f in y where strong concavity fails:
            `|grad_y f|^2 / 2 >= pl_modulus * (Phi(x) - f(x, y))`.
        best_response: y*(x), the maximizer, exact to rounding. Not recorded by autograd.
        phi: Phi(x) = max_y f(x, y), differentiable in x; by default f(x, y*(x)), whose gradient is
            right by Danskin's theorem.
        solution: A stationary point (x*, y*), exact to rounding; the only one unless the factory
            says otherwise.
        description: One sentence; for the zoo, the first line of the factory's docstring.

    Example:
        >>> problem = Problem(
        ...     name="saddle",
        ...     fun=lambda x, y: (x * y - y.square() / 2).sum(-1),
        ...     x0=torch.tensor([1.0], dtype=torch.float64),
        ...     y0=torch.tensor([0.0], dtype=torch.float64),
        ... )
        >>> norm_x, norm_y = problem.stationarity(problem.x0, problem.y0)
        >>> float(norm_x), float(norm_y)
        (0.0, 1.0)
    """

    name: str
    fun: Objective
    x0: Tensor
    y0: Tensor
    x_set: Set | None = None
    y_set: Set | None = None
    smoothness: float | None = None
    strong_concavity: float | None = None
    pl_modulus: float | None = None
    best_response: Callable[[Tensor], Tensor] | None = None
    phi: Callable[[Tensor], Tensor] | None = None
    solution: tuple[Tensor, Tensor] | None = None
    description: str = ""

    def __post_init__(self) -> None:
        respond = self.best_response
        if self.phi is None and respond is not None:
            object.__setattr__(self, "phi", lambda x: self.fun(x, respond(x)))

    def __repr__(self) -> str:
        return f"Problem({self.name!r}, dim_x={self.dim_x}, dim_y={self.dim_y})"

    @property
    def dim_x(self) -> int:
        """The number of coordinates of x."""
        return self.x0.numel()

    @property
    def dim_y(self) -> int:
        """The number of coordinates of y."""
        return self.y0.numel()

    @property
    def condition_number(self) -> float | None:
        """Kappa = l / mu, or None if one of them is not known."""
        if self.smoothness is None or self.strong_concavity is None:
            return None
        return self.smoothness / self.strong_concavity

    def row_sets(self) -> tuple[Set | None, Set | None]:
        """The sets of x and y for a batch of shape [rows, dim]: every row in a set of its own."""
        return per_row(self.x_set), per_row(self.y_set)

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of f in x and in y, row by row."""
        with torch.enable_grad():
            x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
            grad_x, grad_y = torch.autograd.grad(self.fun(x, y).sum(), (x, y))
        return grad_x, grad_y

    def stationarity(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The norms of the gradient mappings of x and of y, one number per row.

        They are gradient norms for a player without a set, and both are zero exactly at a
        first-order stationary point.
        """
        grad_x, grad_y = self.gradients(x, y)
        return _mapping_norm(self.x_set, x, -grad_x), _mapping_norm(self.y_set, y, grad_y)


def per_row(one: Set | None) -> Set | None:
    """The set of batches [rows, dim] whose every row is in the given set of vectors."""
    if one is None or one.separable_over_rows:
        return one
    if isinstance(one, L2Ball | L1Ball):
        return type(one)(one.radius, one.center, per_sample=True)
    if isinstance(one, Simplex):
        return Simplex(one.total, per_sample=True)
    raise ValueError(f"{one!r} has no version with one set per row; use a ball, simplex or box")


def _mapping_norm(one: Set | None, point: Tensor, ascent: Tensor) -> Tensor:
    mapping, rows = ascent, per_row(one)
    if rows is not None:
        flat = (-1, point.shape[-1])
        mapping = rows.gradient_mapping(point.reshape(flat), ascent.reshape(flat))
    norms: Tensor = torch.linalg.vector_norm(mapping.reshape(point.shape), dim=-1)
    return norms


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
