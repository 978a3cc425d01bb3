"""A min-max algorithm made of one torch optimizer for each player."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import parallel, tensors
from neada.inner import Player
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import installed_sets
from neada.scalars import all_finite
from neada.sets import Set
from neada.steppers.base import Closure, Evaluation, Stepper

__all__ = ["ComposedStepper", "check_ascends", "check_descends", "groups_of"]


def groups_of(optimizer: Optimizer) -> list[tuple[Sequence[Tensor], Set | None]]:
    """The parameter groups of an optimizer, each with its set."""
    sets = installed_sets(optimizer)
    return [
        (group["params"], constraint)
        for group, constraint in zip(optimizer.param_groups, sets, strict=True)
    ]


def _check_optimizer(player: str, optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{player} needs a torch optimizer, not {type(optimizer).__name__}: pass, for example, "
            f"torch.optim.Adam({player}_parameters, lr=0.01{', maximize=True' * (player == 'y')})"
        )


def check_descends(optimizer: Optimizer) -> None:
    """Raise unless the x optimizer is one that minimizes by steps."""
    _check_optimizer("x", optimizer)
    if any(group.get("maximize", False) for group in optimizer.param_groups):
        raise ValueError(
            f"the x optimizer would maximize: construct {type(optimizer).__name__} with "
            "maximize=False"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "torch.optim.LBFGS evaluates the loss by itself: use neada.optim.LBFGS, or an "
            "optimizer that takes one step with one gradient"
        )


def check_ascends(optimizer: Optimizer) -> None:
    """Raise unless the y optimizer maximizes."""
    _check_optimizer("y", optimizer)
    for group in optimizer.param_groups:
        if "maximize" not in group:
            raise ValueError(
                f"{type(optimizer).__name__} cannot maximize, so it cannot move y: use an "
                "optimizer with a maximize option"
            )
        if not group["maximize"]:
            raise ValueError(
                f"the y optimizer would minimize: construct {type(optimizer).__name__} with "
                "maximize=True"
            )


class ComposedStepper(Stepper):
    """A stepper that owns one optimizer for x and one for y.

    Args:
        x_optimizer: Any torch optimizer that minimizes.
        y_optimizer: Any torch optimizer constructed with ``maximize=True``.
        rowwise: Every row of both players is its own game. The optimizers must then be those of
            `neada.optim`: scalar ones constructed with ``rowwise=True``, elementwise ones as usual.
    """

    def __init__(
        self, x_optimizer: Optimizer, y_optimizer: Optimizer, *, rowwise: bool = False
    ) -> None:
        check_descends(x_optimizer)
        check_ascends(y_optimizer)
        super().__init__(groups_of(x_optimizer), groups_of(y_optimizer), rowwise)
        for optimizer in (x_optimizer, y_optimizer):
            scalar = isinstance(optimizer, PlayerOptimizer) and optimizer.uses_gradient_norm
            if rowwise and not isinstance(optimizer, PlayerOptimizer):
                raise ValueError(
                    f"rowwise=True freezes single rows, which {type(optimizer).__name__} cannot: "
                    "use an optimizer of neada.optim"
                )
            if scalar and optimizer.param_groups[0]["rowwise"] != rowwise:
                raise ValueError(
                    f"the stepper has rowwise={rowwise} but {type(optimizer).__name__} has not: "
                    f"construct it with rowwise={rowwise}"
                )
        self.x_optimizer = x_optimizer
        self.y_optimizer = y_optimizer

    def _move(
        self,
        player: Player,
        closure: Closure,
        evaluation: Evaluation,
        frozen: Tensor | None = None,
    ) -> None:
        """One step of a player with the gradient in `.grad`; frozen rows do not move."""
        optimizer = self.x_optimizer if player == "x" else self.y_optimizer
        if not isinstance(optimizer, PlayerOptimizer):
            optimizer.step()
            return
        if self._frozen is not None:
            frozen = self._frozen if frozen is None else frozen | self._frozen
        values = self._value_closure(closure, player) if optimizer.tries_points else None
        if frozen is None:
            optimizer.step(values, value=evaluation.value)
        else:
            with optimizer.frozen_rows(frozen):
                optimizer.step(values, value=_zero_where_undefined(evaluation.value, frozen))

    def _value_closure(self, closure: Closure, player: Player) -> Closure:
        """The closure of an optimizer that tries points: values only, and counted.

        A call is counted for the rows that have moved since the previous call. Rows whose trial
        point did not change have found their step.
        """
        params = self._players[player]
        before = tensors.clone(params) if self.rowwise else []

        def evaluate() -> Tensor:
            self.counters.check_budget()
            self.counters.calls_value += 1
            if self.rowwise:
                apart = tensors.squared_distance(params, before, rowwise=True)
                self.row_calls += self._counted_rows & (apart != 0.0)
                tensors.copy_(before, [param.detach() for param in params])
            tensors.drop_cached_casts()
            with torch.no_grad():
                value = closure()
            parallel.average_([value])
            return value if self._frozen is None else _zero_where_undefined(value, self._frozen)

        return evaluate

    def state_dict(self) -> dict[str, Any]:
        """Counters and both optimizers."""
        return {
            **super().state_dict(),
            "x_optimizer": _state_of(self.x_optimizer),
            "y_optimizer": _state_of(self.y_optimizer),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state."""
        super().load_state_dict(state_dict)
        self.x_optimizer.load_state_dict(state_dict["x_optimizer"])
        self.y_optimizer.load_state_dict(state_dict["y_optimizer"])


def _zero_where_undefined(value: Tensor, frozen: Tensor) -> Tensor:
    """Values, with zeros for frozen rows where f is NaN or Inf."""
    return value if all_finite(value) else torch.where(frozen & ~value.isfinite(), 0.0, value)


def _state_of(optimizer: Optimizer) -> dict[str, Any]:
    """The state without sets, which are configuration."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group.pop("constraint", None)
    return state
