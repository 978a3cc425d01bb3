"""The two test functions of the paper: a quadratic with a line of solutions, and McCormick's."""

import math

import torch
from torch import Tensor

from neada.checks import check_number
from neada.problems.base import Problem, joint_smoothness

__all__ = ["mccormick", "quadratic"]


def quadratic(*, L: float = 2.0) -> Problem:  # noqa: N803 (the paper's letter)
    r"""The paper's quadratic, on which methods without time-scale separation fail.

    .. math::
        f(x, y) = -\tfrac12 y^2 + L x y - \tfrac{L^2}{2} x^2

    Every point with :math:`y = Lx` is stationary, :math:`\Phi = 0`, :math:`\mu = 1` and
    :math:`l = 1 + L^2`. Simultaneous gradient descent-ascent converges only for a ratio of
    learning rates (y over x) above :math:`L^2`, adaptive non-nested methods above :math:`L`. The
    declared solution is the one above the start.

    Source: Yang, Li & He (NeurIPS 2022, arXiv:2206.00743), Lemma 1 and Figure 1.

    Args:
        L: The strength of the coupling.
    """
    check_number("L", L)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return (-0.5 * y.square() + L * x * y - 0.5 * L**2 * x.square()).sum(-1)

    x0 = torch.tensor([1.0], dtype=torch.float64)
    return Problem(
        name="quadratic",
        fun=fun,
        x0=x0,
        y0=torch.tensor([0.01], dtype=torch.float64),
        smoothness=1.0 + L**2,
        strong_concavity=1.0,
        best_response=lambda x: L * x.detach(),
        solution=(x0.clone(), L * x0),
    )


def mccormick() -> Problem:
    r"""McCormick's function in x with a bilinear coupling and a quadratic in y.

    .. math::
        f(x, y) = \sin(x_1 + x_2) + (x_1 - x_2)^2 - \tfrac32 x_1 + \tfrac52 x_2 + 1 + x^T y
        - \tfrac12 |y|^2

    Here :math:`y^*(x) = x`, :math:`\mu = 1`, :math:`l = (3 + \sqrt{29})/2`. :math:`\Phi` is
    nonconvex with one stationary point: :math:`x_1 - x_2 = 4/5` and :math:`s = x_1 + x_2` solves
    :math:`s + 1 + 2\cos s = 0`. The paper adds gradient noise of standard deviation 0.01.

    Source: Yang, Li & He 2022, Section 4.1 and Figure 2.
    """

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return surface(x) + (x * y - 0.5 * y.square()).sum(-1)

    def surface(x: Tensor) -> Tensor:
        first, second = x.unbind(-1)
        bowl = (first - second).square() - 1.5 * first + 2.5 * second + 1.0
        return torch.sin(first + second) + bowl

    total = -1.38
    for _ in range(10):
        total -= (total + 1.0 + 2.0 * math.cos(total)) / (1.0 - 2.0 * math.sin(total))
    solution = torch.tensor([total / 2 + 0.4, total / 2 - 0.4], dtype=torch.float64)
    return Problem(
        name="mccormick",
        fun=fun,
        x0=torch.tensor([0.5, -0.5], dtype=torch.float64),
        y0=torch.tensor([0.1, 0.2], dtype=torch.float64),
        smoothness=joint_smoothness(4.0, 2.0, 1.0, 1.0, 1.0),
        strong_concavity=1.0,
        best_response=lambda x: x.detach().clone(),
        solution=(solution, solution.clone()),
    )
