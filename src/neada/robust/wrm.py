"""Distributionally robust training with a Wasserstein penalty (Sinha, Namkoong & Duchi 2018)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada.checks import check_number
from neada.inner import InnerOptions, check_inner
from neada.optim import SPG
from neada.robust.objective import InputObjective
from neada.robust.problem import BatchNorm, Bounds, Loss, MakeOptimizer
from neada.robust.store import PerturbationStore
from neada.sets import Set
from neada.stopping import GradientMapping, InnerSteps, StoppingRule
from neada.tensors import row_sums

__all__ = ["WRM"]


class WRM(InputObjective):
    r"""Train on inputs that are worse, at a price per squared distance.

    .. math::
        \min_x\ \frac1n \sum_i \max_{z_i}\ \ell(x; z_i) - \gamma\,\|z_i - v_i\|_2^2

    y is the batch of perturbed inputs :math:`z`, of any shape and range; each sample has its own
    penalty over all of its dimensions. For a :math:`\gamma` above half the smoothness of the loss
    in the input the inner problem is strongly concave, and `certificate` bounds the loss under
    every shift of the data's distribution within a Wasserstein distance.

    In a loop of one's own, where clipping, accumulation, schedulers and scalers are the user's::

        worst = robust.perturb(inputs, targets)
        loss = robust.loss(worst)
        loss.backward()

    The paper's baseline is ``stopping=FixedSteps(15)``; the authors' released loop is
    `WRM.released`.

    Args:
        model: Any network.
        loss: A function of (outputs, targets) that returns one loss per sample, or one with a
            `reduction` such as ``torch.nn.functional.cross_entropy`` or
            ``torch.nn.CrossEntropyLoss()``. Per sample the mean over further dimensions is taken;
            over the batch the plain mean.
        gamma: The price of a unit of squared distance.
        y_optimizer: A function that takes a list with the tensor y and returns a torch optimizer
            constructed with ``maximize=True``. By default `SPG` for each sample, with a first step
            of :math:`1/(2\gamma)`, the inverse curvature of the price: nothing has to be chosen.
        stopping: When the batch is bad enough; by default a squared gradient of at most 1/(t+1),
            or t+1 steps. Every sample takes one step at least; one that fulfilled the rule before
            it is not evaluated again when `per_sample` and the default optimizer are used.
        per_sample: Stop each sample by its own gradient and take it out of the batch that is
            evaluated. Needs an optimizer that treats entries, or rows, by themselves. By default
            so with the default optimizer, unless samples depend on each other.
        store: Where perturbations are kept between epochs; y then starts at the clean input plus
            the stored perturbation, and `ids` must be passed.
        batch_norm: "frozen" lets normalization layers use their running statistics in the inner
            loop and leaves those as they are; "batch" leaves the layers in the mode they are in.
        bounds: The valid range of inputs, (low, high); numbers or tensors that broadcast.
        inner: Options of the inner loop: what the rule measures, what y's optimizer keeps
            from batch to batch (that needs batches of one size), how many steps at the least and
            the most, dropout.

    Attributes:
        outer_steps: The outer index t; it advances with `step`, and with `loss`.
        grad_scaler: A `torch.amp.GradScaler` for the inner loop and `step`, whose gradients are
            unscaled before anything looks at them.
        max_calls: Gradients and values that may be evaluated in all; None for no limit.

    Example:
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
        y_optimizer: MakeOptimizer | None = None,
        stopping: StoppingRule | None = None,
        per_sample: bool | None = None,
        store: PerturbationStore | None = None,
        batch_norm: BatchNorm = "frozen",
        bounds: Bounds | None = None,
        inner: InnerOptions = InnerOptions(),  # noqa: B008 (frozen)
    ) -> None:
        check_number("gamma", gamma)
        check_inner(inner, takes=("measure", "dropout", "fold", "reuse_last"))
        if inner.measure == "gap":
            raise ValueError("measure='gap' is about a ball: use 'sample' or 'batch' with a price")
        self.gamma = gamma
        super().__init__(
            *(model, loss, y_optimizer, stopping, per_sample, store, batch_norm, bounds, inner)
        )

    @classmethod
    def released(
        cls, model: nn.Module, loss: Loss, gamma: float, *, lr: float, scale: float = 1.0
    ) -> "WRM":
        """The inner loop of the authors' released scripts.

        A new Adam for every batch climbs the mean objective until the squared gradient that its
        last step used is at most scale/(t+1), or after max(1, t) steps; layers stay in the mode
        they are in.

        Args:
            model: Any network.
            loss: As for the class.
            gamma: As for the class.
            lr: Adam's learning rate for the inputs.
            scale: 0.1 for the synthetic data, 1 for MNIST.
        """
        return cls(
            model,
            loss,
            gamma,
            y_optimizer=_adam(lr),
            stopping=GradientMapping(scale) | InnerSteps(float),
            batch_norm="batch",
            inner=InnerOptions(test="last", measure="batch", max_steps=1_000_000, dropout="on"),
        )

    _shown = ("gamma",)
    _first_step_fits = True  # to the maximum of a linear loss minus the price

    def _values(self, y: Tensor, losses: Tensor, clean: Tensor) -> Tensor:
        return losses - self.gamma * row_sums((y - clean).square())

    def _region(self, clean: Tensor) -> Set | None:
        return self.bounds

    def _default_optimizer(self, params: Sequence[Tensor]) -> Optimizer:
        # The mean over a batch is flatter than what one sample maximizes.
        flatness = len(params[0]) if self.inner.options.measure == "batch" else 1
        lr = flatness / (2.0 * self.gamma)
        return SPG(params, lr, safeguard=self._values_are_own, maximize=True, rowwise=True)

    def _penalty(self, mean_distance_sq: float) -> float:
        return self.gamma * mean_distance_sq


def _adam(lr: float) -> MakeOptimizer:
    return lambda params: torch.optim.Adam(params, lr=lr, maximize=True)
