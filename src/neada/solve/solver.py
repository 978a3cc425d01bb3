"""`minimax(f, x0, y0)`: a function in, a verified answer out."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from neada import tensors
from neada.sets import Set
from neada.solve.arguments import check_arguments
from neada.solve.forms import read_form
from neada.solve.loop import Solve
from neada.solve.methods import Players, make_stepper
from neada.solve.result import MinimaxResult
from neada.steppers.base import StepInfo, Stepper

__all__ = ["minimax"]


def minimax(
    fun: Callable[[Any, Any], Tensor],
    x0: Any,
    y0: Any,
    *,
    method: str | Callable[[Players], Stepper] = "neada",
    x_set: Set | None = None,
    y_set: Set | None = None,
    tol: float = 1e-6,
    max_calls: int = 100_000,
    noise: float | Literal["own"] | None = None,
    seed: int | None = None,
    callback: Callable[[StepInfo], bool | None] | None = None,
    progress: bool = False,
    rowwise: bool = False,
    **options: Any,
) -> MinimaxResult:
    r"""Find a stationary point of :math:`\min_x \max_y f(x, y)`, with f concave enough in y.

    Args:
        fun: f(x, y) of tensors in the form of `x0` and `y0`; returns one number, or with `rowwise`
            one number per row.
        x0: Where x starts: a number, an array, a tensor, or lists or dicts of them.
        y0: Where y starts.
        method: A name (`neada.methods()` lists them) or a function that makes a stepper.
        x_set: Where x lives; joint over all its tensors.
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
        progress: Show a line of progress on a terminal.
        rowwise: Every row (first dimension) of x0 and y0 is its own problem with its own stop.
        **options: Arguments of the method, such as `lr_x`.

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
    check_arguments(tol, max_calls, noise)
    x, y = read_form(x0, "x0"), read_form(y0, "y0")
    with torch.no_grad():
        for form, constraint in ((x, x_set), (y, y_set)):
            tensors.check_player(form.leaves, rowwise, what="a tensor of the start,")
            if constraint is not None:
                constraint.project_(form.leaves)
    players = Players(x.leaves, y.leaves, x_set, y_set, rowwise, noise is not None, tol)
    stepper = method(players) if callable(method) else make_stepper(method, players, options)
    if callable(method) and options:
        raise ValueError(f"a method given as a function takes no options, got {sorted(options)}")
    stepper.max_calls = max_calls
    solve = Solve(fun, x, y, stepper, tol, noise, seed)
    return solve.run(callback, progress)
