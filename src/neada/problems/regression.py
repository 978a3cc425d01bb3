"""Problems with data: robust regression and classification, AUC maximization."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from neada.problems.base import (
    Problem,
    bounded_bumps,
    increasing_root,
    joint_smoothness,
    project_rows,
    random_generator,
    random_vector,
    spectral_norm,
)
from neada.sets import L2Ball, NonNegative, Simplex

__all__ = [
    "auc_maximization",
    "fair_logistic",
    "robust_least_squares",
    "robust_logistic",
    "wrm_logistic",
]


def robust_least_squares(*, seed: int = 0) -> Problem:
    r"""Least squares against an adversary who moves the targets and pays for it.

    .. math::
        f(x, y) = \tfrac1{2n} |Ax - y|^2 - \tfrac{\lambda}{2n} |y - b|^2, \qquad \lambda = 3

    Strongly concave in y with :math:`\mu = (\lambda - 1)/n`. :math:`y^*(x) = b + (b - Ax)/
    (\lambda - 1)` and :math:`\Phi(x) = \frac{\lambda}{\lambda - 1} \frac{1}{2n} |Ax - b|^2`, so the
    solution is that of least squares. Convex in x.

    Source: El Ghaoui & Lebret 1997; this penalized form is from Yang, Kiyavash & He 2020.

    Args:
        seed: Of the data: n = 50 samples with 10 features.
    """
    n, dim_x, penalty, generator = 50, 10, 3.0, random_generator(seed)
    features = torch.randn(n, dim_x, generator=generator, dtype=torch.float64)
    targets = features @ random_vector(dim_x, generator) + 0.5 * random_vector(n, generator)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        residual, moved = x @ features.T.to(x) - y, y - targets.to(y)
        return (residual.square() - penalty * moved.square()).sum(-1) / (2.0 * n)

    def misfit(x: Tensor) -> Tensor:
        return x @ features.T.to(x) - targets.to(x)

    def best_response(x: Tensor) -> Tensor:
        return targets.to(x) - misfit(x.detach()) / (penalty - 1.0)

    x_star = torch.linalg.lstsq(features, targets).solution
    norm, mu = spectral_norm(features), (penalty - 1.0) / n
    return Problem(
        name="robust_least_squares",
        fun=fun,
        x0=torch.zeros(dim_x, dtype=torch.float64),
        y0=targets.clone(),
        smoothness=joint_smoothness(norm**2 / n, 0.0, norm / n, mu, mu),
        strong_concavity=mu,
        best_response=best_response,
        solution=(x_star, best_response(x_star)),
    )


def robust_logistic(*, seed: int = 0) -> Problem:
    r"""Logistic regression for the worst weights of the samples, with a nonconvex regularizer.

    .. math::
        f(x, y) = \sum_i y_i \log(1 + e^{-b_i a_i^T x}) - \tfrac{\rho}{2} |y - \tfrac1n 1|^2
        + \lambda \sum_j \frac{10 x_j^2}{1 + 10 x_j^2}, \qquad y \text{ on the simplex}

    Here :math:`\rho = 1` and :math:`\lambda = 0.01`. Strongly concave with :math:`\mu = \rho`.
    The smoothness holds for y on the simplex:
    the x-block is at most :math:`\max_i |a_i|^2/4 + 20\lambda` and the coupling at most
    :math:`\|A\|`. The labels are noisy; the zoo's data are not separable, so :math:`\Phi` is
    coercive, and some weights are zero at its solution. No closed form for the solution.

    Source: Luo et al. 2020 (SREDA), after Namkoong & Duchi 2016.

    Args:
        seed: Of the data: n = 40 samples with 5 features.
    """
    n, dim_x, sharpness = 40, 5, 10.0
    penalty, regularization = 1.0, 0.01
    features, labels = _labelled_data(n, dim_x, random_generator(seed))
    signed = labels[:, None] * features
    rows = Simplex(per_sample=True)

    def losses(x: Tensor) -> Tensor:
        return softplus(-(x @ signed.T.to(x)))

    def fun(x: Tensor, y: Tensor) -> Tensor:
        weighted = (y * losses(x) - 0.5 * penalty * (y - 1.0 / n).square()).sum(-1)
        return weighted + regularization * bounded_bumps(x, sharpness)

    def best_response(x: Tensor) -> Tensor:
        return project_rows(rows, 1.0 / n + losses(x.detach()) / penalty)

    most_convex = float(features.square().sum(1).max()) / 4 + 2.0 * regularization * sharpness
    most_concave = regularization * sharpness / 2
    return Problem(
        name="robust_logistic",
        fun=fun,
        x0=torch.full((dim_x,), 0.5, dtype=torch.float64),
        y0=torch.full((n,), 1.0 / n, dtype=torch.float64),
        y_set=Simplex(),
        smoothness=joint_smoothness(
            most_convex, most_concave, spectral_norm(features), penalty, penalty
        ),
        strong_concavity=penalty,
        best_response=best_response,
    )


def wrm_logistic(*, seed: int = 0) -> Problem:
    r"""Logistic regression in a ball against perturbed inputs (Wasserstein robust training).

    .. math::
        f(x, y) = \tfrac1n \sum_i \Bigl[\log(1 + e^{-b_i (a_i + y_i)^T x})
        - \tfrac{\gamma}{2} |y_i|^2\Bigr], \qquad |x| \le r = \tfrac12,\ \gamma = 1

    y holds one perturbation per sample, n times dim_x numbers. The loss has curvature at most
    :math:`|x|^2/4` in the input, so f is strongly concave with :math:`\mu = (\gamma - r^2/4)/n` on
    the ball (and not beyond radius :math:`2\sqrt\gamma`). The curvature in x grows with y, so
    there is no smoothness constant on the whole space. The ball is active at the solution of the
    zoo's data. :math:`y_i^* = -b_i \tau_i x` with a scalar :math:`\tau_i` found by bisection.

    Source: Sinha, Namkoong & Duchi 2018.

    Args:
        seed: Of the data: n = 12 samples with 4 features.
    """
    n, dim_x, radius, penalty = 12, 4, 0.5, 1.0
    features, labels = _labelled_data(n, dim_x, random_generator(seed))

    def fun(x: Tensor, y: Tensor) -> Tensor:
        shift = y.reshape(*y.shape[:-1], n, dim_x)
        margins = labels.to(x) * ((features.to(x) + shift) * x.unsqueeze(-2)).sum(-1)
        return (softplus(-margins) - 0.5 * penalty * shift.square().sum(-1)).mean(-1)

    def best_response(x: Tensor) -> Tensor:
        x = x.detach()
        norm_sq = x.square().sum(-1, keepdim=True)
        margins = labels.to(x) * (x @ features.T.to(x))
        length = increasing_root(
            lambda tau: penalty * tau - torch.sigmoid(norm_sq * tau - margins),
            torch.zeros_like(margins),
            torch.full_like(margins, 1.0 / penalty),
        )
        return ((-labels.to(x) * length).unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)

    return Problem(
        name="wrm_logistic",
        fun=fun,
        x0=torch.full((dim_x,), -0.5 * radius / math.sqrt(dim_x), dtype=torch.float64),
        y0=torch.zeros(n * dim_x, dtype=torch.float64),
        x_set=L2Ball(radius),
        strong_concavity=(penalty - radius**2 / 4) / n,
        best_response=best_response,
    )


def fair_logistic() -> Problem:
    r"""Logistic regression whose score may hardly depend on a group, as a Lagrangian.

    .. math::
        f(x, y) = \tfrac1n \sum_i \log(1 + e^{-b_i a_i^T x}) + \tfrac{\lambda}{2} |x|^2
        + y_1 (v^T x - \beta) + y_2 (-v^T x - \beta), \qquad y \ge 0

    v is the covariance of the features with a membership of 0 or 1 that depends on the first
    feature, so the constraints are :math:`|v^T x| \le \beta`. Here :math:`\beta = 0.05` and
    :math:`\lambda = 0.01`. Strongly convex in x. One constraint
    holds with equality at the solution, the other multiplier is zero.

    The data are 40 samples with 4 features.

    Source: Zafar, Valera, Gomez-Rodriguez & Gummadi 2017.
    """
    num_samples, dim_x, bound, regularization = 40, 4, 0.05, 0.01
    generator = random_generator(0)
    features, labels = _labelled_data(num_samples, dim_x, generator)
    group = (features[:, 0] + random_vector(num_samples, generator) >= 0.0).double()
    covariance = (group - group.mean()) @ features / num_samples
    signed = labels[:, None] * features

    def fun(x: Tensor, y: Tensor) -> Tensor:
        loss = softplus(-(x @ signed.T.to(x))).mean(-1)
        unfair = x @ covariance.to(x)
        multipliers = (y[..., 0] - y[..., 1]) * unfair - bound * y.sum(-1)
        return loss + 0.5 * regularization * x.square().sum(-1) + multipliers

    x_star, multiplier = _on_hyperplane(signed, regularization, -covariance, bound)
    y_star = torch.stack([torch.zeros_like(multiplier), multiplier])
    return Problem(
        name="fair_logistic",
        fun=fun,
        x0=torch.zeros(dim_x, dtype=torch.float64),
        y0=torch.zeros(2, dtype=torch.float64),
        y_set=NonNegative(),
        solution=(x_star, y_star),
    )


def _on_hyperplane(
    signed: Tensor, regularization: float, normal: Tensor, offset: float
) -> tuple[Tensor, Tensor]:
    """The ridge logistic regression with normal.x = offset, by Newton, and the multiplier."""
    num, dim = signed.shape
    x, multiplier = torch.zeros(dim, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    system = torch.zeros(dim + 1, dim + 1, dtype=torch.float64)
    system[:dim, dim] = system[dim, :dim] = normal
    for _ in range(50):
        wrong = torch.sigmoid(-(signed @ x))
        gradient = regularization * x - wrong @ signed / num
        system[:dim, :dim] = (signed.T * (wrong * (1.0 - wrong))) @ signed / num
        system[:dim, :dim].diagonal().add_(regularization)
        right = torch.cat([-gradient, (offset - normal @ x).view(1)])
        step = torch.linalg.solve(system, right)
        x, multiplier = x + step[:dim], step[dim]
    return x, multiplier


def _labelled_data(num: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Gaussian features, and labels by a linear rule with noise."""
    features = torch.randn(num, dim, generator=generator, dtype=torch.float64)
    rule = random_vector(dim, generator)
    scores = features @ (rule / rule.norm()) + 0.5 * random_vector(num, generator)
    return features, torch.where(scores >= 0.0, 1.0, -1.0).double()


