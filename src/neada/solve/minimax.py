"""`minimax(f, x0, y0)`: a function in, a verified answer out."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from neada import tensors
from neada.checks import check_number
from neada.inner import BudgetExhausted, NoProgress
from neada.scalars import Scalar, all_true, maximum, minimum, sqrt
from neada.solve.methods import Players, make_stepper
from neada.solve.points import Form, Sets, check_rows, common_kind, read_form, read_set
from neada.solve.result import History, MinimaxResult, Status, plain, worst
from neada.steppers import StepInfo, Stepper

__all__ = ["Solve", "check_arguments", "checked", "curves_upwards", "minimax"]


def check_arguments(
    tol: float,
    max_calls: int,
    noise: Any,
    seed: int | None = None,
    callback: Any = None,
) -> None:
    """Raise ValueError or TypeError unless the plain arguments make sense."""
    check_number("tol", tol)
    check_number("max_calls", max_calls, above=1, strict=False, whole=True)
    if isinstance(noise, str) and noise != "own":
        raise ValueError(f'noise must be None, a number or "own", got {noise!r}')
    if noise is not None and not isinstance(noise, str):
        check_number("noise", noise, strict=False)
    if seed is not None:
        check_number("seed", seed, strict=False, whole=True)
        check_number("seed", seed, strict=False, below=2**64, whole=True)  # torch's limit
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of StepInfo, not {type(callback).__name__}")


def checked(fun: Callable[[Any, Any], Tensor], num_rows: int | None) -> Callable[..., Tensor]:
    """The objective, whose values are looked at so that messages speak of fun(x, y).

    Args:
        fun: What the user gave.
        num_rows: How many values it must return; None for one number.

    Raises:
        TypeError: It is no function.
    """
    if not callable(fun):
        raise TypeError(f"fun must be a function of x and y, not {type(fun).__name__}")

    def value_of(x: Any, y: Any) -> Tensor:
        value = fun(x, y)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"fun(x, y) must return its value as a tensor, not {type(value).__name__}: "
                "compute it with torch from x and y"
            )
        if value.is_complex():
            raise TypeError("fun(x, y) must return a real number, not a complex one")
        if num_rows is None and value.numel() != 1:
            raise ValueError(
                f"fun(x, y) must return one number, but its value has shape "
                f"{tuple(value.shape)}: take the mean or the sum, or use rowwise=True"
            )
        if num_rows is not None and value.shape != (num_rows,):
            raise ValueError(
                f"with rowwise=True fun(x, y) must return one number per row, shape "
                f"({num_rows},), but its value has shape {tuple(value.shape)}"
            )
        if not value.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "fun(x, y) depends on neither player: compute it with torch from x and y, without "
                "detach, item or numpy"
            )
        return value

    return value_of


_ITERATIONS = 12


def curves_upwards(value: Tensor, params: list[Tensor]) -> bool:
    """Whether a function curves upwards along some direction.

    Power iterations with exact Hessian-vector products, shifted so that they look for the largest
    eigenvalue, not for the largest in absolute value. A handful finds a clearly positive one; a
    faint one may escape.

    Args:
        value: The function with its graph.
        params: The tensors it is a function of.
    """
    grads = torch.autograd.grad(value, params, create_graph=True, allow_unused=True)
    used = [(g, p) for g, p in zip(grads, params, strict=True) if g is not None and g.requires_grad]
    if not used:
        return False  # linear in y
    gradient, point = [g for g, _ in used], [p for _, p in used]
    generator = torch.Generator().manual_seed(0)
    v = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in point]
    shift = 0.0
    for _ in range(_ITERATIONS):
        tensors.scale_(v, 1.0 / math.sqrt(float(tensors.squared_norm(v))))
        # As the gradient of a sum: torch imports sympy for a gradient of several numbers.
        along = torch.stack([(g * d).sum() for g, d in zip(gradient, v, strict=True)]).sum()
        products = torch.autograd.grad(along, point, retain_graph=True, allow_unused=True)
        image = [
            torch.zeros_like(p) if h is None else h for h, p in zip(products, point, strict=True)
        ]
        curvature = float(tensors.dot(v, image))
        length = math.sqrt(float(tensors.squared_norm(image)))
        if curvature > 1e-6 * length:
            return True
        shift = max(shift, length)
        tensors.add_scaled_(image, v, shift)
        if float(tensors.squared_norm(image)) == 0.0:
            return False
        v = image
    return False


_FAR = 1e12  # the players have run away when they are this many times farther than at the start
_LOOK_EVERY = 10  # outer steps between two looks at how far out the players are
_PATIENCE = 500  # outer steps without a better point before a deterministic solve has stalled


_SEEN = {
    "stalled": Status.STALLED,
    "curves up": Status.NOT_A_MAXIMUM,
    "runs away": Status.DIVERGED,
}


class Solve:
    """A stepper on its way to a stationary point, watched and judged."""

    def __init__(
        self,
        fun: Callable[[Any, Any], Tensor],
        x: Form,
        y: Form,
        stepper: Stepper,
        tol: float,
        noise: Any,
        seed: int | None,
    ) -> None:
        self.fun = fun
        self.x = x
        self.y = y
        self.stepper = stepper
        self.tol = tol
        self.noise_std = float(noise) if isinstance(noise, int | float) else 0.0
        self.stochastic = noise is not None
        self.generator = torch.Generator(x.leaves[0].device).manual_seed(seed or 0)
        self.history = History()
        self.best = (tensors.clone(x.leaves), tensors.clone(y.leaves))
        self.best_norm: Scalar = math.inf
        self.since_best = 0
        self.start_size = self.size()

    def closure(self) -> Tensor:
        """The objective at the present point, with the noise that was asked for."""
        value = self.fun(self.x.for_fun(), self.y.for_fun())
        if self.noise_std == 0.0 or not torch.is_grad_enabled():
            return value
        for leaf in self.x.leaves + self.y.leaves:
            xi = torch.empty_like(leaf, requires_grad=False).normal_(generator=self.generator)
            product = self.noise_std * xi * leaf
            value = value + (tensors.row_sums(product) if self.stepper.rowwise else product.sum())
        return value

    def size(self) -> float:
        """How far out the players are."""
        return 1.0 + math.sqrt(float(tensors.squared_norm(self.x.leaves + self.y.leaves)))

    def run(self, callback: Any, progress: bool) -> MinimaxResult:
        """Step until something says stop; then verify."""
        status = None
        try:
            while status is None:
                status = self.one_step(callback)
                if progress and sys.stderr.isatty():
                    self.show_progress()
        except BudgetExhausted:
            status = Status.BUDGET
        except NoProgress as reason:
            status = _SEEN[reason.kind]
        except FloatingPointError:
            far = not self.size() <= _FAR * self.start_size
            status = Status.DIVERGED if far else Status.NON_FINITE
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return self.finish(status)

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
        self.keep_if_better(point, maximum(norm_x, norm_y))
        if callback is not None and callback(info):
            return Status.INTERRUPTED
        if self.stochastic:
            return None
        if all_true(self.best_norm <= self.tol) and self.is_confirmed():
            return Status.CONVERGED
        if self.stepper.outer_steps % _LOOK_EVERY == 0 and self.size() > _FAR * self.start_size:
            return Status.DIVERGED
        return Status.STALLED if self.since_best > _PATIENCE else None

    def is_confirmed(self) -> bool:
        """Whether a fresh evaluation at the best point agrees that it is a solution.

        A rule that counts steps ends the inner loop at a y whose mapping nobody has seen yet.
        """
        here = (tensors.clone(self.x.leaves), tensors.clone(self.y.leaves))
        self.go_to(self.best)
        _, norm_x, norm_y = self.measured = self.measure()
        self.go_to(here)
        norm = maximum(norm_x, norm_y)
        confirmed = all_true(norm <= self.tol)
        self.best_norm = self.best_norm if confirmed else norm
        return confirmed

    @torch.no_grad()
    def go_to(self, point: tuple[list[Tensor], list[Tensor]]) -> None:
        """Put both players at a point."""
        for form, place in zip((self.x, self.y), point, strict=True):
            tensors.copy_(form.leaves, place)

    def out_of_reach(self) -> bool:
        """Whether the tolerance is below what gradients of this precision can show."""
        precision: float = torch.finfo(self.x.leaves[0].dtype).eps
        return self.tol < 10.0 * precision * self.size()

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
        better = norm < self.best_norm
        if self.stepper.rowwise:
            # A row that has converged rests, so it is not overwritten by a later point.
            settled = self.best_norm <= self.tol
            better = better & ~settled if isinstance(settled, Tensor) else better
        for kept, new in zip(self.best, point, strict=True):
            tensors.blend_(kept, new, better)
        self.best_norm = _smaller(better, norm, self.best_norm)
        if isinstance(better, Tensor):
            self.stepper.rest(torch.as_tensor(self.best_norm <= self.tol))
            self.since_best = 0 if bool(better.any()) else self.since_best + 1
        else:
            self.since_best = 0 if better else self.since_best + 1

    def show_progress(self) -> None:
        """One line on the terminal."""
        h = self.history
        norm_x, norm_y = worst(h.grad_norm_x[-1]), worst(h.grad_norm_y[-1])
        sys.stderr.write(f"\r{h.calls[-1]} calls, |x| {norm_x:.2e}, |y| {norm_y:.2e}  ")

    def finish(self, status: Status) -> MinimaxResult:
        """Go to the point that is returned, measure it afresh, and judge."""
        if not self.stochastic:
            self.go_to(self.best)
        if status is not Status.CONVERGED:
            self.measured = self.measure()
        value, norm_x, norm_y = self.measured
        small = maximum(norm_x, norm_y) <= self.tol
        success = plain(small) if isinstance(small, Tensor) else bool(small)
        if all_true(small) and status is Status.BUDGET:
            status = Status.CONVERGED
        if status in (Status.BUDGET, Status.STALLED) and self.out_of_reach():
            status = Status.TOLERANCE
        if status is Status.CONVERGED and not self.stepper.rowwise and self.y_is_no_maximum():
            status, success = Status.NOT_A_MAXIMUM, False
        if status in (Status.IGNORES_X, Status.IGNORES_Y):
            success = False
        stepper = self.stepper
        return MinimaxResult(
            self.x.give_back(self.x.leaves),
            self.y.give_back(self.y.leaves),
            plain(value),
            success,
            status,
            status.value + self.advice(status),
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
            return math.nan, math.nan, math.nan
        finally:
            self.noise_std = std
        return at_x.value, sqrt(at_x.mapping_sq), sqrt(at_y.mapping_sq)

    def y_is_no_maximum(self) -> bool:
        """Whether f curves upwards in y at the answer, along tensors that are free to move.

        Those are without a set, or inside of theirs: on its border curvature proves nothing.
        """
        players = self.stepper.sets("y")
        inside = all(home is None for _, home in players) or self.y_is_inside()
        free = [tensor for tensor, home in players if home is None or inside]
        return bool(free) and curves_upwards(self.closure(), free)

    def y_is_inside(self) -> bool:
        """Whether small moves of y in a few random directions stay in its sets."""
        homes = {id(home): home for _, home in self.stepper.sets("y") if home is not None}
        generator = torch.Generator().manual_seed(0)
        for home in homes.values():
            point = [t.detach() for t, other in self.stepper.sets("y") if other is home]
            for _ in range(4):
                moved = [
                    p + 1e-6 * (1.0 + p.abs()) * torch.randn(p.shape, generator=generator).to(p)
                    for p in point
                ]
                if any(
                    not torch.equal(m, q) for m, q in zip(moved, home.project(moved), strict=True)
                ):
                    return False
        return True

    def advice(self, status: Status) -> str:
        """What the inner loops have in common, where that explains a failure."""
        steps = self.history.inner_steps
        cap = self.stepper.max_inner_steps
        if status is Status.CONVERGED or cap is None or len(steps) < 10:
            return ""
        if min(steps[len(steps) // 2 :]) >= cap:
            return (
                "; every inner loop ended at its cap: y is hard to maximize, try another y "
                "optimizer or a larger cap"
            )
        return ""


def _smaller(better: Any, norm: Scalar, best: Scalar) -> Scalar:
    if isinstance(better, Tensor):
        return torch.where(better, torch.as_tensor(norm), torch.as_tensor(best))
    return norm if better else best


def minimax(
    fun: Callable[[Any, Any], Tensor],
    x0: Any,
    y0: Any,
    *,
    method: str | Callable[[Players], Stepper] = "neada",
    x_set: Sets = None,
    y_set: Sets = None,
    tol: float = 1e-6,
    max_calls: int = 100_000,
    noise: float | Literal["own"] | None = None,
    seed: int | None = None,
    callback: Callable[[StepInfo], bool | None] | None = None,
    progress: bool = False,
    rowwise: bool = False,
    options: Mapping[str, Any] | None = None,
) -> MinimaxResult:
    r"""Find a stationary point of :math:`\min_x \max_y f(x, y)`, with f concave enough in y.

    Args:
        fun: f(x, y) of tensors in the form of `x0` and `y0`; returns one number, or with `rowwise`
            one number per row.
        x0: Where x starts: a number, an array, a tensor, or lists or dicts of them. Numbers and
            lists take the dtype of the tensors and arrays that are given for either player,
            float64 if there are none.
        y0: Where y starts.
        method: A name (`neada.methods()` lists them), or a function of `neada.Players` that makes
            a stepper.
        x_set: Where x lives: one set, joint over all its tensors, or a list or dict in the form of
            `x0` with a set or None for each.
        y_set: Where y lives.
        tol: Both norms must be at most this: of the x gradient and of y's gradient mapping.
        max_calls: Gradients and values that may be evaluated, inner loops included; the check of
            the answer comes on top.
        noise: None if f is deterministic. A number adds Gaussian noise of that standard deviation
            to every coordinate of every gradient; "own" says that f itself is noisy. With noise
            the budget is used up and the last point returned, and no claim of success is made
            unless the fresh evaluation says so.
        seed: Of the noise.
        callback: Called with every `StepInfo`; returning True ends the solve.
        progress: Show a line of progress on a terminal.
        rowwise: Every row (first dimension) of x0 and y0 is its own problem with its own stop.
        options: Arguments of the method: ``{"lr_x": 0.1}``.

    Returns:
        A `MinimaxResult`. Numerical trouble is a status on it, not an exception.

    Raises:
        ValueError, TypeError: The arguments make no sense, or `fun` does not return a
            differentiable number.

    Example:
        >>> result = minimax(lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, 0.0, 0.0)
        >>> result.success, round(result.x, 4), round(result.y, 4)
        (True, 0.5, 0.5)
    """
    check_arguments(tol, max_calls, noise, seed, callback)
    kind = common_kind(x0=x0, y0=y0)
    x, y = read_form(x0, "x0", kind), read_form(y0, "y0", kind)
    if rowwise:
        check_rows(x, y)
    fun = checked(fun, len(x.leaves[0]) if rowwise else None)
    x_set, y_set = read_set(x_set, x0, x, "x"), read_set(y_set, y0, y, "y")
    with torch.no_grad():
        for form, constraint in ((x, x_set), (y, y_set)):
            if constraint is not None:
                constraint.project_(form.leaves)
    players = Players(x.leaves, y.leaves, x_set, y_set, rowwise, noise is not None, tol)
    stepper = make_stepper(method, players, options)
    stepper.max_calls = max_calls
    if noise is not None and noise != "own":
        noise = float(noise)
    solve = Solve(fun, x, y, stepper, tol, noise, None if seed is None else int(seed))
    return solve.run(callback, progress)
