"""Solve separately the rows that a solve of all rows together has not solved."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from neada import tensors
from neada.solve.result import MinimaxResult, Status
from neada.solve.run import Solve
from neada.steppers import Stepper

__all__ = ["solve_rows_left"]

_UNSOLVED = (Status.DIVERGED, Status.NON_FINITE, Status.STALLED, Status.NOT_A_MAXIMUM)
_COUNTS = ("calls_x", "calls_y", "calls_value", "outer_steps", "inner_steps")


@torch.no_grad()
def solve_rows_left(
    solve: Solve,
    together: MinimaxResult,
    make_stepper: Callable[[], Stepper],
    max_calls: int,
    callback: Any,
    progress: bool,
) -> MinimaxResult:
    """Solve the rows that failed one after the other; the other rows are constant.

    Args:
        solve: The solve of all rows.
        together: Its result.
        make_stepper: Makes a stepper that moves all leaves as one problem.
        max_calls: The budget; every row that is left gets the same share of the rest.
        callback: The argument of `minimax`.
        progress: Show a line of progress.

    Returns:
        The result with these rows replaced; its history is that of the rows together.
    """
    leaves, start = solve.leaves, solve.start
    left = [i for i, status in enumerate(together.status) if status in _UNSOLVED]
    total = {name: getattr(together, name) for name in _COUNTS}
    spent = together.total_calls
    answers = tensors.clone(leaves)
    numbers = torch.arange(len(leaves[0]), device=leaves[0].device)
    # The norms of a row include all rows, so those that diverged return to the start.
    tensors.blend_(leaves, start, torch.isin(numbers, torch.tensor(left, device=numbers.device)))
    for place, i in enumerate(left):
        share = (max_calls - spent) // (len(left) - place)
        if share < 1:
            together.status[i], together.message[i] = Status.BUDGET, Status.BUDGET.value
            continue
        row = numbers == i
        stepper = make_stepper()
        stepper.max_calls = share
        with torch.enable_grad():
            of_row = Solve(_of_row(solve.fun, i, row), solve.x, solve.y, stepper, together.tol)
            alone = of_row.run(callback, progress)
        tensors.blend_(answers, leaves, row)
        tensors.blend_(leaves, start, row)
        spent += alone.total_calls
        for name in _COUNTS:
            total[name] += getattr(alone, name)
        for name in ("fun", "success", "status", "message", "grad_norm_x", "grad_norm_y"):
            getattr(together, name)[i] = getattr(alone, name)
        if alone.status is Status.INTERRUPTED:
            break
    tensors.copy_(leaves, answers)
    x, y = solve.x.give_back(solve.x.leaves), solve.y.give_back(solve.y.leaves)
    return replace(together, x=x, y=y, **total)


def _of_row(fun: Callable[[Any, Any], Tensor], i: int, row: Tensor) -> Callable[[Any, Any], Tensor]:
    """The function of one row; the gradients of the others are zero, even where undefined."""

    def only_row(leaf: Tensor) -> Tensor:
        return torch.where(row.reshape(-1, *[1] * (leaf.dim() - 1)), leaf, leaf.detach())

    return lambda x, y: fun(tree_map(only_row, x), tree_map(only_row, y))[i]
