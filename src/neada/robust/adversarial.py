"""Adversarial training: the worst inputs in a ball around those of the batch."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada.checks import check_choice, check_number
from neada.inner import InnerOptions, check_inner
from neada.robust.objective import InputObjective
from neada.robust.problem import BatchNorm, Bounds, Loss, MakeOptimizer
from neada.robust.store import PerturbationStore
from neada.sets import Box, L1Ball, L2Ball, Set
from neada.sets.balls import BallInBox
from neada.stopping import StoppingRule

__all__ = ["AdversarialTraining"]


Norm = Literal["l2", "linf", "l1"]
_FIRST_STEP = 0.25  # of eps


class AdversarialTraining(InputObjective):
    r"""Train on the worst inputs within a distance of the clean ones.

    .. math::
        \min_x\ \frac1n \sum_i \max_{\|z_i - v_i\| \le \epsilon}\ \ell(x; z_i)

    The loop is that of `WRM` with a set instead of a penalty. With bounds the set is the part of
    the ball that lies in them, and the projection on that part is exact for every norm.

    Needs to know: the radius eps. The inner problem is not concave, so the inner loop finds a local
    maximum: nothing is certified.

    Args:
        model: Any network.
        loss: As for `WRM`.
        eps: The radius of every sample's ball.
        norm: "l2", "linf" or "l1", over all dimensions of a sample.
        y_optimizer: A function that takes a list with the tensor y and returns a torch optimizer
            constructed with ``maximize=True``; by default Adam with a learning rate that makes the
            first step a quarter of eps long.
        stopping: As for `WRM`; the rule looks at the gradient mapping of the set. It lets the first
            batches off with a step or two, inside the ball; ``FixedSteps(10)`` does not.
        per_sample: As for `WRM`.
        store: As for `WRM`.
        batch_norm: As for `WRM`.
        bounds: The valid range of inputs, (low, high); numbers or tensors that broadcast.
        inner: As for `WRM`. With ``InnerOptions(start="random")`` y starts at a random point of the
            ball, not at the clean input: uniform in the ball and, with bounds and "l2" or "l1",
            then projected.

    Attributes:
        generator: The source of random starts; None for torch's global one. Its state is part of
            the `state_dict`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> robust = AdversarialTraining(
        ...     model, nn.functional.cross_entropy, eps=0.1, norm="linf", bounds=(0.0, 1.0)
        ... )
        >>> images, labels = torch.rand(8, 1, 2, 2), torch.randint(2, (8,))
        >>> worst = robust.perturb(images, labels)
        >>> bool((worst.inputs - images).abs().max() <= 0.1 + 1e-6)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        eps: float,
        norm: Norm = "l2",
        *,
        y_optimizer: MakeOptimizer | None = None,
        stopping: StoppingRule | None = None,
        per_sample: bool = False,
        store: PerturbationStore | None = None,
        batch_norm: BatchNorm = "frozen",
        bounds: Bounds | None = None,
        inner: InnerOptions = InnerOptions(),  # noqa: B008 (frozen)
    ) -> None:
        check_number("eps", eps)
        check_choice("norm", norm, ("l2", "linf", "l1"))
        check_inner(inner, takes=("measure", "dropout", "fold", "start"))
        if inner.start == "random" and store is not None:
            raise ValueError("a start is either random or stored: use start='clean' with a store")
        self.eps = eps
        self.norm = norm
        self.generator: torch.Generator | None = None
        make = self._adam if y_optimizer is None else y_optimizer
        super().__init__(model, loss, make, stopping, per_sample, store, batch_norm, bounds, inner)

    def _values(self, y: Tensor, losses: Tensor, clean: Tensor) -> Tensor:
        return losses

    def _region(self, clean: Tensor) -> Set:
        if self.norm == "linf":
            around = Box(clean - self.eps, clean + self.eps)
            if self.bounds is None:
                return around
            return Box(self.bounds.project(clean - self.eps), self.bounds.project(clean + self.eps))
        if self.bounds is not None:
            return BallInBox(self.eps, clean, self.bounds, self.norm)
        ball = L2Ball if self.norm == "l2" else L1Ball
        return ball(self.eps, center=clean, per_sample=True)

    def _cold_start(self, clean: Tensor, region: Set | None) -> Tensor:
        if self.inner.options.start == "random" and region is not None:
            return region.sample(clean, self.generator)
        return clean.clone()

    def _adam(self, params: Sequence[Tensor]) -> Optimizer:
        """Adam's first step moves every entry by its learning rate."""
        num_entries = math.prod(params[0].shape[1:])
        length = {"linf": 1.0, "l2": math.sqrt(num_entries), "l1": float(num_entries)}
        lr = _FIRST_STEP * self.eps / length[self.norm]
        return torch.optim.Adam(params, lr=lr, maximize=True)

    def state_dict(self) -> dict[str, Any]:
        """That of every objective, and where the generator is."""
        generator = None if self.generator is None else self.generator.get_state()
        return {**super().state_dict(), "generator": generator}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        super().load_state_dict(state_dict)
        if self.generator is not None and state_dict["generator"] is not None:
            self.generator.set_state(state_dict["generator"])
