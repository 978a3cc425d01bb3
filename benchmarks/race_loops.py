"""Robust training loops as one would write them with torch alone: the rivals of `robust_race.py`.

Nothing of neada is imported here. A loop takes one batch at a time, counts its calls (a gradient of
one player on one batch is one, a backward pass that serves both players is two), and can show the
inputs that it would train on. All loops leave the network in training mode and the perturbed inputs
outside of the data's range if they go there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Setting:
    """The numbers that the loops are given.

    Attributes:
        gamma: The price of a squared distance.
        eps: The largest change of an entry, for the loops that have a ball instead of a price.
        lr_x: Adam's learning rate for the network.
        lr_y: Adam's learning rate for the inputs, for the loops that have one.
        seed: Of random starts.
    """

    gamma: float
    eps: float
    lr_x: float = 1e-3
    lr_y: float = 1e-2
    seed: int = 0


class Loop(ABC):
    """One way of robust training.

    Args:
        model: The network, in training mode.
        setting: The numbers.

    Attributes:
        in_ball: Whether the inputs may change by eps, instead of at a price.
        x_steps: Steps of the network's optimizer so far.
        calls: Gradients so far, in units of a batch.
    """

    in_ball = False

    def __init__(self, model: nn.Module, setting: Setting) -> None:
        self.model, self.setting = model, setting
        self.x_optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr_x)
        self.x_steps = 0
        self.calls = 0.0

    @abstractmethod
    def perturb(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The inputs to train on."""

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> None:
        """Train on a batch."""
        worst = self.perturb(inputs, targets, ids)
        self.x_optimizer.zero_grad()
        cross_entropy(self.model(worst), targets).backward()  # type: ignore[no-untyped-call]
        self.x_optimizer.step()
        self.x_steps += 1
        self.calls += 1


