"""`minimax(f, x0, y0)`: a function in, a verified answer out."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from neada import tensors
from neada.checks import check_choice, check_flags, check_number
from neada.solve.methods import Players, make_stepper, remedy
from neada.solve.points import Sets, check_rows, common_kind, read_form, read_set
from neada.solve.result import MinimaxResult
from neada.solve.rows import solve_rows_left
from neada.solve.run import PATIENCE, Solve
from neada.steppers import StepInfo, Stepper

__all__ = ["check_arguments", "minimax"]

_ROWS_PATIENCE = (
    50  # outer steps of all rows without a better point, for a row that gets a second try
)


def check_arguments(tol: float, max_calls: int) -> None:
    """Raise ValueError unless the tolerance and the budget make sense."""
    check_number("tol", tol)
    check_number("max_calls", max_calls, above=1, strict=False, whole=True)


def minimax(
    fun: Callable[[Any, Any], Tensor],
    x0: Any,
    y0: Any,
    *,
    method: str | Callable[[Players], Stepper] = "auto",
    x_set: Sets = None,
    y_set: Sets = None,
    tol: float = 1e-6,
    max_calls: int = 100_000,
    noise: float | Literal["own"] | None = None,
    seed: int | None = None,
    callback: Callable[[StepInfo], bool | None] | None = None,
    progress: bool = False,
    rowwise: bool = False,
    options: Mapping[str, Any] | None = None,
) -> MinimaxResult:
    r"""Find a stationary point of :math:`\min_x \max_y f(x, y)`, with f concave enough in y.

    Args:
        fun: f(x, y) of tensors in the form of `x0` and `y0`; returns one number, or with `rowwise`
            one number per row.
        x0: Where x starts: a number, an array, a tensor, or lists or dicts of them. Numbers and
            lists take the dtype of the tensors and arrays that are given for either player,
            float64 if there are none.
        y0: Where y starts.
        method: A name (`neada.methods()` lists them), or a function of `neada.Players` that makes
            a stepper.
        x_set: Where x lives: one set, joint over all its tensors, or a list or dict in the form of
            `x0` with a set or None for each.
        y_set: Where y lives.
        tol: Both norms must be at most this: of the x gradient and of y's gradient mapping.
        max_calls: Gradients and values that may be evaluated, inner loops included; the check of
            the answer comes on top.
        noise: None if f is deterministic. A number adds Gaussian noise of that standard deviation
            to every coordinate of every gradient; "own" says that f itself is noisy. With noise
            the budget is used up and the last point returned, and no claim of success is made
            unless the fresh evaluation says so.
        seed: Of the noise.
        callback: Called with every `StepInfo`; returning True ends the solve.
        progress: Show a line of progress, on a terminal and in a notebook.
        rowwise: Every row (first dimension) of x0 and y0 is its own problem with its own stop and
            status; a row that fails does not disturb the others. The default method solves the rows
            together, and those it could not solve once more by themselves.
        options: Arguments of the method: ``{"lr_x": 0.1}``.

    Returns:
        A `MinimaxResult`. Numerical trouble is a status on it, not an exception.

    Raises:
        ValueError, TypeError: The arguments make no sense, or `fun` does not return a
            differentiable number.

    Example:
        >>> result = minimax(lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, 0.0, 0.0)
        >>> result.success, round(result.x, 4), round(result.y, 4)
        (True, 0.5, 0.5)
    """
    check_arguments(tol, max_calls)
    check_flags(rowwise=rowwise, progress=progress)
    if isinstance(noise, str):
        check_choice("noise", noise, ("own",))
    elif noise is not None:
        check_number("noise", noise, strict=False)
    if not callable(fun):
        raise TypeError(f"fun must be a function of x and y, not {type(fun).__name__}")
    kind = common_kind(x0=x0, y0=y0)
    x, y = read_form(x0, "x0", kind), read_form(y0, "y0", kind)
    if rowwise:
        check_rows(x, y)
    x_set, y_set = read_set(x_set, x0, x, "x"), read_set(y_set, y0, y, "y")
    with torch.no_grad():
        for form, constraint in ((x, x_set), (y, y_set)):
            if constraint is not None:
                constraint.project_(form.leaves)
    players = Players(x.leaves, y.leaves, x_set, y_set, rowwise, noise is not None, tol)
    stepper = make_stepper(method, players, options)
    stepper.max_calls = max_calls
    if noise is not None and noise != "own":
        noise = float(noise)
    seed = None if seed is None else int(seed)
    start = tensors.clone(x.leaves + y.leaves)
    two_stages = rowwise and method == "auto" and noise is None
    patience = _ROWS_PATIENCE if two_stages else PATIENCE
    solve = Solve(
        *(fun, x, y, stepper, tol, noise, seed, remedy(method)),
        patience=patience,
        fail_at_cap=two_stages,
    )
    alone = players._replace(rowwise=False)
    with torch.enable_grad():
        result = solve.run(callback, progress)
        if not two_stages:
            return result
        return solve_rows_left(
            *(result, fun, x, y, start, lambda: make_stepper(method, alone, options)),
            *(max_calls, callback, progress),
        )
