"""Quadratics: random ones that are nonconvex in x, and one in mixed units."""

import math

import torch
from torch import Tensor

from neada.checks import check_number
from neada.problems.base import (
    Problem,
    joint_smoothness,
    orthogonal,
    random_generator,
    random_vector,
    spectral_norm,
    with_singular_values,
)

__all__ = ["gaussian_quadratic", "mixed_units", "nc_sc_quadratic"]

# Relative to the largest eigenvalue of C. The x-block hides B (C + _HIDDEN I)^{-1} B^T.
_COUPLING, _HIDDEN = 0.5, 0.25


def nc_sc_quadratic(
    *, dim_x: int = 20, dim_y: int = 20, kappa: float = 10.0, seed: int = 0
) -> Problem:
    r"""A random quadratic with an x-block that is not convex, of any condition number.

    .. math::
        f(x, y) = \tfrac12 u^T A u + u^T B v - \tfrac12 v^T C v,
        \qquad u = x - x^*,\ v = y - y^*

    The smoothness is 1 and the strong concavity :math:`\mu = 1/\kappa`, both exactly.
    :math:`A = P - B (C + \delta I)^{-1} B^T` has negative eigenvalues, so f is not convex in x,
    but :math:`\nabla^2\Phi = A + B C^{-1} B^T \succ P \succ 0`: :math:`\Phi` is slightly
    strongly convex, :math:`(x^*, y^*)` is the only stationary point, and the condition number of
    :math:`\Phi` grows with :math:`\kappa` (19, 123 and 1002 for the three of the zoo). The
    eigenvalues of C are evenly spread on a logarithmic scale.

    Source: the usual test of the theory of nonconvex-strongly-concave problems, e.g. Lin, Jin &
    Jordan 2020; this construction is ours.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        kappa: The condition number l / mu, at least 2.
        seed: Of the random matrices and the solution.
    """
    check_number("kappa", kappa, above=2.0, strict=False)
    generator = random_generator(seed)
    hessian = _random_hessian(dim_x, dim_y, kappa, generator)
    return _with_hessian(
        name="nc_sc_quadratic",
        hessian=hessian,
        dim_x=dim_x,
        smoothness=1.0,
        mu=1.0 / kappa,
        generator=generator,
    )


def gaussian_quadratic(*, dim: int = 5, kappa: float = 1e4, seed: int = 0) -> Problem:
    r"""A quadratic with Gaussian matrices, so that Phi is as ill-conditioned as f in y.

    .. math::
        f(x, y) = \tfrac12 u^T A u + u^T B v - \tfrac12 v^T C v,
        \qquad u = x - x^*,\ v = y - y^*

    A and B are Gaussian, A is symmetric and, if need be, shifted so that
    :math:`\nabla^2\Phi = A + B C^{-1} B^T \succeq 0.1`; it stays indefinite for the zoo's seeds.
    The eigenvalues of C lie between :math:`\mu = 1/\kappa` and 1, evenly spread on a logarithmic
    scale. :math:`\nabla^2\Phi` has a condition number of the size of :math:`\kappa` or more.

    Source: ours.

    Args:
        dim: The dimension of x and of y.
        kappa: The condition number of C, at least 1.
        seed: Of the random matrices and the solution.
    """
    check_number("kappa", kappa, above=1.0, strict=False)
    generator = random_generator(seed)
    in_x, coupling = torch.randn(2, dim, dim, generator=generator, dtype=torch.float64).unbind()
    axes = orthogonal(dim, generator)
    values = torch.logspace(-math.log10(kappa), 0.0, dim, dtype=torch.float64)
    in_x, in_y = (in_x + in_x.T) / 2, axes * values @ axes.T
    of_phi = in_x + coupling @ (axes / values @ axes.T) @ coupling.T
    lowest = float(torch.linalg.eigvalsh(of_phi)[0])
    in_x.diagonal().add_(max(0.1 - lowest, 0.0))
    hessian = torch.cat([torch.cat([in_x, coupling], 1), torch.cat([coupling.T, -in_y], 1)])
    return _with_hessian(
        name="gaussian_quadratic",
        hessian=hessian,
        dim_x=dim,
        smoothness=spectral_norm(hessian),
        mu=float(values[0]),
        generator=generator,
    )