def auc_maximization(*, seed: int = 0) -> Problem:
    r"""The square surrogate of the AUC of a linear score, without pairs of samples.

    .. math::
        f(x, y) = p(1-p) \bigl[ E_+(w^T z - a)^2 + E_-(w^T z - b)^2
        + 2(1 + y)\, m(w) - y^2 \bigr] + \tfrac{\lambda}{2} |w|^2,
        \quad m(w) = E_- w^T z - E_+ w^T z

    Here :math:`x = (w, a, b)`, p is the share of positive samples, and :math:`E_\pm` are means
    over a class. A quadratic, convex in x, strongly concave in the one-dimensional y with
    :math:`\mu = 2p(1-p)`; :math:`y^*(x) = m(w)`. Minimized over a and b, :math:`\Phi` is
    :math:`p(1-p)\,(E(1 - w^T(z_+ - z_-))^2 - 1)` plus the regularizer, which makes the solution
    unique.

    Source: Ying, Wen & Lyu 2016.

    Args:
        seed: Of the data: 25 and 75 samples of two Gaussian classes with different means.
    """
    num_positive, num_negative, d, regularization = 25, 75, 8, 0.01
    generator = random_generator(seed)
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

    def regularizer(x: Tensor) -> Tensor:
        return 0.5 * regularization * x[..., :d].square().sum(-1)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        (spread, gap), dual = spread_and_gap(x), y[..., 0]
        return scale * (spread + 2.0 * (1.0 + dual) * gap - dual.square()) + regularizer(x)

    def best_response(x: Tensor) -> Tensor:
        return spread_and_gap(x.detach())[1].unsqueeze(-1)

    between = positive.mean(0) - negative.mean(0)
    within = torch.cov(positive.T, correction=0) + torch.cov(negative.T, correction=0)
    ridge = regularization / (2.0 * scale) * torch.eye(d, dtype=torch.float64)
    w = torch.linalg.solve(within.reshape(d, d) + between.outer(between) + ridge, between)
    x_star = torch.cat([w, (positive.mean(0) @ w).view(1), (negative.mean(0) @ w).view(1)])
    hessian = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
        lambda z: fun(z[:-1], z[-1:]), torch.zeros(d + 3, dtype=torch.float64)
    )
    return Problem(
        name="auc_maximization",
        fun=fun,
        x0=torch.full((d + 2,), 0.5, dtype=torch.float64),
        y0=torch.zeros(1, dtype=torch.float64),
        smoothness=spectral_norm(hessian),
        strong_concavity=2.0 * scale,
        best_response=best_response,
        solution=(x_star, best_response(x_star)),
    )
