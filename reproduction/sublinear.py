"""The stochastic inner solvers for many runs at once: one number per run, one array for all.

The arithmetic is that of `neada.optim` on a player with one coordinate, with the averages and the
state policies of `neada.NeAda`; the tests hold each of them against that stepper. A step costs a
few microseconds here and half a millisecond there, and a run has a hundred thousand of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from neada.stopping import InnerSteps
from reproduction.experiment import Array, Scale

__all__ = [
    "COUNTS",
    "SOLVERS",
    "Coin",
    "Count",
    "DoG",
    "FreeRex",
    "GeneralizedAdaGrad",
    "InnerSolver",
    "StronglyConvexSGD",
    "trajectory",
]

TAIL = 0.1
Y_RADIUS = 100.0
_NEWTON = 2.0 / (2.0 - math.log(3.0))


def trajectory(
    solver: "InnerSolver",
    count: Callable[[int], float],
    batch: Callable[[int], float | Array],
    num_rows: int,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Array, Array]]:
    """NeAda-AdaGrad (lr = v0 = 1) on a long tail with noise, many runs at once.

    f(x, y) = (1 + x^2)^(-1/20) - (y - x)^2 / 2 with y in [-100, 100], from x = 1, y = 0, standard
    Gaussian noise in both gradients. The mean of M samples of the x gradient has one disturbance
    of variance 1/M, which is the same in law. The set is for the solvers whose proofs need one; it
    is so large that y stays inside.

    Args:
        solver: Moves y.
        count: The number of inner steps at outer step t.
        batch: The number of samples of the x gradient at t, or one number per run.
        num_rows: How many runs.
        rng: The noise: for every t one number per inner step and run, then one per run for x.

    Yields:
        For t = 0, 1, ...: the inner steps made, the squared x gradients without noise at the
        moment of the x step, and the squared distances of y from its best response.
    """
    x, y, total = np.ones(num_rows), np.zeros(num_rows), np.ones(num_rows)
    t = 0
    while True:
        num_inner = int(count(t))
        noise = rng.standard_normal((num_inner, num_rows))
        y = solver.maximize(y, x, noise)
        gradient = -TAIL * x * (1.0 + x * x) ** (-TAIL / 2.0 - 1.0) + y - x
        best = np.clip(x, -Y_RADIUS, Y_RADIUS)
        yield num_inner, gradient**2, (y - best) ** 2
        noisy = gradient + rng.standard_normal(num_rows) / np.sqrt(batch(t))
        total = total + noisy * noisy
        x = x - noisy / np.sqrt(total)
        t += 1


@dataclass
class InnerSolver(ABC):
    """Maximizes -(y - target)^2 / 2 with noisy gradients, for every run at the same time.

    Attributes:
        average: None to answer with the last iterate, or the decay of the average of the iterates:
            0 uniform, 1 weights proportional to the step's number.
    """

    average: float | None = None
    start: Array = field(default_factory=lambda: np.empty(0), init=False)

    def maximize(self, y: Array, target: Array, noise: Array) -> Array:
        """One inner loop.

        Args:
            y: Where the runs start.
            target: What they look for.
            noise: What is added to the gradients, one row per step of the loop.

        Returns:
            The answers, from which the next loop starts.
        """
        self.begin(y)
        mean = y
        for number, disturbance in enumerate(noise, start=1):
            y = self.step(y, target - y + disturbance, number)
            if self.average is not None:
                mean = mean + (1.0 + self.average) / (number + self.average) * (y - mean)
        return y if self.average is None else mean

    def begin(self, y: Array) -> None:
        """Forget the loop before, as far as the solver does."""
        self.start = y

    @abstractmethod
    def step(self, y: Array, slope: Array, number: int) -> Array:
        """The next iterates, given noisy gradients at these ones and the step's number."""

    def within(self, y: Array) -> Array:
        """The nearest points in [-100, 100]."""
        kept: Array = np.minimum(np.maximum(y, -Y_RADIUS), Y_RADIUS)
        return kept


