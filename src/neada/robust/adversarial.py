"""Adversarial training: the worst inputs in a ball around those of the batch."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada.checks import check_choice, check_number
from neada.inner import InnerOptions, check_inner
from neada.optim import SPG
from neada.robust.objective import InputObjective
from neada.robust.problem import BatchNorm, Bounds, Loss, MakeOptimizer
from neada.robust.store import PerturbationStore
from neada.sets import Box, L1Ball, L2Ball, Set
from neada.sets.balls import BallInBox
from neada.stopping import StoppingRule
from neada.transactions import Undo, saved_generator

__all__ = ["AdversarialTraining", "BallObjective", "Norm"]


Norm = Literal["l2", "linf", "l1"]


class BallObjective(InputObjective):
    """What objectives share whose y stays within a distance of the clean inputs.

    The arguments are those of `AdversarialTraining`.
    """

    _shown: ClassVar[tuple[str, ...]] = ("eps", "norm")

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        eps: float,
        norm: Norm = "linf",
        *,
        y_optimizer: MakeOptimizer | None = None,
        stopping: StoppingRule | None = None,
        per_sample: bool | None = None,
        store: PerturbationStore | None = None,
        batch_norm: BatchNorm = "frozen",
        bounds: Bounds | None = None,
        inner: InnerOptions = InnerOptions(),  # noqa: B008 (frozen)
    ) -> None:
        check_number("eps", eps)
        check_choice("norm", norm, ("l2", "linf", "l1"))
        check_inner(inner, takes=("measure", "dropout", "fold", "reuse_last", "start"))
        if inner.start == "random" and store is not None:
            raise ValueError("a start is either random or stored: use start='clean' with a store")
        self.eps = eps
        self.norm = norm
        if inner.measure in ("auto", "gap"):
            self._gap = self._relative_gap
        self.generator: torch.Generator | None = None
        super().__init__(
            *(model, loss, y_optimizer, stopping, per_sample, store, batch_norm, bounds, inner)
        )

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
        if self.inner.options.start != "random" or region is None:
            return clean.clone()
        if self.generator is None or self.generator.device == clean.device:
            return region.sample(clean, self.generator)
        there = clean.to(self.generator.device)
        return self._region(there).sample(there, self.generator).to(clean.device)

    def _relative_gap(self, y: Tensor, gradient: Tensor, region: Set) -> Tensor:
        gaps = region.linear_gap(y, gradient, rowwise=True)
        assert isinstance(gaps, Tensor)
        order = {"linf": 1.0, "l2": 2.0, "l1": math.inf}[self.norm]
        dual = torch.linalg.vector_norm(gradient.flatten(1), order, dim=1, dtype=gaps.dtype)
        return torch.where(dual > 0.0, gaps / (self.eps * dual), 0.0)

    def _default_optimizer(self, params: Sequence[Tensor]) -> Optimizer:
        wide = 2.0 * self.eps
        if self.norm == "linf":
            wide *= math.sqrt(math.prod(params[0].shape[1:]))
        safeguard = self._values_are_own
        return SPG(params, first_move=wide, safeguard=safeguard, maximize=True, rowwise=True)

    def _saved(self) -> list[Undo]:
        generator = [] if self.generator is None else [saved_generator(self.generator)]
        return [*super()._saved(), *generator]

    def state_dict(self) -> dict[str, Any]:
        """That of every objective, and where the generator is."""
        generator = None if self.generator is None else self.generator.get_state()
        return {**super().state_dict(), "generator": generator}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""
        super().load_state_dict(state_dict)
        if state_dict["generator"] is not None:
            if self.generator is None:
                self.generator = torch.Generator()
            self.generator.set_state(state_dict["generator"])


class AdversarialTraining(BallObjective):
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
            constructed with ``maximize=True``. By default `SPG` for each sample, whose first move
            is as long as the ball is wide: nothing has to be chosen.
        stopping: When the batch is bad enough; by default a gap of at most 1/(t+1), or t+1 steps.
            The gap, which takes the place of the squared gradient in the rule, is

            .. math::
                \max_{z'} \langle z' - z, \nabla\ell\rangle \,/\, (\epsilon\,\|\nabla\ell\|_*)

            over the ball and the bounds, with the dual norm: 1 at the center of the ball and 0 at a
            first-order maximum, also on the border, where the gradient itself is not small.
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
        ...     model, nn.functional.cross_entropy, eps=0.1, bounds=(0.0, 1.0)
        ... )
        >>> images, labels = torch.rand(8, 1, 2, 2), torch.randint(2, (8,))
        >>> worst = robust.perturb(images, labels)
        >>> bool((worst.inputs - images).abs().max() <= 0.1 + 1e-6)
        True
    """
