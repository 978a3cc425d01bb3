"""Minimize under constraints: `minimize`, and the `Lagrangian` for one's own loop."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neada import tensors
from neada.checks import check_number
from neada.sets import NonNegative, Product, Set, WholeSpace
from neada.solve.minimax import check_arguments, minimax
from neada.solve.points import Sets, common_kind, read_form, read_set
from neada.solve.result import KKT, History, MinimaxResult, MinimizeResult, Multipliers, Status
from neada.steppers import StepInfo

__all__ = ["Lagrangian", "minimize"]

# Proximal weights of y, one after the other if a solve fails: 1 / weight is the penalty of the
# method of multipliers, which has to be large enough where the problem is not convex.
_WEIGHTS = (0.1, 0.01, 1.0, 1e-3)
_STEEP = 10.0  # functions with larger gradients at the start are scaled
_LOW = 1e10  # the objective has no bound when it is this many times below its start
_STRIDES = 14  # each ten times as long as the one before, to see whether that is so
_WORDS = {
    Status.CONVERGED: "the KKT conditions hold within the tolerance",
    Status.STALLED: (
        "no progress any more above the tolerance: the functions may not be smooth, or the "
        "gradients of the constraints dependent; scale the constraints, or start elsewhere"
    ),
    Status.DIVERGED: (
        "the iterates run away: bound x with x_set, or scale the constraints so that their values "
        "are as large as the objective's"
    ),
}


class _Problem:
    """The user's functions, looked at once so that messages call them by name."""

    def __init__(
        self, objective: Any, inequality: Any, equality: Any, x0: Any, x_set: Sets
    ) -> None:
        given = {"inequality": inequality, "equality": equality}
        self.objective = objective
        self.constraints = {name: c for name, c in given.items() if c is not None}
        for name, function in {"objective": objective, **self.constraints}.items():
            if not callable(function):
                raise TypeError(f"{name} must be a function of x, not {type(function).__name__}")
        self.kind = common_kind(x0=x0)
        self.form = read_form(x0, "x0", self.kind)
        self.x_set = read_set(x_set, x0, self.form, "x")
        if self.x_set is not None:
            with torch.no_grad():
                self.x_set.project_(self.form.leaves)
        self.x0 = self.form.give_back(self.form.leaves)
        self.start = tensors.clone(self.form.leaves)
        x = self.form.for_fun()
        value = _checked("objective", objective(x), needs_x=not self.constraints)
        if value.numel() != 1:
            raise ValueError(
                f"objective(x) must return one number, but its value has shape "
                f"{tuple(value.shape)}: take the mean or the sum"
            )
        self.low = -_LOW * (1.0 + abs(value.item()))
        values = {name: _checked(name, c(x)) for name, c in self.constraints.items()}
        self.y0 = {name: torch.zeros_like(value).tolist() for name, value in values.items()}
        # Both are divided by how steep they are at the start, where they are steep.
        steep = [self._slope(c) / math.sqrt(c.numel()) for c in values.values()]
        self.unit = max(1.0, self._slope(value) / _STEEP)
        self.constraint_unit = max(1.0, max(steep, default=0.0) / _STEEP)

    def _slope(self, values: Tensor) -> float:
        """The norm of the gradient of a sum."""
        if not values.requires_grad:
            return 0.0
        gradients = torch.autograd.grad(
            values.sum(), self.form.leaves, allow_unused=True, materialize_grads=True
        )
        slope = math.sqrt(float(tensors.squared_norm(list(gradients))))
        return slope if math.isfinite(slope) else 0.0

    def scaled(self, x: Any, y: Any) -> Tensor:
        """The Lagrangian in units of the gradients; y is a dummy if there are no constraints."""
        value: Tensor = self.objective(x) / self.unit
        for name, constraint in self.constraints.items():
            value = value + (y[name] * constraint(x)).sum() / self.constraint_unit
        return value if self.constraints else value - 0.5 * torch.as_tensor(y).square()

    def shortfall(self, x: Any, y: Tensor) -> Tensor:
        """Half the sum of squared violations; y is a dummy."""
        halves = [0.5 * violation.square().sum() for violation in self.violations(x)]
        return torch.stack(halves).sum() - 0.5 * y.square()

    def violations(self, x: Any) -> list[Tensor]:
        """By how much every constraint is missed, without a sign for inequalities."""
        return [
            constraint(x).clamp_min(0.0) if name == "inequality" else constraint(x)
            for name, constraint in self.constraints.items()
        ]

    @torch.no_grad()
    def violation(self, x: Any) -> float:
        """The largest violation of a single constraint."""
        return max((float(v.abs().max()) for v in self.violations(x)), default=0.0)

    def judge(self, x: Any, y: Any) -> tuple[float, KKT]:
        """The objective and the residuals of the KKT conditions, of a point as the user has it."""
        form = read_form(x, "x", self.kind)
        point = form.for_fun()
        multipliers = self.multipliers(y)
        total = self.objective(point)
        for name, constraint in self.constraints.items():
            total = total + (multipliers[name] * constraint(point)).sum()
        gradients = list(
            torch.autograd.grad(total, form.leaves, allow_unused=True, materialize_grads=True)
        )
        if self.x_set is not None:
            gradients = self.x_set.gradient_mapping(form.leaves, [-g for g in gradients])
        with torch.no_grad():
            products = [
                float((multipliers[name] * constraint(point)).abs().max())
                for name, constraint in self.constraints.items()
                if name == "inequality"
            ]
            value = self.objective(point).item()
            stationarity = math.sqrt(float(tensors.squared_norm(gradients)))
            return value, KKT(stationarity, self.violation(point), max(products, default=0.0))

    def multipliers(self, y: Any) -> dict[str, Tensor]:
        """The multipliers by the kind of constraint, in the user's units."""
        dtype, device = self.kind
        factor = self.unit / self.constraint_unit
        return {
            name: factor * torch.tensor(y[name], dtype=dtype, device=device)
            for name in self.constraints
        }


