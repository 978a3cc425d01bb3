"""What every optimizer of this package shares: one player, its signs, sets, rows and memory.

A subclass names its hyper-parameters and writes one formula in `_update`. This module does the
rest: closures, the sign of a maximizing player, missing, sparse and non-finite gradients,
projection, averages, and a `state_dict` from which a run goes on bit for bit.

Numbers that belong to the whole player (a sum of squares, a step size) live in the first
parameter group under "numbers": torch casts the tensors in `optimizer.state` to the dtype of the
parameter when a checkpoint is loaded, and leaves the groups alone, so only there do float64
numbers of a float32 player survive exactly. Vectors live in `optimizer.state` as usual.
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
from neada.checks import check_choice, check_flags, check_number, check_origin
from neada.optim.objective import Closure, Objective
from neada.scalars import Flag, Scalar, all_true, any_true, negate, where
from neada.sets import Set

__all__ = ["Active", "Group", "Keep", "PlayerOptimizer", "check_rate"]


Keep = Literal["nothing", "step", "everything"]
Group = dict[str, Any]
# torch's own method without its decorator, which keeps the compiler out of it and for that imports
# all of torch._dynamo, sympy among it, when a process makes its first optimizer.
_add_param_group = inspect.unwrap(Optimizer.add_param_group)


class Common(TypedDict, total=False):
    """The keyword arguments of every optimizer of one player."""

    maximize: bool
    constraint: Set | None
    rowwise: bool


class Active(NamedTuple):
    """The tensors that take part in a step, with the gradients of what is minimized."""

    params: list[Tensor]
    grads: list[Tensor]
    spans: list[tuple[Group, slice]]
    """Each group with the slice of the two lists that belongs to it."""
    touched: list[Tensor]
    """The same tensors and all others that a joint set may move."""
    norm_sq: Scalar
    """The squared norm of the gradient over all tensors, per row if the player has rows.

    Undefined for methods that do not use it.
    """
    moving: Flag = True
    """Which rows take a step; for methods that let the others rest by themselves."""


class PlayerOptimizer(Optimizer):
    """A torch optimizer for one player of a game, or for plain minimization.

    Args:
        params: Tensors or parameter groups, as for any torch optimizer.
        defaults: The hyper-parameters of the method.
        maximize: Ascend instead of descend.
        constraint: The set the parameters live in; joint over the tensors of a group.
        rowwise: Every row (first dimension) of the parameters is its own problem.
    """

    uses_gradient_norm: ClassVar[bool] = True
    """Whether the norm of the gradient is computed for the method."""
    masks_rows: ClassVar[bool] = False
    """Whether the method itself leaves rows alone that are not in `Active.moving`."""
    tries_points: ClassVar[bool] = False
    """Whether a step evaluates the objective at trial points."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that have one value for the whole player, not one per group."""
    step_numbers: ClassVar[tuple[str, ...]] = ()
    """The numbers that `reset(keep="step")` keeps."""
    _resting: Tensor | None = None

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

    # What a method writes.

    @abstractmethod
    def _update(self, active: Active, numbers: dict[str, Any], objective: Objective) -> None:
        """Move the parameters by one step and bring the numbers up to date."""

    def _check(self, group: Group) -> None:
        """Raise ValueError if a hyper-parameter of the group makes no sense."""

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        """The numbers before the first step."""
        return {}

    def _prepare(self, active: Active) -> None:
        """Make what the method remembers, where a zero gradient would not leave it as it starts."""

    def _rests_at_zero_gradient(self) -> bool:
        """Whether a zero gradient leaves the point and the state as they are."""
        return True

    # What torch and the steppers call.

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; they join the player from the next step on."""
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
            value: The objective at the current point, when the caller knows it already.

        Returns:
            The value at the point the step started from, if it is known.
        """
        handed_over = value is not None
        tensors.drop_cached_casts()
        try:
            if closure is not None and not handed_over:
                with torch.enable_grad():
                    value = closure()
            active = self._active()
            if active is not None:
                self._move(active, self._objective(active.params, value, closure, handed_over))
        finally:
            tensors.drop_cached_casts()
        return value

    @torch.no_grad()
    def reset(self, keep: Keep = "nothing") -> None:
        """Forget the past of the method; the parameters stay where they are.

        Args:
            keep: "nothing" starts anew, "step" keeps only the step size found so far,
                "everything" keeps all but the average, which restarts in any case.
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
        """Whether the method answers with an average of its iterates."""
        return self.param_groups[0].get("average") is not None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the parameters hold the averaged point; afterwards their own again.

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
    def rows_at_rest(self, rows: Tensor | None) -> Iterator[None]:
        """Some rows take no step inside the block, as if their gradient were zero.

        Args:
            rows: One flag per row, true for those that rest; None for none.
        """
        self._resting = rows
        try:
            yield
        finally:
            self._resting = None

    def keep_rows(self, rows: Tensor) -> None:
        """Keep of the numbers per row only those of some rows, as the caller has done elsewhere."""
        for group in self.param_groups:
            if isinstance(group.get("lr"), Tensor):
                group["lr"] = group["lr"][rows]
        numbers = self._saved_numbers()
        for name, number in numbers.items():
            if isinstance(number, Tensor):
                numbers[name] = number[rows]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on; sets and callables are configuration and stay out."""
        state = super().state_dict()
        state["param_groups"] = [
            {name: entry for name, entry in group.items() if not _is_configuration(entry)}
            for group in state["param_groups"]
        ]
        if "numbers" in state["param_groups"][0]:
            state["param_groups"][0]["numbers"] = dict(state["param_groups"][0]["numbers"])
        return {"class": type(self).__name__, **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; sets and callables stay as this optimizer has them."""
        own = [dict(group) for group in self.param_groups]
        check_origin(self, state_dict)
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

    # How a group is checked.

    def _check_group(self, group: Group) -> None:
        for name in ("rowwise", *self.shared):
            if group[name] is not self.defaults[name] and group[name] != self.defaults[name]:
                raise ValueError(
                    f"{name} is one number for the whole player, not for one group: pass "
                    f"{name}={group[name]!r} to {type(self).__name__} itself"
                )
        check_flags(maximize=group["maximize"], rowwise=group["rowwise"])
        tensors.check_player(self._all_params(), rowwise=group["rowwise"])
        if any(parallel.is_shard(param) for param in group["params"]):
            raise TypeError(f"{type(self).__name__} takes no sharded parameters: use torch.optim")
        self._check(group)
        self._check_constraint(group, group["constraint"])

    def _check_rate(self, group: Group, has_rows: bool) -> None:
        """Raise ValueError unless `lr` is a positive number, or one for every row."""
        lengths = {len(p) if p.dim() > 0 else None for p in group["params"] if has_rows}
        check_rate("lr", group["lr"], lengths.pop() if len(lengths) == 1 else None)

    def _check_constraint(self, group: Group, constraint: Set | None) -> None:
        if constraint is None:
            return
        if not isinstance(constraint, Set):
            raise TypeError(
                f"constraint must be a set from neada.sets, not {type(constraint).__name__}"
            )
        if group["rowwise"] and not constraint.separable_over_rows:
            raise ValueError(
                f"{constraint!r} ties the rows together, so rowwise=True cannot treat them as "
                "separate problems: use a set with per_sample=True, or a Box"
            )
        constraint.validate(group["params"])

    # How a step is taken.

    def _active(self) -> Active | None:
        """The tensors with a gradient, checked; None if there is none."""
        params: list[Tensor] = []
        grads: list[Tensor] = []
        touched: list[Tensor] = []
        spans: list[tuple[Group, slice]] = []
        for group in self.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            if not members:
                continue
            found: list[Tensor] = [p.grad for p in members]
            for gradient in found:
                if gradient.layout != torch.strided:
                    raise RuntimeError(
                        f"{type(self).__name__} does not support sparse gradients: construct the "
                        "embedding with sparse=False"
                    )
            if group["maximize"]:
                found = tensors.negative(found)
            spans.append((group, slice(len(params), len(params) + len(members))))
            params += members
            grads += found
            touched += members if group["constraint"] is None else group["params"]
        if not params:
            return None
        return Active(params, grads, spans, touched, self._checked_norm_sq(grads))

    def _checked_norm_sq(self, grads: list[Tensor]) -> Scalar:
        """The squared norm, or NaN where the method does not use it; raise unless it is finite.

        It must be finite in the dtype of the parameters, in which some methods keep squares.
        """
        rowwise = self._rowwise and self.uses_gradient_norm
        norm_sq = tensors.squared_norm(grads, rowwise)
        in_range = norm_sq <= torch.finfo(grads[0].dtype).max
        if not all_true(in_range):
            gradients = [p.grad for p in self._all_params()]
            tensors.raise_non_finite(gradients, rows=negate(in_range))
        return norm_sq if self.uses_gradient_norm else math.nan

    def _numbers(self, active: Active) -> dict[str, Any]:
        """The method's numbers, made before the first step from a point inside the set."""
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
        numbers = self._numbers(active)
        moving: Flag = active.norm_sq > 0.0 if self._rests_at_zero_gradient() else True
        if self._resting is not None:
            moving = moving & ~self._resting
        if all_true(moving):
            self._update(active, numbers, objective)
            self._average_iterate(active, numbers)
        elif not any_true(moving):
            self._project(active)
        elif self.masks_rows:
            self._update(active._replace(moving=moving), numbers, objective)
        elif isinstance(moving, Tensor):
            # For the rows at rest a zero gradient, so that nothing new remembers one, and any norm
            # but zero, so that nothing divides by it.
            self._prepare(active)
            grads = [torch.zeros_like(g) for g in active.grads]
            tensors.blend_(grads, active.grads, moving)
            safe = active._replace(grads=grads, norm_sq=where(moving, active.norm_sq, 1.0))
            with self._undone_at_rest(active.touched, numbers, ~moving):
                self._update(safe, numbers, objective)
                self._average_iterate(active, numbers)
            self._project(active)

    @contextmanager
    def _undone_at_rest(
        self, params: list[Tensor], numbers: dict[str, Any], rows: Tensor
    ) -> Iterator[None]:
        """Undo what the block does to some rows: those whose gradient is zero take no step."""
        old_numbers = dict(numbers)
        old_params = tensors.clone(params)
        old_vectors = {
            param: {name: vector.clone() for name, vector in self.state[param].items()}
            for param in params
        }
        yield
        for name, old in old_numbers.items():
            if isinstance(old, Tensor):
                numbers[name] = where(rows, old, numbers[name])
        tensors.blend_(params, old_params, rows)
        for param in params:
            for name, old in old_vectors[param].items():
                tensors.blend_([self.state[param][name]], [old], rows)

    # What the methods use.

    def _objective(
        self,
        params: list[Tensor],
        value: Tensor | float | None,
        closure: Closure | None = None,
        handed_over: bool = True,
    ) -> Objective:
        """What the player minimizes, with its value at the current point."""
        head = self.param_groups[0]
        sign = -1.0 if head["maximize"] else 1.0
        return Objective(params, sign, head["rowwise"], value, closure, handed_over)

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
        """One remembered tensor per parameter.

        Where a parameter has none yet, it is made from the parameter by a function, or copied
        from the tensor in the same place of a list.
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

    def _descend(self, active: Active, step: Scalar) -> None:
        """`w <- P(w - lr * step * g)`, with `lr` where the method has one per group."""
        for group, span in active.spans:
            lr = 1.0 if "lr" in self.shared else group.get("lr", 1.0)
            tensors.add_scaled_(active.params[span], active.grads[span], -step * lr)
        self._project(active)

    def _project(self, active: Active) -> None:
        for group, _ in active.spans:
            if group["constraint"] is not None:
                group["constraint"].project_(group["params"])

    def _has_set(self, active: Active) -> bool:
        return any(group["constraint"] is not None for group, _ in active.spans)

    def _average_iterate(self, active: Active, numbers: dict[str, Any]) -> None:
        """Polynomial-decay averaging of the iterates after each step, the last one included."""
        decay = self.param_groups[0].get("average")
        if decay is not None:
            numbers["num_averaged"] = count = numbers["num_averaged"] + 1.0
            self._fold_into_average(self._all_params(), (1.0 + decay) / (count + decay))

    def _fold_into_average(self, points: list[Tensor], weight: Scalar) -> None:
        tensors.interpolate_(self._vectors("average", points, torch.clone), points, weight)

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        """Inside the block the parameters hold one of their remembered vectors."""
        shown = [(param, memory[name]) for param, memory in self.state.items() if name in memory]
        own = tensors.clone([param for param, _ in shown])
        try:
            for param, vector in shown:
                param.data.copy_(vector)
            tensors.drop_cached_casts()
            yield
        finally:
            for (param, _), point in zip(shown, own, strict=True):
                param.data.copy_(point)
            tensors.drop_cached_casts()


def _is_configuration(entry: object) -> bool:
    return isinstance(entry, Set) or callable(entry)


def check_rate(name: str, rate: object, num_rows: int | None) -> None:
    """Raise ValueError unless a learning rate is a positive number, or one for every row.

    Args:
        name: What the user calls it.
        rate: What the user gave.
        num_rows: How many rows the player has; None if it is one problem.
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
