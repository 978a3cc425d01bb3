"""A solve: steps of a method until every row has converged or failed, and a check of the result.

Numbers about the rows are tensors with one entry per row. Without `rowwise` there is one row.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neada import tensors
from neada.inner import BudgetExhausted, NoProgress
from neada.progress import can_be_seen
from neada.scalars import Scalar
from neada.sets import Set
from neada.solve.geometry import Side
from neada.solve.newton import Newton
from neada.solve.points import Form, unbounded_part
from neada.solve.result import History, MinimaxResult, Status
from neada.solve.verdict import Verdict, derivatives_are_wrong, duality_gap, judge
from neada.steppers import Stepper
from neada.tensors import NonFiniteGradient

__all__ = ["Solve"]

_FAR = 1e12  # the players have diverged if they are this many times farther out than at the start
_OUT = 1e6  # a failure this many times farther out than the start is due to divergence
_LOOK_EVERY = 10  # outer steps between two checks of how far out the players are
_NEAR = 1e3  # norms within this factor of their rounding error are at the limit of the precision
_PATIENCE = 500  # outer steps without a better point before a deterministic solve has stalled

_STATUS_OF = {
    "stalled": Status.STALLED,
    "curves up": Status.NOT_A_MAXIMUM,
    "runs away": Status.DIVERGED,
    "rounding": Status.TOLERANCE,
    "not finite": Status.NON_FINITE,
}
# A stationary point is a success even if the solve ended in one of these ways.
_DOUBTS = (Status.BUDGET, Status.STALLED, Status.DIVERGED, Status.NON_FINITE, Status.TOLERANCE)


class Solve:
    """A stepper, the best point so far, and the state of every row.

    Args:
        fun: f.
        x: The player that minimizes.
        y: The player that maximizes.
        stepper: The method.
        tol: The tolerance of both norms.
        noise: The argument of `minimax`.
        seed: Of the noise.
        remedy: What a user of this method can do if it does not converge, in addition to the advice
            of the status.
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
    ) -> None:
        self.fun = fun
        self.x = x
        self.y = y
        self.leaves = x.leaves + y.leaves
        self.stepper = stepper
        self.rowwise = stepper.rowwise
        self.tol = tol
        self.noise_std = 0.0 if noise in (None, "own") else float(noise)
        self.stochastic = noise is not None
        self.device = self.leaves[0].device
        self.generator = torch.Generator(self.device).manual_seed(int(seed or 0))
        self.remedy = remedy
        self.evidence = ""
        self.history = History()
        num_rows = len(self.leaves[0]) if self.rowwise else 1
        self.best = self.snapshot()
        self.best_norm = torch.full((num_rows,), math.inf, dtype=torch.float64, device=self.device)
        self.since_best = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        # Rows that have failed are frozen; how each of them ended.
        self.failed = torch.zeros(num_rows, dtype=torch.bool, device=self.device)
        self.ended: list[Status | None] = [None] * num_rows
        self.start = self.snapshot()
        self.joint_sets = [
            *_joint_sets(self.leaves, stepper.sets("x")),
            *_joint_sets(self.leaves, stepper.sets("y")),
        ]
        self.start_size = self.reach()
        self.verdict = Verdict.unknown(num_rows)

    def run(self, callback: Any = None, progress: bool = False) -> MinimaxResult:
        """Step until every row has converged or failed; then check the result."""
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
            status, self.evidence = _STATUS_OF[reason.kind], str(reason)
            if status is not Status.NOT_A_MAXIMUM:
                near = Status.STALLED if status is Status.DIVERGED else status
                status = near if bool(self.is_near().all()) else Status.DIVERGED
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return self.finish(status)

    def one_step(self, callback: Any) -> Status | None:
        """One outer step; returns the status of the solve if it is over."""
        before = self.snapshot()
        info = self.stepper.step(self.closure)
        value, norm_x, norm_y = self.numbers(info.value, info.grad_sq_x, info.grad_sq_y)
        self.history.calls.append(self.stepper.counters.total_calls)
        self.history.value.append(self.plain(value))
        self.history.grad_norm_x.append(self.plain(norm_x))
        self.history.grad_norm_y.append(self.plain(norm_y))
        self.history.inner_steps.append(info.inner_steps)
        if len(self.history.calls) == 1 and not bool((torch.minimum(norm_x, norm_y) > 0.0).all()):
            ignored = self.ignored_player()
            if ignored is not None:
                return ignored
        after = self.snapshot()
        middle = before[: len(self.x.leaves)] + after[len(self.x.leaves) :]
        point = {"start": before, "middle": middle, "end": after}[self.stepper.measured_at]
        self.keep_if_better(point, _larger_norm(value, norm_x, norm_y))
        if callback is not None and callback(info):
            return Status.INTERRUPTED
        if self.stochastic:
            return None
        if self.is_solved():
            return Status.CONVERGED
        if self.stepper.counters.outer_steps % _LOOK_EVERY == 0:
            far = self.reach() > _FAR * self.start_size
            if bool(far.any()) and (status := self.fail(far, Status.DIVERGED)):
                return status
        for row, reason in self.stepper.ended.items():
            of_row = torch.arange(len(self.failed), device=self.device) == row
            if not self.failed[row] and (status := self.fail(of_row, _STATUS_OF[reason.kind])):
                return status
        stalled = self.since_best > _PATIENCE
        return self.fail(stalled, Status.STALLED) if bool(stalled.any()) else None

    def closure(self) -> Tensor:
        """The objective at the current point, with the requested noise in its gradients."""
        tensors.drop_cached_casts()
        value = self.fun(self.x.for_fun(), self.y.for_fun())
        if self.noise_std == 0.0 or not torch.is_grad_enabled():
            return value
        for leaf in self.leaves:
            xi = torch.empty_like(leaf, requires_grad=False).normal_(generator=self.generator)
            product = self.noise_std * xi * (leaf - leaf.detach())
            value = value + (tensors.row_sums(product) if self.rowwise else product.sum())
        return value

    # Rows.

    def rows(self, number: Scalar) -> Tensor:
        """A number as a tensor with one entry per row."""
        return torch.as_tensor(number, dtype=torch.float64, device=self.device).reshape(-1)

    def numbers(
        self, value: Tensor, grad_sq_x: Scalar, grad_sq_y: Scalar
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value and both norms of every row."""
        norm_x, norm_y = (self.rows(sq).clamp_min(0.0).sqrt() for sq in (grad_sq_x, grad_sq_y))
        return self.rows(value.detach()), norm_x, norm_y

    def plain(self, numbers: Tensor) -> Any:
        """An array with one entry per row, or a float."""
        return numbers.cpu().numpy() if self.rowwise else numbers.item()

    def snapshot(self) -> list[Tensor]:
        """A copy of both players."""
        return [leaf.detach().clone() for leaf in self.leaves]

    @torch.no_grad()
    def go_to(self, point: list[Tensor]) -> None:
        """Move both players to a point."""
        tensors.copy_(self.leaves, point)

    @torch.no_grad()
    def copy_rows(self, target: list[Tensor], source: list[Tensor], rows: Tensor) -> None:
        """Copy some rows of both players."""
        tensors.blend_(target, source, rows if self.rowwise else bool(rows))

    def norm(self, point: list[Tensor]) -> Tensor:
        """One plus the norm of a point."""
        return 1.0 + self.rows(tensors.squared_norm(point, self.rowwise)).sqrt()

    def reach(self) -> Tensor:
        """How far out the players are, counted only along unbounded directions of their sets."""
        point = [leaf.detach() for leaf in self.leaves]
        for home, members in self.joint_sets:
            start = [self.start[i] for i in members]
            step = [point[i] - self.start[i] for i in members]
            for i, part in zip(members, unbounded_part(home, start, step), strict=True):
                point[i] = self.start[i] + part
        return self.norm(point)

    def is_near(self) -> Tensor:
        """Whether the players are so close to the start that a failure is not due to divergence."""
        return self.reach() <= _OUT * self.start_size

    def is_settled(self) -> Tensor:
        """Which rows are solved or have failed."""
        return (self.best_norm <= self.tol) | self.failed

    def is_done(self) -> bool:
        """Whether every row is solved or has failed."""
        return bool(self.is_settled().all())

    def keep_if_better(self, point: list[Tensor], norm: Tensor) -> None:
        """Keep the point of each row with the smallest larger norm; freeze the rows it solves."""
        settled = self.is_settled()
        better = (norm < self.best_norm) & ~settled
        self.copy_rows(self.best, point, better)
        self.best_norm = torch.where(better, norm, self.best_norm)
        self.since_best = torch.where(better | settled, 0, self.since_best + 1)
        if self.rowwise:
            self.stepper.freeze(self.is_settled())

    def is_solved(self) -> bool:
        """Whether all rows are settled, and none of the points can be left for a better one."""
        return self.is_done() and self.is_confirmed() and not self.leaves_saddles()

    def is_confirmed(self) -> bool:
        """Whether a new evaluation confirms that the best points are solutions.

        A rule that counts steps ends the inner loop at a y whose mapping has not been evaluated.
        """
        here = self.snapshot()
        self.go_to(self.best)
        self.measured = self.measure()
        self.go_to(here)
        norm = _larger_norm(*self.measured)
        confirmed = (norm <= self.tol) | self.failed
        self.best_norm = torch.where(confirmed, self.best_norm, norm)
        return bool(confirmed.all())

    def leaves_saddles(self) -> bool:
        """Whether the best points of some rows are saddles of the maximum over y, to be left."""
        if not isinstance(self.stepper, Newton):
            return False
        here = self.snapshot()
        self.go_to(self.best)
        self.verdict = self.judge()
        self.go_to(here)
        saddles = torch.from_numpy(self.verdict.is_saddle).to(self.device) & ~self.failed
        if not bool(saddles.any()):
            return False
        saddles = torch.from_numpy(self.stepper.escape(saddles.cpu().numpy())).to(self.device)
        self.best_norm = torch.where(saddles, math.inf, self.best_norm)
        if self.rowwise:
            self.stepper.freeze(self.is_settled())
        return bool(saddles.any())

    def judge(self) -> Verdict:
        """The second-order conditions where the players are."""
        groups = self.stepper.groups
        with self.without_noise():
            return judge(self.closure, groups("x"), groups("y"), len(self.failed))

    @contextmanager
    def without_noise(self) -> Iterator[None]:
        """Evaluate f without added noise."""
        std, self.noise_std = self.noise_std, 0.0
        try:
            yield
        finally:
            self.noise_std = std

    def measure(self) -> tuple[Tensor, Tensor, Tensor]:
        """The value and both norms here by a new evaluation, without added noise."""
        try:
            with self.without_noise():
                at_x, at_y = self.stepper.evaluate(self.closure, within_budget=False)
        except FloatingPointError:
            nan = torch.full_like(self.best_norm, math.nan)
            return nan, nan, nan
        return self.numbers(at_x.value, at_x.mapping_sq, at_y.mapping_sq)

    # Failures.

    def fail(self, rows: Tensor, status: Status) -> Status | None:
        """End some rows with a status; returns the status of the solve if no row is left."""
        near = self.is_near()
        if not self.rowwise:
            if status is Status.STALLED:
                self.evidence = f"no better point in {_PATIENCE} steps"
            return status if bool(near) else Status.DIVERGED
        rows = rows & ~self.is_settled()
        for i in rows.nonzero().flatten().tolist():
            self.ended[i] = status if near[i] else Status.DIVERGED
        self.failed = self.failed | rows
        self.copy_rows(self.leaves, self.best, rows)
        self.stepper.freeze(self.is_settled())
        return Status.CONVERGED if self.is_solved() else None

    def rows_not_finite(self, error: FloatingPointError) -> Tensor:
        """The rows whose last gradients, or values here, are NaN or Inf; all if none is."""
        if isinstance(error, NonFiniteGradient) and error.rows is not None:
            return error.rows
        bad = torch.zeros_like(self.failed)
        if self.rowwise:
            for tensor in [*self.leaves, *(leaf.grad for leaf in self.leaves)]:
                if tensor is not None:
                    finite = tensor.detach().reshape(len(bad), -1).square().sum(1).isfinite()
                    bad |= ~finite & ~self.failed
            if not bool(bad.any()):
                self.stepper.counters.calls_value += 1
                with torch.no_grad():
                    bad = ~self.closure().isfinite() & ~self.failed
        return bad if bool(bad.any()) else torch.ones_like(bad)

    def ignored_player(self) -> Status | None:
        """Which player f does not depend on, if any; checked when the first gradient is zero."""
        value = self.closure()
        self.stepper.counters.calls_x += 1
        self.stepper.counters.calls_y += 1
        for form, status in ((self.x, Status.IGNORES_X), (self.y, Status.IGNORES_Y)):
            grads = torch.autograd.grad(
                value.sum(), form.leaves, retain_graph=True, allow_unused=True
            )
            if all(gradient is None for gradient in grads):
                return status
        return None

    def show_progress(self) -> None:
        """One line on the terminal."""
        h = self.history
        if h.calls:
            norm_x, norm_y = np.max(h.grad_norm_x[-1]), np.max(h.grad_norm_y[-1])
            sys.stderr.write(
                f"\r{h.calls[-1]} calls, |grad x| {norm_x:.2e}, |grad y| {norm_y:.2e}  "
            )

    # The end.

    def finish(self, status: Status) -> MinimaxResult:
        """Move to the point that is returned, evaluate it, and determine the status of each row."""
        if not self.stochastic:
            self.go_to(self.best)
        if status is not Status.CONVERGED:
            self.measured = self.measure()
        value, norm_x, norm_y = self.measured
        norm = _larger_norm(value, norm_x, norm_y)
        small = norm <= self.tol
        found, wrong, gap = self.verdict, torch.zeros_like(small), None
        is_judged = status is Status.CONVERGED and isinstance(self.stepper, Newton)
        if bool(small.any()) and not is_judged:
            found = self.judge()
        if not self.stochastic and (bool(small.any()) or status is Status.STALLED):
            wrong, gap = self.check_derivatives()
        no_maximum = torch.from_numpy(found.is_no_maximum).to(self.device)
        flags = torch.stack(
            [value.isfinite(), small, self.is_at_precision(norm), no_maximum, wrong], 1
        )
        statuses = [
            _final_status(ended or status, *row)
            for ended, row in zip(self.ended, flags.tolist(), strict=True)
        ]
        success = [
            status is Status.CONVERGED
            or (status is Status.INTERRUPTED and is_small and not (upwards or contradicts))
            for status, (_, is_small, _, upwards, contradicts) in zip(
                statuses, flags.tolist(), strict=True
            )
        ]
        if bool(wrong.any()):
            self.evidence = "the derivatives of f contradict its values: look for detach or no_grad"
        elif status is Status.STALLED and isinstance(self.stepper, Newton):
            self.evidence += "; f has a kink here, or rounding hides the decrease"
        words = {ended: ended.value + self.advice(ended) for ended in set(statuses)}
        messages = [
            words[ended] + found.sentence(row, distance)
            if ended is Status.CONVERGED
            else words[ended]
            for row, (ended, distance) in enumerate(zip(statuses, norm_x.tolist(), strict=True))
        ]
        kinds, curvature_x, curvature_y, condition = (
            part if self.rowwise else part[0].item()
            for part in (
                np.where(wrong.cpu(), "unknown", found.kind),
                found.curvature_x,
                found.curvature_y,
                found.condition,
            )
        )
        counters = self.stepper.counters
        return MinimaxResult(
            self.x.give_back(self.x.leaves),
            self.y.give_back(self.y.leaves),
            self.plain(value),
            np.array(success) if self.rowwise else success[0],
            np.array(statuses, dtype=object) if self.rowwise else statuses[0],
            messages if self.rowwise else messages[0],
            self.plain(norm_x),
            self.plain(norm_y),
            counters.calls_x,
            counters.calls_y,
            counters.calls_value,
            counters.calls_hvp,
            counters.outer_steps,
            counters.inner_steps,
            self.history,
            self.tol,
            kinds,
            curvature_x,
            curvature_y,
            condition,
            gap,
        )

    def check_derivatives(self) -> tuple[Tensor, float | None]:
        """Whether values contradict the derivatives here, and the duality gap on bounded sets."""
        groups = (self.stepper.groups("x"), self.stepper.groups("y"))
        num_rows = len(self.failed)
        sides = [Side(params, home, num_rows) for player in groups for params, home in player]
        slopes = [
            side.read([torch.zeros_like(p) if p.grad is None else p.grad for p in side.params])
            for side in sides
        ]
        signs = [-1.0] * len(groups[0]) + [1.0] * len(groups[1])
        wrong = derivatives_are_wrong(self.closure, sides, slopes, signs)
        gap = None
        if not self.rowwise:
            gap = duality_gap(sides, [sign * g for sign, g in zip(signs, slopes, strict=True)])
        return torch.from_numpy(wrong).to(self.device), gap

    def is_at_precision(self, norm: Tensor) -> Tensor:
        """Whether the norms, but not the tolerance, are at the limit of the precision here."""
        eps = torch.finfo(self.leaves[0].dtype).eps
        floor = 10.0 * eps * self.norm([leaf.detach() for leaf in self.leaves])
        return (floor > self.tol) & (norm <= _NEAR * floor) & self.is_near()

    def advice(self, status: Status) -> str:
        """What may help with this method, in addition to the advice of the status."""
        words = ""
        if self.evidence and status in (Status.STALLED, Status.DIVERGED):
            words = f" (seen: {self.evidence})"
        if status is Status.TOLERANCE and self.leaves[0].dtype != torch.float64:
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


def _larger_norm(value: Tensor, norm_x: Tensor, norm_y: Tensor) -> Tensor:
    """The larger norm of every row; infinite where f is NaN or Inf."""
    return torch.where(value.isfinite(), torch.maximum(norm_x, norm_y), math.inf)


def _final_status(
    ended: Status, finite: bool, small: bool, at_precision: bool, no_maximum: bool, wrong: bool
) -> Status:
    """The status of one row, from how it ended and what its point looks like."""
    if ended in _DOUBTS and not finite:
        return Status.NON_FINITE
    if ended in _DOUBTS and small:
        ended = Status.CONVERGED
    if ended is Status.CONVERGED and wrong:
        return Status.STALLED
    if ended is Status.CONVERGED and no_maximum:
        return Status.NOT_A_MAXIMUM
    if ended in (Status.BUDGET, Status.STALLED, Status.DIVERGED) and at_precision:
        return Status.TOLERANCE
    return ended


def _joint_sets(
    leaves: list[Tensor], homes: list[tuple[Tensor, Set | None]]
) -> list[tuple[Set, list[int]]]:
    """The sets, each with the positions of its tensors among the leaves."""
    places = {id(leaf): i for i, leaf in enumerate(leaves)}
    joint: dict[int, tuple[Set, list[int]]] = {}
    for tensor, home in homes:
        if home is not None and id(tensor) in places:
            joint.setdefault(id(home), (home, []))[1].append(places[id(tensor)])
    return list(joint.values())