def _checked(name: str, value: object, needs_x: bool = True) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name}(x) must return a tensor, not {type(value).__name__}: compute it with torch "
            "from x"
        )
    if value.numel() == 0:
        raise ValueError(f"{name}(x) is empty: return at least one number, or leave {name} out")
    if needs_x and not value.requires_grad:
        raise ValueError(
            f"{name}(x) does not depend on x: compute it with torch from x, without detach, item "
            "or numpy"
        )
    return value


class _Search:
    """Solves of the Lagrangian until one satisfies the KKT conditions, or it is known why not."""

    def __init__(
        self, problem: _Problem, tol: float, max_calls: int, callback: Any, progress: bool
    ) -> None:
        self.problem = problem
        self.tol = tol
        self.max_calls = max_calls
        self.callback = callback
        self.progress = progress
        self.calls = 0
        self.history = History()
        self.best: tuple[float, Any, Any, float, KKT] | None = None
        self.present: Any = None  # the players' x, as the objective gets it
        self.earlier = self.mark = self.last = problem.start  # on the way of x
        self.num_looks = 0
        self.fell = False

    def run(self) -> MinimizeResult:
        """Try one proximal weight after the other."""
        start = self.problem.x0
        weights = _WEIGHTS if self.problem.constraints else (0.0,)
        for i, weight in enumerate(weights):
            status = self.attempt(start, weight)
            if status in (Status.CONVERGED, Status.BUDGET, Status.INTERRUPTED):
                break
            if self.is_unbounded():
                status = Status.UNBOUNDED
                break
            if i == 0 and self.problem.constraints:
                feasible = self.feasible_point()
                if feasible is None:
                    status = Status.INFEASIBLE
                    break
                start = feasible
        return self.finish(status)

    def attempt(self, x: Any, weight: float) -> Status:
        """Solve from a point, more accurately if the multipliers are large."""
        problem = self.problem
        tol = self.tol / max(problem.unit, problem.constraint_unit)
        y: Any = problem.y0 if problem.constraints else 0.0
        y_set = {"inequality": NonNegative(), "equality": None}
        while True:
            result = self.solve(
                *(problem.scaled, x, y, tol),
                y_set={name: y_set[name] for name in y} if problem.constraints else None,
                weight=weight,
            )
            x, y = result.x, result.y
            value, kkt = problem.judge(x, y)
            residual = max(kkt) if all(map(math.isfinite, kkt)) else math.inf
            if self.best is None or residual < self.best[0]:
                self.best = (residual, x, y, value, kkt)
            if residual <= self.tol:
                return Status.CONVERGED
            if self.calls >= self.max_calls:
                return Status.BUDGET
            if result.status is Status.INTERRUPTED and self.fell:
                return Status.DIVERGED
            if result.status is not Status.CONVERGED:
                return Status(result.status)
            tol *= 0.5 * min(1.0, self.tol / residual)

    def solve(
        self, fun: Any, x: Any, y: Any, tol: float, *, y_set: Any = None, weight: float = 0.0
    ) -> MinimaxResult:
        """One call of `minimax` within the budget, counted and recorded."""

        def remembering(x: Any, y: Any) -> Tensor:
            self.present = x
            value: Tensor = fun(x, y)
            return value

        of_lagrangian = fun == self.problem.scaled
        result = minimax(
            *(remembering, x, y),
            x_set=self.problem.x_set,
            y_set=y_set,
            tol=tol,
            max_calls=max(self.max_calls - self.calls, 1),
            callback=self.look if of_lagrangian else None,
            progress=self.progress,
            options={"prox": weight},
        )
        for name, column in vars(result.history).items() if of_lagrangian else ():
            before = self.calls if name == "calls" else 0
            getattr(self.history, name).extend(entry + before for entry in column)
        self.calls += result.total_calls
        return result

    def look(self, info: StepInfo) -> bool:
        """After a step: where x is, and whether the objective has fallen out of sight."""
        self.last = read_form(self.present, "x", self.problem.kind).leaves
        self.num_looks += 1
        if self.num_looks.bit_count() == 1:
            self.earlier, self.mark = self.mark, self.last
        with torch.no_grad():
            self.fell = float(self.problem.objective(self.present)) < self.problem.low
        return self.fell or bool(self.callback is not None and self.callback(info))

    def feasible_point(self) -> Any:
        """A point that satisfies the constraints, or may; None if there is none around."""
        assert self.best is not None
        for start in (self.problem.x0, self.best[1]):
            result = self.solve(self.problem.shortfall, start, 0.0, 0.1 * self.tol)
            point = read_form(result.x, "x", self.problem.kind).for_fun()
            violation = self.problem.violation(point)
            if not (result.success and violation > 1e3 * max(self.tol, result.grad_norm_x)):
                return result.x
        return None

    def is_unbounded(self) -> bool:
        """Whether the objective falls without end: ever longer strides, back to the constraints."""
        problem, eps = self.problem, torch.finfo(self.problem.kind.dtype).eps
        here, place = self.earlier, self.last
        for _ in range(_STRIDES):
            step = [10.0 * (new - old) for new, old in zip(place, here, strict=True)]
            here = place
            place = [(old + s).detach() for old, s in zip(here, step, strict=True)]
            if problem.x_set is not None:
                place = problem.x_set.project(place)
            if not all(bool(leaf.isfinite().all()) for leaf in place):
                return False
            with torch.no_grad():
                tensors.copy_(problem.form.leaves, place)
            slack = self.tol + 100.0 * eps * math.sqrt(float(tensors.squared_norm(place)))
            if problem.violation(problem.form.for_fun()) > slack:
                start = problem.form.give_back(problem.form.leaves)
                x = self.solve(problem.shortfall, start, 0.0, 0.1 * self.tol).x
                place = read_form(x, "x", problem.kind).leaves
                with torch.no_grad():
                    tensors.copy_(problem.form.leaves, place)
            point = problem.form.for_fun()
            if not problem.violation(point) <= slack:
                return False
            with torch.no_grad():
                if float(problem.objective(point)) < problem.low:
                    return True
        return False

    def finish(self, status: Status) -> MinimizeResult:
        """The best point, with its multipliers."""
        assert self.best is not None
        _, x, y, value, kkt = self.best
        multipliers = self.problem.multipliers(y)
        return MinimizeResult(
            x,
            value,
            status is Status.CONVERGED,
            status,
            _WORDS.get(status, status.value),
            Multipliers(multipliers.get("inequality"), multipliers.get("equality")),
            kkt.violation,
            kkt,
            self.calls,
            self.history,
            self.tol,
        )


