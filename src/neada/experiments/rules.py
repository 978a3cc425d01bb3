"""The step rules of the paper's experiments for many runs at once: one row of an array per run.

They are those of `torch.optim`, operation by operation, with a learning rate and a step count per
row; `eps=0` and `bias_correction=False` give the paper's own text. numpy and not torch, because on
arrays of a few dozen numbers a numpy operation costs a third of a torch one.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Family", "Rule"]

Array = NDArray[np.float64]
Family = Literal["gda", "adagrad", "adam", "amsgrad"]


@dataclass
class Rule:
    """One player's update for `num_rows` runs, or for both players of them one after the other.

    Attributes:
        family: "gda" (plain steps), "adagrad", "adam", "amsgrad".
        lr: The learning rate of each row.
        eps: Added to the root of the second moment.
        bias_correction: Whether Adam's moments are corrected for their start at zero.
        beta: Momentum of Adam and AMSGrad.
        gamma: Decay of their second moment.
    """

    family: Family
    lr: Array
    eps: float
    bias_correction: bool = True
    beta: float = 0.9
    gamma: float = 0.999
    _memory: dict[str, Array] = field(default_factory=dict)

    def step(self, gradient: Array, rows: slice | NDArray[np.intp] = slice(None)) -> Array:
        """What to subtract from the points of these rows, given their gradients.

        Args:
            gradient: One gradient per row that moves, of what is minimised.
            rows: Which rows move; all by default.
        """
        lr = self.lr[rows, None]
        if self.family == "gda":
            return lr * gradient
        if self.family == "adagrad":
            total = self._remembered("total", gradient, rows) + gradient * gradient
            self._memory["total"][rows] = total
            return lr * self._ratio(gradient, np.sqrt(total) + self.eps)
        return self._adam_step(gradient, rows, lr)

    def _adam_step(self, gradient: Array, rows: slice | NDArray[np.intp], lr: Array) -> Array:
        mean = self._remembered("mean", gradient, rows)
        mean = mean + (gradient - mean) * (1.0 - self.beta)
        square = self._remembered("square", gradient, rows) * self.gamma
        square += (1.0 - self.gamma) * gradient * gradient
        self._memory["mean"][rows] = mean
        self._memory["square"][rows] = square
        if self.family == "amsgrad":
            square = np.maximum(self._remembered("largest", gradient, rows), square)
            self._memory["largest"][rows] = square
        if not self.bias_correction:
            return lr * self._ratio(mean, np.sqrt(square) + self.eps)
        if "count" not in self._memory:
            self._memory["count"] = np.zeros(len(self.lr))
        count = self._memory["count"][rows, None] + 1.0
        self._memory["count"][rows] = count[:, 0]
        root = np.sqrt(square) / np.sqrt(1.0 - self.gamma**count) + self.eps
        return lr / (1.0 - self.beta**count) * self._ratio(mean, root)

    def _remembered(self, name: str, like: Array, rows: slice | NDArray[np.intp]) -> Array:
        if name not in self._memory:
            self._memory[name] = np.zeros((len(self.lr), like.shape[1]))
        return self._memory[name][rows]

    def _ratio(self, numerator: Array, denominator: Array) -> Array:
        """Division with 0/0 = 0, which is how the paper's rules without eps begin."""
        if self.eps > 0.0:
            return numerator / denominator
        start = np.zeros_like(numerator)
        return np.divide(numerator, denominator, out=start, where=denominator != 0.0)
