"""What an optimizer remembers, and how it is saved: numbers, vectors, averages.

Numbers that belong to the whole player (a sum of squares, a step size) live in the first
parameter group under "numbers": torch casts the tensors in `optimizer.state` to the dtype of the
parameter when a checkpoint is loaded, and leaves the groups alone, so only there do float64
numbers of a float32 player survive exactly. Vectors live in `optimizer.state` as usual.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.optim.arguments import check_choice
from neada.scalars import Scalar, where
from neada.sets import Set

__all__ = ["Keep", "RememberingOptimizer"]

Keep = Literal["nothing", "step", "everything"]


class RememberingOptimizer(Optimizer):
    """A torch optimizer whose whole memory is in its `state_dict`, exactly."""

    step_numbers: ClassVar[tuple[str, ...]] = ()
    """The numbers that `reset(keep="step")` keeps."""

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

    def _kept_step(self, numbers: dict[str, Any]) -> dict[str, Any]:
        return {name: numbers[name] for name in self.step_numbers if name in numbers}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the parameters hold the averaged point; afterwards their own again.

        Before the first step the average is the point itself.
        """
        if not self._keeps_average():
            raise RuntimeError(
                f"this {type(self).__name__} keeps no average: construct it with average=1.0 "
                "(weights proportional to the step's number), if it has that option"
            )
        with self._shown("average"):
            yield

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        """Inside the block the parameters hold one of their remembered vectors."""
        shown = [(param, memory[name]) for param, memory in self.state.items() if name in memory]
        own = tensors.clone([param for param, _ in shown])
        try:
            for param, vector in shown:
                param.data.copy_(vector)
            yield
        finally:
            for (param, _), point in zip(shown, own, strict=True):
                param.data.copy_(point)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on; sets and callables are configuration and stay out."""
        state = super().state_dict()
        state["param_groups"] = [
            {name: entry for name, entry in group.items() if not _is_configuration(entry)}
            for group in state["param_groups"]
        ]
        if "numbers" in state["param_groups"][0]:
            state["param_groups"][0]["numbers"] = dict(state["param_groups"][0]["numbers"])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; sets and callables stay as this optimizer has them."""
        own = [dict(group) for group in self.param_groups]
        self._check_origin(state_dict)
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

    def _check_origin(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless the state comes from the same method and as many rows."""
        optional = {"constraint", "f_bound", "numbers"}
        for group in state_dict["param_groups"]:
            missing = set(self.defaults) - set(group) - optional
            if missing:
                raise ValueError(
                    f"this state was not saved by {type(self).__name__}: it has no "
                    f"{', '.join(sorted(missing))}"
                )
        for number in state_dict["param_groups"][0].get("numbers", {}).values():
            if isinstance(number, Tensor) and len(number) != len(self._all_params()[0]):
                raise ValueError(
                    f"this state was saved for {len(number)} rows, but the parameters have "
                    f"{len(self._all_params()[0])}"
                )

    # What the methods use.

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

    def _keeps_average(self) -> bool:
        return self.param_groups[0].get("average") is not None

    def _fold_into_average(self, points: list[Tensor], weight: Scalar) -> None:
        tensors.interpolate_(self._vectors("average", points, torch.clone), points, weight)

    _resting: Tensor | None = None

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

    @contextmanager
    def _rows_at_rest(
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


def _is_configuration(entry: object) -> bool:
    return isinstance(entry, Set) or callable(entry)
