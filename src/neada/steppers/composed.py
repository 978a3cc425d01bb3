"""A min-max algorithm made of one torch optimizer for each player."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada.checks import check_flags
from neada.inner import Player
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constraints
from neada.scalars import all_finite
from neada.sets import Set
from neada.steppers.base import Closure, Evaluation, Stepper
from neada.transactions import Undo, saved_player

__all__ = ["ComposedStepper", "check_ascends", "check_descends", "groups_of"]


def groups_of(optimizer: Optimizer) -> list[tuple[Sequence[Tensor], Set | None]]:
    """The parameter groups of an optimizer, each with its set."""
    sets = constraints(optimizer)
    return [
        (group["params"], constraint)
        for group, constraint in zip(optimizer.param_groups, sets, strict=True)
    ]


def check_descends(optimizer: Optimizer) -> None:
    """Raise unless the x optimizer is one that minimizes by steps."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"x needs a torch optimizer, not {type(optimizer).__name__}")
    for group in optimizer.param_groups:
        check_flags(maximize=group.get("maximize", False))
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
    for group in optimizer.param_groups:
        if "maximize" not in group:
            raise ValueError(
                f"{type(optimizer).__name__} cannot maximize, so it cannot move y: use an "
                "optimizer with a maximize option"
            )
        check_flags(maximize=group["maximize"])
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
        rowwise: Every row of both players is its own game. The optimizers must then be neada's:
            scalar ones constructed with ``rowwise=True``, elementwise ones as they are.
    """

    _early: str = ""
    """The players that move before all numbers of a step are known; they are saved before."""

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
                    f"rowwise=True lets rows rest one by one, and {type(optimizer).__name__} "
                    "cannot: use an optimizer of neada.optim"
                )
            if scalar and optimizer.param_groups[0]["rowwise"] != rowwise:
                raise ValueError(
                    f"the stepper has rowwise={rowwise} but {type(optimizer).__name__} has not: "
                    f"construct it with rowwise={rowwise}"
                )
        self.x_optimizer = x_optimizer
        self.y_optimizer = y_optimizer

    def _saved(self) -> list[Undo]:
        saved = super()._saved()
        if "x" in self._early:
            saved.append(saved_player(self.x_optimizer))
        if "y" in self._early:
            saved.append(saved_player(self.y_optimizer))
        return saved

    @staticmethod
    def _may_refuse(optimizer: Optimizer, evaluation: Evaluation) -> bool:
        """Whether an optimizer may meet a number that is not finite when it has begun to move."""
        if not isinstance(optimizer, PlayerOptimizer):
            return False
        value = evaluation.value
        return optimizer.tries_points or not (
            all_finite(value) if value.dim() else math.isfinite(value.item())
        )

    def _move(
        self,
        player: Player,
        closure: Closure,
        evaluation: Evaluation,
        rest: Tensor | None = None,
    ) -> None:
        """One step of a player with the gradient in `.grad` and the value handed over.

        Rows in `rest`, and rows that the whole stepper lets rest, stay as they are.
        """
        optimizer = self.x_optimizer if player == "x" else self.y_optimizer
        if self._resting is not None:
            rest = self._resting if rest is None else rest | self._resting
        if not isinstance(optimizer, PlayerOptimizer):
            optimizer.step()
            return
        values = self._value_closure(closure, player) if optimizer.tries_points else None
        is_open = player not in self._early and self._may_refuse(optimizer, evaluation)
        undo = saved_player(optimizer) if is_open else None
        try:
            if rest is None:
                optimizer.step(values, value=evaluation.value)
            else:
                with optimizer.rows_at_rest(rest):
                    optimizer.step(values, value=self._finite_at_rest(evaluation.value, rest))
        except FloatingPointError:
            if undo is not None:
                undo()
            raise

    def state_dict(self) -> dict[str, Any]:
        """Counters and both optimizers."""
        return {
            **super().state_dict(),
            "x_optimizer": _state_of(self.x_optimizer),
            "y_optimizer": _state_of(self.y_optimizer),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state_dict)
        self.x_optimizer.load_state_dict(state_dict["x_optimizer"])
        self.y_optimizer.load_state_dict(state_dict["y_optimizer"])


def _state_of(optimizer: Optimizer) -> dict[str, Any]:
    """The state without sets, which are configuration."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group.pop("constraint", None)
    return state
