"""Maximising the area under the ROC curve as a saddle problem."""

import torch
from torch import Tensor

from neada.problems.ingredients import (
    check_count,
    check_positive,
    random_generator,
    random_vector,
    spectral_norm,
)
from neada.problems.problem import Problem

__all__ = ["auc_maximisation"]


def auc_maximisation(
    *,
    num_positive: int = 25,
    num_negative: int = 75,
    num_features: int = 8,
    regularisation: float = 0.01,
    seed: int = 0,
) -> Problem:
    r"""The square surrogate of the AUC of a linear score, without pairs of samples.

    .. math::
        f(x, y) = p(1-p) \bigl[ E_+(w^T z - a)^2 + E_-(w^T z - b)^2
        + 2(1 + y)\, m(w) - y^2 \bigr] + \tfrac{\lambda}{2} |w|^2,
        \quad m(w) = E_- w^T z - E_+ w^T z

    Here :math:`x = (w, a, b)`, p is the share of positive samples, and :math:`E_\pm` are means
    over a class. A quadratic, convex in x, strongly concave in the one-dimensional y with
    :math:`\mu = 2p(1-p)`; :math:`y^*(x) = m(w)`. Minimised over a and b, :math:`\Phi` is
    :math:`p(1-p)\,(E(1 - w^T(z_+ - z_-))^2 - 1)` plus the regulariser, which makes the solution
    unique.

    Source: Ying, Wen & Lyu 2016.

    Args:
        num_positive: Samples of the rarer class.
        num_negative: Samples of the other class.
        num_features: The dimension of w.
        regularisation: lambda.
        seed: Of the data: two Gaussian classes with different means.
    """
    check_count("num_positive", num_positive)
    check_count("num_negative", num_negative)
    check_count("num_features", num_features)
    check_positive("regularisation", regularisation)
    d, generator = num_features, random_generator(seed)
    mean = random_vector(d, generator)
    positive = torch.randn(num_positive, d, generator=generator, dtype=torch.float64)
    positive += mean / mean.norm()
    negative = torch.randn(num_negative, d, generator=generator, dtype=torch.float64)
    share = num_positive / (num_positive + num_negative)
    scale = share * (1.0 - share)

    def spread_and_gap(x: Tensor) -> tuple[Tensor, Tensor]:
        w, a, b = x[..., :d], x[..., d : d + 1], x[..., d + 1 :]
        above, below = w @ positive.T.to(x), w @ negative.T.to(x)
        spread = (above - a).square().mean(-1) + (below - b).square().mean(-1)
        return spread, below.mean(-1) - above.mean(-1)

    def regulariser(x: Tensor) -> Tensor:
        return 0.5 * regularisation * x[..., :d].square().sum(-1)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        (spread, gap), dual = spread_and_gap(x), y[..., 0]
        return scale * (spread + 2.0 * (1.0 + dual) * gap - dual.square()) + regulariser(x)

    def phi(x: Tensor) -> Tensor:
        spread, gap = spread_and_gap(x)
        return scale * (spread + 2.0 * gap + gap.square()) + regulariser(x)

    def best_response(x: Tensor) -> Tensor:
        return spread_and_gap(x.detach())[1].unsqueeze(-1)

    between = positive.mean(0) - negative.mean(0)
    within = torch.cov(positive.T, correction=0) + torch.cov(negative.T, correction=0)
    ridge = regularisation / (2.0 * scale) * torch.eye(d, dtype=torch.float64)
    w = torch.linalg.solve(within.reshape(d, d) + between.outer(between) + ridge, between)
    x_star = torch.cat([w, (positive.mean(0) @ w).view(1), (negative.mean(0) @ w).view(1)])
    return Problem(
        name="auc_maximisation",
        fun=fun,
        x0=torch.full((d + 2,), 0.5, dtype=torch.float64),
        y0=torch.zeros(1, dtype=torch.float64),
        description="square surrogate of the AUC of a linear score, saddle form",
        reference="Ying, Wen & Lyu, Stochastic Online AUC Maximization, NeurIPS 2016",
        smoothness=spectral_norm(_hessian(positive, negative, scale, regularisation)),
        strong_concavity=2.0 * scale,
        best_response=best_response,
        phi=phi,
        solution=(x_star, best_response(x_star)),
    )


def _hessian(positive: Tensor, negative: Tensor, scale: float, regularisation: float) -> Tensor:
    """The constant Hessian in (w, a, b, y)."""
    d = positive.shape[1]
    up, down = positive.mean(0), negative.mean(0)
    hessian = torch.zeros(d + 3, d + 3, dtype=torch.float64)
    second_moments = positive.T @ positive / len(positive) + negative.T @ negative / len(negative)
    hessian[:d, :d] = second_moments
    for i, column in enumerate((-up, -down, down - up)):
        hessian[:d, d + i] = hessian[d + i, :d] = column
        hessian[d + i, d + i] = -1.0 if i == 2 else 1.0
    hessian *= 2.0 * scale
    hessian[:d, :d].diagonal().add_(regularisation)
    return hessian
