"""What has been evaluated and taken so far, with a limit."""

from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["BudgetExhausted", "Counted", "Counters", "Player"]

Player = Literal["x", "y"]


class BudgetExhausted(Exception):  # noqa: N818 (a signal, not an error)
    """The next evaluation would exceed `max_calls`; nothing has moved since the last step."""


@dataclass
class Counters:
    """What has been evaluated and taken so far, with an optional limit.

    Attributes:
        calls_x: Gradients with respect to x.
        calls_y: Gradients with respect to y.
        calls_value: Evaluations without a gradient.
        samples_x: Samples that the x gradients looked at.
        samples_y: Samples that the y gradients looked at.
        outer_steps: Steps of x; the outer index t.
        inner_steps: Steps of y.
        max_calls: Gradients and values that may be evaluated in all; None for no limit.

    Example:
        >>> counters = Counters(max_calls=2)
        >>> counters.count("y", num_samples=32)
        >>> counters.total_calls, counters.samples_y
        (1, 32)
    """

    calls_x: int = 0
    calls_y: int = 0
    calls_value: int = 0
    samples_x: int = 0
    samples_y: int = 0
    outer_steps: int = 0
    inner_steps: int = 0
    max_calls: int | None = None

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.calls_x + self.calls_y + self.calls_value

    def check_budget(self, num_calls: int = 1) -> None:
        """Raise `BudgetExhausted` if that many calls more would exceed the limit."""
        if self.max_calls is not None and self.total_calls + num_calls > self.max_calls:
            raise BudgetExhausted(f"max_calls = {self.max_calls} is used up")

    def count(self, player: Player, num_samples: int = 1) -> None:
        """Take note of a gradient of one player."""
        if player == "x":
            self.calls_x += 1
            self.samples_x += num_samples
        else:
            self.calls_y += 1
            self.samples_y += num_samples

    def state_dict(self) -> dict[str, int]:
        """The counts; the limit is not part of the state."""
        return {name: count for name, count in asdict(self).items() if name != "max_calls"}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from saved counts."""
        for name in self.state_dict():
            setattr(self, name, state_dict[name])


class _Count:
    """A counter shown as an attribute of whoever owns the counters."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: "Counted | None", kind: type) -> int:
        # Of the class itself, as documentation tools ask for it, the initial count.
        count: int = getattr(Counters if owner is None else owner.counters, self._name)
        return count

    def __set__(self, owner: "Counted", count: int) -> None:
        setattr(owner.counters, self._name, count)


class Counted:
    """Owns `counters` and shows them as its own attributes; assign `counters` to share them."""

    counters: Counters
    calls_x = _Count()
    calls_y = _Count()
    calls_value = _Count()
    samples_x = _Count()
    samples_y = _Count()
    outer_steps = _Count()
    inner_steps = _Count()

    @property
    def total_calls(self) -> int:
        """Gradients of both players and values."""
        return self.counters.total_calls

    @property
    def max_calls(self) -> int | None:
        """Gradients and values that may be evaluated in all; None for no limit."""
        return self.counters.max_calls

    @max_calls.setter
    def max_calls(self, max_calls: int | None) -> None:
        self.counters.max_calls = max_calls
