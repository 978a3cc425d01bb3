"""Spec D: Euclidean projections of one vector, by slow and plain means."""

from __future__ import annotations

import numpy as np

from .base import Vector, norm


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


def project_box(v: Vector, low: Vector | float, high: Vector | float) -> Vector:
    """min(max(v, low), high)."""
    lows = np.broadcast_to(np.asarray(low, dtype=np.float64), v.shape)
    highs = np.broadcast_to(np.asarray(high, dtype=np.float64), v.shape)
    return np.array([min(max(v[i], lows[i]), highs[i]) for i in range(v.size)])
