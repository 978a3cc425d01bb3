"""Theorem 4: how the regret of Generalized AdaGrad grows, and what alpha = 1 asks of its rate.

Losses f_t(x) = (x - z_t)^2/2 on [-1, 1] with z_t = +1 or -1 at random, so mu = 1, G = 2, D = 2.
`GeneralizedAdaGrad` plays all learning rates and seeds, one row each.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from neada.optim import GeneralizedAdaGrad
from neada.runs import RunFolder
from neada.sets import Box
from reproduction import figures
from reproduction.experiment import (
    Array,
    Claim,
    Record,
    Relation,
    Scale,
    Seeds,
    chosen_seeds,
)

TITLE = "Regret of Generalized AdaGrad"
WHERE = "Theorem 4"
PAPER = (
    "On strongly convex losses Generalized AdaGrad with exponent alpha < 1 and any learning rate "
    "has regret of order T^(1 - alpha). With alpha = 1 the regret is logarithmic, but the learning "
    "rate must know the modulus and a bound of the gradients: at least G^2/(2 mu)."
)

_GRADIENT_BOUND, _MODULUS = 2.0, 1.0
_SLOW = (0.25, 0.5, 0.75)
_USUAL = 0.25
_TOO_SMALL, _BENIGN, _PROVEN = (0.02, 0.05, 0.1), (0.2, 0.3), 1.0
_ROUNDS: dict[Scale, int] = {"quick": 10_000, "standard": 100_000, "paper": 1_000_000}
_SEEDS: dict[Scale, int] = {"quick": 16, "standard": 64, "paper": 64}
_NUM_POINTS, _BLOCK = 60, 1024
_FITTED_FROM = 1_000


@dataclass(frozen=True)
class Learners:
    """Rows of Generalized AdaGrad on the losses ((x / scale) - z)^2/2 over [-scale, scale].

    With scale s these have mu = 1/s^2 and D = 2s; the letters of the theorem follow from it.

    Attributes:
        alpha: The exponent.
        lr: The learning rate of each row.
        v0: Where the sums of squared gradients start.
        start: The first point.
        scale: How much the problem is stretched.
    """

    alpha: float
    lr: Array
    v0: float = 1.0
    start: float = 1.0
    scale: float = 1.0


def play(targets: Iterable[Array], learners: Learners, at: NDArray[np.intp]) -> tuple[Array, Array]:
    """Run `GeneralizedAdaGrad` and measure the regret against the best fixed point.

    Args:
        targets: For every round the z of each row.
        learners: The rows.
        at: Increasing numbers of rounds at which to measure; the last is how many are played.

    Returns:
        The regret and the sum v, both of shape (len(at), rows).
    """
    shape = (len(learners.lr), 1)
    x = torch.full(shape, learners.start, dtype=torch.float64, requires_grad=True)
    optimizer = GeneralizedAdaGrad(
        [x],
        torch.from_numpy(learners.lr),
        alpha=learners.alpha,
        v0=learners.v0,
        constraint=Box(-learners.scale, learners.scale),
        rowwise=True,
    )
    v = torch.full(shape, learners.v0, dtype=torch.float64)
    loss, total, total_sq = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    regrets, sums = np.empty((len(at), shape[0])), np.empty((len(at), shape[0]))
    wanted = {int(rounds): number for number, rounds in enumerate(at)}
    for t, target in enumerate(targets, start=1):
        z = torch.from_numpy(target)[:, None]
        losses = 0.5 * (x / learners.scale - z).square()
        x.grad = None
        torch.autograd.backward(losses.sum(), inputs=[x])
        assert x.grad is not None
        loss += losses.detach()
        total += z
        total_sq += z.square()
        v.addcmul_(x.grad, x.grad)
        optimizer.step()
        if (number := wanted.get(t)) is not None:
            best = (total / t).clamp(-1.0, 1.0)
            regret = loss - 0.5 * (t * best.square() - 2.0 * best * total + total_sq)
            regrets[number], sums[number] = regret[:, 0].numpy(), v[:, 0].numpy()
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
    slow = 1.0 - alpha if alpha < 1.0 else 1.0
    rounds = 1.0 + alpha * (alpha * bound_sq) ** (1.0 / slow) / (
        (lr * modulus) ** ((1.0 + slow) / slow) * v0**slow
    )
    excess = np.maximum(alpha * bound_sq / v0**slow - lr * modulus, 0.0)
    last = sums**slow / slow if alpha < 1.0 else np.log(sums / v0)
    middle = rounds * excess * diameter**2 if alpha < 1.0 else 0.0
    bound: Array = (first + middle + lr**2 * last) / (2.0 * lr)
    return bound


@dataclass(frozen=True)
class Config:
    """One exponent with some learning rates on all seeds.

    Attributes:
        alpha: The exponent.
        lr_shares: The learning rates as shares of G^2/mu.
        num_rounds: Rounds in all.
        seeds: Of the sequences of losses.
        start: The first point.
        v0: Where the sum of squared gradients starts.
    """

    alpha: float
    lr_shares: tuple[float, ...]
    num_rounds: int
    seeds: tuple[int, ...]
    start: float = 1.0
    v0: float = 1.0

    @property
    def label(self) -> str:
        """The exponent."""
        return f"alpha {self.alpha:g}"


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """The exponents below 1 with learning rate 1, and alpha = 1 with several."""
    rounds, chosen = _ROUNDS[scale], chosen_seeds(seeds, _SEEDS[scale])
    slow = [Config(alpha, (_USUAL,), rounds, chosen) for alpha in _SLOW]
    return [*slow, Config(1.0, (*_TOO_SMALL, *_BENIGN, _PROVEN), rounds, chosen)]


def run(config: Config, run: RunFolder) -> None:
    """Play all learning rates and seeds, one row each."""
    at = np.unique(np.geomspace(10, config.num_rounds, _NUM_POINTS).astype(np.intp))
    # A block of seeds for every learning rate.
    lr = np.repeat(config.lr_shares, len(config.seeds)) * _GRADIENT_BOUND**2 / _MODULUS
    learners = Learners(config.alpha, lr, config.v0, config.start)
    regrets, sums = play(_signs(config), learners, at)
    bounds = proven_bound(learners, sums, _GRADIENT_BOUND)
    for number, share in enumerate(config.lr_shares):
        mine = slice(number * len(config.seeds), (number + 1) * len(config.seeds))
        run.append(
            [
                {"lr_share": share, "rounds": int(rounds), "regret": regret, "bound": bound}
                for rounds, regret, bound in zip(
                    at, regrets[:, mine].tolist(), bounds[:, mine].tolist(), strict=True
                )
            ]
        )


def _signs(config: Config) -> Iterator[Array]:
    """+1 or -1 for every row, from one stream per seed; all learning rates see the same."""
    streams = [np.random.default_rng(seed) for seed in config.seeds]
    while True:
        block = np.stack([stream.integers(0, 2, _BLOCK) for stream in streams], axis=1)
        yield from np.tile(2.0 * block - 1.0, len(config.lr_shares))


def claims(records: Sequence[Record]) -> list[Claim]:
    """Exponents, the logarithm, the bound, and the price of a small learning rate."""
    found = {
        (record.config.alpha, share): _Regret(record, share)
        for record in records
        for share in record.config.lr_shares
    }
    slow = {alpha: one for (alpha, _), one in found.items() if alpha < 1.0}
    exponents = [_exponent_claim(one, alpha) for alpha, one in slow.items()]
    ones = {share: one for (alpha, share), one in found.items() if alpha == 1.0}
    if not ones:
        return exponents
    return [
        *exponents,
        _claim(
            "logarithm",
            "alpha = 1 with lr = G^2/mu: growth of the mean regret per unit of log T (a step 4/t "
            "under this noise makes 8/7 of it)",
            [ones[_PROVEN]],
            _Regret.growth_per_log,
            "between",
            (0.85, 1.45),
        ),
        _claim(
            "bound",
            "the regret stays below the bound that the proof gives once mended: largest regret / "
            "bound over all alpha, T and seeds",
            [*slow.values(), ones[_PROVEN]],
            lambda one: float((one.regret / one.bound).max()),
            "<=",
            1.0,
        ),
        *(_small_rate_claim(ones[share], share) for share in _TOO_SMALL),
        _claim(
            "below-threshold",
            f"alpha = 1 with lr = {_TOO_SMALL[0]:g} G^2/mu: mean regret at the end / the bound "
            "that is proven from G^2/mu on",
            [ones[_TOO_SMALL[0]]],
            lambda one: float((one.regret / one.bound)[-1].mean()),
            ">",
            1.0,
        ),
        _claim(
            "benign",
            "alpha = 1 with lr = 0.2 and 0.3 G^2/mu: nothing is proven, yet on these losses the "
            "regret is logarithmic: largest exponent (log T itself shows about 0.1)",
            [ones[share] for share in _BENIGN],
            _Regret.exponent,
            "<=",
            0.2,
            where="neada",
        ),
    ]


class _Regret:
    """The measurements of one exponent and learning rate, shape (points, seeds)."""

    def __init__(self, record: Record, share: float) -> None:
        rows = [row for row in record.rows if row.get("lr_share") == share]
        self.rounds: Array = np.array([row["rounds"] for row in rows], dtype=float)
        self.regret: Array = np.array([row["regret"] for row in rows], dtype=float)
        self.bound: Array = np.array([row["bound"] for row in rows], dtype=float)

    def _late(self) -> tuple[Array, Array]:
        """Logarithm of the rounds and mean regret, without the first rounds."""
        late = self.rounds >= min(_FITTED_FROM, self.rounds[-1] / 10.0)
        return np.log(self.rounds[late]), self.regret[late].mean(axis=1)

    def exponent(self) -> float:
        """Slope of the logarithm of the mean regret against that of the rounds."""
        log_rounds, regret = self._late()
        return float(np.polyfit(log_rounds, np.log(regret), 1)[0]) if regret.min() > 0 else math.nan

    def growth_per_log(self) -> float:
        """Slope of the mean regret against the logarithm of the rounds."""
        return float(np.polyfit(*self._late(), 1)[0])


def _claim(
    name: str,
    sentence: str,
    needed: Sequence[_Regret],
    measure: Callable[[_Regret], float],
    relation: Relation,
    expected: float | tuple[float, float],
    where: str = "Theorem 4",
) -> Claim:
    """A claim about the largest number that some measurements show."""
    measured, seeds = max(map(measure, needed)), needed[0].regret.shape[1]
    return Claim(f"regret/{name}", sentence, where, measured, relation, expected, seeds)


def _exponent_claim(one: _Regret, alpha: float) -> Claim:
    return _claim(
        f"exponent-{alpha:g}",
        f"alpha = {alpha:g}: the mean regret grows like T^{1.0 - alpha:g}: fitted exponent",
        [one],
        _Regret.exponent,
        "between",
        (1.0 - alpha - 0.06, 1.0 - alpha + 0.04),
    )


def _small_rate_claim(one: _Regret, share: float) -> Claim:
    return _claim(
        f"small-lr-{share:g}",
        f"alpha = 1 with lr = {share:g} G^2/mu: no logarithm but a power of T: its exponent "
        "1 - 2 lr mu / E|g|^2, where E|g|^2 falls from 2 at the start to 1 at the solution",
        [one],
        _Regret.exponent,
        "between",
        (1.0 - 8.0 * share, 1.0 - 4.0 * share),
    )


def figure(records: Sequence[Record]) -> Figure:
    """Regret against rounds: the exponents, and alpha = 1 with every learning rate."""
    slow = {r.config.alpha: _Regret(r, _USUAL) for r in records if r.config.alpha < 1.0}
    ones = [r for r in records if r.config.alpha == 1.0]
    panels = [
        figures.Panel(
            "alpha < 1: slopes of 1 - alpha (dotted)",
            [_curve(f"alpha {alpha:g}", one) for alpha, one in slow.items()],
            guides=[_guide(one, 1.0 - alpha) for alpha, one in slow.items()],
        ),
        figures.Panel(
            "alpha = 1: the learning rate matters",
            [
                _curve(f"{share:g} G²/mu", _Regret(record, share))
                for record in ones
                for share in record.config.lr_shares
            ],
        ),
    ]
    return figures.curves_figure(
        [panel for panel in panels if panel.curves],
        num_columns=2,
        y_label="regret",
        x_label="rounds T",
        x_scale="log",
        legends="own",
        legend_columns=3,
        panel_size=(4.6, 3.1),
        same_y=True,
    )


def _curve(name: str, one: _Regret) -> figures.Curve:
    return figures.Curve(name, one.rounds, np.maximum(one.regret, 0.1))


def _guide(one: _Regret, exponent: float) -> tuple[str, Array, Array]:
    line = one.regret[-1].mean() * (one.rounds / one.rounds[-1]) ** exponent
    return ("", one.rounds, line)
