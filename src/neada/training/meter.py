"""Means over the steps since the last row, and when the next row is due."""

from typing import Any

from neada.robust.counters import RobustInfo

__all__ = ["Meter", "Schedule"]

_MEANS = ("loss", "value", "perturbation", "inner_steps", "y_mapping_sq")


class Meter:
    """Means of what steps report, from one row to the next."""

    def __init__(self) -> None:
        self._num = 0
        self._sums = dict.fromkeys(_MEANS, 0.0)
        self._last: dict[str, float] = {}

    def add(self, info: RobustInfo) -> None:
        """Take a step into account."""
        self._num += 1
        for name in _MEANS:
            self._sums[name] += getattr(info, name)

    def means(self) -> dict[str, float]:
        """The means since the last time, or those of then; none before the first step."""
        if self._num > 0:
            self._last = {name: total / self._num for name, total in self._sums.items()}
            self._num, self._sums = 0, dict.fromkeys(_MEANS, 0.0)
        return dict(self._last)

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts."""
        return {"num": self._num, "sums": dict(self._sums), "last": dict(self._last)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved sums."""
        self._num = state_dict["num"]
        self._sums, self._last = dict(state_dict["sums"]), dict(state_dict["last"])


class Schedule:
    """Something to do every so many calls, or so many times in a whole run.

    Args:
        every: Calls from one time to the next; None to go by the part of the run that is done.
        in_all: How often in the whole run then.

    Example:
        >>> schedule = Schedule(every=10, in_all=5)
        >>> [schedule.is_due(calls, 0.0) for calls in (9, 12)]
        [False, True]
        >>> schedule.tick(12, 0.0)
        >>> schedule.is_due(19, 0.0), schedule.is_due(20, 0.0)
        (False, True)
    """

    def __init__(self, every: int | None, in_all: int) -> None:
        self.every = every
        self.in_all = in_all
        self.num_passed = 0

    def is_due(self, calls: int, part: float) -> bool:
        """Whether it is time."""
        return self._passed(calls, part) > self.num_passed

    def tick(self, calls: int, part: float) -> None:
        """It has been done."""
        self.num_passed = self._passed(calls, part)

    def _passed(self, calls: int, part: float) -> int:
        return int(part * self.in_all) if self.every is None else calls // self.every
