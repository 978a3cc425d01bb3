"""Quasi-Newton steps of one player: its flat vector, its set, its L-BFGS pairs; the y player."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from neada.inner import Counters
from neada.sets import Set

__all__ = ["ARMIJO", "FLAT", "AtY", "Maximizer", "Side"]

ARMIJO = 1e-4  # share of the predicted decrease that a step has to reach
FLAT = 0.8  # near rounding a step may end with this share of its first slope, upwards
_EASY = 10  # projected gradient steps on sets other than boxes before quasi-Newton steps
_MAX_STEPS = 400  # steps of y for one x
_RUNAWAY = 1e9  # y is this many times farther out than it was when the loop began
_INVISIBLE = 10  # steps of y that change f by less than rounding does and do not halve the norm


def _dot(left: Tensor, right: Tensor) -> float:
    return torch.dot(left, right).item()


def _norm(vector: Tensor) -> float:
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
        home: Their joint constraint set; None if they are unconstrained.

    Attributes:
        is_box: Whether the set treats every coordinate by itself.
    """

    def __init__(self, params: list[Tensor], home: Set | None) -> None:
        self.params = params
        self.home = home
        self.is_box = home is not None and home.elementwise
        size = sum(p.numel() for p in params)
        # As many good pairs as dimensions determine a quadratic exactly.
        self.pairs = Pairs(min(max(3 * size, 20), 300) if size <= 1000 else 20)
        self.spectral = 1.0  # the step size of a projected gradient step, for sets that are no box
        self._reach = 1.0  # the length of a step without pairs: it doubles where f curves down
        self._reduced = torch.empty(0)  # the gradient in the face, for sets that are no box
        self._learned: tuple[str, ...] = ("spectral", "_reach", "_reduced")

    def state_dict(self) -> dict[str, Any]:
        """What was learned on the way; the tensors are not copied."""
        own = {name: vars(self)[name] for name in self._learned}
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
        """The gradient of a value, whose graph is kept."""
        grads = torch.autograd.grad(
            value, self.params, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in grads])

    def gradient_and_norm(self, value: Tensor, point: Tensor) -> tuple[Tensor, float]:
        """The gradient of a value at this point, and the norm of its gradient mapping."""
        gradient = self.gradient(value)
        return gradient, self.mapping_norm(point, gradient)

    def project(self, point: Tensor) -> Tensor:
        """The nearest point of the set."""
        return point if self.home is None else _joined(self.home.project(self._split(point)))

    def mapping_norm(self, point: Tensor, gradient: Tensor) -> float:
        """The norm of the gradient mapping, of a gradient that is descended."""
        if self.home is None:
            return _norm(gradient)
        mapping = self.home.gradient_mapping(self._split(point), self._split(-gradient))
        return _norm(_joined(mapping))

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
                slope = _dot(found, gradient)
                if slope < -1e-8 * math.sqrt(_dot(found, found) * _dot(gradient, gradient)):
                    return found, slope
            found = self.project(point - self.spectral * gradient) - point
            return found, _dot(found, gradient)
        free = self._free(point, gradient) if self.is_box else None
        if len(self.pairs):
            found = self.pairs.apply(gradient, free).neg_()
            slope = _dot(found, gradient)
            if slope < -1e-14 * math.sqrt(_dot(found, found) * _dot(gradient, gradient)):
                return found, slope
        found = -gradient if free is None else -gradient * free
        length = _norm(found)
        factor = min(max(1.0, self._reach), self._reach / max(length, 1e-300))
        return found * factor, -factor * length**2

    def move(self, point: Tensor, direction: Tensor, length: float) -> Tensor:
        """Move the player to a trial point and return it; a set bends the path along its border."""
        trial = self.project(torch.add(point, direction, alpha=length))
        self.write(trial)
        return trial

    def learn(self, moved: Tensor, changed: Tensor, point: Tensor, gradient: Tensor) -> Products:
        """Take a step and the change of the gradient along it into account.

        Args:
            moved: The step, along the last direction.
            changed: The change of the gradient.
            point: Where it ended.
            gradient: The gradient there.
        """
        known = Products(_dot(moved, changed), _dot(moved, moved), _dot(changed, changed))
        if self.home is None or self.is_box:
            self.pairs.add(moved, changed, known)
        else:
            inside = self._in_face(point, gradient, gradient) - self._reduced
            products = Products(_dot(moved, inside), known.moved_sq, _dot(inside, inside))
            self.pairs.add(moved, inside, products)
        upwards = known.product > 0.0
        self._reach = 1.0 if upwards else min(2.0 * self._reach, 1e10)
        longer = known.moved_sq / known.product if upwards else 4.0 * self.spectral
        self.spectral = min(max(longer, 1e-10), 1e10)
        return known

    def forget(self, gradient: Tensor) -> None:
        """Begin anew with a step of length one at most."""
        self.pairs.clear()
        self.spectral = 1.0 / max(_norm(gradient), 1e-10)

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
        size, length = 1.0 + _norm(point), _norm(vector)
        if length == 0.0:
            return vector
        outside = point - (1e-6 * size / max(_norm(gradient), 1e-300)) * gradient
        step = 1e-7 * size / length
        return (self.project(outside + step * vector) - self.project(outside)) / step

    def _split(self, point: Tensor) -> list[Tensor]:
        if len(self.params) == 1:
            return [point.view(self.params[0].shape)]
        parts = torch.split(point, [p.numel() for p in self.params])
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]