@dataclass
class StronglyConvexSGD(InnerSolver):
    """Steps 1 / (mu k) with the modulus mu = 1: the reference, which has to know it."""

    def step(self, y: Array, slope: Array, number: int) -> Array:
        """The next iterates."""
        return self.within(y + slope / number)


@dataclass
class GeneralizedAdaGrad(InnerSolver):
    """The paper's Algorithm 4.

    Attributes:
        lr: The learning rate.
        alpha: The power of the sum of squares.
        carried: Whether the sum goes on from loop to loop; otherwise it restarts at 1.
    """

    lr: float = 1.0
    alpha: float = 0.5
    carried: bool = False

    def begin(self, y: Array) -> None:
        """Restart the sum, unless it is carried."""
        if not self.start.size or not self.carried:
            self._sum = np.ones_like(y)
        super().begin(y)

    def step(self, y: Array, slope: Array, number: int) -> Array:
        """The next iterates."""
        self._sum += slope * slope
        scale = np.sqrt(self._sum) if self.alpha == 0.5 else self._sum**self.alpha
        return self.within(y + self.lr * slope / scale)


@dataclass
class DoG(InnerSolver):
    """Distance over gradients; the first distance of a loop is the last loop's displacement.

    Attributes:
        r_eps: The first movement of all, relative to 1 + the size of the start.
    """

    r_eps: float = 1e-2

    def begin(self, y: Array) -> None:
        """Measure distances from here; y is what the loop before answered."""
        if not self.start.size:
            self._distance = self.r_eps * (1.0 + np.abs(y))
        else:
            self._distance = np.maximum(np.abs(y - self.start), self.r_eps)
        self._sum = np.zeros_like(y)
        super().begin(y)

    def step(self, y: Array, slope: Array, number: int) -> Array:
        """The next iterates."""
        self._distance = np.maximum(self._distance, np.abs(y - self.start))
        self._sum += slope * slope
        return self.within(y + self._distance / np.sqrt(self._sum + 1e-8) * slope)


@dataclass
class Coin(InnerSolver):
    """Coin betting by online Newton steps, with the constraint and the curvature reductions."""

    def begin(self, y: Array) -> None:
        """New wealth, no bet."""
        super().begin(y)
        self._proposed, self._center = y, y
        self._scale, self._fraction = np.zeros_like(y), np.zeros_like(y)
        self._direction, self._direction_sum = np.zeros_like(y), np.zeros_like(y)
        self._wealth, self._outcome_sum = np.ones_like(y), np.ones_like(y)
        self._weight = np.ones_like(y)

    def step(self, y: Array, slope: Array, number: int) -> Array:
        """The next iterates."""
        size = np.abs(slope)
        self._scale = np.maximum(self._scale, size)
        gradient = -slope / self._scale
        told = _told(gradient, self._proposed - y)
        weight = size / self._scale
        self._weight = self._weight + weight
        self._center = self._center + weight / self._weight * (y - self._center)
        outcome = told * self._direction
        kept = 1.0 - outcome * self._fraction
        self._wealth = self._wealth * kept
        self._outcome_sum = self._outcome_sum + (outcome / kept) ** 2
        fraction = self._fraction - _NEWTON * outcome / kept / self._outcome_sum
        self._fraction = np.minimum(np.maximum(fraction, -0.5), 0.5)
        self._direction_sum = self._direction_sum + told * told
        direction = self._direction - math.sqrt(2.0) * told / np.sqrt(self._direction_sum)
        self._direction = np.minimum(np.maximum(direction, -1.0), 1.0)
        self._proposed = self._center + self._direction * self._fraction * self._wealth
        return self.within(self._proposed)


