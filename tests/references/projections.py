"""Spec D: Euclidean projections of one vector, by slow and plain means."""

from __future__ import annotations

import numpy as np

from .base import Vector, norm


def project_l2_ball(v: Vector, radius: float) -> Vector:
    """v min(1, R/|v|)."""
    return v if norm(v) <= radius else v * (radius / norm(v))


def project_box(v: Vector, low: float, high: float) -> Vector:
    """min(max(v, low), high)."""
    return np.array([min(max(entry, low), high) for entry in v])
