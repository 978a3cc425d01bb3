"""APGD for one sample at a time, from the formulas of Croce & Hein 2020, in numpy's float64.

The model is a function of one point that gives its outputs and their Jacobian; gradients of losses
are those of the formulas, by hand.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

Array = np.ndarray
Outputs = Callable[[Array], tuple[Array, Array]]


def checkpoints(num_steps: int) -> list[int]:
    """In fractions."""
    p = [Fraction(0), Fraction(22, 100)]
    while p[-1] < 1:
        p.append(p[-1] + max(p[-1] - p[-2] - Fraction(3, 100), Fraction(6, 100)))
    return sorted({math.ceil(part * num_steps) for part in p if part <= 1})


def cross_entropy(z: Array, y: int) -> tuple[float, Array]:
    """And its gradient with respect to the outputs."""
    shares = np.exp(z - z.max())
    shares /= shares.sum()
    return -math.log(shares[y]), shares - np.eye(len(z))[y]


def _quotient(top: float, d_top: Array, bottom: float, d_bottom: Array) -> tuple[float, Array]:
    bottom += 1e-12
    return top / bottom, d_top / bottom - top * d_bottom / bottom**2


def dlr(z: Array, y: int) -> tuple[float, Array]:
    """And its gradient."""
    unit = np.eye(len(z))
    order = sorted(range(len(z)), key=lambda i: -z[i])
    other = next(i for i in order if i != y)
    top, d_top = z[other] - z[y], unit[other] - unit[y]
    if len(z) < 3:
        return top, d_top
    a, b = order[0], order[2]
    return _quotient(top, d_top, z[a] - z[b], unit[a] - unit[b])


def targeted_dlr(z: Array, y: int, t: int) -> tuple[float, Array]:
    """And its gradient."""
    unit = np.eye(len(z))
    top, d_top = z[t] - z[y], unit[t] - unit[y]
    if len(z) < 4:
        return top, d_top
    order = sorted(range(len(z)), key=lambda i: -z[i])
    a, b, c = order[0], order[2], order[3]
    return _quotient(top, d_top, z[a] - (z[b] + z[c]) / 2, unit[a] - unit[b] / 2 - unit[c] / 2)


def apgd(
    model: Outputs,
    loss: Callable[[Array], tuple[float, Array]],
    is_fooled: Callable[[Array], bool],
    center: Array,
    eps: float,
    norm: str,
    bounds: tuple[float, float],
    num_steps: int,
) -> tuple[Array, list[Array]]:
    """The first misclassified point or the best one, and all points that were evaluated."""
    seen: list[Array] = []

    def project(x: Array) -> Array:
        if norm == "linf":
            x = np.clip(x, center - eps, center + eps)
        else:
            size = math.sqrt(((x - center) ** 2).sum())
            x = x if size <= eps else center + (x - center) * eps / size
        return np.clip(x, *bounds)

    def direction(g: Array) -> Array:
        return np.sign(g) if norm == "linf" else g / math.sqrt((g**2).sum())

    def evaluate(x: Array) -> tuple[float, Array, bool]:
        seen.append(x)
        z, jacobian = model(x)
        value, slope = loss(z)
        return value, slope @ jacobian, is_fooled(z)

    eta = 2 * eps
    x_old = x = center
    f, g, fooled = evaluate(x)
    if fooled:
        return x, seen
    best, f_best, g_best = x, f, g
    rises = [False]
    w = checkpoints(num_steps)
    eta_last, f_last = eta, f
    for k in range(1, num_steps + 1):
        u = project(x + eta * direction(g))
        new = u if k == 1 else project(x + 0.75 * (u - x) + 0.25 * (x - x_old))
        f_new, g_new, fooled = evaluate(new)
        if fooled:
            return new, seen
        rises.append(f_new > f)
        x_old, x, f, g = x, new, f_new, g_new
        if f > f_best:
            best, f_best, g_best = x, f, g
        if k in w:
            last = w[w.index(k) - 1]
            few = sum(rises[last + 1 : k + 1]) < 0.75 * (k - last)
            idle = eta == eta_last and f_best == f_last
            eta_last, f_last = eta, f_best
            if few or idle:
                eta /= 2
                x, f, g = best, f_best, g_best
    return best, seen
