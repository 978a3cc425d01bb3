"""Adversarial training: the worst inputs in a ball around those of the batch."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada.checks import check_choice, check_number
from neada.robust.inner import MakeOptimizer, Measure, StatePolicy, TestPolicy
from neada.robust.objective import Bounds, InputObjective
from neada.robust.problem import DropoutPolicy, Loss, NormPolicy
from neada.robust.store import PerturbationStore
from neada.sets import Box, L1Ball, L2Ball, Set
from neada.sets.balls import BallInBox
from neada.stopping import StoppingRule

__all__ = ["AdversarialTraining"]


Norm = Literal["l2", "linf", "l1"]
_FIRST_STEP = 0.25  # of the radius


class AdversarialTraining(InputObjective):
    r"""Train on the worst inputs within a distance of the clean ones.

    .. math::
        \min_x\ \frac1n \sum_i \max_{\|z_i - v_i\| \le r}\ \ell(x; z_i)

    The loop is that of `WRM` with a set instead of a penalty. With a box the set is the part of the
    ball that lies in it, and the projection on that part is exact for every norm.

    Needs to know: the radius. The inner problem is not concave, so the inner loop finds a local
    maximum: nothing is certified.

    Args:
        model: Any network.
        loss: As for `WRM`.
        radius: The radius of every sample's ball.
        norm: "l2", "linf" or "l1", over all dimensions of a sample.
        random_start: Start at a random point of the ball, not at the clean input. Uniform in the
            ball; with a box and "l2" or "l1", uniform in the ball and then projected.
        generator: The source of randomness for it; torch's global one by default. Its state is
            part of the `state_dict`.
        y_optimizer: A function that takes a list with the tensor y and returns a torch optimizer
            constructed with ``maximize=True``; by default Adam with a learning rate that makes the
            first step a quarter of the radius long.
        stopping: As for `WRM`; the rule looks at the gradient mapping of the set. It lets the first
            batches off with a step or two, inside the ball; ``FixedSteps(10)`` does not.
        measure: As for `WRM`.
        per_sample: As for `WRM`.
        state: As for `WRM`.
        store: As for `WRM`.
        norm_layers: What `WRM` calls `norm`: "frozen" or "batch" statistics in the inner loop.
        dropout: As for `WRM`.
        box: The valid range of inputs, (low, high); numbers or tensors that broadcast.
        min_inner_steps: As for `WRM`.
        max_inner_steps: As for `WRM`.
        test: As for `WRM`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> robust = AdversarialTraining(
        ...     model, nn.functional.cross_entropy, radius=0.1, norm="linf", box=(0.0, 1.0)
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
        radius: float,
        norm: Norm = "l2",
        *,
        random_start: bool = False,
        generator: torch.Generator | None = None,
        y_optimizer: MakeOptimizer | None = None,
        stopping: StoppingRule | None = None,
        measure: Measure = "sample",
        per_sample: bool = False,
        state: StatePolicy = "fresh",
        store: PerturbationStore | None = None,
        norm_layers: NormPolicy = "frozen",
        dropout: DropoutPolicy = "off",
        box: Bounds | None = None,
        min_inner_steps: int = 1,
        max_inner_steps: int = 100,
        test: TestPolicy = "current",
    ) -> None:
        check_number("radius", radius)
        if norm in ("frozen", "batch"):
            raise ValueError(f"norm is that of the ball: batch norm is norm_layers={norm!r}")
        check_choice("norm", norm, ("l2", "linf", "l1"))
        if random_start and store is not None:
            raise ValueError(
                "a start is either random or stored: use random_start=False with a store"
            )
        self.radius = radius
        self.ball_norm = norm
        self.random_start = random_start
        self.generator = generator
        super().__init__(
            model,
            loss,
            self._adam if y_optimizer is None else y_optimizer,
            stopping=stopping,
            measure=measure,
            per_sample=per_sample,
            state=state,
            store=store,
            norm=norm_layers,
            dropout=dropout,
            box=box,
            min_inner_steps=min_inner_steps,
            max_inner_steps=max_inner_steps,
            test=test,
        )

    def _values(self, y: Tensor, losses: Tensor, clean: Tensor) -> Tensor:
        return losses

    def _region(self, clean: Tensor) -> Set:
        if self.ball_norm == "linf":
            around = Box(clean - self.radius, clean + self.radius)
            if self.box is None:
                return around
            return Box(self.box.project(clean - self.radius), self.box.project(clean + self.radius))
        if self.box is not None:
            return BallInBox(self.radius, clean, self.box, self.ball_norm)
        ball = L2Ball if self.ball_norm == "l2" else L1Ball
        return ball(self.radius, center=clean, per_sample=True)

    def _cold_start(self, clean: Tensor, region: Set | None) -> Tensor:
        if self.random_start and region is not None:
            return region.sample(clean, self.generator)
        return clean.clone()

    def _adam(self, params: Sequence[Tensor]) -> Optimizer:
        """Adam's first step moves every entry by its learning rate."""
        num_entries = math.prod(params[0].shape[1:])
        length = {"linf": 1.0, "l2": math.sqrt(num_entries), "l1": float(num_entries)}
        lr = _FIRST_STEP * self.radius / length[self.ball_norm]
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
