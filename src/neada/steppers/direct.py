"""Algorithms that move both players by a rule of their own, not by two optimizers."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from neada import parallel, tensors
from neada.inner import Player
from neada.optim.base import check_rate
from neada.scalars import Scalar
from neada.sets import Set
from neada.steppers.base import Closure, Sets, StepInfo, Stepper

__all__ = ["DirectStepper", "TwoRates"]


class DirectStepper(Stepper):
    """A stepper that moves the players itself.

    The players return to the start of a step, which is in `_start`, if the step raises.

    Args:
        x: The tensors that are minimized over.
        y: The tensors that are maximized over.
        x_set: Constraint set of x, joint over its tensors; None for no constraint.
        y_set: Constraint set of y.
        rowwise: Every row of both players is its own game.
    """

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        *,
        x_set: Set | None = None,
        y_set: Set | None = None,
        rowwise: bool = False,
    ) -> None:
        for name, given in (("x", x), ("y", y)):
            if isinstance(given, Tensor | nn.Module | torch.optim.Optimizer):
                raise TypeError(
                    f"{name} must be a list of tensors, such as [{name}] or model.parameters(), "
                    f"not {type(given).__name__}"
                )
        players = {"x": list(x), "y": list(y)}
        for name, constraint in (("x", x_set), ("y", y_set)):
            tensors.check_player(players[name], rowwise, what=f"{name} tensor")
            if constraint is not None:
                constraint.validate(players[name])
                if rowwise and not constraint.separable_over_rows:
                    raise ValueError(
                        f"{constraint!r} ties the rows together: use a set with per_sample=True, "
                        "or a Box"
                    )
        super().__init__([(players["x"], x_set)], [(players["y"], y_set)], rowwise)
        self._sets = {"x": x_set, "y": y_set}
        self._memory: dict[str, Any] = {}
        self._start: dict[Player, list[Tensor]] = {}

    def step(self, closure: Closure, batch_size: int = 1) -> StepInfo:
        """Take one step of the algorithm; if it raises, the players are unchanged.

        Args:
            closure: Evaluates f(x, y) and returns it with its graph.
            batch_size: The number of samples in one call of the closure, for the counters.
        """
        self._start = {"x": self._points("x"), "y": self._points("y")}
        try:
            return super().step(closure, batch_size)
        except BaseException:
            self._go_to(self._start)
            raise
        finally:
            self._start = {}  # not needed between steps, and as large as the players

    @torch.no_grad()
    def _go_to(self, point: Mapping[Player, list[Tensor]]) -> None:
        for player, place in point.items():
            tensors.copy_(self._players[player], place)

    def _points(self, player: Player) -> list[Tensor]:
        return tensors.clone(self._players[player])

    def _descend_ascend(self, lr_x: Scalar, lr_y: Scalar) -> None:
        """Put both players at a gradient step from the start, with the gradients in `.grad`."""
        self._put("x", self._grads("x"), -lr_x)
        self._put("y", self._grads("y"), lr_y)

    @torch.no_grad()
    def _put(self, player: Player, direction: Sequence[Tensor], step: Scalar) -> None:
        """Put a player at P(start + step * direction); frozen rows stay at the start."""
        params, start, direction = (
            parallel.local_parts(part)
            for part in (self._players[player], self._start[player], direction)
        )
        tensors.copy_(params, start)
        tensors.add_scaled_(params, direction, step)
        constraint = self._sets[player]
        if constraint is not None:
            constraint.project_(params)
        if self._frozen is not None:
            tensors.blend_(params, start, self._frozen)

    def _gradients(self, player: Player) -> list[Tensor]:
        """Copies of the gradients in `.grad`."""
        return tensors.clone(self._grads(player))

    def _vectors(self, name: str, like: Sequence[Tensor]) -> list[Tensor]:
        """Remembered tensors, initially zero."""
        if name not in self._memory:
            self._memory[name] = [torch.zeros_like(tensor) for tensor in like]
        vectors: list[Tensor] = self._memory[name]
        return vectors

    def state_dict(self) -> dict[str, Any]:
        """Counters and what the algorithm remembers."""
        return {**super().state_dict(), "memory": copy.deepcopy(self._memory)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state."""
        super().load_state_dict(state_dict)
        self._memory = copy.deepcopy(state_dict["memory"])


class TwoRates(DirectStepper):
    """A stepper with a learning rate for each player: a number or, with rows, one for each."""

    def __init__(
        self,
        x: Iterable[Tensor],
        y: Iterable[Tensor],
        lr_x: Scalar,
        lr_y: Scalar,
        **sets: Unpack[Sets],
    ) -> None:
        super().__init__(x, y, **sets)
        num_rows = len(self._players["x"][0]) if self.rowwise else None
        check_rate("lr_x", lr_x, num_rows)
        check_rate("lr_y", lr_y, num_rows)
        self.lr_x = lr_x
        self.lr_y = lr_y
