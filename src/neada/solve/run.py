"""A solve: a stepper on its way to a stationary point, watched and judged, each row by itself."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neada import tensors
from neada.inner import BudgetExhausted, NoProgress
from neada.progress import can_be_seen
from neada.scalars import Flag, Scalar, all_true, any_true, is_finite, maximum, minimum, sqrt, where
from neada.sets import Product, Set, WholeSpace
from neada.solve.curvature import curves_upwards, free_entries
from neada.solve.points import Form, unbounded_part
from neada.solve.result import History, MinimaxResult, Status, plain, worst
from neada.steppers import StepInfo, Stepper
from neada.tensors import NonFiniteGradient

__all__ = ["PATIENCE", "Solve"]

_FAR = 1e12  # the players have run away when they are this many times farther than at the start
_OUT = 1e6  # trouble this many times farther out than the start is due to running away
_LOOK_EVERY = 10  # outer steps between two looks at how far out the players are
_NEAR = 1e3  # norms within this factor of their rounding error show nothing more
PATIENCE = 500  # outer steps without a better point before a deterministic solve has stalled

_SEEN = {
    "stalled": Status.STALLED,
    "curves up": Status.NOT_A_MAXIMUM,
    "runs away": Status.DIVERGED,
    "rounding": Status.TOLERANCE,
}
# What a stationary point overrules: the solve got there all the same.
_DOUBTS = (Status.BUDGET, Status.STALLED, Status.DIVERGED, Status.NON_FINITE, Status.TOLERANCE)


class Solve:
    """A stepper, the point it has reached, and what was seen on the way.

    Args:
        fun: f, checked.
        x: The player that minimizes.
        y: The player that maximizes.
        stepper: What moves them.
        tol: Both norms are wanted this small.
        noise: As `minimax` takes it.
        seed: Of the noise.
        remedy: What a user of this method can do when it does not converge, besides what the
            status says.
        patience: Outer steps without a better point before a deterministic solve has stalled.
        fail_at_cap: A row whose inner loop ends at its cap has stalled, too.
    """

    def __init__(
        self,
        fun: Callable[[Any, Any], Tensor],
        x: Form,
        y: Form,
        stepper: Stepper,
        tol: float,
        noise: Any = None,
        seed: int | None = None,
        remedy: str = "",
        patience: int = PATIENCE,
        fail_at_cap: bool = False,
    ) -> None:
        self.fun = fun
        self.x = x
        self.y = y
        self.stepper = stepper
        self.tol = tol
        self.noise_std = float(noise) if isinstance(noise, int | float) else 0.0
        self.stochastic = noise is not None
        self.generator = torch.Generator(x.leaves[0].device).manual_seed(seed or 0)
        self.remedy = remedy
        self.patience = patience
        self.fail_at_cap = fail_at_cap
        self.evidence = ""
        self.history = History()
        self.best = (tensors.clone(x.leaves), tensors.clone(y.leaves))
        self.best_norm: Scalar = math.inf
        self.since_best: Any = 0
        self.start = tensors.clone(x.leaves + y.leaves)
        self.start_size = self.reach()
        # Rows that have failed rest; how each of them ended.
        self.num_rows = len(x.leaves[0]) if stepper.rowwise else None
        self.failed: Flag = False
        self.ended: list[Status | None] = [None] * (self.num_rows or 1)
        if self.num_rows is not None:
            self.failed = torch.zeros(self.num_rows, dtype=torch.bool, device=x.leaves[0].device)

    def closure(self) -> Tensor:
        """The objective at the present point, with the noise that was asked for."""
        tensors.drop_cached_casts()
        value = self.fun(self.x.for_fun(), self.y.for_fun())
        if self.noise_std == 0.0 or not torch.is_grad_enabled():
            return value
        for leaf in self.x.leaves + self.y.leaves:
            xi = torch.empty_like(leaf, requires_grad=False).normal_(generator=self.generator)
            product = self.noise_std * xi * leaf
            value = value + (tensors.row_sums(product) if self.stepper.rowwise else product.sum())
        return value

    def size(self) -> Scalar:
        """The norm of both players."""
        leaves = self.x.leaves + self.y.leaves
        return 1.0 + sqrt(tensors.squared_norm(leaves, self.stepper.rowwise))

    def reach(self) -> Scalar:
        """How far out the players are, counted only along unbounded directions of their sets."""
        leaves = self.x.leaves + self.y.leaves
        point = [leaf.detach() for leaf in leaves]
        places = {id(leaf): i for i, leaf in enumerate(leaves)}
        joint: dict[int, tuple[Set, list[int]]] = {}
        for tensor, home in self.stepper.sets("x") + self.stepper.sets("y"):
            if home is not None and id(tensor) in places:
                joint.setdefault(id(home), (home, []))[1].append(places[id(tensor)])
        for home, members in joint.values():
            start = [self.start[i] for i in members]
            step = [point[i] - self.start[i] for i in members]
            for i, part in zip(members, unbounded_part(home, start, step), strict=True):
                point[i] = self.start[i] + part
        return 1.0 + sqrt(tensors.squared_norm(point, self.stepper.rowwise))

    def run(self, callback: Any = None, progress: bool = False) -> MinimaxResult:
        """Step until something says stop; then verify."""
        status = None
        try:
            while status is None:
                try:
                    status = self.one_step(callback)
                except FloatingPointError as error:
                    status = self.fail(self.rows_not_finite(error), Status.NON_FINITE)
                if progress and can_be_seen():
                    self.show_progress()
        except BudgetExhausted:
            status = Status.BUDGET
        except NoProgress as reason:
            status, self.evidence = _SEEN[reason.kind], str(reason)
            if status in (Status.STALLED, Status.TOLERANCE, Status.DIVERGED):
                near = Status.STALLED if status is Status.DIVERGED else status
                status = near if self.is_near() else Status.DIVERGED
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return self.finish(status)

    def one_step(self, callback: Any) -> Status | None:
        """One outer step, its entry in the history, and what it means."""
        before = (tensors.clone(self.x.leaves), tensors.clone(self.y.leaves))
        info = self.stepper.step(self.closure)
        norm_x, norm_y = sqrt(info.grad_sq_x), sqrt(info.grad_sq_y)
        self.record(info, norm_x, norm_y)
        if self.stepper.outer_steps == 1 and not all_true(minimum(norm_x, norm_y) > 0.0):
            ignored = self.dependence()
            if ignored is not None:
                return ignored
        after = (tensors.clone(self.x.leaves), tensors.clone(self.y.leaves))
        place = self.stepper.measured_at
        point = {"start": before, "middle": (before[0], after[1]), "end": after}[place]
        norm = where(is_finite(self.number(info.value)), maximum(norm_x, norm_y), math.inf)
        self.keep_if_better(point, norm)
        if callback is not None and callback(info):
            return Status.INTERRUPTED
        if self.stochastic:
            return None
        if self.is_done() and self.is_confirmed():
            return Status.CONVERGED
        if self.stepper.outer_steps % _LOOK_EVERY == 0:
            far = self.reach() > _FAR * self.start_size
            if any_true(far) and (status := self.fail(far, Status.DIVERGED)):
                return status
        stalled = self.since_best > self.patience
        if self.fail_at_cap:
            stalled = stalled | self.stepper.at_cap
        return self.fail(stalled, Status.STALLED) if any_true(stalled) else None

    def is_done(self) -> bool:
        """Whether every row is small enough, or has failed."""
        return all_true((self.best_norm <= self.tol) | self.failed)

    # Failures.

    def fail(self, rows: Flag, status: Status) -> Status | None:
        """Rows end with a status and rest; returns the status of the solve if none is left.

        Args:
            rows: Which; True for all.
            status: How.
        """
        within = self.reach() <= _OUT * self.start_size
        if not isinstance(rows, Tensor) or not isinstance(self.failed, Tensor):
            if status is Status.STALLED:
                self.evidence = f"no better point in {self.patience} steps"
            return status if all_true(within) else Status.DIVERGED
        rows = rows & ~self.failed & ~torch.as_tensor(self.best_norm <= self.tol)
        near = self.by_row(within)
        for i in rows.nonzero().flatten().tolist():
            self.ended[i] = status if near[i] else Status.DIVERGED
        self.failed = self.failed | rows
        with torch.no_grad():
            for form, kept in zip((self.x, self.y), self.best, strict=True):
                tensors.blend_(form.leaves, kept, rows)
        self.let_rest()
        return Status.CONVERGED if self.is_done() and self.is_confirmed() else None

    def is_near(self) -> bool:
        """Whether the players are not so far out that any trouble is due to that."""
        return all_true(self.reach() <= _OUT * self.start_size)

    def rows_not_finite(self, error: FloatingPointError) -> Flag:
        """Where the gradients that were evaluated last, or the values here, are not finite."""
        if not isinstance(self.failed, Tensor):
            return True
        if isinstance(error, NonFiniteGradient) and error.rows is not None:
            return error.rows
        bad = torch.zeros_like(self.failed)
        for leaf in self.x.leaves + self.y.leaves:
            for tensor in (leaf.detach(), leaf.grad):
                if tensor is not None:
                    bad |= ~tensor.reshape(len(bad), -1).square().sum(1).isfinite()
        bad = bad & ~self.failed
        if not any_true(bad):
            self.stepper.counters.calls_value += 1
            with torch.no_grad():
                bad = ~self.closure().isfinite() & ~self.failed
        return bad if any_true(bad) else torch.ones_like(bad)

    def let_rest(self) -> None:
        """Rows that are solved or have failed take no part any more."""
        if isinstance(self.failed, Tensor):
            self.stepper.freeze(self.failed | (self.best_norm <= self.tol))

    def dependence(self) -> Status | None:
        """Whether f depends on both players at all; asked when a first gradient is zero."""
        value = self.closure()
        self.stepper.counters.count("x")
        self.stepper.counters.count("y")
        for form, status in ((self.x, Status.IGNORES_X), (self.y, Status.IGNORES_Y)):
            grads = torch.autograd.grad(
                value.sum(), form.leaves, retain_graph=True, allow_unused=True
            )
            if all(gradient is None for gradient in grads):
                return status
        return None

    # What was seen.

    def record(self, info: StepInfo, norm_x: Scalar, norm_y: Scalar) -> None:
        """One entry of the history."""
        entries = self.history
        entries.calls.append(self.stepper.total_calls)
        entries.value.append(plain(info.value))
        entries.grad_norm_x.append(plain(norm_x))
        entries.grad_norm_y.append(plain(norm_y))
        entries.inner_steps.append(info.inner_steps)

    def keep_if_better(self, point: tuple[list[Tensor], list[Tensor]], norm: Scalar) -> None:
        """Remember the point with the smallest larger norm; each row by itself."""
        # A row that rests is not overwritten by a later point.
        settled = (self.best_norm <= self.tol) | self.failed
        better: Flag = norm < self.best_norm
        if isinstance(better, Tensor):
            better = better & ~settled
        for kept, new in zip(self.best, point, strict=True):
            tensors.blend_(kept, new, better)
        self.best_norm = where(better, norm, self.best_norm)
        self.since_best = where(better | settled, 0, self.since_best + 1)
        self.let_rest()

    def is_confirmed(self) -> bool:
        """Whether a fresh evaluation at the best point agrees that it is a solution.

        A rule that counts steps ends the inner loop at a y whose mapping nobody has seen yet.
        """
        here = (tensors.clone(self.x.leaves), tensors.clone(self.y.leaves))
        self.go_to(self.best)
        self.measured = self.measure()
        self.go_to(here)
        norm = self.larger_norm()
        confirmed = (norm <= self.tol) | self.failed
        self.best_norm = where(confirmed, self.best_norm, norm)
        return all_true(confirmed)

    @torch.no_grad()
    def go_to(self, point: tuple[list[Tensor], list[Tensor]]) -> None:
        """Put both players at a point."""
        for form, place in zip((self.x, self.y), point, strict=True):
            tensors.copy_(form.leaves, place)

    def show_progress(self) -> None:
        """One line on the terminal."""
        h = self.history
        if h.calls:
            norm_x, norm_y = worst(h.grad_norm_x[-1]), worst(h.grad_norm_y[-1])
            sys.stderr.write(f"\r{h.calls[-1]} calls, |x| {norm_x:.2e}, |y| {norm_y:.2e}  ")

    # The end.

    def finish(self, status: Status) -> MinimaxResult:
        """Go to the point that is returned, measure it afresh, and judge."""
        if not self.stochastic:
            self.go_to(self.best)
        if status is not Status.CONVERGED:
            self.measured = self.measure()
        value, norm_x, norm_y = self.measured
        norm = self.larger_norm()
        small = norm <= self.tol
        no_maximum = self.y_is_no_maximum() if any_true(small) else False
        flags = (is_finite(value), small, self.is_at_precision(norm), no_maximum)
        seen = list(zip(*(self.by_row(flag) for flag in flags), strict=True))
        verdicts = [
            _verdict(ended or status, *of_row)
            for ended, of_row in zip(self.ended, seen, strict=True)
        ]
        success = [
            verdict is Status.CONVERGED or (verdict is Status.INTERRUPTED and of_row[1])
            for verdict, of_row in zip(verdicts, seen, strict=True)
        ]
        advice = {verdict: verdict.value + self.advice(verdict) for verdict in set(verdicts)}
        sentences = [advice[verdict] for verdict in verdicts]
        stepper = self.stepper
        one = self.num_rows is None
        return MinimaxResult(
            self.x.give_back(self.x.leaves),
            self.y.give_back(self.y.leaves),
            plain(value),
            success[0] if one else np.array(success),
            verdicts[0] if one else np.array(verdicts, dtype=object),
            sentences[0] if one else sentences,
            plain(norm_x),
            plain(norm_y),
            stepper.calls_x,
            stepper.calls_y,
            stepper.calls_value,
            stepper.outer_steps,
            stepper.inner_steps,
            self.history,
            self.tol,
        )

    def measure(self) -> tuple[Any, Scalar, Scalar]:
        """The value and both norms here, without noise of ours, by a fresh evaluation."""
        std, self.noise_std = self.noise_std, 0.0
        try:
            at_x, at_y = self.stepper.evaluate(self.closure, within_budget=False)
        except FloatingPointError:
            nan = math.nan if self.num_rows is None else torch.full((self.num_rows,), math.nan)
            return nan, nan, nan
        finally:
            self.noise_std = std
        return self.number(at_x.value), sqrt(at_x.mapping_sq), sqrt(at_y.mapping_sq)

    def number(self, value: Tensor) -> Scalar:
        """A value of f as a number, or one per row."""
        return value if self.stepper.rowwise else value.item()

    def by_row(self, flag: Flag) -> list[bool]:
        """A flag of every row; a list of one without rows."""
        return flag.tolist() if isinstance(flag, Tensor) else [flag] * len(self.ended)

    def larger_norm(self) -> Scalar:
        """The larger norm of the last measurement; infinite where f is not."""
        value, norm_x, norm_y = self.measured
        return where(is_finite(value), maximum(norm_x, norm_y), math.inf)

    def is_at_precision(self, norm: Scalar) -> Flag:
        """Whether the tolerance is below what gradients can show here, and the norms are not."""
        floor = 10.0 * torch.finfo(self.x.leaves[0].dtype).eps * self.size()
        near = self.reach() <= _OUT * self.start_size
        return (floor > self.tol) & (norm <= _NEAR * floor) & near

    def y_is_no_maximum(self) -> Flag:
        """Whether f curves upwards in y at the answer, along the entries that are free to move."""
        rowwise = self.stepper.rowwise
        masks = [
            free_entries(tensor, home, rowwise)
            for tensor, home in _each_home(self.stepper.sets("y"))
        ]
        if not any(bool(mask.any()) for mask in masks):
            return False
        return curves_upwards(self.closure(), self.y.leaves, masks, rowwise)

    def advice(self, status: Status) -> str:
        """What may help with the method that ran, where the status alone does not say it."""
        words = ""
        if self.evidence and status in (Status.STALLED, Status.DIVERGED):
            words = f" (seen: {self.evidence})"
        if status is Status.TOLERANCE and self.x.leaves[0].dtype != torch.float64:
            words += "; or use float64"
        if status in (Status.STALLED, Status.DIVERGED) and self.remedy:
            words += f"; {self.remedy}"
        steps = self.history.inner_steps
        cap = self.stepper.max_inner_steps
        if status is Status.CONVERGED or cap is None or len(steps) < 10:
            return words
        if min(steps[len(steps) // 2 :]) >= cap:
            words += (
                "; every inner loop ended at its cap: y is hard to maximize, try another y "
                "optimizer or a larger cap"
            )
        return words


def _verdict(
    ended: Status, finite: bool, small: bool, at_precision: bool, no_maximum: bool
) -> Status:
    """The status of one problem, by how it ended and what its answer looks like."""
    if ended in _DOUBTS and not finite:
        return Status.NON_FINITE
    if ended in _DOUBTS and small:
        ended = Status.CONVERGED
    if ended is Status.CONVERGED and no_maximum:
        return Status.NOT_A_MAXIMUM
    if ended in (Status.BUDGET, Status.STALLED, Status.DIVERGED) and at_precision:
        return Status.TOLERANCE
    return ended


def _each_home(
    players: list[tuple[Tensor, Set | None]],
) -> Iterator[tuple[Tensor, Set | None]]:
    """Tensors with the sets they live in, where a product of sets is taken apart."""
    places: dict[int, int] = {}
    for tensor, home in players:
        if isinstance(home, Product):
            place = places[id(home)] = places.get(id(home), -1) + 1
            home = home.sets[place]
        yield tensor, None if isinstance(home, WholeSpace) else home
