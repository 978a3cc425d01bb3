"""Parameter-free SGD by bisection on the step size (Carmon & Hinder 2022, arXiv:2205.02160).

A function, not an optimizer: it runs SGD many times from the same start.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neada import tensors
from neada.checks import check_number
from neada.optim.objective import Closure, restore_on_error
from neada.sets import Set

__all__ = ["ParameterFreeResult", "parameter_free_sgd"]


class ParameterFreeResult(NamedTuple):
    """The result of `parameter_free_sgd`."""

    lr: float
    """The step size of the chosen run."""
    num_calls: int
    """The number of gradients evaluated."""


def parameter_free_sgd(
    closure: Closure,
    params: Iterable[Tensor],
    max_calls: int,
    *,
    lr_eps: float = 1e-6,
    alpha: float = 3.0,
    beta: float = 0.0,
    maximize: bool = False,
    constraint: Set | None = None,
) -> ParameterFreeResult:
    r"""Find a step size by bisection, spending a given number of gradients.

    A run with step :math:`\eta` gives :math:`\psi(\eta) = r/\sqrt{\alpha G + \beta}`, with
    :math:`r` the largest distance from the start and :math:`G` the sum of squared gradient
    norms. Geometric bisection looks for :math:`\eta = \psi(\eta)`; the interval and the length of
    the runs are doubled and halved until it fits. The parameters end at the mean iterate of the
    chosen run.

    Required problem constants: the number of calls, and for noisy gradients a bound that determines
    `alpha` and `beta`.

    Guarantees: convex: as good as the best fixed step in hindsight up to a double logarithm.

    Args:
        closure: Evaluates the objective and calls backward.
        params: The tensors to optimize.
        max_calls: How many gradients may be evaluated.
        lr_eps: A step size that is certainly too small.
        alpha: Weight of the summed squared gradients; 3 for deterministic gradients.
        beta: Added to that sum; 0 for deterministic gradients.
        maximize: Ascend instead of descend.
        constraint: The set to project on, joint over the tensors.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> def closure():
        ...     loss = ((w - 1.0) ** 2).sum()
        ...     loss.backward()
        ...     return loss
        >>> result = parameter_free_sgd(closure, [w], max_calls=800)
        >>> result.num_calls <= 800
        True
        >>> bool(((w - 1.0) ** 2).sum() < 0.02)
        True
    """
    players = list(params)
    tensors.check_player(players)
    check_number("max_calls", max_calls, above=4, strict=False, whole=True)
    check_number("lr_eps", lr_eps)
    check_number("alpha", alpha)
    check_number("beta", beta, strict=False)
    if constraint is not None:
        constraint.validate(players)
    start = tensors.clone(players)
    if constraint is not None:
        constraint.project_(start)
    sign = -1.0 if maximize else 1.0
    runs = _Runs(closure, players, start, alpha, beta, sign, constraint)
    with restore_on_error(players):
        chosen = _search(runs, max_calls, lr_eps)
    runs.move_to(chosen.mean)
    return ParameterFreeResult(chosen.lr, runs.num_calls)


class _Run(NamedTuple):
    """The result of projected SGD with a fixed step size."""

    lr: float
    mean: list[Tensor]
    farthest: float
    psi: float
    """Largest distance from the start over the root of the summed squared gradients."""


def _search(runs: "_Runs", max_calls: int, lr_eps: float) -> _Run:
    """Double the interval until the balanced step lies in it, then bisect."""
    k = 2
    while True:
        num_steps = max_calls // (2 * k)
        highest = runs.run(lr_eps * 2.0 ** min(2**k, 1000), num_steps)
        if highest.lr > highest.psi:
            return _bisect(runs, runs.run(lr_eps, num_steps), highest, num_steps)
        k *= 2
        if max_calls < 2 * k:
            return highest


def _bisect(runs: "_Runs", low: _Run, high: _Run, num_steps: int) -> _Run:
    """Close in on the step that equals its own psi, from both sides."""
    if low.lr > low.psi:
        return low
    while high.lr > 2.0 * low.lr:
        middle = runs.run(math.sqrt(low.lr * high.lr), num_steps)
        if middle.lr <= middle.psi:
            low = middle
        else:
            high = middle
    return high if high.farthest <= low.farthest * high.psi / high.lr else low


@dataclass
class _Runs:
    """Runs of SGD from the same start."""

    closure: Closure
    params: list[Tensor]
    start: list[Tensor]
    alpha: float
    beta: float
    sign: float
    constraint: Set | None
    num_calls: int = 0

    def run(self, lr: float, num_steps: int) -> _Run:
        """Projected SGD with a fixed step; a run that overflows has infinite distance."""
        self.move_to(self.start)
        mean = [torch.zeros_like(param) for param in self.params]
        farthest_sq, total = 0.0, 0.0
        for k in range(num_steps):
            gradients = self.gradients()
            norm_sq = float(tensors.squared_norm(gradients))
            if not math.isfinite(norm_sq):
                if k == 0:
                    tensors.raise_non_finite(gradients)
                return _Run(lr, mean, math.inf, 0.0)
            tensors.interpolate_(mean, [p.detach() for p in self.params], 1.0 / (k + 1))
            total += norm_sq
            with torch.no_grad():
                tensors.add_scaled_(self.params, gradients, -self.sign * lr)
                if not math.isfinite(float(tensors.squared_norm(self.params))):
                    return _Run(lr, mean, math.inf, 0.0)
                if self.constraint is not None:
                    self.constraint.project_(self.params)
                moved_sq = tensors.squared_distance(self.params, self.start)
                farthest_sq = max(farthest_sq, float(moved_sq))
        farthest = math.sqrt(farthest_sq)
        scale = math.sqrt(self.alpha * total + self.beta)
        return _Run(lr, mean, farthest, farthest / scale if scale > 0.0 else math.inf)

    def gradients(self) -> list[Tensor]:
        """One gradient at the current point."""
        for param in self.params:
            param.grad = None
        tensors.drop_cached_casts()
        with torch.enable_grad():
            self.closure()
        self.num_calls += 1
        if all(param.grad is None for param in self.params):
            raise ValueError("the closure computed no gradient: it must call backward")
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]

    @torch.no_grad()
    def move_to(self, point: list[Tensor]) -> None:
        """Set the parameters."""
        tensors.copy_(self.params, point)
        tensors.drop_cached_casts()
