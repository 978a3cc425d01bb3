"""Checks of hyper-parameters, with one kind of sentence for all of them."""

import math
from collections.abc import Sequence

__all__ = ["check_choice", "check_number"]


def check_number(
    name: str,
    number: object,
    *,
    above: float = 0.0,
    strict: bool = True,
    most: float = math.inf,
    below: float | None = None,
) -> None:
    """Raise ValueError unless a hyper-parameter is a number in the given range.

    Args:
        name: What the user calls it.
        number: What the user gave.
        above: The lower end of the range.
        strict: Whether the lower end itself is excluded.
        most: The upper end, which is allowed.
        below: An upper end that is not allowed.
    """
    if isinstance(number, int | float) and not isinstance(number, bool):
        high_enough = number > above if strict else number >= above
        low_enough = number <= most if below is None else number < below
        if high_enough and low_enough:
            return
    wanted = f"greater than {above:g}" if strict else f"at least {above:g}"
    if below is not None:
        wanted += f" and less than {below:g}"
    elif most != math.inf:
        wanted += f" and at most {most:g}"
    raise ValueError(f"{name} must be a number {wanted}, got {number!r}")


def check_choice(name: str, choice: object, choices: Sequence[object]) -> None:
    """Raise ValueError unless an option is one of those there are."""
    if choice not in choices:
        options = ", ".join(repr(option) for option in choices)
        raise ValueError(f"{name} must be one of {options}, got {choice!r}")
