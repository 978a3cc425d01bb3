"""Problems without strong concavity in y: games that are linear in y, and Lagrangians."""

import torch
from torch import Tensor

from neada.checks import check_number
from neada.problems.base import (
    Problem,
    joint_smoothness,
    random_generator,
    random_vector,
    spectral_norm,
)
from neada.sets import Box, NonNegative, Simplex

__all__ = [
    "bilinear_game",
    "box_game",
    "lagrangian",
    "matrix_game",
    "max_of_quadratics",
    "product",
]


def product() -> Problem:
    r"""The product of two numbers, on which gradient descent-ascent diverges.

    .. math::
        f(x, y) = x y

    The only stationary point is the origin. :math:`\Phi` is infinite elsewhere, and descent-ascent
    with any learning rates spirals outwards.

    Source: the usual first example, e.g. Daskalakis, Ilyas, Syrgkanis & Zeng 2018.
    """
    zero = torch.zeros(1, dtype=torch.float64)
    return Problem(
        name="product",
        fun=lambda x, y: (x * y).sum(-1),
        x0=torch.ones(1, dtype=torch.float64),
        y0=torch.ones(1, dtype=torch.float64),
        smoothness=1.0,
        solution=(zero, zero.clone()),
    )


def bilinear_game(*, regularization: float = 5e-4) -> Problem:
    r"""A bilinear form in three dimensions each, with a weak regularizer for both or with none.

    .. math::
        f(x, y) = x^T A y + \epsilon |x|^2 - \epsilon |y|^2, \qquad
        A = \begin{pmatrix} 1 & 2 & 0\\ 0 & 1 & -1\\ 1 & 0 & 3 \end{pmatrix}

    The only stationary point is the origin. For :math:`\epsilon > 0` it is strongly convex and
    strongly concave with :math:`\mu = 2\epsilon`; the default gives :math:`\kappa` above 3000. For
    :math:`\epsilon = 0`, :math:`\Phi` is infinite away from the origin.

    Source: ours.

    Args:
        regularization: epsilon; 0 for the plain bilinear form.
    """
    check_number("regularization", regularization, strict=False)
    rows = [[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, 3.0]]
    matrix, mu = torch.tensor(rows, dtype=torch.float64), 2.0 * regularization
    zero = torch.zeros(3, dtype=torch.float64)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        regularizer = regularization * (x.square() - y.square()).sum(-1)
        return (x @ matrix.to(x) * y).sum(-1) + regularizer

    def best_response(x: Tensor) -> Tensor:
        return x.detach() @ matrix.to(x) / mu

    return Problem(
        name="bilinear_game",
        fun=fun,
        x0=torch.ones(3, dtype=torch.float64),
        y0=torch.ones(3, dtype=torch.float64),
        smoothness=joint_smoothness(mu, -mu, spectral_norm(matrix), mu, mu),
        strong_concavity=mu if mu > 0.0 else None,
        best_response=best_response if mu > 0.0 else None,
        solution=(zero, zero.clone()),
    )


def matrix_game(*, dim_x: int = 6, dim_y: int = 5, seed: int = 0) -> Problem:
    r"""A zero-sum matrix game with mixed strategies.

    .. math::
        f(x, y) = x^T A y, \qquad x, y \text{ on simplices}

    The equilibrium is made first: each player mixes the first three strategies, and the others
    are worse by 0.5. A random matrix is then shifted by rows and columns so that
    :math:`Ay^* \ge v` and :math:`A^T x^* \le v = 1`, with equality on the support; the equilibrium
    is the only one. :math:`\Phi(x) = \max_j (A^T x)_j` is not smooth.

    Source: von Neumann 1928; the construction is ours.

    Args:
        dim_x: The strategies of x.
        dim_y: The strategies of y.
        seed: Of the matrix and the equilibrium.
    """
    generator, value = random_generator(seed), 1.0
    x_star, y_star = _mixture(dim_x, generator), _mixture(dim_y, generator)
    noise = torch.randn(dim_x, dim_y, generator=generator, dtype=torch.float64)
    worse_x, worse_y = torch.where(x_star > 0.0, 0.0, 0.5), torch.where(y_star > 0.0, 0.0, 0.5)
    by_column = -worse_y - noise.T @ x_star
    by_row = value + worse_x - noise @ y_star - by_column @ y_star
    matrix = noise + by_row[:, None] + by_column
    return Problem(
        name="matrix_game",
        fun=lambda x, y: (x @ matrix.to(x) * y).sum(-1),
        x0=torch.full((dim_x,), 1.0 / dim_x, dtype=torch.float64),
        y0=torch.full((dim_y,), 1.0 / dim_y, dtype=torch.float64),
        x_set=Simplex(),
        y_set=Simplex(),
        smoothness=spectral_norm(matrix),
        phi=lambda x: (x @ matrix.to(x)).amax(-1),
        solution=(x_star, y_star),
    )


def _mixture(dim: int, generator: torch.Generator) -> Tensor:
    """Positive weights on the first three coordinates, zeros on the others."""
    weights = torch.rand(dim, generator=generator, dtype=torch.float64) + 0.5
    weights[3:] = 0.0
    return weights / weights.sum()


