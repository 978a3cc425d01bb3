"""Small games that separate methods: Dirac-GAN, a y that is only PL, and a Stackelberg game."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from neada.problems.base import (
    Problem,
    increasing_root,
    joint_smoothness,
    random_generator,
    random_vector,
    with_singular_values,
)

__all__ = ["dirac_gan", "nonconvex_pl", "stackelberg"]


def dirac_gan() -> Problem:
    r"""The Dirac-GAN with its gradient penalty: a point x must find the origin.

    .. math::
        f(x, y) = -\log(1 + e^{-x^T y}) - \log 2 - \tfrac{\gamma}{2} |y|^2

    The generator is the point mass at x, the data are at 0, the discriminator is :math:`z \mapsto
    y^T z`, and its gradient penalty makes f strongly concave with :math:`\mu = \gamma`. Without
    it gradient methods circle round the solution (0, 0). The curvature in y grows with
    :math:`|x|^2`, so there is no smoothness constant on the whole space. :math:`y^*(x) =
    x\,\sigma(-s)/\gamma` where :math:`s = x^T y^*` solves :math:`\gamma s = |x|^2 \sigma(-s)`.
    :math:`\Phi` grows from its minimum at 0 and is bounded, hence not convex.

    x and y are numbers, and :math:`\gamma = 0.3`.

    Source: Mescheder, Geiger & Nowozin 2018.
    """
    penalty = 0.3

    def fun(x: Tensor, y: Tensor) -> Tensor:
        score = (x * y).sum(-1)
        return -softplus(-score) - math.log(2.0) - 0.5 * penalty * y.square().sum(-1)

    def best_response(x: Tensor) -> Tensor:
        x = x.detach()
        norm_sq = x.square().sum(-1, keepdim=True)
        score = increasing_root(
            lambda s: penalty * s - norm_sq * torch.sigmoid(-s),
            torch.zeros_like(norm_sq),
            norm_sq / (2.0 * penalty),
        )
        return x * torch.sigmoid(-score) / penalty

    zero = torch.zeros(1, dtype=torch.float64)
    return Problem(
        name="dirac_gan",
        fun=fun,
        x0=torch.ones(1, dtype=torch.float64),
        y0=torch.full((1,), 0.5, dtype=torch.float64),
        strong_concavity=penalty,
        best_response=best_response,
        solution=(zero, zero.clone()),
    )


def nonconvex_pl(*, dim_x: int = 3, dim_y: int = 3, seed: int = 0) -> Problem:
    r"""Nonconvex in x; in y not concave, but with the Polyak-Lojasiewicz inequality.

    .. math::
        f(x, y) = \sum_i \bigl(\tfrac12 x_i^2 + 2\cos x_i\bigr)
        - \tfrac12 \sum_j \bigl(u_j^2 + 3\sin^2 u_j\bigr), \qquad u = y - Bx

    The function :math:`u^2 + 3\sin^2 u` has curvature in [-4, 8], one stationary point, and PL
    modulus at least 1/32, so f has at least 1/64. :math:`y^*(x) = Bx` and :math:`\Phi` is the
    x-term, a double well in each coordinate: the declared solution is one of :math:`3^{\dim x}`
    stationary points, the one with all :math:`x_i = 1.8955`, where :math:`x = 2\sin x`.

    Source: Karimi, Nutini & Schmidt 2016 for the PL function; the setting is that of Yang,
    Kiyavash & He 2020.

    Args:
        dim_x: The dimension of x.
        dim_y: The dimension of y.
        seed: Of B, which has singular values from 0.5 to 1.
    """
    generator = random_generator(seed)
    values = torch.linspace(0.5, 1.0, min(dim_x, dim_y), dtype=torch.float64)
    matrix = with_singular_values(dim_y, dim_x, values, generator)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        u = y - x @ matrix.T.to(x)
        return wells(x) - 0.5 * (u.square() + 3.0 * u.sin().square()).sum(-1)

    def wells(x: Tensor) -> Tensor:
        return (0.5 * x.square() + 2.0 * x.cos()).sum(-1)

    def best_response(x: Tensor) -> Tensor:
        return x.detach() @ matrix.T.to(x)

    bottom = 1.9
    for _ in range(10):
        bottom -= (bottom - 2.0 * math.sin(bottom)) / (1.0 - 2.0 * math.cos(bottom))
    x_star = torch.full((dim_x,), bottom, dtype=torch.float64)
    return Problem(
        name="nonconvex_pl",
        fun=fun,
        x0=random_vector(dim_x, generator),
        y0=torch.ones(dim_y, dtype=torch.float64),
        smoothness=3.0 + 4.0 * (1.0 + float(values[-1]) ** 2),
        pl_modulus=1.0 / 64.0,
        best_response=best_response,
        solution=(x_star, best_response(x_star)),
    )


def stackelberg() -> Problem:
    r"""A game on which simultaneous descent-ascent with equal learning rates cycles.

    .. math::
        f(x, y) = \cos x + x y - \tfrac{1}{8} y^2

    :math:`y^*(x) = 4x`, and :math:`\Phi(x) = \cos x + 2x^2` is strongly convex, so the
    origin is the only Stackelberg equilibrium. But f is concave in x there, and the Jacobian of
    simultaneous descent-ascent with equal learning rates has trace 3/4: the origin is an
    unstable spiral. Because :math:`\cos` is bounded, small steps settle on a cycle around it;
    large ones (0.5) diverge. No learning rate converges.

    Source: the phenomenon is that of Jin, Netrapalli & Jordan 2020 and Fiez, Chasnov & Ratliff
    2020; this function is ours.
    """
    zero = torch.zeros(1, dtype=torch.float64)
    return Problem(
        name="stackelberg",
        fun=lambda x, y: (x.cos() + x * y - 0.125 * y.square()).sum(-1),
        x0=torch.ones(1, dtype=torch.float64),
        y0=zero.clone(),
        smoothness=joint_smoothness(1.0, 1.0, 1.0, 0.25, 0.25),
        strong_concavity=0.25,
        best_response=lambda x: 4.0 * x.detach(),
        solution=(zero, zero.clone()),
    )