class AtY(NamedTuple):
    """Where a maximization over y ended; value and gradient are those of what is minimized."""

    y: Tensor
    value: float
    gradient: Tensor
    norm: float
    end: Literal["accurate", "at rounding", "not finite", "runs away", "curves up", "stuck"]


class Maximizer(Side):
    r"""The y player: minimizes :math:`-f(x, y) + \tfrac{\rho}{2}\|y - c\|^2` over y.

    Args:
        params: The tensors of y.
        home: Their joint constraint set; None if y is unconstrained.
        tol: The norm that the solve requires in the end.
        prox: The weight :math:`\rho`.

    Attributes:
        center: The point :math:`c`.
        graph: The last value of f, with its graph.
        rounding: The relative error that f is assumed to have.
    """

    rounding: float

    def __init__(self, params: list[Tensor], home: Set | None, tol: float, prox: float) -> None:
        super().__init__(params, home)
        self.prox = prox
        self.center = self.read()
        self.graph: Tensor | None = None
        self._tol = tol
        self._learned = (*self._learned, "prox", "center")

    def begin_step(
        self, evaluate: Callable[[], Tensor], counters: Counters, rounding: float
    ) -> None:
        """Set what the next calls of `maximize` evaluate, and where they count their steps."""
        self._evaluate = evaluate
        self._counters = counters
        self.rounding = rounding

    def maximize(self, y: Tensor, accuracy: float) -> AtY:
        """Take quasi-Newton steps from y until the norm is at most the accuracy."""
        far, way = _RUNAWAY * (1.0 + _norm(y)), 0.0
        value, gradient = self._value_and_gradient(y)
        if not (math.isfinite(value) and math.isfinite(gradient.sum().item())):
            return AtY(y, value, gradient, math.inf, "not finite")
        recent, num_straight, num_up, num_stuck, num_invisible = [value], 0, 0, 0, 0
        least = math.inf
        for k in range(_MAX_STEPS):
            norm = self.mapping_norm(y, gradient)
            if k == 0 and not len(self.pairs):
                # The curvature is unknown, so no accuracy is meaningful yet.
                accuracy = max(min(accuracy, 0.1 * norm), 1e-3 * self._tol)
            if norm <= accuracy:
                return AtY(y, value, gradient, norm, "accurate")
            if num_up >= 5:
                return AtY(y, value, gradient, norm, "curves up")
            if self.prox == 0.0 and (num_straight >= 2 or way > far):
                return AtY(y, value, gradient, norm, "runs away")
            direction, slope = self.direction(y, gradient, k)
            found = self._search(y, value, max(recent[-5:]), gradient, direction, slope)
            if found is None:
                num_stuck += 1
                self.forget(gradient)
                value, gradient = self._value_and_gradient(y)  # the graph is needed at y
                if abs(slope) <= 10.0 * self.rounding * abs(value):
                    return AtY(y, value, gradient, norm, "at rounding")
                if num_stuck > 2:
                    return AtY(y, value, gradient, norm, "stuck")
                continue
            new, new_value, new_gradient, predicted = found
            known = self.learn(new - y, new_gradient - gradient, new, new_gradient)
            way += math.sqrt(known.moved_sq)
            num_up = num_up + 1 if self.home is None and known.product < 0.0 else 0
            visible = abs(predicted) > 10.0 * self.rounding * abs(value)
            straight = visible and known.changed_sq <= 1e-20 * _dot(gradient, gradient)
            straight = straight and (self.home is None or self.is_box)
            num_straight = num_straight + 1 if straight else 0
            y, value, gradient = new, new_value, new_gradient
            recent.append(value)
            self._counters.inner_steps += 1
            num_invisible = 0 if visible or norm < 0.5 * least else num_invisible + 1
            least = min(least, norm)
            if num_invisible >= _INVISIBLE:
                norm = self.mapping_norm(y, gradient)
                return AtY(y, value, gradient, norm, "at rounding")
        norm = self.mapping_norm(y, gradient)
        return AtY(y, value, gradient, norm, "accurate" if norm <= accuracy else "stuck")

    def without_prox(self, at: AtY) -> tuple[float, float]:
        """The value of f and the norm of y's gradient mapping, without the proximal term."""
        if self.prox == 0.0:
            return -at.value, at.norm
        apart = at.y - self.center
        value = -at.value + 0.5 * self.prox * _dot(apart, apart)
        return value, self.mapping_norm(at.y, at.gradient - self.prox * apart)

    def _value_and_gradient(self, y: Tensor) -> tuple[float, Tensor]:
        self.write(y)
        self.graph = self._evaluate()
        value, gradient = -self.graph.item(), -self.gradient(self.graph)
        if self.prox == 0.0:
            return value, gradient
        apart = y - self.center
        return value + 0.5 * self.prox * _dot(apart, apart), gradient + self.prox * apart

    def _search(
        self,
        y: Tensor,
        value: float,
        worst: float,
        gradient: Tensor,
        direction: Tensor,
        slope: float,
    ) -> tuple[Tensor, float, Tensor, float] | None:
        """Shorten a step until it passes; None if no length does.

        Returns:
            The new y, value and gradient, and the change that the old gradient predicted.
        """
        reference = worst if self.home is not None and not self.is_box else value
        length = 1.0
        if not slope < 0.0:
            return None
        for _ in range(40):
            new = self.project(torch.add(y, direction, alpha=length))
            new_value, new_gradient = self._value_and_gradient(new)
            moved = new - y
            predicted, slope = _dot(moved, gradient), _dot(moved, new_gradient)
            if not (math.isfinite(new_value) and math.isfinite(slope)):
                length *= 0.25
                continue
            if new_value <= reference + ARMIJO * predicted or (
                new_value <= value + 10.0 * self.rounding * abs(value)
                and slope <= -FLAT * predicted
            ):
                return new, new_value, new_gradient, predicted
            shorter = -predicted / (slope - predicted) if slope > predicted else 0.5
            length *= min(0.5, max(0.1, shorter))
        return None


def _joined(parts: list[Tensor]) -> Tensor:
    """Tensors as one flat vector."""
    return parts[0].reshape(-1) if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])