def box_game(*, dim: int = 5, seed: int = 0) -> Problem:
    r"""A bilinear form with both players in boxes, some coordinates at their bounds.

    .. math::
        f(x, y) = x^T A y + b^T x + c^T y, \qquad x, y \in [-1, 1]^n

    b and c are set so that at the solution the first three coordinates have zero gradient and are
    inside, and the others are at a bound with a gradient of size 0.5. The solution is the only
    one. :math:`\Phi(x) = b^T x + |A^T x + c|_1` is not smooth.

    Source: ours.

    Args:
        dim: The number n.
        seed: Of A and the solution.
    """
    generator = random_generator(seed)
    matrix = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    x_star = torch.rand(dim, generator=generator, dtype=torch.float64) - 0.5
    y_star = torch.rand(dim, generator=generator, dtype=torch.float64) - 0.5
    x_star[3:], y_star[3:] = x_star[3:].sign(), y_star[3:].sign()
    linear_x, linear_y = -matrix @ y_star, -matrix.T @ x_star
    linear_x[3:] -= 0.5 * x_star[3:]
    linear_y[3:] += 0.5 * y_star[3:]

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return x @ linear_x.to(x) + (image(x) * y).sum(-1)

    def image(x: Tensor) -> Tensor:
        return x @ matrix.to(x) + linear_y.to(x)

    return Problem(
        name="box_game",
        fun=fun,
        x0=torch.zeros(dim, dtype=torch.float64),
        y0=torch.zeros(dim, dtype=torch.float64),
        x_set=Box(-1.0, 1.0),
        y_set=Box(-1.0, 1.0),
        smoothness=spectral_norm(matrix),
        phi=lambda x: x @ linear_x.to(x) + image(x).abs().sum(-1),
        solution=(x_star, y_star),
    )


def max_of_quadratics(*, dim_x: int = 3, seed: int = 0) -> Problem:
    r"""The largest of three quadratics, as a maximum over the simplex.

    .. math::
        f(x, y) = \sum_{j=1}^3 y_j \bigl(\tfrac{c_j}{2} |x - a_j|^2 + d_j\bigr),
        \qquad y \text{ on the simplex}

    :math:`\Phi(x) = \max_j q_j(x)` is strongly convex and not smooth: all three are equal at the
    solution, with weights 0.5, 0.3 and 0.2, which are unique. The curvatures are 1, 2 and 5.

    Source: the form of finite minimax problems, e.g. Charalambous & Conn 1978; the construction
    is ours.

    Args:
        dim_x: The dimension of x, at least 2.
        seed: Of the centers and the solution.
    """
    generator = random_generator(seed)
    x_star = random_vector(dim_x, generator)
    curvatures = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    y_star = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    slopes = torch.randn(3, dim_x, generator=generator, dtype=torch.float64)
    slopes[2] = -(y_star[:2] @ slopes[:2]) / y_star[2]  # the weighted gradients cancel
    centers = x_star - slopes / curvatures[:, None]
    heights = 1.0 - slopes.square().sum(1) / (2.0 * curvatures)  # all are 1 at the solution

    def quadratics(x: Tensor) -> Tensor:
        distances = (x.unsqueeze(-2) - centers.to(x)).square().sum(-1)
        return 0.5 * curvatures.to(x) * distances + heights.to(x)

    return Problem(
        name="max_of_quadratics",
        fun=lambda x, y: (y * quadratics(x)).sum(-1),
        x0=torch.zeros(dim_x, dtype=torch.float64),
        y0=torch.full((3,), 1.0 / 3.0, dtype=torch.float64),
        y_set=Simplex(),
        phi=lambda x: quadratics(x).amax(-1),
        solution=(x_star, y_star),
    )


def lagrangian() -> Problem:
    r"""The Lagrangian of a quadratic under two constraints; y holds the multipliers.

    .. math::
        f(x, y) = (x_1 - 2)^2 + (x_2 - 1)^2 + y_1 (x_1^2 - x_2) + y_2 (x_1 + x_2 - 2),
        \qquad y \ge 0

    Problem 22 of Hock and Schittkowski, convex. Both constraints hold with equality at the solution
    (1, 1), with multipliers 2/3 and 2/3. The start violates both.

    Source: Hock & Schittkowski 1981.
    """

    def fun(x: Tensor, y: Tensor) -> Tensor:
        first, second = x[..., 0], x[..., 1]
        constraints = torch.stack([first.square() - second, first + second - 2.0], -1)
        return (first - 2.0).square() + (second - 1.0).square() + (y * constraints).sum(-1)

    return Problem(
        name="lagrangian",
        fun=fun,
        x0=torch.tensor([2.0, 2.0], dtype=torch.float64),
        y0=torch.zeros(2, dtype=torch.float64),
        y_set=NonNegative(),
        solution=(
            torch.ones(2, dtype=torch.float64),
            torch.full((2,), 2.0 / 3.0, dtype=torch.float64),
        ),
    )
