"""The base class of all optimizers of this package.

A step has four parts, in this order:

1. `_active` collects the parameters that have a gradient, with the sign of a minimization, and
   raises `NonFiniteGradient` before anything has changed.
2. `_numbers` returns the scalars of the method; the first time it projects the start on the set.
3. `_update`, written by the subclass, moves the parameters and updates numbers and vectors.
4. `_average_iterate` adds the new point to the average, if there is one.

Scalars of the whole player (a sum of squares, a step size) are stored in the first parameter group
under "numbers"; with `rowwise` they are float64 tensors with one entry per row. Vectors are stored
in `optimizer.state`. The distinction matters for checkpoints: `load_state_dict` of torch casts the
tensors in `optimizer.state` to the dtype of the parameter, but not those in the groups.

Rows that take no step (`frozen_rows`, or a zero gradient) get a zero gradient, and afterwards
their part of the point and of the state is restored. A method with much state can set `masks_rows`
and leave the rows outside of `Active.moving` unchanged itself.
"""

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from neada import parallel, tensors
from neada.checks import check_choice, check_number, check_origin
from neada.optim.objective import Closure, Objective
from neada.scalars import Flag, Scalar, all_true, any_true, negate, where
from neada.sets import Set

__all__ = ["Active", "Common", "Group", "Keep", "PlayerOptimizer", "check_rate", "check_set"]


Keep = Literal["nothing", "step", "everything"]
Group = dict[str, Any]
# The method without torch's decorator, which imports torch._dynamo when it is first called.
_add_param_group = inspect.unwrap(Optimizer.add_param_group)


class Common(TypedDict, total=False):
    """The keyword arguments of every optimizer."""

    maximize: bool
    constraint: Set | None
    rowwise: bool


class Active(NamedTuple):
    """The tensors that take part in a step, with the gradients of what is minimized."""

    params: list[Tensor]
    grads: list[Tensor]
    spans: list[tuple[Group, slice]]
    """Each group with its slice of the two lists."""
    touched: list[Tensor]
    """These tensors and all others that a joint set may move."""
    norm_sq: Scalar
    """The squared norm of the gradient, per row with `rowwise`; NaN if the method needs none."""
    moving: Flag = True
    """Which rows take a step; only for methods with `masks_rows`."""


