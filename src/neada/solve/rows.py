"""Rows that a solve of all rows together has not solved: each by itself, with heavier means."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from neada import tensors
from neada.solve.points import Form
from neada.solve.result import MinimaxResult, Status
from neada.solve.run import Solve
from neada.steppers import Stepper

__all__ = ["solve_rows_left"]

_UNSOLVED = (Status.DIVERGED, Status.NON_FINITE, Status.STALLED, Status.NOT_A_MAXIMUM)


def solve_rows_left(
    together: MinimaxResult,
    fun: Callable[[Any, Any], Tensor],
    x: Form,
    y: Form,
    start: list[Tensor],
    make_stepper: Callable[[], Stepper],
    max_calls: int,
    callback: Any,
    progress: bool,
) -> MinimaxResult:
    """Solve the rows that failed one after the other, with all others held where they are.

    Args:
        together: The answer for all rows.
        fun: f with one value per row.
        x: The player that minimizes, at that answer.
        y: The player that maximizes.
        start: Where the leaves of both began.
        make_stepper: Makes the method that moves all leaves as one problem.
        max_calls: What may be spent; every row that is left gets the same share of the rest.
        callback: As `minimax` takes it.
        progress: Show a line of progress.

    Returns:
        The answer with these rows replaced; its history is that of the rows together.
    """
    leaves = x.leaves + y.leaves
    left = [i for i, status in enumerate(together.status) if status in _UNSOLVED]
    total = {
        name: getattr(together, name)
        for name in ("calls_x", "calls_y", "calls_value", "outer_steps", "inner_steps")
    }
    spent = together.total_calls
    answers = tensors.clone(leaves)
    again = torch.zeros(len(leaves[0]), dtype=torch.bool, device=leaves[0].device)
    again[left] = True
    with torch.no_grad():
        tensors.blend_(leaves, start, again)  # those that ran away would be in every norm
    for place, i in enumerate(left):
        share = (max_calls - spent) // (len(left) - place)
        if share < 1:
            together.status[i], together.message[i] = Status.BUDGET, Status.BUDGET.value
            continue
        row = torch.arange(len(leaves[0]), device=leaves[0].device) == i
        stepper = make_stepper()
        stepper.max_calls = share
        solve = Solve(_of_row(fun, i), _moving(x, row), _moving(y, row), stepper, together.tol)
        alone = solve.run(callback, progress)
        with torch.no_grad():
            tensors.blend_(answers, leaves, row)
            tensors.blend_(leaves, start, row)
        spent += alone.total_calls
        for name in total:
            total[name] += getattr(alone, name)
        for name in ("fun", "success", "status", "message", "grad_norm_x", "grad_norm_y"):
            getattr(together, name)[i] = getattr(alone, name)
        if alone.status is Status.INTERRUPTED:
            break
    with torch.no_grad():
        tensors.copy_(leaves, answers)
    return replace(together, x=x.give_back(x.leaves), y=y.give_back(y.leaves), **total)


def _of_row(fun: Callable[[Any, Any], Tensor], i: int) -> Callable[[Any, Any], Tensor]:
    return lambda x, y: fun(x, y)[i]


def _moving(form: Form, row: Tensor) -> Form:
    """The player with constants in all rows but one: their gradients are zero, even undefined."""

    def build(leaves: list[Tensor]) -> Any:
        chosen = [row.reshape(-1, *[1] * (leaf.dim() - 1)) for leaf in leaves]
        return form.build(
            [torch.where(c, leaf, leaf.detach()) for c, leaf in zip(chosen, leaves, strict=True)]
        )

    return form._replace(build=build)
