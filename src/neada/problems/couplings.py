"""Problems linear in x against y: y free or in a ball, simplex or box; a bounded nonconvex x."""

import torch
from torch import Tensor

from neada.checks import check_number
from neada.problems.base import (
    Problem,
    bounded_bumps,
    joint_smoothness,
    per_row,
    project_rows,
    random_generator,
    random_vector,
    spectral_norm,
    with_singular_values,
)
from neada.sets import Box, L2Ball, Set, Simplex

__all__ = [
    "ball_constrained",
    "bilinear",
    "bounded_nonconvex",
    "box_constrained",
    "simplex_constrained",
]

_WAVES = 1.5  # the x-term |x - a|^2 / 2 + _WAVES sum cos x_i has curvature in [-0.5, 2.5]


def bilinear(*, dim_x: int = 10, dim_y: int = 10, seed: int = 0) -> Problem:
    r"""A bilinear coupling with a strongly concave y and waves in x.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 + \tfrac32 \sum_i \cos x_i + y^T (Bx + c)
        - \tfrac{\mu}{2} |y|^2

    B has singular values from 0.5 to 1. The x-term has curvature in [-1/2, 5/2], so f is not
    convex in x, but :math:`\nabla^2\Phi \succeq B^T B/\mu - 1/2` is positive for :math:`\mu = 0.1`
    and :math:`\dim y \ge \dim x`: then the declared solution is the only one.

    Source: ours, with a and c set so that the solution is known.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        seed: Of B and of the solution.
    """
    generator = random_generator(seed)
    y_star = random_vector(dim_y, generator)
    return _coupled(
        name="bilinear",
        dim_x=dim_x,
        mu=0.1,
        y_star=y_star,
        target=y_star,
        y_set=None,
        generator=generator,
    )


def ball_constrained(*, dim_x: int = 10, dim_y: int = 8, seed: int = 0) -> Problem:
    r"""The function of `bilinear` with y in a Euclidean ball that is active at the solution.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 + \tfrac32 \sum_i \cos x_i + y^T (Bx + c)
        - \tfrac{\mu}{2} |y|^2, \qquad |y| \le 1

    :math:`y^*(x) = P((Bx + c)/\mu)`, so :math:`\Phi` is the x-term plus Huber's function of
    :math:`|Bx + c|`: coercive, with a Lipschitz gradient. At the solution :math:`(Bx + c)/\mu` is
    at distance 2 from the origin. Other stationary points may exist.

    Source: ours, with a and c set so that the solution is known.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        seed: Of B and of the solution.
    """
    generator = random_generator(seed)
    direction = random_vector(dim_y, generator)
    y_star = direction / direction.norm()
    return _coupled(
        name="ball_constrained",
        dim_x=dim_x,
        mu=0.1,
        y_star=y_star,
        target=2.0 * y_star,
        y_set=L2Ball(1.0),
        generator=generator,
    )