class PlayerOptimizer(Optimizer):
    """A torch optimizer for one player of a game, or for plain minimization.

    Args:
        params: Tensors or parameter groups, as for any torch optimizer.
        defaults: The hyper-parameters of the method.
        maximize: Ascend instead of descend.
        constraint: The set of feasible points; joint over the tensors of a group.
        rowwise: Every row (first dimension) of the parameters is a separate problem.
    """

    uses_gradient_norm: ClassVar[bool] = True
    """Whether the method needs `Active.norm_sq`."""
    masks_rows: ClassVar[bool] = False
    """Whether the method itself leaves rows unchanged that are not in `Active.moving`."""
    tries_points: ClassVar[bool] = False
    """Whether a step evaluates the objective at trial points."""
    per_group: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that may differ between groups, besides `constraint`."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that must be positive numbers, or None."""
    step_numbers: ClassVar[tuple[str, ...]] = ()
    """The numbers that `reset(keep="step")` keeps."""
    _frozen_rows: Tensor | None = None

    def __init__(
        self,
        params: ParamsT,
        defaults: Group,
        *,
        maximize: bool = False,
        constraint: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        common = {"maximize": maximize, "constraint": constraint, "rowwise": rowwise}
        super().__init__(params, {**defaults, **common})

    # Methods for subclasses to implement or override.

    @abstractmethod
    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        """Move the parameters by one step and update the numbers."""

    def _check(self, group: Group) -> None:
        """Raise ValueError if a hyper-parameter of the group is invalid, besides `positive`."""

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        """The numbers before the first step."""
        return {}

    def _rests_at_zero_gradient(self) -> bool:
        """Whether a zero gradient leaves the point and the state unchanged."""
        return True

    # Public methods.

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters, which take part from the next step on."""
        _add_param_group(self, param_group)
        self._check_group(self.param_groups[-1])

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Closure | None = None, *, value: Tensor | float | None = None
    ) -> Tensor | float | None:
        """Take one step with the gradients in `.grad`.

        Args:
            closure: Without `value`, torch's usual closure, which evaluates, calls backward and
                returns the loss. With `value`, a closure that only evaluates; methods that try
                several points call it under `no_grad`.
            value: The objective at the current point, if it is known.

        Returns:
            The value at the point where the step started, if it is known.
        """
        values_only = value is not None
        tensors.drop_cached_casts()
        try:
            if closure is not None and not values_only:
                with torch.enable_grad():
                    value = closure()
            active = self._active()
            if active is not None:
                self._move(active, self._objective(active.params, value, closure, values_only))
        finally:
            tensors.drop_cached_casts()
        return value

    @torch.no_grad()
    def reset(self, keep: Keep = "nothing") -> None:
        """Forget the state of the method; the parameters are unchanged.

        Args:
            keep: "nothing" starts anew, "step" keeps only the step size found so far,
                "everything" keeps all but the average, which always restarts.
        """
        check_choice("keep", keep, ("nothing", "step", "everything"))
        numbers = self._saved_numbers()
        if keep == "everything":
            numbers.pop("num_averaged", None)
            for memory in self.state.values():
                memory.pop("average", None)
            return
        if keep == "step" and not self.step_numbers:
            raise ValueError(
                f'{type(self).__name__} has no step size to keep: use keep="nothing" or '
                'keep="everything"'
            )
        kept = self._kept_step(numbers) if keep == "step" else {}
        self.state.clear()
        self.param_groups[0]["numbers"] = kept

    @property
    def keeps_average(self) -> bool:
        """Whether `averaged` is available."""
        return self.param_groups[0].get("average") is not None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the parameters hold the average of the iterates.

        Before the first step the average is the point itself.
        """
        if not self.keeps_average:
            raise RuntimeError(
                f"this {type(self).__name__} keeps no average: construct it with average=1.0 "
                "(weights proportional to the step's number), if it has that option"
            )
        with self._shown("average"):
            yield

    @contextmanager
    def frozen_rows(self, rows: Tensor | None) -> Iterator[None]:
        """Inside the block some rows take no step, as if their gradient were zero.

        Args:
            rows: One flag per row, true for those that take no step; None for none.
        """
        self._frozen_rows = rows
        try:
            yield
        finally:
            self._frozen_rows = None

    def keep_rows(self, rows: Tensor) -> None:
        """Select the per-row state of the given rows; the caller replaces the parameters."""
        for group in self.param_groups:
            if isinstance(group.get("lr"), Tensor):
                group["lr"] = group["lr"][rows]
        numbers = self._saved_numbers()
        for name, number in numbers.items():
            if isinstance(number, Tensor):
                numbers[name] = number[rows]

    def state_dict(self) -> dict[str, Any]:
        """The state, without sets and functions, which are configuration."""
        state = super().state_dict()
        for group in state["param_groups"]:
            for name in [name for name, entry in group.items() if _is_configuration(entry)]:
                del group[name]
            if "numbers" in group:
                group["numbers"] = dict(group["numbers"])
        return {"class": type(self).__name__, **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state; sets and functions stay those of this optimizer."""
        check_origin(self, state_dict)
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, mine in zip(self.param_groups, own, strict=True):
            for name, entry in mine.items():
                if _is_configuration(entry) or name not in group:
                    group[name] = entry
        numbers = self._saved_numbers()
        device = self.param_groups[0]["params"][0].device
        for name, number in numbers.items():
            if isinstance(number, Tensor):
                numbers[name] = number.to(device)

    # Checks of a group.

    def _check_group(self, group: Group) -> None:
        for name, default in self.defaults.items():
            if name in ("constraint", *self.per_group):
                continue
            if group[name] is not default and group[name] != default:
                raise ValueError(
                    f"{name} must have one value for the whole player, not one per group: pass "
                    f"{name}={group[name]!r} to {type(self).__name__} itself"
                )
        tensors.check_player(self._all_params(), rowwise=group["rowwise"])
        if any(parallel.is_shard(param) for param in group["params"]):
            raise TypeError(f"{type(self).__name__} takes no sharded parameters: use torch.optim")
        if group.get("average") is not None:
            check_number("average", group["average"], strict=False)
        for name in self.positive:
            if group[name] is not None:
                check_number(name, group[name])
        self._check(group)
        self._check_constraint(group, group["constraint"])

    def _check_rate(self, group: Group, has_rows: bool) -> None:
        """Raise ValueError unless `lr` is a positive number, or one for every row."""
        lengths = {len(p) if p.dim() > 0 else None for p in group["params"] if has_rows}
        check_rate("lr", group["lr"], lengths.pop() if len(lengths) == 1 else None)

    def _check_constraint(self, group: Group, constraint: Set | None) -> None:
        if constraint is None:
            return
        check_set(constraint, group["params"])
        if group["rowwise"] and not constraint.separable_over_rows:
            raise ValueError(
                f"{constraint!r} ties the rows together, so rowwise=True cannot treat them as "
                "separate problems: use a set with per_sample=True, or a Box"
            )

    # The parts of a step.

    def _active(self) -> Active | None:
        """The tensors with a gradient; None if there is none."""
        params: list[Tensor] = []
        grads: list[Tensor] = []
        touched: list[Tensor] = []
        spans: list[tuple[Group, slice]] = []
        for group in self.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            if not members:
                continue
            found: list[Tensor] = [p.grad for p in members]
            spans.append((group, slice(len(params), len(params) + len(members))))
            params += members
            grads += tensors.negative(found) if group["maximize"] else found
            touched += members if group["constraint"] is None else group["params"]
        if not params:
            return None
        return Active(params, grads, spans, touched, self._checked_norm_sq(grads))

    def _checked_norm_sq(self, grads: list[Tensor]) -> Scalar:
        """The squared norm, or NaN where the method does not use it.

        Raises:
            NonFiniteGradient: It is NaN, or overflows the dtype of the parameters, in which some
                methods store squares.
        """
        rowwise = self._rowwise and self.uses_gradient_norm
        norm_sq = tensors.squared_norm(grads, rowwise)
        in_range = norm_sq <= torch.finfo(grads[0].dtype).max
        if not all_true(in_range):
            gradients = [p.grad for p in self._all_params()]
            tensors.raise_non_finite(gradients, rows=negate(in_range))
        return norm_sq if self.uses_gradient_norm else math.nan

    def _started_numbers(self, active: Active) -> dict[str, Any]:
        """The numbers of the method; before the first step the start is projected on the set."""
        numbers = self._saved_numbers()
        if "started" not in numbers:
            self._project(active)
            for name, number in self._initial_numbers(active).items():
                numbers.setdefault(name, self._per_row(number))
            numbers["started"] = True
        if self.keeps_average and "num_averaged" not in numbers:
            numbers["num_averaged"] = self._per_row(0.0)
            self._vectors("average", self._all_params(), torch.clone)
        return numbers

    def _move(self, active: Active, objective: Objective) -> None:
        numbers = self._started_numbers(active)
        moving: Flag = active.norm_sq > 0.0 if self._rests_at_zero_gradient() else True
        if self._frozen_rows is not None:
            moving = moving & ~self._frozen_rows
        if all_true(moving):
            self._update(active, numbers, objective)
            self._average_iterate(numbers)
        elif not any_true(moving):
            self._project(active)
        elif self.masks_rows:
            self._update(active._replace(moving=moving), numbers, objective)
        elif isinstance(moving, Tensor):
            grads = [torch.zeros_like(g) for g in active.grads]
            tensors.blend_(grads, active.grads, moving)
            # Any norm but 0, by which some methods divide.
            norm_sq = where(moving, active.norm_sq, 1.0)
            with self._restored(active.touched, numbers, ~moving):
                self._update(active._replace(grads=grads, norm_sq=norm_sq), numbers, objective)
                self._average_iterate(numbers)
            self._project(active)

    @contextmanager
    def _restored(
        self, params: list[Tensor], numbers: dict[str, Any], rows: Tensor
    ) -> Iterator[None]:
        """After the block, restore some rows of the point, the numbers and the vectors."""
        old_numbers = dict(numbers)
        vectors = [vector for param in params for vector in (param, *self.state[param].values())]
        old_vectors = tensors.clone(vectors)
        yield
        for name, old in old_numbers.items():
            if isinstance(old, Tensor):
                numbers[name] = where(rows, old, numbers[name])
        tensors.blend_(vectors, old_vectors, rows)

    def _descend(self, active: Active, step: Scalar) -> None:
        """`w <- P(w - lr * step * g)`, with `lr` where it is a hyper-parameter of the groups."""
        for group, span in active.spans:
            lr = group["lr"] if "lr" in self.per_group else 1.0
            tensors.add_scaled_(active.params[span], active.grads[span], -step * lr)
        self._project(active)

    def _project(self, active: Active) -> None:
        for group, _ in active.spans:
            if group["constraint"] is not None:
                group["constraint"].project_(group["params"])

    def _average_iterate(self, numbers: dict[str, Any]) -> None:
        """Polynomial-decay averaging of the iterates after each step, the last one included."""
        decay = self.param_groups[0].get("average")
        if decay is not None:
            numbers["num_averaged"] = count = numbers["num_averaged"] + 1.0
            self._fold_into_average((1.0 + decay) / (count + decay))

    def _fold_into_average(self, weight: Scalar) -> None:
        points = self._all_params()
        tensors.interpolate_(self._vectors("average", points, torch.clone), points, weight)

    # State and other helpers.

    def _objective(
        self,
        params: list[Tensor],
        value: Tensor | float | None,
        closure: Closure | None = None,
        values_only: bool = True,
    ) -> Objective:
        """What the player minimizes, with its value at the current point."""
        head = self.param_groups[0]
        sign = -1.0 if head["maximize"] else 1.0
        return Objective(params, sign, head["rowwise"], value, closure, values_only)

    def _all_params(self) -> list[Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    @property
    def _rowwise(self) -> bool:
        return bool(self.param_groups[0]["rowwise"])

    def _saved_numbers(self) -> dict[str, Any]:
        numbers: dict[str, Any] = self.param_groups[0].setdefault("numbers", {})
        return numbers

    def _per_row(self, number: Scalar) -> Scalar:
        """One copy of a number for each row, if the player has rows."""
        if not self._rowwise or isinstance(number, Tensor):
            return number
        first = self.param_groups[0]["params"][0]
        return torch.full((len(first),), number, dtype=torch.float64, device=first.device)

    def _vectors(
        self,
        name: str,
        params: Sequence[Tensor],
        initial: Callable[[Tensor], Tensor] | Sequence[Tensor],
    ) -> list[Tensor]:
        """The stored tensors of that name, one per parameter.

        Args:
            name: The key in `state[param]`.
            params: The parameters.
            initial: Where there is none yet: a function of the parameter that makes it, or a list
                of tensors to copy.
        """
        found = []
        for i, param in enumerate(params):
            memory = self.state[param]
            if name not in memory:
                memory[name] = initial(param) if callable(initial) else initial[i].clone()
            found.append(memory[name])
        return found

    def _kept_step(self, numbers: dict[str, Any]) -> dict[str, Any]:
        return {name: numbers[name] for name in self.step_numbers if name in numbers}

    def _has_set(self, active: Active) -> bool:
        return any(group["constraint"] is not None for group, _ in active.spans)

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        """Inside the block the parameters hold one of their stored vectors."""
        shown = [(p.data, memory[name]) for p, memory in self.state.items() if name in memory]
        own = tensors.clone([point for point, _ in shown])
        try:
            for point, vector in shown:
                point.copy_(vector)
            tensors.drop_cached_casts()
            yield
        finally:
            for (point, _), start in zip(shown, own, strict=True):
                point.copy_(start)
            tensors.drop_cached_casts()


def _is_configuration(entry: object) -> bool:
    return isinstance(entry, Set) or callable(entry)


def check_set(constraint: object, params: Sequence[Tensor]) -> None:
    """Raise TypeError or ValueError unless a constraint is a set that fits the parameters."""
    if not isinstance(constraint, Set):
        raise TypeError(
            f"constraint must be a set from neada.sets, not {type(constraint).__name__}"
        )
    constraint.validate(params)


def check_rate(name: str, rate: object, num_rows: int | None) -> None:
    """Raise ValueError unless a learning rate is a positive number, or one for every row.

    Args:
        name: The name of the argument.
        rate: The value received.
        num_rows: The number of rows; None if the player is one problem.
    """
    if not isinstance(rate, Tensor):
        check_number(name, rate)
    elif rate.shape != (num_rows,) or rate.dtype != torch.float64:
        raise ValueError(
            f"{name} must be a number or, for a player with rows, a float64 tensor with one rate "
            f"per row, got {rate.dtype} of shape {tuple(rate.shape)} for {num_rows} rows"
        )
    elif not bool(((rate > 0.0) & rate.isfinite()).all()):
        raise ValueError(f"{name} must be greater than 0 and finite in every row, got {rate}")