def minimize(
    objective: Callable[[Any], Tensor],
    x0: Any,
    *,
    inequality: Callable[[Any], Tensor] | None = None,
    equality: Callable[[Any], Tensor] | None = None,
    x_set: Sets = None,
    tol: float = 1e-6,
    max_calls: int = 100_000,
    callback: Callable[[StepInfo], bool | None] | None = None,
    progress: bool = False,
) -> MinimizeResult:
    r"""Minimize a smooth function under constraints, by `minimax` on its Lagrangian.

    .. math::
        \min_{x \in X} f(x) \ \text{ with } g(x) \le 0,\ h(x) = 0, \qquad
        L(x, y) = f(x) + y_g \cdot g(x) + y_h \cdot h(x), \quad y_g \ge 0

    y is held by a proximal term, which is the method of multipliers. The answer is a local one:
    a point that satisfies the KKT conditions.

    Args:
        objective: f(x) of tensors in the form of `x0`; returns one number.
        x0: Where x starts, in any form that `minimax` takes.
        inequality: g(x), a tensor of any shape, whose entries shall not be positive.
        equality: h(x), a tensor of any shape, whose entries shall be zero.
        x_set: Where x lives; every point that is tried is in it.
        tol: Stationarity, violation and complementarity must each be at most this.
        max_calls: Gradients that may be evaluated; the check of the answer comes on top.
        callback: Called with every `StepInfo`; returning True ends the solve.
        progress: Show a line of progress on a terminal.

    Returns:
        A `MinimizeResult`. Numerical trouble, constraints that cannot be met and an objective
        without a minimum are statuses on it, not exceptions.

    Raises:
        ValueError, TypeError: The arguments make no sense, or a function does not return a
            differentiable tensor.

    Example:
        >>> result = minimize(lambda x: x @ x, [3.0, 0.0], equality=lambda x: x.sum() - 1)
        >>> result.success, [round(entry, 4) for entry in result.x]
        (True, [0.5, 0.5])
    """
    check_arguments(tol, max_calls, None, None, callback)
    problem = _Problem(objective, inequality, equality, x0, x_set)
    return _Search(problem, tol, max_calls, callback, progress).run()


