"""Spec A3: gradient descent with backtracking, deterministic and stochastic (SLS)."""

from __future__ import annotations

import numpy as np

from .base import Objective, Reference, Vector, dot, needed, norm, norm_sq


class Backtracking(Reference):
    """Spec A3: trial point P(w - s g), accepted by the test `quad` or `armijo`.

    The safe rule, once a step has been accepted: with s the trial step (already grown) and
    d = P(w - s g) - w, if |d|^2/(2 s) <= 10 tau no values are evaluated, and the step is taken with
    the last accepted s, which stays. Here tau = 10 eps max(|value|, |value at the iterate before|).
    When safe, tau is also the slack of every acceptance test.
    """

    lr = 1.0
    test = "quad"
    c = 0.5
    shrink = 0.5
    grow = 2.0
    max_backtracks = 60
    safe = True

    def setup(self) -> None:
        self.s = self.lr
        self.accepted = False  # has any step been accepted?
        self.last_size = 0.0

    def accepts(
        self, trial_value: float, value: float, g: Vector, d: Vector, s: float, slack: float
    ) -> bool:
        if self.test == "armijo":
            return trial_value <= value - (self.c / s) * norm_sq(d) + slack
        return trial_value <= value + dot(g, d) + norm_sq(d) / (2.0 * s) + slack

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        value = needed(value)
        assert phi is not None
        tau = 10.0 * float(np.finfo(np.float64).eps) * max(self.last_size, abs(value))
        self.last_size = abs(value)

        s = self.grow * self.s if self.accepted else self.s
        if self.safe and self.accepted:
            d = self.project(self.w - s * g) - self.w
            if norm_sq(d) / (2.0 * s) <= 10.0 * tau:
                self.w = self.project(self.w - self.s * g)
                return

        slack = tau if self.safe else 0.0
        backtracks = 0
        while True:
            w_new = self.project(self.w - s * g)
            trial_value = float(phi(w_new))
            if self.accepts(trial_value, value, g, w_new - self.w, s, slack):
                break
            if backtracks >= self.max_backtracks:
                break
            s = self.shrink * s
            backtracks += 1
        self.w = w_new
        self.s = s
        self.accepted = True


class StochasticLineSearch(Reference):
    """Spec A3, last item (SLS): Armijo on the current mini-batch, no slack.

    The step grows before every search, the first included. `max_backtracks` trials, then a step of
    1e-6 while s keeps its shrunken value (as the authors' code does). No test if |g| < 1e-8.
    """

    num_batches: int
    lr = 1.0
    c = 0.1
    shrink = 0.9
    growth = 2.0
    max_backtracks = 100

    def setup(self) -> None:
        self.s = self.lr

    def update(self, g: Vector, value: float | None, phi: Objective | None) -> None:
        value = needed(value)
        assert phi is not None
        s = self.s * self.growth ** (1.0 / self.num_batches)

        backtracks = 0
        if norm(g) < 1e-8:
            w_new = self.project(self.w - s * g)  # untested
        else:
            for _ in range(self.max_backtracks):
                w_new = self.project(self.w - s * g)
                trial_value = float(phi(w_new))
                if trial_value <= value - (self.c / s) * norm_sq(w_new - self.w):
                    break
                s = self.shrink * s
                backtracks += 1
            else:
                w_new = self.project(self.w - 1e-6 * g)
        self.w = w_new
        self.s = s
