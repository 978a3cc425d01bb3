"""Checks of arguments, with one kind of sentence for all of them."""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_choice", "check_number", "check_origin", "check_rate"]


def check_number(
    name: str,
    number: object,
    *,
    above: float = 0.0,
    strict: bool = True,
    most: float | None = None,
    below: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise ValueError unless a hyper-parameter is a number in the given range.

    Args:
        name: What the user calls it.
        number: What the user gave.
        above: The lower end of the range.
        strict: Whether the lower end itself is excluded.
        most: An upper end that is allowed; `math.inf` allows everything.
        below: An upper end that is not allowed.
        whole: Whether it must be a whole number.
    """
    if isinstance(number, Integral if whole else Real) and not isinstance(number, bool):
        value = float(number)
        high_enough = value > above if strict else value >= above
        low_enough = value < below if most is None else value <= most
        if high_enough and low_enough:
            return
    wanted = f"greater than {above:g}" if strict else f"at least {above:g}"
    if most is not None:
        wanted += "" if most == math.inf else f" and at most {most:g}"
    elif below != math.inf:
        wanted += f" and less than {below:g}"
    elif isinstance(number, Real) and number == math.inf:
        wanted += " and finite"
    noun = "a whole number" if whole else "a number"
    raise ValueError(f"{name} must be {noun} {wanted}, got {number!r}")


def check_rate(name: str, rate: object, num_rows: int | None) -> None:
    """Raise ValueError unless a learning rate is a positive number, or one for every row.

    Args:
        name: What the user calls it.
        rate: What the user gave.
        num_rows: How many rows the player has; None if it is one problem.
    """
    if not isinstance(rate, Tensor):
        check_number(name, rate)
    elif num_rows is None:
        raise ValueError(
            f"{name} is a tensor, but the player is one problem and has no rows to give a rate "
            "each: pass a number, or make the player rowwise"
        )
    elif rate.shape != (num_rows,) or rate.dtype != torch.float64:
        raise ValueError(
            f"{name} must be a number or a float64 tensor with one rate for each of the "
            f"{num_rows} rows, got {rate.dtype} of shape {tuple(rate.shape)}"
        )
    elif not bool(((rate > 0.0) & rate.isfinite()).all()):
        raise ValueError(f"{name} must be greater than 0 and finite in every row, got {rate}")


def check_choice(name: str, choice: object, choices: Sequence[object]) -> None:
    """Raise ValueError unless an option is one of those there are."""
    if choice not in choices:
        options = ", ".join(repr(option) for option in choices)
        raise ValueError(f"{name} must be one of {options}, got {choice!r}")


def check_origin(owner: object, state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError unless a saved state is of the class that is to go on from it."""
    name, saved_by = type(owner).__name__, state_dict.get("class", "something else")
    if saved_by != name:
        raise ValueError(f"this state was not saved by {name} but by {saved_by}")
