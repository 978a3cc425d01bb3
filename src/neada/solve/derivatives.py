"""Values, gradients and Hessians of f at rows of flat points, counted by a stepper."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from neada.solve.geometry import Array, Side

__all__ = ["Derivatives", "hessian_of"]

_FEW = 16  # products that are faster one by one than by the import and overhead of vmap
_CHUNK = 128  # Hessian-vector products that are computed at once: a bound for the memory


class Derivatives:
    """f at the point that was evaluated last.

    Args:
        x: The player that minimizes.
        y: The player that maximizes.
        evaluate: Evaluates f with its graph where the players are, counted as a gradient of y.
        count: Counts a number of evaluations by name, if the budget allows them.
    """

    def __init__(
        self, x: Side, y: Side, evaluate: Callable[[], Tensor], count: Callable[[str, int], None]
    ) -> None:
        self.x = x
        self.y = y
        self.evaluate = evaluate
        self.count = count
        self.leaves = x.params + y.params

    def at(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Move the players to a point; returns the values and the gradients of y there."""
        self.x.write(x)
        self.y.write(y)
        self.graph = self.evaluate()
        self.versions = [leaf._version for leaf in self.leaves]
        value: Array = self.graph.detach().reshape(-1).to("cpu", torch.float64).numpy().copy()
        return value, self._gradient(self.y)

    def gradients(self) -> tuple[Array, Array]:
        """The gradients of both players; that of x is counted."""
        self.count("calls_x", 1)
        return self._gradient(self.x), self._gradient(self.y)

    def _gradient(self, side: Side) -> Array:
        grads = torch.autograd.grad(
            self.graph.sum(),
            side.params,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return side.read(grads)

    def hessian(self, x: Array, y: Array) -> Array:
        """The Hessians at a point, by differences of gradients if f has no second derivatives."""
        if not hasattr(self, "graph") or [leaf._version for leaf in self.leaves] != self.versions:
            self.at(x, y)
        size = self.x.size + self.y.size
        self.count("calls_hvp", size)
        try:
            return hessian_of(self.graph, self.leaves, self.x.num_rows)
        except RuntimeError:
            return self._differences(x, y)

    def _differences(self, x: Array, y: Array) -> Array:
        """Hessians by differences of gradients; each costs half of what a product counts."""
        eps = torch.finfo(self.leaves[0].dtype).eps
        self.at(x, y)
        base = np.concatenate(self.gradients(), 1)
        columns = []
        for i in range(self.x.size + self.y.size):
            point = np.concatenate([x, y], 1)
            # The root of the precision balances rounding and truncation.
            size = np.sqrt(eps) * (1.0 + np.abs(point[:, i]))
            point[:, i] += size
            self.at(point[:, : self.x.size], point[:, self.x.size :])
            columns.append((np.concatenate(self.gradients(), 1) - base) / size[:, None])
        hessian = np.stack(columns, 2)
        return 0.5 * (hessian + hessian.swapaxes(1, 2))


def hessian_of(value: Tensor, leaves: list[Tensor], num_rows: int) -> Array:
    """The Hessians of the rows of f from its graph.

    Raises:
        RuntimeError: An operation of f can be differentiated only once.
    """
    grads = torch.autograd.grad(
        value.sum(), leaves, create_graph=True, allow_unused=True, materialize_grads=True
    )
    flat = torch.cat([g.reshape(num_rows, -1) for g in grads], 1)
    size = flat.shape[1]
    if not flat.requires_grad:
        return np.zeros((num_rows, size, size))
    derivative = partial(
        torch.autograd.grad,
        inputs=leaves,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )

    def one_by_one() -> Tensor:
        columns = [derivative(flat[:, i].sum()) for i in range(size)]
        return torch.stack([torch.cat([p.reshape(num_rows, -1) for p in c], 1) for c in columns])

    def at_once(some: Tensor) -> Tensor:
        found = derivative(flat, grad_outputs=some, is_grads_batched=True)
        return torch.cat([p.reshape(*some.shape[:2], -1) for p in found], 2)

    if size <= _FEW:
        matrix = one_by_one()
    else:
        eye = torch.eye(size, dtype=flat.dtype, device=flat.device)
        directions = eye[:, None, :].expand(size, num_rows, size)
        try:
            matrix = torch.cat([at_once(chunk) for chunk in directions.split(_CHUNK)])
        except RuntimeError:  # an operation of f has no batching rule
            matrix = one_by_one()
    hessian: Array = matrix.transpose(0, 1).to("cpu", torch.float64).numpy()
    return 0.5 * (hessian + hessian.swapaxes(1, 2))
