"""What kind of point a solve has found, from second derivatives and from values of f."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neada.sets import Set
from neada.solve.derivatives import confirms, grad, hessian_of
from neada.solve.geometry import Array, Mask, Side, dot, norm, solve, solve_many, times

__all__ = ["LARGEST", "Verdict", "derivatives_are_wrong", "duality_gap", "fits", "judge"]

LARGEST = 1000  # coordinates of both players for which a Hessian is computed
_MOST_ENTRIES = 30_000_000  # of the Hessians of all rows: 240 MB, of which a few copies exist
_TINY = 1e-150  # squares of smaller numbers underflow
_CLEAR = 1e-10  # a curvature below this share of the largest may be rounding
_NUDGE = 1e-6  # a point that moves this far stays in its face if its multipliers are not zero
_STEP = 1e-6  # of central differences, relative to the point, where curvature hardly shows
_NEAR = 0.01  # a stationary point is closer than this, relative to its size
_OUT = 1e8  # times the size of a point: outside of its set, if that is bounded

Groups = Iterable[tuple[list[Tensor], Set | None]]


class Verdict(NamedTuple):
    """The second-order conditions at a stationary point, row by row.

    Attributes:
        kind: "strict local minimax", "stationary", or "unknown".
        curvature_x: The least curvature of the maximum over y along directions that are free.
        curvature_y: The least curvature of -f in y along directions that are free.
        condition: The condition number of the maximum over y.
        is_saddle: Whether the maximum over y curves downwards in x.
        is_no_maximum: Whether f curves upwards in y.
    """

    kind: NDArray[np.str_]
    curvature_x: Array
    curvature_y: Array
    condition: Array
    is_saddle: Mask
    is_no_maximum: Mask

    def sentence(self, row: int, norm_x: float) -> str:
        """What that means for a user, to be appended to a status."""
        if self.kind[row] != "strict local minimax":
            return ""
        distance = norm_x / self.curvature_x[row]
        return f"; a strict local minimax point, with an error of about {distance:.0e} in x"

    @classmethod
    def unknown(cls, num_rows: int) -> "Verdict":
        """Nothing is known of the curvature."""
        nan, no = np.full(num_rows, np.nan), np.zeros(num_rows, dtype=bool)
        return cls(np.full(num_rows, "unknown", dtype="<U20"), nan, nan, nan, no, no)


def fits(size: int, num_rows: int) -> bool:
    """Whether Hessians of this many coordinates are computed for this many rows."""
    return size <= LARGEST and num_rows * size**2 <= _MOST_ENTRIES


@np.errstate(all="ignore")
def judge(
    evaluate: Callable[[], Tensor], x_groups: Groups, y_groups: Groups, num_rows: int
) -> Verdict:
    """The second-order conditions at a stationary point (Jin, Netrapalli & Jordan 2020).

    Args:
        evaluate: Evaluates f with its graph where the players are; one value per row.
        x_groups: The tensors of x with their sets.
        y_groups: The tensors of y with their sets.
        num_rows: The number of rows; 1 without.
    """
    x = [Side(params, home, num_rows) for params, home in x_groups]
    y = [Side(params, home, num_rows) for params, home in y_groups]
    leaves = [param for side in (*x, *y) for param in side.params]
    n = sum(side.size for side in x)
    if not fits(n + sum(side.size for side in y), num_rows):
        return Verdict.unknown(num_rows)
    value = evaluate()
    slopes = iter(grad(value.sum(), leaves, retain_graph=True))
    try:
        hessian = hessian_of(value, leaves, num_rows)
    except RuntimeError:
        return Verdict.unknown(num_rows)
    known: Mask = np.asarray(np.isfinite(hessian).all(axis=(1, 2)))
    known &= confirms(evaluate, (*x, *y), hessian)
    hessian = np.where(known[:, None, None], hessian, 0.0)
    f_xx, f_yx, minus_f_yy = hessian[:, :n, :n], hessian[:, n:, :n], -hessian[:, n:, n:]
    down_x = [-side.read([next(slopes) for _ in side.params]) for side in x]
    up_y = [side.read([next(slopes) for _ in side.params]) for side in y]
    eps = max(torch.finfo(leaf.dtype).eps for leaf in leaves)
    clear = max(_CLEAR, 1e3 * eps)
    size_y = np.linalg.norm(minus_f_yy, axis=(1, 2))
    basis, free, inside, strict_y = _face(y, up_y, size_y, minus_f_yy)
    curvature_y = _least(inside, free)
    concave = curvature_y > np.maximum(clear * size_y, _TINY)
    # On the face of y its maximizer follows x.
    inside = np.where(concave[:, None, None], inside, np.eye(inside.shape[1]))
    coupling = np.where(free[:, :, None], basis.swapaxes(1, 2) @ f_yx, 0.0)
    added = coupling.swapaxes(1, 2) @ solve_many(inside, coupling)
    reduced = f_xx + added
    size_x = np.linalg.norm(f_xx, axis=(1, 2)) + np.linalg.norm(added, axis=(1, 2))
    ascent = np.where(free, times(basis.swapaxes(1, 2), np.concatenate(up_y, 1)), 0.0)
    near = _is_near(solve(inside, ascent), y)
    basis, free, inside, strict_x = _face(x, down_x, size_x, reduced)
    curvature_x = np.where(concave, _least(inside, free), np.nan)
    descent = np.where(free, times(basis.swapaxes(1, 2), np.concatenate(down_x, 1)), 0.0)
    near &= _is_near(solve(inside, descent), x)
    both = free[:, :, None] & free[:, None, :]
    largest = np.abs(np.linalg.eigvalsh(np.where(both, inside, 0.0))).max(1)
    condition = np.where(curvature_x > 0.0, largest / curvature_x, np.inf)
    is_strict = concave & (curvature_x > clear * size_x) & strict_x & strict_y & near
    kind = np.where(is_strict, "strict local minimax", "stationary")
    return Verdict(
        np.where(known, kind, "unknown"),
        np.where(known, curvature_x, np.nan),
        np.where(known, curvature_y, np.nan),
        np.where(known & concave, condition, np.nan),
        known & concave & (curvature_x < -clear * size_x),
        known & (curvature_y < -clear * size_y),
    )


def _face(
    sides: list[Side], directions: list[Array], size: Array, matrix: Array
) -> tuple[Array, Mask, Array, Mask]:
    """A matrix along the face that a step reaches, and whether the face is the same close by.

    Returns:
        What `Face.inside` returns, and the rows in which the face is the same.
    """
    num_rows, total = len(size), sum(side.size for side in sides)
    basis, free = np.zeros((num_rows, total, total)), np.zeros((num_rows, total), dtype=bool)
    inside, strict, start = np.zeros_like(basis), size >= 0.0, 0
    random = np.random.default_rng(0)
    length = 1.0 / np.where(size > 0.0, size, 1.0)
    for side, direction in zip(sides, directions, strict=True):
        part = slice(start, start := start + side.size)
        point = side.read() + length[:, None] * direction
        face = side.face(point)
        nothing = np.zeros((num_rows, side.size, side.size))
        basis[:, part, part], free[:, part], inside[:, part, part] = face.inside(nothing, length)
        nudge = _NUDGE * (1.0 + norm(point)[:, None]) * random.standard_normal(point.shape)
        if side.home is not None:
            for near in (point + nudge, point - nudge):
                changed = np.abs(side.face(near).matrix() - face.matrix())
                strict = strict & (changed.max((1, 2)) < 0.1)
    turned = basis.swapaxes(1, 2) @ matrix @ basis
    both = free[:, :, None] & free[:, None, :]
    return basis, free, inside + np.where(both, turned, 0.0), strict


def _least(inside: Array, free: Mask) -> Array:
    """The least eigenvalue along a face; infinite if the face is a point."""
    largest = np.abs(inside).max((1, 2)) * inside.shape[1]
    apart = np.eye(inside.shape[1]) * np.where(free, 0.0, largest[:, None])[:, None, :]
    least: Array = np.linalg.eigvalsh(inside + apart)[:, 0]
    return np.where(free.any(1), least, math.inf)


def _is_near(newton: Array, sides: list[Side]) -> Mask:
    """Whether a Newton step to the stationary point itself is short."""
    size = norm(np.concatenate([side.read() for side in sides], 1))
    short: Mask = norm(newton) <= _NEAR * (1.0 + size)
    return short


def derivatives_are_wrong(
    evaluate: Callable[[], Tensor],
    sides: Iterable[Side],
    slopes: Iterable[Array],
    signs: Iterable[float],
) -> Mask:
    """Whether values of f contradict its derivatives here: slopes agree, but not with them.

    At a kink the slopes on both sides differ, which proves nothing about the derivatives.

    Args:
        evaluate: The values of f where the players are.
        sides: The players.
        slopes: Their gradients.
        signs: 1 for a player that ascends, -1 for one that descends.
    """
    random = np.random.default_rng(0)
    with torch.no_grad():
        here = evaluate().double().cpu().reshape(-1).numpy()
        wrong = np.zeros(len(here), dtype=bool)
        for side, slope, sign in zip(sides, slopes, signs, strict=True):
            point = side.read()
            eps = torch.finfo(side.params[0].dtype).eps
            size = max(_STEP, 4.0 * eps ** (1.0 / 3.0))
            signed = random.choice((-1.0, 1.0), point.shape) * random.uniform(0.5, 1.0, point.shape)
            step = size * (1.0 + np.abs(point)) * signed
            # Along the face of the point, so that both ends are in the set.
            push = sign * slope / np.maximum(norm(slope), 1e-300)[:, None]
            face = side.face(point + size * size * (1.0 + norm(point))[:, None] * push)
            step = face.along(step[:, :, None])[:, :, 0]
            ends = []
            for factor in (1.0, -1.0):
                side.write(side.nearest(point + factor * step))
                moved = side.read() - point
                change = evaluate().double().cpu().reshape(-1).numpy() - here
                ends.append((moved, change - dot(slope, moved)))
            side.write(point)
            (right, over), (left, under) = ends
            inside = norm(right + left) <= 1e-3 * norm(step)
            # Twice the odd part of the error; the even part is curvature or a kink.
            odd, even = np.abs(over - under), np.abs(over + under)
            noise = 100.0 * eps * (1.0 + np.abs(here)) + (1e-9 + 10.0 * size**2) * norm(step)
            wrong |= inside & (odd > noise) & (odd > 10.0 * even)
    return wrong


def duality_gap(sides: Iterable[Side], ascents: Iterable[Array]) -> float | None:
    """The largest gain of both players by a linear model of f, which bounds the duality gap.

    Args:
        sides: The players.
        ascents: The directions in which they gain.

    Returns:
        The gap for f convex in x and concave in y; None if a set is not bounded.
    """
    total = 0.0
    for side, ascent in zip(sides, ascents, strict=True):
        if side.home is None:
            return None
        point = side.read()
        reach = _OUT * (1.0 + norm(point)[:, None])
        unit = ascent / np.maximum(norm(ascent), 1e-300)[:, None]
        for direction in (np.ones_like(point), -np.ones_like(point)):
            if (norm(side.project(point + reach * direction)) >= 0.1 * reach[:, 0]).any():
                return None
        total += dot(ascent, side.project(point + reach * unit) - point).item()
    return total
