"""Values, gradients and Hessians of f at rows of flat points, counted by a stepper."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from neada.solve.geometry import Array, Mask, Side, dot, norm, times

__all__ = ["Derivatives", "confirms", "grad", "hessian_of"]

grad = partial(torch.autograd.grad, allow_unused=True, materialize_grads=True)
"""Gradients, which are zero for tensors that a value does not depend on."""

_FEW = 64  # products that cost less one by one than the import of vmap, a third of a second
_CHUNK = 128  # Hessian-vector products that are computed at once: a bound for the memory


class Derivatives:
    """f at the point that was evaluated last.

    Args:
        x: The player that minimizes.
        y: The player that maximizes.
        count: Counts a number of evaluations by name, if the budget allows them.

    Attributes:
        evaluate: Evaluates f with its graph where the players are, counted as a gradient of y; to
            be set before every step.
        are_second: Whether f has second derivatives, as far as is known.
    """

    evaluate: Callable[[], Tensor]
    graph: Tensor | None = None

    def __init__(self, x: Side, y: Side, count: Callable[[str, int], None]) -> None:
        self.x = x
        self.y = y
        self.count = count
        self.leaves = x.params + y.params
        self.are_second = True

    def at(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Move the players to a point; returns the values and the gradients of y there."""
        self.x.write(x)
        self.y.write(y)
        self.graph = self.evaluate()
        self.point = x, y
        self.versions = [leaf._version for leaf in self.leaves]
        value: Array = self.graph.detach().reshape(-1).to("cpu", torch.float64).numpy().copy()
        return value, self._gradient(self.y)

    def gradients(self) -> tuple[Array, Array]:
        """The gradients of both players; that of x is counted."""
        self.count("calls_x", 1)
        return self._gradient(self.x), self._gradient(self.y)

    def _gradient(self, side: Side) -> Array:
        assert self.graph is not None
        return side.read(grad(self.graph.sum(), side.params, retain_graph=True))

    def hessian(self, x: Array, y: Array) -> Array:
        """The Hessians at a point, by differences of gradients if f has no second derivatives."""
        self._be_at(x, y)
        if self.are_second:
            self.count("calls_hvp", self.x.size + self.y.size)
            assert self.graph is not None
            try:
                return hessian_of(self.graph, self.leaves, self.x.num_rows)
            except RuntimeError:
                self.are_second = False
        product, n = self._difference(x, y), self.x.size
        rows = [np.tile(unit, (len(x), 1)) for unit in np.eye(n + self.y.size)]
        columns = [np.concatenate(product(row[:, :n], row[:, n:]), 1) for row in rows]
        hessian: Array = np.stack(columns, 2)
        return 0.5 * (hessian + hessian.swapaxes(1, 2))

    def _be_at(self, x: Array, y: Array) -> None:
        """Evaluate f at a point, unless its graph is that of the last evaluation."""
        is_valid = self.graph is not None and self.versions == [p._version for p in self.leaves]
        if not (is_valid and all(map(np.array_equal, self.point, (x, y)))):
            self.at(x, y)
            self.count("calls_y", -1)  # the price of second derivatives includes their graph

    def product(self, x: Array, y: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
        """The product of the Hessian at a point with steps, valid until the players move."""
        self._be_at(x, y)
        if not self.are_second:
            return self._difference(x, y)
        assert self.graph is not None
        grads = grad(self.graph.sum(), self.leaves, create_graph=True)
        num_x = len(self.x.params)

        def times(step_x: Array, step_y: Array) -> tuple[Array, Array]:
            self.count("calls_hvp", 1)
            steps = self.x.split(step_x) + self.y.split(step_y)
            along = [
                (g * step.to(g.dtype)).sum()
                for g, step in zip(grads, steps, strict=True)
                if g.requires_grad
            ]
            if not along:
                return np.zeros_like(step_x), np.zeros_like(step_y)
            try:
                found = grad(torch.stack(along).sum(), self.leaves, retain_graph=True)
            except RuntimeError:  # an operation of f can be differentiated only once
                self.are_second = False
                return self._difference(x, y)(step_x, step_y)
            return self.x.read(found[:num_x]), self.y.read(found[num_x:])

        return times

    def _difference(self, x: Array, y: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
        """The same by differences of gradients."""
        self._be_at(x, y)
        start_x, start_y = self.gradients()
        root = math.sqrt(torch.finfo(self.leaves[0].dtype).eps)  # of rounding against truncation

        def times(step_x: Array, step_y: Array) -> tuple[Array, Array]:
            length = np.maximum(np.sqrt(dot(step_x, step_x) + dot(step_y, step_y)), 1e-300)
            along = np.abs(dot(x, step_x) + dot(y, step_y)) / length
            size = (root * (1.0 + along) / length)[:, None]
            self.at(x + size * step_x, y + size * step_y)
            new_x, new_y = self.gradients()
            return (new_x - start_x) / size, (new_y - start_y) / size

        return times

    def doubt(self, x: Array, y: Array, hessian: Array) -> None:
        """Compare a Hessian with differences; if it is wrong, use these from now on."""
        self.x.write(x)
        self.y.write(y)
        self.count("calls_hvp", 1)
        self.are_second = bool(confirms(self.evaluate, (self.x, self.y), hessian).all())


def confirms(evaluate: Callable[[], Tensor], sides: Sequence[Side], hessian: Array) -> Mask:
    """In which rows differences of gradients agree with a Hessian along a random direction.

    Backward passes that can be differentiated only once may yield a Hessian without their part.

    Args:
        evaluate: Evaluates f with its graph where the players are.
        sides: The players, in the order of the Hessian.
        hessian: The Hessians where they are.
    """
    leaves = [param for side in sides for param in side.params]
    random = np.random.default_rng(1)
    starts = [side.read() for side in sides]
    root = math.sqrt(torch.finfo(leaves[0].dtype).eps)
    gradients, moved = [], []
    for sign in (0.0, 1.0):
        for side, start in zip(sides, starts, strict=True):
            step = sign * root * random.standard_normal(start.shape) * (1.0 + np.abs(start))
            side.write(side.nearest(start + step))
            moved.append(side.read() - start)
        parts = iter(grad(evaluate().sum(), leaves))
        gradients.append([side.read([next(parts) for _ in side.params]) for side in sides])
    for side, start in zip(sides, starts, strict=True):
        side.write(start)
    before, after = (np.concatenate(parts, 1) for parts in gradients)
    step = np.concatenate(moved[len(sides) :], 1)
    product, reach = times(hessian, step), times(np.abs(hessian), np.abs(step))
    point = np.abs(np.concatenate(starts, 1))
    # Rounding may cost half of the digits, and truncation as many.
    terms = np.abs(before) + times(np.abs(hessian), 1.0 + point)
    slack = 1e-7 * np.linalg.norm(hessian, axis=(1, 2)) * norm(step)
    noise = 1e3 * root**2 * (terms + norm(before)[:, None]) + slack[:, None]
    missed = np.abs(after - before - product)
    agrees: Mask = ~(missed > 0.1 * reach + noise).any(1)
    return agrees


def hessian_of(value: Tensor, leaves: list[Tensor], num_rows: int) -> Array:
    """The Hessians of the rows of f from its graph.

    Raises:
        RuntimeError: An operation of f can be differentiated only once.
    """
    grads = grad(value.sum(), leaves, create_graph=True)
    flat = torch.cat([g.reshape(num_rows, -1) for g in grads], 1)
    size = flat.shape[1]
    if not flat.requires_grad:
        return np.zeros((num_rows, size, size))
    derivative = partial(grad, inputs=leaves, retain_graph=True)

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
            matrix = torch.cat([at_once(chunk) for chunk in torch.split(directions, _CHUNK)])
        except RuntimeError:  # an operation of f has no batching rule
            matrix = one_by_one()
    hessian: Array = matrix.transpose(0, 1).to("cpu", torch.float64).numpy()
    return 0.5 * (hessian + hessian.swapaxes(1, 2))