class Adam15(Loop):
    """Fifteen steps of a new Adam with every batch."""

    num_steps = 15

    def perturb(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """Climb so many steps, by gradients of everything."""
        y = inputs.clone().requires_grad_()
        optimizer = torch.optim.Adam([y], lr=self.setting.lr_y)
        k = 0
        while True:
            optimizer.zero_grad()
            penalty = (y - inputs).square().flatten(1).sum(1).mean()
            objective = self.setting.gamma * penalty - cross_entropy(self.model(y), targets)
            objective.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            k += 1
            if self.enough(k, y):
                break
        self.calls += k
        return y.detach()

    def enough(self, k: int, y: Tensor) -> bool:
        """Whether to stop after k steps; `y.grad` is what the last one used."""
        return k >= self.num_steps


class Released(Adam15):
    """The loop of the scripts that the authors of NeAda released.

    As `Adam15`, until the squared norm of the gradient of the batch mean, before the step just
    made, is at most 1/(t+1), or t steps are made (one in the first loop).
    """

    def enough(self, k: int, y: Tensor) -> bool:
        """The released rule, with the scale for MNIST."""
        assert y.grad is not None
        return k >= self.x_steps or float(y.grad.square().sum()) <= 1.0 / (self.x_steps + 1)


class FastAT(Loop):
    """One signed step of 1.25 eps from a random point of the ball (Wong, Rice & Kolter 2020)."""

    in_ball = True

    def __init__(self, model: nn.Module, setting: Setting) -> None:
        super().__init__(model, setting)
        self.generator = torch.Generator().manual_seed(setting.seed)

    def perturb(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """From a random start, one step and back into the ball."""
        eps = self.setting.eps
        start = eps * (2.0 * torch.rand(inputs.shape, generator=self.generator) - 1.0)
        delta = start.requires_grad_()
        loss = cross_entropy(self.model(inputs + delta), targets)
        (gradient,) = torch.autograd.grad(loss, delta)
        self.calls += 1
        return inputs + (delta.detach() + 1.25 * eps * gradient.sign()).clamp(-eps, eps)


class FreeAT(Loop):
    """Every batch is trained on so many times, each backward pass moves both (Shafahi et al. 2019).

    The perturbation goes from batch to batch, so batches must have one size.
    """

    in_ball = True
    num_replays = 4

    def __init__(self, model: nn.Module, setting: Setting) -> None:
        super().__init__(model, setting)
        self.delta: Tensor | None = None

    def step(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> None:
        """Train on a batch again and again."""
        delta = torch.zeros_like(inputs) if self.delta is None else self.delta
        for _ in range(self.num_replays):
            self.x_optimizer.zero_grad()
            delta = self._ascend(inputs, targets, delta)
            self.x_optimizer.step()
            self.x_steps += 1
            self.calls += 2
        self.delta = delta

    def perturb(self, inputs: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """What the last replay sees, with weights that do not move."""
        delta = torch.zeros_like(inputs) if self.delta is None else self.delta
        for _ in range(self.num_replays - 1):
            delta = self._ascend(inputs, targets, delta)
        return inputs + delta

    def _ascend(self, inputs: Tensor, targets: Tensor, delta: Tensor) -> Tensor:
        """One signed step from the gradient of both players, which leaves that of x behind."""
        eps = self.setting.eps
        delta = delta.clone().requires_grad_()
        cross_entropy(self.model(inputs + delta), targets).backward()  # type: ignore[no-untyped-call]
        assert delta.grad is not None
        return (delta.detach() + eps * delta.grad.sign()).clamp(-eps, eps)


# The judge of the adversaries.


@dataclass(frozen=True)
class Inner:
    """The inner objective of one batch, the mean over its samples.

    Attributes:
        clean: At the inputs themselves.
        reached: At the loop's perturbed inputs.
        best: After the spectral steps.
    """

    clean: float
    reached: float
    best: float


def judge(model: nn.Module, loop: Loop, batch: tuple[Tensor, ...], num_steps: int = 100) -> Inner:
    """How good a loop's adversary is on a batch, against so many spectral gradient steps.

    The loss counts as the network in evaluation mode has it, whatever mode the loop climbs in.

    Args:
        model: The network that is attacked, a copy of the loop's; its mode is changed.
        loop: Whose adversary is judged. Its own network may have other batch-norm statistics
            afterwards.
        batch: The inputs, their labels, and their places in the training data.
        num_steps: Of the spectral ascent.
    """
    model.eval()
    clean, targets, ids = batch
    gamma, eps = loop.setting.gamma, loop.setting.eps

    def values(z: Tensor) -> Tensor:
        losses = cross_entropy(model(z), targets, reduction="none")
        return losses if loop.in_ball else losses - gamma * (z - clean).square().flatten(1).sum(1)

    def project(z: Tensor) -> Tensor:
        return clean + (z - clean).clamp(-eps, eps) if loop.in_ball else z

    worst = loop.perturb(clean, targets, ids)
    with torch.no_grad():
        at_clean, reached = (float(values(z).mean()) for z in (clean, worst))
    best = float(spectral_ascent(values, clean, 0.5 / gamma, num_steps, project).mean())
    return Inner(at_clean, reached, best)


def spectral_ascent(
    values: Callable[[Tensor], Tensor],
    start: Tensor,
    first_step: float,
    num_steps: int,
    project: Callable[[Tensor], Tensor] = lambda z: z,
) -> Tensor:
    """The largest values that spectral projected gradient steps find, for every row by itself.

    The step is |dz|^2 / -<dz, dg> where f curves down along dz and the first step elsewhere, within
    0.05 and 20 times the first step; a row that got worse goes back to its best point and halves
    its step (Barzilai & Borwein 1988; Birgin, Martinez & Raydan 2000).

    Args:
        values: One number per row, independent of the other rows.
        start: One point per row.
        first_step: The first step of every row.
        num_steps: How many steps.
        project: Onto the set of points that are allowed.
    """

    def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
        leaf = z.detach().requires_grad_()
        found = values(leaf)
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        return found.detach(), gradient

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1)

    def wide(rows: Tensor) -> Tensor:
        return rows.reshape(-1, *[1] * (start.dim() - 1))

    z = start
    value, gradient = evaluate(z)
    step = torch.full_like(value, first_step)
    rounding = torch.finfo(value.dtype).eps
    for _ in range(num_steps):
        # The present point is the best so far of every row: rejected rows have gone back to it.
        trial = project(z + wide(step) * gradient)
        new_value, new_gradient = evaluate(trial)
        worse = ~(new_value >= value - 10 * rounding * value.abs().clamp_min(1.0))
        dz, dg = trial - z, new_gradient - gradient
        curvature = -dot(dz, dg)
        curved = curvature > rounding * (dot(dz, dz) * dot(dg, dg)).sqrt()
        spectral = torch.where(curved, dot(dz, dz) / curvature, first_step)
        spectral = spectral.clamp(0.05 * first_step, 20 * first_step)
        step = torch.where(worse, step / 2, spectral)
        z = torch.where(wide(worse), z, trial)
        gradient = torch.where(wide(worse), gradient, new_gradient)
        value = torch.where(worse, value, new_value)
    return value
