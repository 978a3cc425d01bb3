"""The part that line searches share: shrink the step until an acceptance test holds."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from neada import tensors
from neada.optim.objective import Objective, restore_on_error
from neada.optim.player import Active, PlayerOptimizer
from neada.scalars import Flag, Scalar, all_true, is_finite, where

__all__ = ["LineSearch"]


class LineSearch(PlayerOptimizer):
    """Shrink the step until an acceptance test holds; each row has its own step."""

    tries_points: ClassVar[bool] = True
    step_numbers: ClassVar[tuple[str, ...]] = ("step",)

    def _initial_numbers(self, active: Active) -> dict[str, Scalar]:
        return {"step": self.param_groups[0]["lr"]}

    def _try(self, active: Active, start: list[Tensor], step: Scalar) -> list[Tensor]:
        """Put the player at P(w - step g) and return the displacement of what has a gradient."""
        tensors.copy_(active.touched, start)
        before = tensors.clone(active.params)
        self._descend(active, step)
        return tensors.difference(active.params, before)

    def _search(
        self,
        active: Active,
        objective: Objective,
        step: Scalar,
        slack: Scalar,
        num_trials: int,
        untested: Flag = False,
    ) -> tuple[Scalar, Flag]:
        """Shrink `step` until the test holds or the trials are used up.

        Args:
            active: The player and its gradient.
            objective: Values at the current and at trial points.
            step: The first step to try.
            slack: The rounding error of a value, forgiven by the test.
            num_trials: How many points may be tried.
            untested: Where the first step is taken without a test.

        Returns:
            The step taken, and where the test held.
        """
        value = objective.value(type(self).__name__)
        shrink = self.param_groups[0]["shrink"]
        objective.require_closure(type(self).__name__)
        passed: Flag = untested
        with restore_on_error(active.touched) as start:
            for trial_number in range(num_trials):
                if trial_number > 0:
                    step = where(passed, step, step * shrink)
                displacement = self._try(active, start, step)
                if all_true(passed):  # only where no row is tested at all
                    break
                trial = objective.evaluate()
                bound = value + self._decrease(active, displacement, step) + slack
                passed = passed | ((trial <= bound) & is_finite(trial))
                if all_true(passed):
                    break
            else:
                if not all_true(passed | is_finite(trial)):
                    raise FloatingPointError(
                        "the objective is not finite at any trial point; nothing was changed"
                    )
        return step, passed

    @abstractmethod
    def _decrease(self, active: Active, displacement: list[Tensor], step: Scalar) -> Scalar:
        """How far above the value at the start (or below, if negative) a trial may lie."""