def simplex_constrained(*, dim_x: int = 10, dim_y: int = 8, seed: int = 0) -> Problem:
    r"""The function of `bilinear` with y on the simplex, half of it zero at the solution.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 + \tfrac32 \sum_i \cos x_i + y^T (Bx + c)
        - \tfrac{\mu}{2} |y|^2, \qquad y \ge 0,\ \sum_j y_j = 1

    A worst-case mixture of linear functions with a chi-square penalty, :math:`\mu = 0.5`:
    :math:`y^*(x) = P((Bx + c)/\mu)`. :math:`\Phi` is coercive with a Lipschitz gradient. Other
    stationary points may exist.

    Source: ours, in the form of Namkoong & Duchi 2016, with a and c set so that the solution is
    known.

    Args:
        dim_x: The dimension of x.
        dim_y: The number of weights, at least 2.
        seed: Of B and of the solution.
    """
    generator = random_generator(seed)
    weights = torch.rand(dim_y, generator=generator, dtype=torch.float64) + 0.1
    weights[dim_y // 2 :] = 0.0
    y_star = weights / weights.sum()
    return _coupled(
        name="simplex_constrained",
        dim_x=dim_x,
        mu=0.5,
        y_star=y_star,
        target=torch.where(y_star > 0.0, y_star, -0.5),  # its projection is y_star
        y_set=Simplex(),
        generator=generator,
    )


def box_constrained(*, dim_x: int = 5, dim_y: int = 5, seed: int = 0) -> Problem:
    r"""The function of `bilinear` with lower waves and y in a box, whose every other bound binds.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 + \tfrac34 \sum_i \cos x_i + y^T (Bx + c)
        - \tfrac{\mu}{2} |y|^2, \qquad |y_j| \le 1

    :math:`y_j^*(x)` is :math:`(Bx + c)_j/\mu`, clipped to the box, so :math:`\Phi` is the x-term
    plus Huber's function of every :math:`(Bx + c)_j`: strongly convex, because the x-term has
    curvature in [1/4, 7/4], with a Lipschitz gradient. The solution is the only one; there y is
    inside in every other coordinate, and in the rest :math:`(Bx + c)_j/\mu` is at distance 2 from
    the origin.

    Source: ours, with a and c set so that the solution is known.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        seed: Of B and of the solution.
    """
    generator = random_generator(seed)
    target = random_vector(dim_y, generator).tanh()
    target[::2] = 2.0 * target[::2].sign()
    return _coupled(
        name="box_constrained",
        dim_x=dim_x,
        mu=0.1,
        y_star=target.clamp(-1.0, 1.0),
        target=target,
        y_set=Box(-1.0, 1.0),
        generator=generator,
        waves=0.5 * _WAVES,
    )


def _coupled(
    name: str,
    dim_x: int,
    mu: float,
    y_star: Tensor,
    target: Tensor,
    y_set: Set | None,
    generator: torch.Generator,
    waves: float = _WAVES,
) -> Problem:
    """The common function; the solution is a random x* with y* = P(target), (Bx* + c)/mu = target.

    Stationarity in x fixes a: x* - a - waves sin x* + B^T y* = 0.
    """
    dim_y = len(y_star)
    values = torch.linspace(0.5, 1.0, min(dim_x, dim_y), dtype=torch.float64)
    matrix = with_singular_values(dim_y, dim_x, values, generator)
    x_star = random_vector(dim_x, generator)
    offset = mu * target - matrix @ x_star
    center = x_star - waves * x_star.sin() + matrix.T @ y_star
    rows = per_row(y_set)
    y0 = torch.zeros_like(y_star)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return surface(x) + (y * (image(x) - 0.5 * mu * y)).sum(-1)

    def surface(x: Tensor) -> Tensor:
        return (0.5 * (x - center.to(x)).square() + waves * x.cos()).sum(-1)

    def image(x: Tensor) -> Tensor:
        return x @ matrix.T.to(x) + offset.to(x)

    def best_response(x: Tensor) -> Tensor:
        free = image(x.detach()) / mu
        return free if rows is None else project_rows(rows, free)

    return Problem(
        name=name,
        fun=fun,
        x0=torch.zeros(dim_x, dtype=torch.float64),
        y0=y0 if y_set is None else y_set.project(y0),
        y_set=y_set,
        smoothness=joint_smoothness(1.0 + waves, waves - 1.0, float(values[-1]), mu, mu),
        strong_concavity=mu,
        best_response=best_response,
        solution=(x_star, y_star),
    )


def bounded_nonconvex(*, mu: float = 0.5) -> Problem:
    r"""A bounded nonconvex x-term and a strongly concave y, in two dimensions each.

    .. math::
        f(x, y) = \sum_i \frac{x_i^2}{1 + x_i^2} + y^T B x - \tfrac{\mu}{2} |y|^2,
        \qquad B = \begin{pmatrix} 1 & 0.5\\ -0.3 & 2 \end{pmatrix}

    :math:`\Phi(x) = \sum_i x_i^2/(1+x_i^2) + |Bx|^2/(2\mu)`, and the only stationary point is the
    origin (for :math:`\mu \le 1`; :math:`\Phi` is convex there). A small :math:`\mu` makes it
    ill-conditioned.

    Source: the library's own tests of inner solvers.

    Args:
        mu: The modulus of strong concavity.
    """
    check_number("mu", mu)
    matrix = torch.tensor([[1.0, 0.5], [-0.3, 2.0]], dtype=torch.float64)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return bounded_bumps(x) + (y * (x @ matrix.T.to(x) - 0.5 * mu * y)).sum(-1)

    return Problem(
        name="bounded_nonconvex",
        fun=fun,
        x0=torch.tensor([1.0, -1.5], dtype=torch.float64),
        y0=torch.tensor([0.5, 0.5], dtype=torch.float64),
        smoothness=joint_smoothness(2.0, 0.5, spectral_norm(matrix), mu, mu),
        strong_concavity=mu,
        best_response=lambda x: x.detach() @ matrix.T.to(x) / mu,
        solution=(torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)),
    )
