"""The authors' released training loop, transcribed in plain torch.

It is the baseline of Figures 3 and 4. It differs from the library's Algorithm 2 in four ways: the
stopping rule uses the squared gradient of the batch mean (smaller by the batch size than the mean
of the samples' squared gradients), it is evaluated on the gradient that the last step used, batch
norm stays in training mode during the inner loop, and perturbed inputs are not clipped.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import Optimizer


def ascend(
    y: Tensor, optimizer: Optimizer, value: Callable[[], Tensor], threshold: float, limit: float
) -> int:
    """Take steps of an inner loop and return their number.

    Args:
        y: The tensor that moves.
        optimizer: Its optimizer, with ``maximize=True``.
        value: What is maximized.
        threshold: Stop if the squared norm of the gradient that the last step used is at most this.
        limit: Stop after this many steps.
    """
    num_steps, grad_sq = 0, math.inf
    while grad_sq > threshold and num_steps < limit:
        (y.grad,) = torch.autograd.grad(value(), y)
        optimizer.step()
        num_steps, grad_sq = num_steps + 1, y.grad.square().sum().item()
    return num_steps


@dataclass
class ReleasedTraining:
    """Wasserstein-robust training with Adam for both players, as in the authors' scripts.

    Attributes:
        model: The network; its layers stay in the mode they are in.
        x_optimizer: Adam for its parameters.
        lr_y: The learning rate of the adversary's Adam, which is new for every batch.
        gamma: The price per squared distance.
        max_calls: Gradients of both players in total.
        inner_steps: Inner steps per batch; None for NeAda's rule.
        stop_scale: The constant c of NeAda's rule: squared gradient of the batch mean at most
            c/(t+1), or max(1, t) steps.
        calls: Gradients so far.
        x_steps: Steps of the model so far, the t of the rule.
    """

    model: nn.Module
    x_optimizer: torch.optim.Adam
    lr_y: float
    gamma: float
    max_calls: int
    inner_steps: int | None = None
    stop_scale: float = 1.0
    calls: int = 0
    x_steps: int = 0

    def step(self, inputs: Tensor, targets: Tensor) -> float | None:
        """Perturb a batch, move the model and return its loss; None if the calls ended before."""
        perturbed = inputs.clone().requires_grad_()

        def value() -> Tensor:
            distance_sq = (perturbed - inputs).flatten(1).square().sum(1)
            return cross_entropy(self.model(perturbed), targets) - self.gamma * distance_sq.mean()

        threshold, limit = self.stop_scale / (self.x_steps + 1), max(1, self.x_steps)
        if self.inner_steps is not None:
            threshold, limit = -math.inf, self.inner_steps
        adam = torch.optim.Adam([perturbed], lr=self.lr_y, maximize=True)
        self.calls += ascend(
            perturbed, adam, value, threshold, min(limit, self.max_calls - self.calls)
        )
        if self.calls == self.max_calls:
            return None
        self.x_optimizer.zero_grad()
        loss = cross_entropy(self.model(perturbed.detach()), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.x_optimizer.step()
        self.calls, self.x_steps = self.calls + 1, self.x_steps + 1
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """The model, its optimizer and the counts."""
        parts = {"model": self.model.state_dict(), "x_optimizer": self.x_optimizer.state_dict()}
        return {**parts, "calls": self.calls, "x_steps": self.x_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.model.load_state_dict(state_dict["model"])
        self.x_optimizer.load_state_dict(state_dict["x_optimizer"])
        self.calls, self.x_steps = state_dict["calls"], state_dict["x_steps"]
