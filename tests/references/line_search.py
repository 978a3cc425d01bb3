"""Spec A3: gradient descent with backtracking, deterministic and stochastic (SLS)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .base import Objective, Projection, Reference, Vector, dot, needed, norm, norm_sq


class Backtracking(Reference):
    """Spec A3: trial point P(w - s g), accepted by the test `quad` or `armijo`.

    The safe rule, once a step has been accepted: with s the trial step (already grown) and
    d = P(w - s g) - w, if |d|^2/(2 s) <= 10 tau no values are evaluated, and the step is taken with
    the last accepted s, which stays. Here tau = 10 eps max(|value|, |value at the iterate before|).
    When safe, tau is also the slack of every acceptance test.
    """

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        lr: float = 1.0,
        test: str = "quad",
        c: float = 0.5,
        shrink: float = 0.5,
        grow: float = 2.0,
        max_step: float = math.inf,
        max_backtracks: int = 60,
        safe: bool = True,
    ) -> None:
        super().__init__(w0, project)
        if test not in ("quad", "armijo"):
            raise ValueError(f"unknown test {test!r}")
        self.test = test
        self.c = c
        self.shrink = shrink
        self.grow = grow
        self.max_step = max_step
        self.max_backtracks = max_backtracks
        self.safe = safe
        self.s = lr
        self.accepted = False  # has any step been accepted?
        self.last_size = 0.0
        self.num_values = 0
        self.num_backtracks = 0  # in the last iteration

    def accepts(
        self, trial_value: float, value: float, g: Vector, d: Vector, s: float, slack: float
    ) -> bool:
        if self.test == "armijo":
            return trial_value <= value - (self.c / s) * norm_sq(d) + slack
        return trial_value <= value + dot(g, d) + norm_sq(d) / (2.0 * s) + slack

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        value = needed(value)
        if phi is None:
            raise ValueError("a line search needs phi")
        tau = 10.0 * float(np.finfo(np.float64).eps) * max(self.last_size, abs(value))
        self.last_size = abs(value)

        s = min(self.max_step, self.grow * self.s) if self.accepted else self.s
        if self.safe and self.accepted:
            d = self.project(self.w - s * g) - self.w
            if norm_sq(d) / (2.0 * s) <= 10.0 * tau:
                self.w = self.project(self.w - self.s * g)
                self.num_backtracks = 0
                return

        slack = tau if self.safe else 0.0
        backtracks = 0
        while True:
            w_new = self.project(self.w - s * g)
            trial_value = float(phi(w_new))
            self.num_values += 1
            if self.accepts(trial_value, value, g, w_new - self.w, s, slack):
                break
            if backtracks >= self.max_backtracks:
                break
            s = self.shrink * s
            backtracks += 1
        self.w = w_new
        self.s = s
        self.accepted = True
        self.num_backtracks = backtracks

    @property
    def state(self) -> dict[str, Any]:
        return {
            "step": self.s,
            "num_backtracks": self.num_backtracks,
            "num_values": self.num_values,
        }


class StochasticLineSearch(Reference):
    """Spec A3, last item (SLS): Armijo on the current mini-batch, no slack.

    The policy acts before every step, the first included. `max_backtracks` trials, then a step of
    1e-6 while s keeps its shrunken value (as the authors' code does). No test if |g| < 1e-8.
    """

    def __init__(
        self,
        w0: Vector,
        project: Projection | None = None,
        *,
        num_batches: int,
        lr: float = 1.0,
        c: float = 0.1,
        shrink: float = 0.9,
        growth: float = 2.0,
        policy: str = "grow",
        max_backtracks: int = 100,
    ) -> None:
        super().__init__(w0, project)
        if policy not in ("keep", "grow", "restart"):
            raise ValueError(f"unknown policy {policy!r}")
        self.lr = lr
        self.c = c
        self.shrink = shrink
        self.growth = growth
        self.num_batches = num_batches
        self.policy = policy
        self.max_backtracks = max_backtracks
        self.s = lr
        self.num_values = 0
        self.num_backtracks = 0  # in the last iteration

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        value = needed(value)
        if phi is None:
            raise ValueError("a line search needs phi")
        s = self.s
        if self.policy == "grow":
            s = s * self.growth ** (1.0 / self.num_batches)
        elif self.policy == "restart":
            s = self.lr

        backtracks = 0
        if norm(g) < 1e-8:
            w_new = self.project(self.w - s * g)  # untested
        else:
            for _ in range(self.max_backtracks):
                w_new = self.project(self.w - s * g)
                trial_value = float(phi(w_new))
                self.num_values += 1
                if trial_value <= value - (self.c / s) * norm_sq(w_new - self.w):
                    break
                s = self.shrink * s
                backtracks += 1
            else:
                w_new = self.project(self.w - 1e-6 * g)
        self.w = w_new
        self.s = s
        self.num_backtracks = backtracks

    @property
    def state(self) -> dict[str, Any]:
        return {
            "step": self.s,
            "num_backtracks": self.num_backtracks,
            "num_values": self.num_values,
        }