def _with_hessian(
    name: str,
    hessian: Tensor,
    dim_x: int,
    smoothness: float,
    mu: float,
    generator: torch.Generator,
) -> Problem:
    """The quadratic with that Hessian round a random solution, started at the origin."""
    in_x, coupling = hessian[:dim_x, :dim_x], hessian[:dim_x, dim_x:]
    in_y = -hessian[dim_x:, dim_x:]
    best: Tensor = torch.linalg.solve(in_y, coupling.T)
    half_x, half_y, half_phi = in_x / 2, in_y / 2, (in_x + coupling @ best) / 2
    x_star, y_star = (random_vector(len(block), generator) for block in (in_x, in_y))

    def fun(x: Tensor, y: Tensor) -> Tensor:
        u, v = x - x_star.to(x), y - y_star.to(y)
        from_x = u @ half_x.to(x)
        from_y = u @ coupling.to(x) - v @ half_y.to(y)
        return (from_x * u).sum(-1) + (from_y * v).sum(-1)

    def best_response(x: Tensor) -> Tensor:
        return y_star.to(x) + (x.detach() - x_star.to(x)) @ best.T.to(x)

    def phi(x: Tensor) -> Tensor:
        u = x - x_star.to(x)
        return (u @ half_phi.to(x) * u).sum(-1)

    return Problem(
        name=name,
        fun=fun,
        x0=torch.zeros_like(x_star),
        y0=torch.zeros_like(y_star),
        smoothness=smoothness,
        strong_concavity=mu,
        best_response=best_response,
        phi=phi,
        solution=(x_star, y_star),
    )


def _random_hessian(dim_x: int, dim_y: int, kappa: float, generator: torch.Generator) -> Tensor:
    """The joint Hessian with norm 1 and y-block of at most -1 / kappa."""
    axes = orthogonal(dim_y, generator)
    values = torch.linspace(1.0, 0.2, min(dim_x, dim_y), dtype=torch.float64) * _COUPLING
    coupling = with_singular_values(dim_x, dim_y, values, generator)
    base_axes = orthogonal(dim_x, generator)
    base_values = torch.logspace(-1.5, 0.0, dim_x, dtype=torch.float64)
    base = base_axes * base_values @ base_axes.T

    def hessian(smallest: float) -> Tensor:
        decades = torch.tensor(smallest, dtype=torch.float64).log10()
        in_y_values = torch.logspace(float(decades), 0.0, dim_y, dtype=torch.float64)
        in_y = axes * in_y_values @ axes.T
        hidden = coupling @ (axes / (in_y_values + _HIDDEN) @ axes.T) @ coupling.T
        eigenvalues, eigenvectors = torch.linalg.eigh(hidden)
        top = eigenvectors[:, -1]
        # The form is -eigenvalue / 2 in the direction of the top eigenvector.
        scale = float(eigenvalues[-1] / 2 / (top @ base @ top))
        in_x = scale * base - hidden
        return torch.cat([torch.cat([in_x, coupling], 1), torch.cat([coupling.T, -in_y], 1)])

    # The smallest eigenvalue of C that makes the condition number of the whole exact.
    smallest = 1.0 / kappa
    for _ in range(50):
        smallest = spectral_norm(hessian(smallest)) / kappa
    result = hessian(smallest)
    return result / spectral_norm(result)


def mixed_units() -> Problem:
    r"""A quadratic whose two coordinates of x differ by 1e8 in size and by 1e12 in curvature.

    .. math::
        f(x, y) = \tfrac12 \sum_i d_i^2 (x_i - a_i)^2 + b\, x^T y - \tfrac12 |y|^2,
        \qquad a = (10^4, 10^{-4}),\ d = (10^{-3}, 10^3),\ b = 10^{-2}

    :math:`y^*(x) = bx`, and the solution is :math:`x_i = d_i^2 a_i/(d_i^2 + b^2)`, which is
    (99.01, 0.0001).

    Source: ours.
    """
    b = 1e-2
    target = torch.tensor([1e4, 1e-4], dtype=torch.float64)
    scales = torch.tensor([1e-3, 1e3], dtype=torch.float64)
    x_star = scales.square() * target / (scales.square() + b**2)

    def surface(x: Tensor) -> Tensor:
        return 0.5 * ((x - target.to(x)) * scales.to(x)).square().sum(-1)

    return Problem(
        name="mixed_units",
        fun=lambda x, y: surface(x) + (b * x * y - 0.5 * y.square()).sum(-1),
        x0=torch.zeros(2, dtype=torch.float64),
        y0=torch.zeros(2, dtype=torch.float64),
        smoothness=joint_smoothness(1e6, -1e-6, b, 1.0, 1.0),
        strong_concavity=1.0,
        best_response=lambda x: b * x.detach(),
        solution=(x_star, b * x_star),
    )
