"""One player of the nested quasi-Newton method: its flat vector, its set, its L-BFGS memory."""

import math

import torch
from torch import Tensor

from neada.sets import Set

__all__ = ["Pairs", "Side", "dot", "norm_of"]


def dot(left: Tensor, right: Tensor) -> float:
    """The inner product of two flat vectors."""
    return torch.dot(left, right).item()


def norm_of(vector: Tensor) -> float:
    """The Euclidean norm of a flat vector."""
    return math.sqrt(torch.dot(vector, vector).item())


class Pairs:
    """L-BFGS: the last displacements and changes of gradient, and the product with the inverse.

    The compact form of Byrd, Nocedal and Schnabel (1994): products with the stacked pairs and with
    one small matrix. It takes the same ten operations for any number of pairs, where the usual two
    loops take eight for each; on small problems that is what the time is spent on.

    Args:
        history: How many pairs are kept.

    Attributes:
        least_curvature: The smallest that was seen along a remembered step; 0 if none was.
    """

    def __init__(self, history: int) -> None:
        self._history = history
        self.clear()

    def __len__(self) -> int:
        return len(self._curvatures)

    def clear(self) -> None:
        """Forget all pairs."""
        self.least_curvature = 0.0
        self._curvatures: list[float] = []
        self._moved = self._changed = self._inverse = torch.empty(0, 0, dtype=torch.float64)
        self._scale = 1.0

    def add(self, moved: Tensor, changed: Tensor, product: float, moved_sq: float) -> None:
        """Remember a pair, if the function curves upwards along it.

        Args:
            moved: A step.
            changed: The change of the gradient along it.
            product: Their inner product.
            moved_sq: The squared length of the step.
        """
        moved, changed = moved.double(), changed.double()
        changed_sq = dot(changed, changed)
        if not product > 1e-12 * math.sqrt(moved_sq * changed_sq) > 0.0:
            return
        if not self._curvatures:
            self._moved = self._changed = moved.new_empty(0, len(moved))
            self._inverse = moved.new_empty(0, 0)
        first = 1 if len(self) == self._history else 0
        self._curvatures = [*self._curvatures[first:], product / moved_sq]
        self.least_curvature = min(self._curvatures)
        # Of the upper triangle of moved_i . changed_j, whose inverse grows by a column.
        inverse = torch.nn.functional.pad(self._inverse[first:, first:], (0, 1, 0, 1))
        before = self._moved[first:]
        inverse[:, -1] = inverse[:, :-1].mv(before.mv(changed)).div_(-product)
        inverse[-1, -1] = 1.0 / product
        self._inverse = inverse
        self._moved = torch.cat([before, moved[None]])
        self._changed = torch.cat([self._changed[first:], changed[None]])
        self._scale = product / changed_sq

    def apply(self, gradient: Tensor, free: Tensor | None) -> Tensor:
        """The inverse Hessian times the gradient, in the free coordinates.

        Args:
            gradient: The gradient.
            free: 1 for the coordinates that are free, 0 for the others; None if all are.
        """
        if free is not None:
            gradient = gradient * free
        if not self._curvatures:
            return gradient
        moved, changed, inverse, scale = self._moved, self._changed, self._inverse, self._scale
        if free is not None:
            moved, changed = moved * free, changed * free
            products = (moved * changed).sum(1)
            changed_sq = changed.square().sum(1)
            kept = products > 1e-12 * (moved.square().sum(1) * changed_sq).sqrt()
            moved, changed = moved[kept], changed[kept]
            if not len(moved):
                return gradient
            triangle = (moved @ changed.T).triu()
            identity = torch.eye(len(moved), dtype=moved.dtype, device=moved.device)
            inverse = torch.linalg.solve_triangular(triangle, identity, upper=True)
            scale = (products[kept][-1] / changed_sq[kept][-1]).item()
        wide = gradient.double()
        along = inverse.mv(moved.mv(wide))
        left = torch.addmv(wide, changed.T, along, alpha=-1.0)
        weights = along.div_(inverse.diagonal()).sub_(changed.mv(left), alpha=scale)
        found = torch.addmv(left, moved.T, inverse.T.mv(weights), beta=scale)
        return found.to(gradient.dtype)


