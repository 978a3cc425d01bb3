"""The value of the objective for an optimizer of one player, with the sign of a minimization."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar, all_finite, all_true, is_finite, negate, where
from neada.tensors import NonFiniteGradient, clone, copy_, drop_cached_casts

__all__ = ["Closure", "Objective", "restore_on_error"]

Closure = Callable[[], "Tensor | float"]


@dataclass(frozen=True)
class Objective:
    """The value at the current point and at trial points, to be minimized.

    A stepper passes the value that it already has and a closure that only evaluates, which is
    called under `no_grad`. A torch user passes the usual closure that also calls `backward`; it is
    called with gradients enabled, and the gradients that it overwrites are restored.

    Args:
        params: The tensors whose gradients a trial must not change.
        sign: 1 for a minimizing player, -1 for a maximizing one.
        rowwise: Whether there is one value per row.
        known: The value at the current point, or None if it is unknown.
        closure: Evaluates the objective at the current content of the parameters, or None.
        values_only: Whether the closure only evaluates.
    """

    params: Sequence[Tensor]
    sign: float
    rowwise: bool
    known: Tensor | float | None
    closure: Closure | None
    values_only: bool

    def value(self, needed_by: str, can_go_back: Flag = False) -> Scalar:
        """The value at the point where the gradient was evaluated.

        Args:
            needed_by: The name of the method, for the error message.
            can_go_back: Where the method has a better point: NaN or Inf is then no error, but
                positive infinity.

        Raises:
            ValueError: The value is unknown.
            NonFiniteGradient: The value is NaN or Inf.
        """
        if self.known is None:
            raise ValueError(
                f"{needed_by} needs the value of the objective: call step(closure), or "
                "step(value=...) with the value at the current point"
            )
        value = self._signed(self.known)
        if all_finite(value):
            return value
        if all_true(is_finite(value) | can_go_back):
            return where(is_finite(value), value, math.inf)
        raise NonFiniteGradient(
            "the objective is NaN or Inf at the current point; nothing was changed",
            negate(is_finite(value)),
        )

    def evaluate(self) -> Scalar:
        """The value at the current content of the parameters; infinite where it is NaN."""
        if self.closure is None:
            raise ValueError(
                "this optimizer tries several points in one step and needs a closure: call "
                "step(closure), or step(closure, value=...) with a closure that only evaluates"
            )
        drop_cached_casts()
        if self.values_only:
            with torch.no_grad():
                value = self._signed(self.closure())
        else:
            gradients = [param.grad for param in self.params]
            for param in self.params:
                param.grad = None  # so that backward does not accumulate into it
            try:
                with torch.enable_grad():
                    value = self._signed(self.closure())
            finally:
                for param, gradient in zip(self.params, gradients, strict=True):
                    param.grad = gradient
        if isinstance(value, Tensor):
            return value.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        return math.inf if math.isnan(value) else value

    @property
    def precision(self) -> float:
        """The rounding unit of the values: that of their dtype, or of the parameters'."""
        source = self.known if isinstance(self.known, Tensor) else self.params[0]
        return torch.finfo(source.dtype).eps

    def _signed(self, value: Tensor | float) -> Scalar:
        if not self.rowwise:
            return self.sign * (value.item() if isinstance(value, Tensor) else value)
        num_rows = len(self.params[0])
        rows = torch.as_tensor(value, device=self.params[0].device).detach()
        if rows.shape != (num_rows,):
            raise ValueError(
                f"rowwise=True needs one value per row, a tensor of shape ({num_rows},), but the "
                f"objective has shape {tuple(rows.shape)}"
            )
        return self.sign * rows.double()


@contextmanager
def restore_on_error(
    params: Sequence[Tensor], error: type[BaseException] = BaseException
) -> Iterator[list[Tensor]]:
    """Restore the parameters if the block raises; yields a copy of them."""
    start = clone(params)
    try:
        yield start
    except error:
        with torch.no_grad():
            copy_(params, start)
        raise
