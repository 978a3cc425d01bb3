"""Spec C4: when an inner loop ends."""

from __future__ import annotations

from collections.abc import Callable

from .base import Vector, norm_sq


class Stop:
    """Spec C4. Two questions at outer iteration t = 0, 1, ... after k inner steps.

    `count` is asked before a gradient is evaluated; `accuracy` sees the mapping y - P_Y(y + g) with
    unit step. A rule says no where it has nothing to say.
    """

    def count(self, t: int, k: int) -> bool:
        return False

    def accuracy(self, t: int, k: int, mapping: Vector) -> bool:
        return False


class SquaredMapping(Stop):
    """Spec C4, criterion I: |mapping|^2 <= scale / (t + 1)."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def accuracy(self, t: int, k: int, mapping: Vector) -> bool:
        return norm_sq(mapping) <= self.scale / (t + 1)


class Count(Stop):
    """k >= K(t)."""

    def __init__(self, steps: Callable[[int], int]) -> None:
        self.steps = steps

    def count(self, t: int, k: int) -> bool:
        return k >= self.steps(t)


class Either(Stop):
    """One rule or the other."""

    def __init__(self, first: Stop, second: Stop) -> None:
        self.first = first
        self.second = second

    def count(self, t: int, k: int) -> bool:
        return self.first.count(t, k) or self.second.count(t, k)

    def accuracy(self, t: int, k: int, mapping: Vector) -> bool:
        return self.first.accuracy(t, k, mapping) or self.second.accuracy(t, k, mapping)


def criterion_two(t: int) -> int:
    """Spec C4, II: K_t = t + 1."""
    return t + 1