class Side:
    """One player as a flat vector: its set, and the directions of its steps.

    Args:
        params: The tensors.
        home: Where they live, jointly; None for everywhere.
        history: How many pairs are kept.

    Attributes:
        is_box: Whether the set treats every coordinate by itself.
    """

    def __init__(self, params: list[Tensor], home: Set | None, history: int) -> None:
        self.params = params
        self.home = home
        self.is_box = home is not None and home.elementwise
        self.pairs = Pairs(history)
        self.spectral = 1.0  # the step size of a projected gradient step, for sets that are no box
        self._reach = 1.0  # the length of a step without pairs: it doubles where f curves down

    def read(self) -> Tensor:
        """Where the player is."""
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    def write(self, point: Tensor) -> None:
        """Put the player somewhere."""
        for param, part in zip(self.params, self._split(point), strict=True):
            param.detach().copy_(part)

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of a value, whose graph stays; zeros where it does not depend on a tensor."""
        grads = torch.autograd.grad(value, self.params, retain_graph=True, allow_unused=True)
        parts = [
            torch.zeros_like(p) if g is None else g for p, g in zip(self.params, grads, strict=True)
        ]
        return torch.cat([part.reshape(-1) for part in parts])

    def project(self, point: Tensor) -> Tensor:
        """The nearest point of the set."""
        return point if self.home is None else _joined(self.home.project(self._split(point)))

    def mapping_norm(self, point: Tensor, gradient: Tensor) -> float:
        """The norm of the gradient mapping, of a gradient that is descended."""
        if self.home is None:
            return norm_of(gradient)
        return norm_of(_joined(self.home.gradient_mapping(self._split(point), self._split(-gradient))))

    def direction(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Where to go: quasi-Newton in the free coordinates, or a projected gradient step."""
        if self.home is not None and not self.is_box:
            return self.project(point - self.spectral * gradient) - point
        free = self._free(point, gradient) if self.is_box else None
        if len(self.pairs):
            found = -self.pairs.apply(gradient, free)
            if dot(found, gradient) < -1e-14 * norm_of(found) * norm_of(gradient):
                return found
        steepest = -gradient if free is None else -gradient * free
        return steepest * min(max(1.0, self._reach), self._reach / max(norm_of(steepest), 1e-300))

    def moved_to(self, point: Tensor, direction: Tensor, length: float) -> Tensor:
        """A trial point; on a box the path is bent along its border."""
        trial = torch.add(point, direction, alpha=length)
        return self.project(trial) if self.is_box else trial

    def learn(self, moved: Tensor, changed: Tensor) -> float:
        """Take a step and the change of the gradient along it into account.

        Returns:
            The inner product of the two.
        """
        product, moved_sq = dot(moved, changed), dot(moved, moved)
        self.pairs.add(moved, changed, product, moved_sq)
        self._reach = 1.0 if product > 0.0 else min(2.0 * self._reach, 1e10)
        longer = moved_sq / product if product > 0.0 else 4.0 * self.spectral
        self.spectral = min(max(longer, 1e-10), 1e10)
        return product

    def forget(self, gradient: Tensor) -> None:
        """Begin anew with a step of length one at most."""
        self.pairs.clear()
        self.spectral = 1.0 / max(norm_of(gradient), 1e-10)

    def _free(self, point: Tensor, gradient: Tensor) -> Tensor | None:
        """1 for the coordinates that can move against the gradient, 0 for those at their bound.

        None where all can.
        """
        nudge = 1e-12 * (1.0 + point.abs()) * gradient.sign()
        free = (self.project(point - nudge) != point) | (gradient == 0.0)
        return None if bool(free.all()) else free.to(point.dtype)

    def _split(self, point: Tensor) -> list[Tensor]:
        if len(self.params) == 1:
            return [point.view(self.params[0].shape)]
        parts = torch.split(point, [p.numel() for p in self.params])
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]


def _joined(parts: list[Tensor]) -> Tensor:
    """Tensors as one flat vector."""
    return parts[0].reshape(-1) if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])
