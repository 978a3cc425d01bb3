"""`minimax(f, x0, y0)`: solve a min-max problem and check the result."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from neada.checks import check_choice, check_flags, check_number
from neada.solve.implicit import attach_gradients
from neada.solve.methods import Players, make_stepper, remedy
from neada.solve.points import Sets, check_rows, common_kind, read_form, read_set
from neada.solve.result import MinimaxResult
from neada.solve.run import Solve
from neada.solve.verdict import LARGEST
from neada.steppers import StepInfo, Stepper

__all__ = ["check_arguments", "minimax"]


def check_arguments(tol: float, max_calls: int) -> None:
    """Raise ValueError unless the tolerance and the budget are valid."""
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
    differentiable: bool = False,
    options: Mapping[str, Any] | None = None,
) -> MinimaxResult:
    r"""Find a stationary point of :math:`\min_x \max_y f(x, y)`, with f concave enough in y.

    Args:
        fun: f(x, y) of tensors in the form of `x0` and `y0`; returns one number, or with `rowwise`
            one number per row.
        x0: The start of x: a number, an array, a tensor, or lists or dicts of them. Numbers and
            lists take the dtype of the tensors and arrays that are given for either player,
            float64 if there are none.
        y0: The start of y.
        method: A name (`neada.methods()` lists them), or a function of `neada.Players` that returns
            a stepper.
        x_set: The constraint set of x: one set, joint over all its tensors, or a list or dict in
            the form of `x0` with a set or None for each tensor.
        y_set: The constraint set of y.
        tol: The tolerance of the norms of both gradient mappings (without sets, of the gradients).
        max_calls: Gradients and values that may be evaluated, including inner loops but not the
            check of the result.
        noise: None if f is deterministic. A number adds Gaussian noise of that standard deviation
            to every coordinate of every gradient; "own" means that f itself is noisy. With noise
            the whole budget is used and the last point is returned.
        seed: Seed of the noise.
        callback: Called with every `StepInfo`; returning True ends the solve.
        progress: Show a line of progress on a terminal or in a notebook.
        rowwise: Every row (first dimension) of x0 and y0 is its own problem with its own status; a
            row that fails does not affect the others.
        differentiable: Return x and y as tensors with implicit gradients with respect to the
            tensors that f closes over, where the solution is regular; needs second derivatives of f
            and at most 1000 coordinates. Without success they have no gradients.
        options: Arguments of the method: ``{"lr_x": 0.1}``.

    Returns:
        A `MinimaxResult`. Numerical trouble is a status on it, not an exception.

    Raises:
        ValueError, TypeError: An argument is invalid, or `fun` does not return a differentiable
            number, or, with `differentiable`, has no second derivatives.

    Example:
        >>> result = minimax(lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, 0.0, 0.0)
        >>> result.success, round(result.x, 4), round(result.y, 4)
        (True, 0.5, 0.5)
    """
    check_arguments(tol, max_calls)
    check_flags(rowwise=rowwise, progress=progress, differentiable=differentiable)
    if differentiable and (rowwise or noise is not None):
        raise ValueError("differentiable=True needs one problem without noise and without rows")
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
    solve = Solve(fun, x, y, stepper, tol, noise, seed, remedy(method))
    with torch.enable_grad():
        result = solve.run(callback, progress)
        if not differentiable:
            return result
        leaves = [leaf.detach() for leaf in x.leaves + y.leaves]
        if result.success and result.kind == "unknown":
            raise ValueError(
                "differentiable=True needs second derivatives of f and at most "
                f"{LARGEST} coordinates: use operations that can be differentiated twice"
            )
        if result.success:
            leaves = attach_gradients(solve.closure(), x.leaves, y.leaves, x_set, y_set)
    num_x = len(x.leaves)
    return replace(
        result, x=tree_unflatten(leaves[:num_x], x.spec), y=tree_unflatten(leaves[num_x:], y.spec)
    )
