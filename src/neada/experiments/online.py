"""Rounds of online learning for many learners at once: Generalized AdaGrad, its regret, its bound.

A transcription in numpy, thirty times as fast on small rows as the optimizer; the tests, and every
run of `regret`, hold it against `neada.optim.GeneralizedAdaGrad`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neada.experiments.sweeps import Array

__all__ = ["Learners", "play", "proven_bound"]


@dataclass(frozen=True)
class Learners:
    """Rows of Generalized AdaGrad on the losses ((x / scale) - z)^2/2 over [-scale, scale].

    With scale s these have mu = 1/s^2 and D = 2s; the letters of the theorem follow from it.

    Attributes:
        alpha: The exponents.
        lr: The learning rates.
        v0: Where the sums of squared gradients start.
        start: The first points.
        scale: How much each row's problem is stretched.
    """

    alpha: Array
    lr: Array
    v0: Array
    start: Array
    scale: Array


def play(targets: Iterable[Array], learners: Learners, at: NDArray[np.intp]) -> tuple[Array, Array]:
    """Play the rounds and measure the regret against the best fixed point.

    Args:
        targets: For every round the z of each row.
        learners: The rows.
        at: Increasing numbers of rounds at which to measure; the last is how many are played.

    Returns:
        The regret and the sum v, both of shape (len(at), rows).
    """
    x, v = learners.start.copy(), learners.v0.copy()
    loss, total, total_sq = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    regrets, sums = np.empty((len(at), len(x))), np.empty((len(at), len(x)))
    wanted = {int(rounds): number for number, rounds in enumerate(at)}
    for t, target in enumerate(targets, start=1):
        gap = x / learners.scale - target
        gradient = gap / learners.scale
        loss += 0.5 * gap * gap
        total += target
        total_sq += target * target
        v += gradient * gradient
        x = x - learners.lr * gradient / v**learners.alpha
        x = np.minimum(np.maximum(x, -learners.scale), learners.scale)
        if (number := wanted.get(t)) is not None:
            best = np.clip(total / t, -1.0, 1.0)
            regrets[number] = loss - 0.5 * (t * best * best - 2.0 * best * total + total_sq)
            sums[number] = v
            if number == len(at) - 1:
                break
    return regrets, sums


def proven_bound(learners: Learners, sums: Array, gradient_bound: float) -> Array:
    """What the proof of Theorem 4 gives with its slips mended, for every measured v.

    For alpha = 1 it is proven only from lr = G^2/mu on.

    Args:
        learners: The rows.
        sums: The sums v, shape (points, rows).
        gradient_bound: G of the problem that is not stretched.
    """
    alpha, lr, v0 = learners.alpha, learners.lr, learners.v0
    modulus, diameter = 1.0 / learners.scale**2, 2.0 * learners.scale
    bound_sq = (gradient_bound / learners.scale) ** 2
    first = (v0 + bound_sq) ** alpha * diameter**2
    slow = np.where(alpha < 1.0, 1.0 - alpha, 1.0)
    rounds = 1.0 + alpha * (alpha * bound_sq) ** (1.0 / slow) / (
        (lr * modulus) ** ((1.0 + slow) / slow) * v0**slow
    )
    excess = np.maximum(alpha * bound_sq / v0**slow - lr * modulus, 0.0)
    last = np.where(alpha < 1.0, sums**slow / slow, np.log(sums / v0))
    middle = np.where(alpha < 1.0, rounds * excess * diameter**2, 0.0)
    bound: Array = (first + middle + lr**2 * last) / (2.0 * lr)
    return bound
