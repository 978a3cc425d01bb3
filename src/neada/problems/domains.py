"""Problems whose function ends at the border of a domain: entropy, square root, logarithm."""

from collections.abc import Callable

import torch
from torch import Tensor

from neada.problems.base import Problem, random_generator, random_vector, with_singular_values
from neada.sets import Simplex

__all__ = ["entropic", "half_circle", "log_barrier", "orthant_entropic"]


def entropic(*, dim_x: int = 5, dim_y: int = 6, seed: int = 0) -> Problem:
    r"""A worst-case mixture of linear functions with an entropy, y on the simplex.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 + y^T (Bx + c) - \tau \sum_j y_j \log y_j,
        \qquad y \text{ on the simplex}

    :math:`y^*(x)` is the softmax of :math:`(Bx + c)/\tau` and :math:`\Phi` is strongly convex.
    Strongly concave with :math:`\mu = \tau = 0.1`; the gradient in y is infinite at the border, so
    there is no smoothness constant, and a projection that lands there meets infinite numbers.

    Source: ours, with a and c set so that the solution is known.

    Args:
        dim_x: The dimension of x.
        dim_y: The number of weights, at least 2.
        seed: Of B and of the solution.
    """
    temperature, generator = 0.1, random_generator(seed)
    weights = torch.rand(dim_y, generator=generator, dtype=torch.float64) + 0.05
    y_star = weights / weights.sum()
    x_star = random_vector(dim_x, generator)
    target = temperature * y_star.log()
    surface, image = _coupling(x_star, y_star, target, generator)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return surface(x) + (y * image(x) - temperature * torch.xlogy(y, y)).sum(-1)

    return Problem(
        name="entropic",
        fun=fun,
        x0=torch.zeros(dim_x, dtype=torch.float64),
        y0=torch.full((dim_y,), 1.0 / dim_y, dtype=torch.float64),
        y_set=Simplex(),
        strong_concavity=temperature,
        best_response=lambda x: (image(x.detach()) / temperature).softmax(-1),
        solution=(x_star, y_star),
    )


def orthant_entropic(*, dim_x: int = 4, dim_y: int = 3, seed: int = 0) -> Problem:
    r"""The function of `entropic` without a set: defined only where y is positive.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 + y^T (Bx + c) - \tau \sum_j (y_j \log y_j - y_j),
        \qquad \tau = \tfrac12

    :math:`y^*(x) = e^{(Bx + c)/\tau}` is always inside, and :math:`\Phi(x) = \tfrac12 |x - a|^2 +
    \tau \sum_j e^{(Bx + c)_j/\tau}` is strongly convex. Concave in y without a modulus: the
    curvature :math:`\tau/y_j` falls as y grows. A step to a negative y gives NaN.

    Source: ours, with a and c set so that the solution is known.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        seed: Of B and of the solution.
    """
    temperature, generator = 0.5, random_generator(seed)
    y_star = torch.rand(dim_y, generator=generator, dtype=torch.float64) + 0.05
    x_star = random_vector(dim_x, generator)
    surface, image = _coupling(x_star, y_star, temperature * y_star.log(), generator)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        entropy = torch.xlogy(y, y) - y
        return surface(x) + (y * image(x) - temperature * entropy).sum(-1)

    def best_response(x: Tensor) -> Tensor:
        return (image(x.detach()) / temperature).exp()

    return Problem(
        name="orthant_entropic",
        fun=fun,
        x0=torch.zeros(dim_x, dtype=torch.float64),
        y0=torch.ones(dim_y, dtype=torch.float64),
        best_response=best_response,
        solution=(x_star, y_star),
    )


def half_circle() -> Problem:
    r"""A half circle in y: its slope is infinite at both ends of the domain.

    .. math::
        f(x, y) = \tfrac12 |x|^2 + x^T y + \sum_i \sqrt{1 - y_i^2}

    :math:`y_i^*(x) = x_i/\sqrt{1 + x_i^2}` is always inside, :math:`\Phi(x) = \sum_i
    \tfrac12 x_i^2 + \sqrt{1 + x_i^2}`, and the only stationary point is the origin. Strongly
    concave with :math:`\mu = 1`, without a smoothness constant. A step beyond :math:`|y_i| = 1`
    gives NaN.

    Source: ours.
    """
    zero = torch.zeros(2, dtype=torch.float64)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return (0.5 * x.square() + x * y + (1.0 - y.square()).sqrt()).sum(-1)

    return Problem(
        name="half_circle",
        fun=fun,
        x0=torch.tensor([2.0, -3.0], dtype=torch.float64),
        y0=torch.zeros(2, dtype=torch.float64),
        strong_concavity=1.0,
        best_response=lambda x: x.detach() / (1.0 + x.detach().square()).sqrt(),
        solution=(zero, zero.clone()),
    )


def log_barrier(*, dim_x: int = 4, dim_y: int = 3, seed: int = 0) -> Problem:
    r"""A bilinear coupling with logarithmic barriers for both players.

    .. math::
        f(x, y) = \tfrac12 |x - a|^2 - \nu \sum_i \log x_i + y^T (Bx + c)
        + \nu \sum_j \log(1 - y_j^2)

    The domain is :math:`x > 0`, :math:`|y_j| < 1`; a step beyond gives NaN. With
    :math:`s = Bx + c`, :math:`y_j^*(x) = s_j/(\nu + \sqrt{\nu^2 + s_j^2})`. Strongly concave
    with :math:`\mu = 2\nu = 0.1`, without a smoothness constant; strongly convex in x.

    Source: ours, with a and c set so that the solution is known.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        seed: Of B and of the solution.
    """
    strength, generator = 0.05, random_generator(seed)
    y_star = 1.8 * torch.rand(dim_y, generator=generator, dtype=torch.float64) - 0.9
    x_star = torch.rand(dim_x, generator=generator, dtype=torch.float64) + 0.1
    target = 2.0 * strength * y_star / (1.0 - y_star.square())
    surface, image = _coupling(x_star, y_star, target, generator, slope=-strength / x_star)

    def barrier(y: Tensor) -> Tensor:
        return strength * (1.0 - y.square()).log().sum(-1)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return outer(x) + (y * image(x)).sum(-1) + barrier(y)

    def outer(x: Tensor) -> Tensor:
        return surface(x) - strength * x.log().sum(-1)

    def best_response(x: Tensor) -> Tensor:
        s = image(x.detach())
        return s / (strength + (strength**2 + s.square()).sqrt())

    return Problem(
        name="log_barrier",
        fun=fun,
        x0=torch.ones(dim_x, dtype=torch.float64),
        y0=torch.zeros(dim_y, dtype=torch.float64),
        strong_concavity=2.0 * strength,
        best_response=best_response,
        solution=(x_star, y_star),
    )


def _coupling(
    x_star: Tensor,
    y_star: Tensor,
    target: Tensor,
    generator: torch.Generator,
    slope: Tensor | float = 0.0,
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """|x - a|^2/2 and Bx + c with Bx* + c = target and x* - a + B^T y* + slope = 0."""
    dim_x, dim_y = len(x_star), len(y_star)
    values = torch.linspace(0.5, 1.0, min(dim_x, dim_y), dtype=torch.float64)
    matrix = with_singular_values(dim_y, dim_x, values, generator)
    center = x_star + matrix.T @ y_star + slope
    offset = target - matrix @ x_star

    def surface(x: Tensor) -> Tensor:
        return 0.5 * (x - center.to(x)).square().sum(-1)

    def image(x: Tensor) -> Tensor:
        return x @ matrix.T.to(x) + offset.to(x)

    return surface, image
