"""Spec C2, C3, B6, C6: NeAda, GDmax and the released loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .adaptive import GeneralizedAdaGrad
from .adgd import AdGD
from .base import PolynomialAverage, Projection, Reference, Vector, norm
from .line_search import Backtracking
from .minimax import Minimax
from .stopping import Stop

Factory = Callable[[Vector, Projection | None], Reference]
Value = Callable[[Vector, Vector], float]


def keep_step(old: Reference, new: Reference) -> None:
    """Policy `step` (spec A0): a new solver that begins with the old one's step size."""
    if isinstance(old, Backtracking) and isinstance(new, Backtracking):
        new.s = old.s
    elif isinstance(old, AdGD) and isinstance(new, AdGD):
        new.lam = old.lam
    else:
        raise ValueError(f"{type(old).__name__} has no step size to keep")


def restart_average(solver: Reference, y: Vector) -> None:
    """A carried solver goes on from the averaged point with a new average (decisions)."""
    assert isinstance(solver, GeneralizedAdaGrad) and solver._average is not None
    solver.w = y.copy()
    solver._average = PolynomialAverage(y, solver._average.gamma)


class NeAda(Minimax):
    """Spec C2 (Algorithm 2, policy "full") and spec C3 (Algorithm 3, policy "fresh").

    `inner(y, project_y)` makes a minimizer of -f(x_t, .), `outer(x, project_x)` one of f(., y_t).
    The rule sees the gradient at the current y, which is the next step's if it does not fire.
    No rule is asked before `min_inner_steps`. `batch(t)` is M_t, the number of x gradients in their
    mean. The value at the current y comes with its gradient; n_f counts the values at trial points.
    `averaged`: y_t is the solver's average over this inner loop, and the next warm start.
    """

    inner: Factory
    outer: Factory
    stop: Stop
    policy = "fresh"
    min_inner_steps = 1
    batch: Callable[[int], int] | None = None
    averaged = False
    f: Value | None = None

    def setup(self) -> None:
        self.x_solver = self.outer(self.x, self.set_x)
        self.y_solver: Reference | None = None

    def begin_inner(self) -> Reference:
        if self.y_solver is not None and self.policy == "full":
            if self.averaged:
                restart_average(self.y_solver, self.y)
            return self.y_solver
        new = self.inner(self.y, self.set_y)
        if self.y_solver is not None and self.policy == "step":
            keep_step(self.y_solver, new)
        return new

    def counted_value(self, y: Vector) -> float:
        """-f(x_t, y) at a trial point."""
        assert self.f is not None
        self.n_f += 1
        return -float(self.f(self.x, y))

    def inner_step(self, solver: Reference, g: Vector) -> None:
        if self.f is None:
            solver.step(-g)
        else:
            solver.step(-g, -float(self.f(self.x, self.y)), self.counted_value)
        self.y = solver.w

    def iterate(self) -> None:
        t = self.n_outer
        k = 0
        self.y_solver = solver = self.begin_inner()
        while True:
            if k >= self.min_inner_steps and self.stop.count(t, k):
                break
            g = self.grad_y(self.x, self.y)
            mapping = self.y - self.project_y(self.y + g)
            if k >= self.min_inner_steps and self.stop.accuracy(t, k, mapping):
                break
            self.inner_step(solver, g)
            k += 1
        self.n_inner += k
        if self.averaged and k > 0:
            assert isinstance(solver, GeneralizedAdaGrad)
            self.y = solver.answer

        samples = 1 if self.batch is None else self.batch(t)
        total = np.zeros_like(self.x)
        for _ in range(samples):
            total = total + self.grad_x(self.x, self.y)
        self.x_solver.step(total / samples)
        self.x = self.x_solver.w


class GDmax(Minimax):
    """Spec B6: `inner_steps` plain ascent steps, or until |y - P_Y(y + g)| <= tol; then x."""

    inner_steps: int | None = None
    tol: float | None = None

    def iterate(self) -> None:
        k = 0
        while self.inner_steps is None or k < self.inner_steps:
            g = self.grad_y(self.x, self.y)
            if self.tol is not None and norm(self.y - self.project_y(self.y + g)) <= self.tol:
                break  # this gradient is counted
            self.y = self.project_y(self.y + self.lr_y * g)
            k += 1
        self.n_inner += k
        self.x = self.project_x(self.x - self.lr_x * self.grad_x(self.x, self.y))
