"""Adversarial training: the worst inputs in a ball around those of the batch."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada.checks import check_choice, check_number
from neada.optim import SPG
from neada.robust.adversary import Adversary
from neada.robust.losses import Loss
from neada.robust.objective import Bounds, InputObjective
from neada.scalars import Scalar
from neada.sets import Set
from neada.sets.regions import Region

__all__ = ["AdversarialTraining", "BallObjective", "Norm"]


Norm = Literal["l2", "linf", "l1"]


class BallObjective(InputObjective):
    """What objectives share whose y stays within a distance of the clean inputs.

    The arguments are those of `AdversarialTraining`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        eps: float,
        norm: Norm = "linf",
        *,
        bounds: Bounds | None = None,
        adversary: Adversary = Adversary(),  # noqa: B008 (frozen)
    ) -> None:
        check_number("eps", eps)
        check_choice("norm", norm, ("l2", "linf", "l1"))
        super().__init__(model, loss, adversary, bounds)
        self.eps = eps
        self.norm = norm

    def _region(self, clean: Tensor) -> Region:
        return Region(clean, self.eps, self.norm, self.bounds)

    def _start(self, clean: Tensor, region: Set | None) -> Tensor:
        if self.adversary.start != "random" or region is None:
            return clean.clone()
        device = clean.device if self.generator is None else self.generator.device
        return self._region(clean.to(device)).sample(self.generator).to(clean.device)

    def _inaccuracy(self, y: Tensor, gradient: Tensor, region: Set, by_sample: bool) -> Scalar:
        """The gain left to a linear function in the ball, relative to that from the center."""
        assert isinstance(region, Region)
        gaps = region.linear_gap(y, gradient)
        order = {"linf": 1.0, "l2": 2.0, "l1": math.inf}[self.norm]
        dual = torch.linalg.vector_norm(gradient.flatten(1), order, dim=1, dtype=gaps.dtype)
        return torch.where(dual > 0.0, gaps / (self.eps * dual), 0.0)

    def _default_optimizer(self, params: Sequence[Tensor]) -> Optimizer:
        wide = 2.0 * self.eps
        if self.norm == "linf":
            wide *= math.sqrt(math.prod(params[0].shape[1:]))
        safeguard = self.adversary.samples_are_independent
        return SPG(params, first_move=wide, safeguard=safeguard, maximize=True, rowwise=True)


class AdversarialTraining(BallObjective):
    r"""Train on the worst inputs within a distance of the clean ones.

    .. math::
        \min_x\ \frac1n \sum_i \max_{\|z_i - v_i\| \le \epsilon}\ \ell(x; z_i)

    The loop is that of `WRM` with a set instead of a penalty. With bounds the set is the part of
    the ball that lies in them, and the projection on that part is exact for every norm.

    Required: the radius eps. The inner problem is not concave, so the inner loop finds a local
    maximum, and there is no certificate.

    Args:
        model: Any network.
        loss: As for `WRM`.
        eps: The radius of every sample's ball.
        norm: "l2", "linf" or "l1", over all dimensions of a sample.
        bounds: The valid range of inputs, (low, high); numbers or tensors that broadcast.
        adversary: How the inputs are perturbed. By default `SPG` for each sample, whose first move
            is as long as the ball is wide, until the gap is at most 1/(t+1), or for t+1 steps. The
            gap, on which the rule is evaluated in place of the squared gradient, is

            .. math::
                \max_{z'} \langle z' - z, \nabla\ell\rangle \,/\, (\epsilon\,\|\nabla\ell\|_*)

            over the ball and the bounds, with the dual norm: 1 at the center of the ball and 0 at a
            first-order maximum, also on the border, where the gradient itself is not small. A
            random start is uniform in the ball and, with bounds and "l2" or "l1", then projected.

    Attributes:
        generator: The source of random starts; None for torch's global one. Its state is part of
            the `state_dict`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> robust = AdversarialTraining(
        ...     model, nn.functional.cross_entropy, eps=0.1, bounds=(0.0, 1.0)
        ... )
        >>> images, labels = torch.rand(8, 1, 2, 2), torch.randint(2, (8,))
        >>> worst = robust.perturb(images, labels)
        >>> bool((worst.inputs - images).abs().max() <= 0.1 + 1e-6)
        True
    """