class Lagrangian(nn.Module):
    r"""The Lagrangian of a loss, with the multipliers as parameters that are maximized over.

    .. math::
        L = \text{loss} + y_g \cdot g + y_h \cdot h, \qquad y_g \ge 0

    The multipliers are the parameters `inequality` and `equality`; `state_dict` has them.

    Args:
        inequality: How many constraints :math:`g \le 0` there are.
        equality: How many constraints :math:`h = 0`.
        dtype: Of the multipliers.
        device: Where they are.

    Raises:
        ValueError: A number is negative, or both are zero.

    Example:
        >>> from neada import NeAda, optim
        >>> weight = torch.zeros(2, requires_grad=True)
        >>> lagrangian = Lagrangian(inequality=1)
        >>> y_optimizer = optim.AdGD(lagrangian.groups(), maximize=True)
        >>> stepper = NeAda(optim.GeneralizedAdaGrad([weight]), y_optimizer)
        >>> loss = (weight - 1).square().sum()
        >>> lagrangian(loss, inequality=weight.sum() - 1).item()
        2.0
    """

    inequality: nn.Parameter | None
    equality: nn.Parameter | None

    def __init__(
        self,
        inequality: int = 0,
        equality: int = 0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        numbers = {"inequality": inequality, "equality": equality}
        for name, number in numbers.items():
            check_number(name, number, strict=False, whole=True)
        if not inequality + equality:
            raise ValueError("a Lagrangian needs at least one constraint: say how many there are")
        for name, number in numbers.items():
            zeros = torch.zeros(number, dtype=dtype, device=device)
            self.register_parameter(name, nn.Parameter(zeros) if number else None)

    @property
    def y_set(self) -> Product:
        """Where the multipliers live, for steppers that take `parameters()` and a set."""
        return Product([group["constraint"] or WholeSpace() for group in self.groups()])

    def groups(self) -> list[dict[str, Any]]:
        """The multipliers as parameter groups with their sets, for the optimizer of y."""
        homes: dict[str, Set | None] = {"inequality": NonNegative(), "equality": None}
        return [{"params": [p], "constraint": homes[name]} for name, p in self.named_parameters()]

    def forward(
        self, loss: Tensor, inequality: Tensor | None = None, equality: Tensor | None = None
    ) -> Tensor:
        """The loss plus multipliers times the values of the constraints.

        Args:
            loss: One number, with its graph.
            inequality: The values of g, as many as there are multipliers.
            equality: The values of h.

        Raises:
            ValueError: The values are not as many as the multipliers.
        """
        for name, values in (("inequality", inequality), ("equality", equality)):
            multipliers = getattr(self, name)
            expected = 0 if multipliers is None else multipliers.numel()
            given = 0 if values is None else values.numel()
            if given != expected:
                raise ValueError(
                    f"this Lagrangian has {expected} multipliers for {name}, but {given} values "
                    "were given"
                )
            if values is not None:
                loss = loss + (multipliers * values.reshape(-1)).sum()
        return loss
