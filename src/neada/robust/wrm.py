"""Distributionally robust training with a Wasserstein penalty (Sinha, Namkoong & Duchi 2018)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada.checks import check_number
from neada.optim import SPG
from neada.robust.adversary import Adversary
from neada.robust.losses import Loss, Network
from neada.robust.objective import Bounds, InputObjective
from neada.tensors import row_sums

__all__ = ["WRM"]


class WRM(InputObjective):
    r"""Train on the worst inputs at a price per squared distance.

    .. math::
        \min_x\ \frac1n \sum_i \max_{z_i}\ \ell(x; z_i) - \gamma\,\|z_i - v_i\|_2^2

    y is the batch of perturbed inputs :math:`z`, of any shape and range; each sample has its own
    penalty over all of its dimensions. For a :math:`\gamma` above half the smoothness of the loss
    in the input the inner problem is strongly concave, and `certificate` bounds the loss under
    every shift of the data's distribution within a Wasserstein distance.

    In a custom training loop, with clipping, accumulation, schedulers and scalers::

        worst = robust.perturb(inputs, targets)
        loss = robust.loss(worst)
        loss.backward()

    The paper's baseline is ``Adversary(stopping=FixedSteps(15))``.

    Args:
        model: Any network.
        loss: A function of (outputs, targets) that returns one loss per sample, or one with a
            `reduction` such as ``torch.nn.functional.cross_entropy`` or
            ``torch.nn.CrossEntropyLoss()``. Per sample the mean over further dimensions is taken;
            over the batch the plain mean.
        gamma: The price of a unit of squared distance.
        bounds: The valid range of inputs, (low, high); numbers or tensors that broadcast.
        adversary: How the inputs are perturbed. By default `SPG` for each sample, with a first step
            of :math:`1/(2\gamma)`, the inverse curvature of the price, until the squared gradient
            is at most 1/(t+1), or for t+1 steps. A sample that fulfills the rule before its first
            step is not evaluated again.

    Attributes:
        outer_steps: The outer index t; it advances with `step`, and with `loss`.
        grad_scaler: A `torch.amp.GradScaler` for the inner loop and `step`, whose gradients are
            unscaled before they are used.
        max_calls: Gradients and values that may be evaluated in all; None for no limit.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ELU(), nn.Linear(8, 2))
        >>> robust = WRM(model, nn.functional.cross_entropy, gamma=1.3)
        >>> x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        >>> loader = [(torch.randn(16, 2), torch.randint(2, (16,))) for _ in range(3)]
        >>> for inputs, targets in loader:
        ...     info = robust.step(x_optimizer, inputs, targets)
        >>> info.calls_x, info.value < info.loss
        (1, True)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        gamma: float,
        *,
        bounds: Bounds | None = None,
        adversary: Adversary = Adversary(),  # noqa: B008 (frozen)
    ) -> None:
        check_number("gamma", gamma)
        super().__init__(model, loss, adversary, bounds)
        if adversary.start == "random":
            raise ValueError("start='random' requires a ball: use AdversarialTraining")
        self.gamma = gamma

    _first_step_fits = True  # to the maximum of a linear loss minus the price

    def _values(self, model: Network, y: Tensor, clean: Tensor, reference: Any) -> Tensor:
        return self._losses(model, y, reference) - self.gamma * row_sums((y - clean).square())

    def _default_optimizer(self, params: Sequence[Tensor]) -> Optimizer:
        safeguard = self.adversary.samples_are_independent
        return SPG(params, 0.5 / self.gamma, safeguard=safeguard, maximize=True, rowwise=True)
