"""Checks of the plain arguments of `minimax`."""

from typing import Any

__all__ = ["check_arguments"]


def check_arguments(tol: float, max_calls: int, noise: Any) -> None:
    """Raise ValueError unless tolerance, budget and noise make sense."""
    if not tol > 0.0:
        raise ValueError(f"tol must be greater than 0, got {tol!r}")
    if max_calls < 1:
        raise ValueError(f"max_calls must be at least 1, got {max_calls!r}")
    if isinstance(noise, str) and noise != "own":
        raise ValueError(f'noise must be None, a number or "own", got {noise!r}')
    if isinstance(noise, int | float) and not noise >= 0.0:
        raise ValueError(f"noise must be at least 0, got {noise!r}")
