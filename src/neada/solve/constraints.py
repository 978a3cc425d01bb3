"""The problem of `minimize`: an objective and constraints, each scaled by its own unit."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from neada import tensors
from neada.solve.points import Sets, common_kind, read_form, read_set
from neada.solve.result import KKT

__all__ = ["ConstrainedProblem"]

_STEEP = 10.0  # an objective with a larger gradient at the start is scaled
_SLOPE = 10.0  # the gradient of every constraint at the start, after scaling
_REACH = 2.0  # a constraint whose gradient says that zero is farther away is not scaled by it
_LOW = 1e10  # the objective has no bound when it is this many times below its start


class ConstrainedProblem:
    """The user's functions, evaluated once to check their values, and their units.

    Args:
        objective: f(x).
        inequality: g(x), or None.
        equality: h(x), or None.
        x0: The start, in any form.
        x_set: The constraint set of x.

    Raises:
        TypeError, ValueError: An argument is not a function, or its value is invalid.
    """

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
        self.unit = max(1.0, self._slope(value) / _STEEP)
        self.units: dict[str, Tensor] = {}
        self.scale_constraints()
        self.seen: tuple[Tensor, dict[str, Tensor]] = (value.detach(), values)

    def _slope(self, value: Tensor) -> float:
        """The norm of the gradient of a number here; 0 if it is not finite."""
        if not value.requires_grad:
            return 0.0
        gradients = torch.autograd.grad(
            value, self.form.leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        slope = math.sqrt(float(tensors.squared_norm(list(gradients))))
        return slope if math.isfinite(slope) else 0.0

    def scale_constraints(self) -> None:
        """Give every constraint a unit, by its gradient here; a smaller one than before, if any.

        A gradient that vanishes here says nothing of what the constraint does elsewhere: then its
        value says how large it is.
        """
        far = _REACH * (1.0 + math.sqrt(float(tensors.squared_norm(self.form.leaves))))
        for name, constraint in self.constraints.items():
            values = constraint(self.form.for_fun())
            units = [
                max(self._slope(entry), abs(entry.item()) / far) / _SLOPE
                for entry in values.reshape(-1)
            ]
            found = torch.tensor(
                [unit if 0.0 < unit < math.inf else 1.0 for unit in units],
                dtype=self.kind.dtype,
                device=self.kind.device,
            ).reshape(values.shape)
            self.units[name] = torch.minimum(found, self.units.get(name, found))

    @property
    def smallest_unit(self) -> float:
        """Of the constraints; 1 if there are none."""
        return min((float(units.min()) for units in self.units.values()), default=1.0)

    @property
    def largest_unit(self) -> float:
        """Of the objective and the constraints."""
        return max([self.unit, *(float(units.max()) for units in self.units.values())])

    def scaled(self, x: Any, y: Any) -> Tensor:
        """The Lagrangian in its units; y is a dummy if there are no constraints."""
        objective: Tensor = self.objective(x)
        values = {name: c(x) / self.units[name] for name, c in self.constraints.items()}
        self.seen = (objective.detach(), {name: value.detach() for name, value in values.items()})
        total = objective / self.unit
        for name, value in values.items():
            total = total + (y[name] * value).sum()
        return total if self.constraints else total - 0.5 * torch.as_tensor(y).square()

    def shortfall(self, x: Any, y: Tensor) -> Tensor:
        """Half the sum of squared violations in their units; y is a dummy."""
        halves = [
            0.5 * (missed / self.units[name]).square().sum() for name, missed in self.missed(x)
        ]
        return torch.stack(halves).sum() - 0.5 * y.square()

    def missed(self, x: Any) -> Iterator[tuple[str, Tensor]]:
        """By how much every constraint is missed, without a sign for inequalities."""
        for name, constraint in self.constraints.items():
            values = constraint(x)
            yield name, values.clamp_min(0.0) if name == "inequality" else values

    @torch.no_grad()
    def violation(self, x: Any) -> float:
        """The largest violation of a single constraint."""
        return max((float(missed.abs().max()) for _, missed in self.missed(x)), default=0.0)

    def judge(self, x: Any, multipliers: dict[str, Tensor]) -> tuple[float, KKT]:
        """The objective and the residuals of the KKT conditions, in the user's own units."""
        form = read_form(x, "x", self.kind)
        point = form.for_fun()
        objective = self.objective(point)
        products = {n: multipliers[n] * c(point) for n, c in self.constraints.items()}
        total = torch.stack([objective.reshape(()), *(p.sum() for p in products.values())]).sum()
        gradients = list(
            torch.autograd.grad(total, form.leaves, allow_unused=True, materialize_grads=True)
        )
        if self.x_set is not None:
            gradients = self.x_set.gradient_mapping(form.leaves, [-g for g in gradients])
        complementarity = (
            float(products["inequality"].detach().abs().max()) if "inequality" in products else 0.0
        )
        stationarity = math.sqrt(float(tensors.squared_norm(gradients)))
        return objective.item(), KKT(stationarity, self.violation(point), complementarity)

    def multipliers(self, y: Any) -> dict[str, Tensor]:
        """The multipliers by the kind of constraint, in the user's units."""
        dtype, device = self.kind
        return {
            name: self.unit * torch.as_tensor(y[name], dtype=dtype, device=device).detach() / units
            for name, units in self.units.items()
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
