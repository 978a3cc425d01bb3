"""One player of the nested quasi-Newton method: its flat vector, its set, its L-BFGS memory."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neada.sets import Set

__all__ = ["Pairs", "Products", "Side", "dot", "norm_of"]


_EASY = 10  # projected gradient steps on sets that are no boxes before quasi-Newton ones


def dot(left: Tensor, right: Tensor) -> float:
    """The inner product of two flat vectors."""
    return torch.dot(left, right).item()


def norm_of(vector: Tensor) -> float:
    """The Euclidean norm of a flat vector."""
    return math.sqrt(torch.dot(vector, vector).item())


class Products(NamedTuple):
    """What is known of a step and of the change of the gradient along it."""

    product: float
    moved_sq: float
    changed_sq: float


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

    def add(self, moved: Tensor, changed: Tensor, known: "Products") -> None:
        """Remember a pair, if the function curves upwards along it.

        Args:
            moved: A step.
            changed: The change of the gradient along it.
            known: Their inner products.
        """
        product = known.product
        if not product > 1e-12 * math.sqrt(known.moved_sq * known.changed_sq) > 0.0:
            return
        if not self._curvatures:
            # A pair has a place, which the next one takes when all are taken. `inverse` is that of
            # the matrix of moved_i . changed_j for i not newer than j, and 0 elsewhere.
            empty = torch.zeros(self._history, len(moved), dtype=torch.float64, device=moved.device)
            self._moved, self._changed = empty, empty.clone()
            self._products = empty.new_zeros(self._history)
            self._inverse = empty.new_zeros(self._history, self._history)
            self._place = 0
        place = self._place
        self._place = (place + 1) % self._history
        full = len(self._curvatures) == self._history
        self._curvatures = [*self._curvatures[full:], product / known.moved_sq]
        self.least_curvature = min(self._curvatures)
        self._changed[place] = changed
        self._inverse[place] = 0.0
        column = self._inverse.mv(self._moved.mv(self._changed[place])).div_(-product)
        column[place] = 1.0 / product
        self._inverse[:, place] = column
        self._moved[place] = moved
        self._products[place] = product
        self._scale = product / known.changed_sq

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
        moved, changed, inverse = self._moved, self._changed, self._inverse
        products, scale = self._products, self._scale
        if free is not None:
            # The oldest first, so that the matrix is a triangle.
            moved, changed = (p.roll(-self._place, 0) * free for p in (moved, changed))
            products, squares = (moved * changed).sum(1), changed.square().sum(1)
            kept = products > 1e-12 * (moved.square().sum(1) * squares).sqrt()
            moved, changed, products = moved[kept], changed[kept], products[kept]
            if not len(moved):
                return gradient
            identity = torch.eye(len(moved), dtype=moved.dtype, device=moved.device)
            inverse = torch.linalg.solve_triangular(
                (moved @ changed.T).triu(), identity, upper=True
            )
            scale = (products[-1] / squares[kept][-1]).item()
        wide = gradient.double()
        along = inverse.mv(moved.mv(wide))
        left = torch.addmv(wide, changed.T, along, alpha=-1.0)
        weights = along.mul_(products).sub_(changed.mv(left), alpha=scale)
        found = torch.addmv(left, moved.T, inverse.T.mv(weights), beta=scale)
        return found.to(gradient.dtype)


class Side:
    """One player as a flat vector: its set, and the directions of its steps.

    Args:
        params: The tensors.
        home: Where they live, jointly; None for everywhere.
        history: How many pairs are kept; None for a number that suits the size of the player.

    Attributes:
        is_box: Whether the set treats every coordinate by itself.
    """

    def __init__(self, params: list[Tensor], home: Set | None, history: int | None) -> None:
        self.params = params
        self.home = home
        self.is_box = home is not None and home.elementwise
        size = sum(p.numel() for p in params)
        if history is None:
            # A quadratic is known exactly with as many pairs as dimensions, if they are good ones.
            history = min(max(3 * size, 20), 300) if size <= 1000 else 20
        self.pairs = Pairs(history)
        self.spectral = 1.0  # the step size of a projected gradient step, for sets that are no box
        self._reach = 1.0  # the length of a step without pairs: it doubles where f curves down
        self._reduced = torch.empty(0)  # the gradient in the face, for sets that are no box

    def state_dict(self) -> dict[str, Any]:
        """What was learned on the way; the tensors are not copied."""
        own = {name: vars(self)[name] for name in ("spectral", "_reach", "_reduced")}
        return {**own, "pairs": vars(self.pairs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state."""
        own = {name: entry for name, entry in state_dict.items() if name != "pairs"}
        vars(self).update(own)
        vars(self.pairs).update(state_dict["pairs"])

    def read(self) -> Tensor:
        """Where the player is."""
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    def write(self, point: Tensor) -> None:
        """Put the player somewhere."""
        for param, part in zip(self.params, self._split(point), strict=True):
            param.detach().copy_(part)

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of a value, whose graph stays; zero where it does not depend on a tensor."""
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
        mapping = self.home.gradient_mapping(self._split(point), self._split(-gradient))
        return norm_of(_joined(mapping))

    def direction(self, point: Tensor, gradient: Tensor, steps: int) -> tuple[Tensor, float]:
        """Where to go: quasi-Newton in the free coordinates, or a projected gradient step.

        Args:
            point: Where the player is.
            gradient: The gradient there.
            steps: How many the player has taken on its way. On sets that are no boxes the first
                ones are projected gradient steps: where these suffice they take fewer.

        Returns:
            The direction, and the slope along it.
        """
        if self.home is not None and not self.is_box:
            self._reduced = self._in_face(point, gradient, gradient)
            if len(self.pairs) and steps >= _EASY:
                found = self._in_face(point, gradient, self.pairs.apply(self._reduced, None)).neg_()
                slope = dot(found, gradient)
                if slope < -1e-8 * math.sqrt(dot(found, found) * dot(gradient, gradient)):
                    return found, slope
            found = self.project(point - self.spectral * gradient) - point
            return found, dot(found, gradient)
        free = self._free(point, gradient) if self.is_box else None
        if len(self.pairs):
            found = self.pairs.apply(gradient, free).neg_()
            slope = dot(found, gradient)
            if slope < -1e-14 * math.sqrt(dot(found, found) * dot(gradient, gradient)):
                return found, slope
        found = -gradient if free is None else -gradient * free
        length = norm_of(found)
        factor = min(max(1.0, self._reach), self._reach / max(length, 1e-300))
        return found * factor, -factor * length**2

    def moved_to(self, point: Tensor, direction: Tensor, length: float) -> Tensor:
        """A trial point; on a box the path is bent along its border."""
        trial = torch.add(point, direction, alpha=length)
        return self.project(trial)

    def learn(self, moved: Tensor, changed: Tensor, point: Tensor, gradient: Tensor) -> Products:
        """Take a step and the change of the gradient along it into account.

        Args:
            moved: The step, along the last direction.
            changed: The change of the gradient.
            point: Where it ended.
            gradient: The gradient there.
        """
        known = Products(dot(moved, changed), dot(moved, moved), dot(changed, changed))
        if self.home is None or self.is_box:
            self.pairs.add(moved, changed, known)
        else:
            inside = self._in_face(point, gradient, gradient) - self._reduced
            products = Products(dot(moved, inside), known.moved_sq, dot(inside, inside))
            self.pairs.add(moved, inside, products)
        upwards = known.product > 0.0
        self._reach = 1.0 if upwards else min(2.0 * self._reach, 1e10)
        longer = known.moved_sq / known.product if upwards else 4.0 * self.spectral
        self.spectral = min(max(longer, 1e-10), 1e10)
        return known

    def forget(self, gradient: Tensor) -> None:
        """Begin anew with a step of length one at most."""
        self.pairs.clear()
        self.spectral = 1.0 / max(norm_of(gradient), 1e-10)

    def _free(self, point: Tensor, gradient: Tensor) -> Tensor | None:
        """1 for the coordinates that can move against the gradient, 0 for those at their bound.

        None where all can.
        """
        visible = max(1e-12, 8.0 * torch.finfo(point.dtype).eps)
        nudge = visible * (1.0 + point.abs()) * gradient.sign()
        free = (self.project(point - nudge) != point) | (gradient == 0.0)
        return None if bool(free.all()) else free.to(point.dtype)

    def _in_face(self, point: Tensor, gradient: Tensor, vector: Tensor) -> Tensor:
        """The part of a vector along the face of the set that the descent presses against.

        By a difference of projections of a point just outside, which is exact for faces that are
        flat.
        """
        size, length = 1.0 + norm_of(point), norm_of(vector)
        if length == 0.0:
            return vector
        outside = point - (1e-6 * size / max(norm_of(gradient), 1e-300)) * gradient
        step = 1e-7 * size / length
        return (self.project(outside + step * vector) - self.project(outside)) / step

    def _split(self, point: Tensor) -> list[Tensor]:
        if len(self.params) == 1:
            return [point.view(self.params[0].shape)]
        parts = torch.split(point, [p.numel() for p in self.params])
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]


def _joined(parts: list[Tensor]) -> Tensor:
    """Tensors as one flat vector."""
    return parts[0].reshape(-1) if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])
