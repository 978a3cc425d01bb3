"""Checks of hyper-parameters, with one kind of sentence for all of them."""

import math
from collections.abc import Sequence
from numbers import Integral, Real

__all__ = ["check_choice", "check_number"]


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
    elif number == math.inf:
        wanted += " and finite"
    noun = "a whole number" if whole else "a number"
    raise ValueError(f"{name} must be {noun} {wanted}, got {number!r}")


def check_choice(name: str, choice: object, choices: Sequence[object]) -> None:
    """Raise ValueError unless an option is one of those there are."""
    if choice not in choices:
        options = ", ".join(repr(option) for option in choices)
        raise ValueError(f"{name} must be one of {options}, got {choice!r}")
