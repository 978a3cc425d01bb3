"""Spec A8: distance over gradients (DoG, DoWG) and the bisection of Carmon and Hinder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .base import Objective, Projection, Reference, Vector, norm, norm_sq


class DoG(Reference):
    """Spec A8b: w = P(w - lr rbar g/sqrt(G)), G = eps + sum |g|^2."""

    lr = 1.0
    r_eps = 1e-6
    eps = 1e-8

    def setup(self) -> None:
        self.rbar = self.r_eps * (1.0 + norm(self.w0))
        self.total = 0.0

    def step_size(self, g: Vector) -> float:
        self.total = self.total + norm_sq(g)
        return self.rbar / math.sqrt(self.eps + self.total)

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        self.rbar = max(self.rbar, norm(self.w - self.w0))
        self.w = self.project(self.w - self.lr * self.step_size(g) * g)


class DoWG(DoG):
    """Spec A8c: step rbar^2/(sqrt(V) + eps), V = sum rbar_i^2 |g_i|^2."""

    r_eps = 1e-4

    def step_size(self, g: Vector) -> float:
        self.total = self.total + self.rbar**2 * norm_sq(g)
        return self.rbar**2 / (math.sqrt(self.total) + self.eps)


class Run(NamedTuple):
    """T steps of projected SGD with one step size: r, psi and the mean iterate."""

    lr: float
    r: float
    psi: float
    mean: Vector


def parameter_free_sgd(
    gradient: Callable[[Vector], Vector],
    w0: Vector,
    budget: int,
    lr_eps: float,
    alpha: float = 3.0,
    beta: float = 0.0,
    project: Projection | None = None,
) -> tuple[Vector, float, int]:
    """Spec A8a: returns (mean iterate of the chosen run, its step size, gradient calls).

    r is taken over w_0 ... w_T, the mean over the points w_0 ... w_{T-1} that were evaluated. When
    the budget allows no further doubling (or 2^(2^k) overflows), the last run is returned.
    """
    start = np.array(w0, dtype=np.float64)
    calls = 0

    def run(lr: float, steps: int) -> Run:
        nonlocal calls
        w = start.copy()
        r = 0.0
        total = 0.0
        mean = np.zeros_like(w)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(steps):
                g = np.array(gradient(w), dtype=np.float64)
                calls += 1
                mean = mean + w / steps
                total += norm_sq(g)
                w = w - lr * g
                if project is not None:
                    w = project(w)
                r = float(np.fmax(r, norm(w - start)))
        if not math.isfinite(total):
            return Run(lr, math.inf, 0.0, mean)  # blown up: far too large a step
        root = math.sqrt(alpha * total + beta)
        return Run(lr, r, r / root if root > 0.0 else 0.0, mean)

    last: Run | None = None
    k = 2
    while budget // (2 * k) >= 1 and 2**k < 1000:
        steps = budget // (2 * k)
        high = run(2.0 ** (2**k) * lr_eps, steps)
        last = high
        if high.lr <= high.psi:
            k *= 2
            continue  # too small an interval
        low = run(lr_eps, steps)
        if low.lr > low.psi:
            return low.mean, low.lr, calls
        while high.lr > 2.0 * low.lr:
            middle = run(math.sqrt(high.lr * low.lr), steps)
            if middle.lr <= middle.psi:
                low = middle
            else:
                high = middle
        chosen = high if high.r <= low.r * high.psi / high.lr else low
        return chosen.mean, chosen.lr, calls
    if last is None:
        return start, lr_eps, calls
    return last.mean, last.lr, calls