@dataclass
class FreeRex(InnerSolver):
    """FreeRexMomentum with the constraint reduction."""

    def begin(self, y: Array) -> None:
        """A new sum of gradients around a new start."""
        super().begin(y)
        self._proposed = y
        self._largest, self._q, self._a = np.zeros_like(y), np.zeros_like(y), np.zeros_like(y)
        self._sum, self._mean = np.zeros_like(y), np.zeros_like(y)
        self._weight = np.zeros_like(y)

    def step(self, y: Array, slope: Array, number: int) -> Array:
        """The next iterates."""
        told = _told(-slope, self._proposed - y)
        size = np.abs(told)
        self._weight = self._weight + size
        self._mean = self._mean + size / self._weight * (self._proposed - self.start - self._mean)
        self._sum = self._sum + told
        length = np.abs(self._sum)
        self._largest = np.maximum(self._largest, size)
        self._q = np.maximum(self._q + 2.0 * size * size, self._largest * length)
        self._a = np.maximum(self._a, self._q / self._largest**2)
        reach = np.expm1(length / np.sqrt(5.0 * self._q)) / self._a
        self._proposed = self.start - np.sign(self._sum) * reach + self._mean
        return self.within(self._proposed)


def _told(gradient: Array, outward: Array) -> Array:
    """The gradient, without its part that would push a proposal farther out of the set."""
    return np.where(gradient * outward < 0.0, 0.0, gradient)


SOLVERS: dict[str, Callable[[], InnerSolver]] = {
    "SGD 1/(mu k)": StronglyConvexSGD,
    "AdaGrad averaged": lambda: GeneralizedAdaGrad(average=1.0),
    "AdaGrad averaged, lr 0.1": lambda: GeneralizedAdaGrad(average=1.0, lr=0.1),
    "AdaGrad averaged, lr 10": lambda: GeneralizedAdaGrad(average=1.0, lr=10.0),
    "AdaGrad carried": lambda: GeneralizedAdaGrad(carried=True),
    "AdaGrad carried, lr 0.1": lambda: GeneralizedAdaGrad(carried=True, lr=0.1),
    "AdaGrad alpha 1/2": lambda: GeneralizedAdaGrad(alpha=0.5),
    "AdaGrad alpha 3/4": lambda: GeneralizedAdaGrad(alpha=0.75),
    "AdaGrad alpha 1": lambda: GeneralizedAdaGrad(alpha=1.0),
    "AdaGrad alpha 1, lr 1/4": lambda: GeneralizedAdaGrad(alpha=1.0, lr=0.25),
    "coin betting": lambda: Coin(average=1.0),
    "FreeRexMomentum": lambda: FreeRex(average=0.0),
    "DoG": lambda: DoG(average=8.0),
}
"""The solvers of the experiment, by name."""


@dataclass(frozen=True)
class Count:
    """A number of inner steps for every t.

    Attributes:
        limit: The number.
        power: All samples of T outer steps are about T to this power.
        outer_steps: How many are affordable.
    """

    limit: Callable[[int], float]
    power: float
    outer_steps: dict[Scale, int]


_MANY: dict[Scale, int] = {"quick": 200, "standard": 600, "paper": 1500}
_SOME: dict[Scale, int] = {"quick": 60, "standard": 250, "paper": 400}
_FEW: dict[Scale, int] = {"quick": 50, "standard": 120, "paper": 220}
COUNTS = {
    "t+1": Count(InnerSteps().limit, 2.0, _MANY),
    "t log^2 t": Count(InnerSteps(("log", 2)).limit, 2.0, _SOME),
    "(t+1)^4/3": Count(InnerSteps(("power", 4.0 / 3.0)).limit, 7.0 / 3.0, _SOME),
    "(t+1)^2": Count(InnerSteps(("power", 2.0)).limit, 3.0, _FEW),
    "5": Count(lambda t: 5.0, 2.0, _MANY),
}
"""The numbers of inner steps of the experiment, by formula."""
