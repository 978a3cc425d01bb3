"""Checks of arguments, with uniform error messages."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

__all__ = [
    "check_choice",
    "check_flags",
    "check_number",
    "check_origin",
    "nearest",
    "not_one_of",
    "printable",
    "shown",
]

_LONGEST = 200
"""Characters of a value, or of another library's error, in a message."""


def printable(text: str, limit: int = _LONGEST) -> str:
    r"""Return text from a file or another library on one line, shortened to fit in a message.

    Example:
        >>> printable("a\x00\nb" + 9000 * "c", limit=9)
        'a\\x00 ...'
    """
    words = re.sub(r"[^\S ]+ *", " ", text[: 4 * limit]).strip()
    words = "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)
    is_whole = len(words) <= limit and len(text) <= 4 * limit
    return words if is_whole else f"{words[: limit - 3]}..."


def shown(value: object) -> str:
    """Return the `repr` of a value, shortened to fit in a message."""
    return printable(repr(value))


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
        name: The name of the argument.
        number: The value received.
        above: The lower end of the range.
        strict: Whether the lower end itself is excluded.
        most: An upper end that is allowed; `math.inf` allows everything.
        below: An upper end that is not allowed.
        whole: Whether it must be a whole number.
    """
    if isinstance(number, Integral if whole else Real) and not isinstance(number, bool):
        value: Any = number  # as it is: a float would round large integers
        high_enough = value > above if strict else value >= above
        low_enough = value < below if most is None else value <= most
        if high_enough and low_enough:
            return
    wanted = f"greater than {above:g}" if strict else f"at least {above:g}"
    if most is not None:
        wanted += "" if most == math.inf else f" and at most {most:g}"
    elif below != math.inf:
        wanted += f" and less than {below:g}"
    elif isinstance(number, float) and number == math.inf:
        wanted += " and finite"
    noun = "a whole number" if whole else "a number"
    raise ValueError(f"{name} must be {noun} {wanted}, got {shown(number)}")


def check_choice(name: str, choice: object, choices: Iterable[object]) -> None:
    """Raise ValueError unless an option is one of the choices."""
    choices = tuple(choices)
    if choice not in choices:
        raise ValueError(not_one_of(name, choice, choices))


def check_flags(**flags: object) -> None:
    """Raise ValueError unless all options are True or False: a nonempty string counts as true."""
    for name, flag in flags.items():
        check_choice(name, flag, (True, False))


def not_one_of(what: str, given: object, choices: Iterable[object]) -> str:
    """Return the message for a name that is not one of the choices.

    It suggests the nearest choice, or lists all of them.

    Args:
        what: The name of the option.
        given: The value received.
        choices: The allowed values.

    Example:
        >>> not_one_of("model", "cnm", ["linear", "mlp", "cnn"])
        "there is no model 'cnm'; did you mean 'cnn'?"
        >>> not_one_of("model", "transformer", ["linear", "mlp", "cnn"])
        "model must be one of 'linear', 'mlp', 'cnn', got 'transformer'"
    """
    choices = tuple(choices)
    near = nearest(given, choices)
    if near is not None:
        return f"there is no {what} {shown(given)}; did you mean {near!r}?"
    return f"{what} must be one of {', '.join(map(repr, choices))}, got {shown(given)}"


def nearest(given: object, choices: Iterable[object]) -> str | None:
    """The choice that was probably meant; None if none is near."""
    names = [choice for choice in choices if isinstance(choice, str)]
    near = difflib.get_close_matches(given, names, 1) if isinstance(given, str) else []
    return near[0] if near else None


def check_origin(owner: object, state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError unless a state was saved by an object of the same class."""
    name, saved_by = type(owner).__name__, state_dict.get("class", "something else")
    if saved_by != name:
        raise ValueError(f"this state was not saved by {name} but by {saved_by}")
