"""Spec D: Euclidean projections of one vector, by slow and plain means."""

from __future__ import annotations

import numpy as np

from .base import Vector, dot, norm, norm_sq


def _relative(v: Vector, center: Vector | None) -> tuple[Vector, Vector]:
    c = np.zeros_like(v) if center is None else np.array(center, dtype=np.float64)
    return v - c, c


def project_l2_ball(v: Vector, radius: float = 1.0, center: Vector | None = None) -> Vector:
    """c + (v - c) min(1, R/|v - c|); a point inside comes back bit for bit."""
    d, c = _relative(v, center)
    largest = float(np.max(np.abs(d))) if d.size else 0.0
    if largest == 0.0:
        return v.copy()
    size = largest * norm(d / largest)  # scaled, so that the squares cannot overflow
    if size <= radius:
        return v.copy()
    return c + d * (radius / size)


def project_linf_ball(v: Vector, radius: float = 1.0, center: Vector | None = None) -> Vector:
    """c + clamp(v - c, -R, R)."""
    d, c = _relative(v, center)
    result = v.copy()
    for i in range(v.size):
        if d[i] > radius:
            result[i] = c[i] + radius
        elif d[i] < -radius:
            result[i] = c[i] - radius
    return result


def project_box(v: Vector, low: Vector | float, high: Vector | float) -> Vector:
    """min(max(v, low), high)."""
    lows = np.broadcast_to(np.asarray(low, dtype=np.float64), v.shape)
    highs = np.broadcast_to(np.asarray(high, dtype=np.float64), v.shape)
    return np.array([min(max(v[i], lows[i]), highs[i]) for i in range(v.size)])


def project_nonnegative(v: Vector) -> Vector:
    """max(v, 0)."""
    return np.array([max(entry, 0.0) for entry in v])


def project_half_space(v: Vector, a: Vector, b: float) -> Vector:
    """Projection onto <a, w> <= b."""
    a = np.array(a, dtype=np.float64)
    return v - max(dot(a, v) - b, 0.0) / norm_sq(a) * a


def project_hyperplane(v: Vector, a: Vector, b: float) -> Vector:
    """Projection onto <a, w> = b."""
    a = np.array(a, dtype=np.float64)
    return v - (dot(a, v) - b) / norm_sq(a) * a


def project_simplex_pivot(v: Vector, total: float = 1.0) -> Vector:
    """{w >= 0, sum w = total} by the pivot algorithm of Duchi et al. 2008."""
    shifted = v - np.max(v)
    undecided = [float(entry) for entry in shifted]
    s, rho = 0.0, 0
    while undecided:
        pivot = undecided[0]
        above = [entry for entry in undecided if entry >= pivot]
        below = [entry for entry in undecided if entry < pivot]
        if (s + sum(above)) - (rho + len(above)) * pivot < total:
            s += sum(above)
            rho += len(above)
            undecided = below
        else:
            above.remove(pivot)
            undecided = above
    theta = (s - total) / rho
    return np.array([max(entry - theta, 0.0) for entry in shifted])


def project_simplex_bisection(v: Vector, total: float = 1.0) -> Vector:
    """The same set: solve sum max(v - theta, 0) = total by halving, then correct theta exactly."""
    shifted = v - np.max(v)
    low, high = -total, 0.0  # the sum is at least `total` at low and 0 at high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if float(np.sum(np.maximum(shifted - middle, 0.0))) > total:
            low = middle
        else:
            high = middle
    active = shifted > high
    theta = (float(np.sum(shifted[active])) - total) / int(np.sum(active))
    return np.maximum(shifted - theta, 0.0)


def project_l1_ball(v: Vector, radius: float = 1.0, center: Vector | None = None) -> Vector:
    """Inside: v itself; else c + sign(v - c) P_simplex(|v - c|, R)."""
    d, c = _relative(v, center)
    if float(np.sum(np.abs(d))) <= radius:
        return v.copy()
    return c + np.sign(d) * project_simplex_pivot(np.abs(d), radius)
