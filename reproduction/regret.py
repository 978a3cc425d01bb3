"""Theorem 4: how the regret of Generalized AdaGrad grows, and what alpha = 1 asks of its rate.

Losses f_t(x) = (x - z_t)^2/2 on [-1, 1] with z_t = +1 or -1 at random, so mu = 1, G = 2, D = 2.
`GeneralizedAdaGrad` plays all learning rates and seeds, one row each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from neada.optim import GeneralizedAdaGrad
from neada.runs import RunFolder
from neada.sets import Box
from reproduction import figures
from reproduction.experiment import Array, Claim, Record, Scale, Seeds, chosen_seeds, draws
from reproduction.rates import slope

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
_TOO_SMALL, _PROVEN = (0.02, 0.05, 0.1), 1.0
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


def proven_bound(learners: Learners, sums: Array) -> Array:
    """Return the bound of the corrected proof of Theorem 4, for every measured v.

    For alpha = 1 it is proven from lr = G^2/mu on.

    Args:
        learners: The rows, with scale 1.
        sums: The sums v, shape (points, rows).
    """
    alpha, lr, v0, diameter = learners.alpha, learners.lr, learners.v0, 2.0
    first = (v0 + _GRADIENT_BOUND**2) ** alpha * diameter**2
    if alpha == 1.0:
        return np.asarray((first + lr**2 * np.log(sums / v0)) / (2.0 * lr))
    slow = 1.0 - alpha
    threshold = alpha * _GRADIENT_BOUND**2
    rounds = 1.0 + alpha * threshold ** (1.0 / slow) / (
        (lr * _MODULUS) ** ((1.0 + slow) / slow) * v0**slow
    )
    excess = np.maximum(threshold / v0**slow - lr * _MODULUS, 0.0)
    middle = rounds * excess * diameter**2
    return np.asarray((first + middle + lr**2 * sums**slow / slow) / (2.0 * lr))


@dataclass(frozen=True)
class Config:
    """One exponent with some learning rates on all seeds.

    Attributes:
        alpha: The exponent.
        lr_shares: The learning rates as shares of G^2/mu.
        num_rounds: Rounds in all.
        seeds: Of the sequences of losses.
    """

    alpha: float
    lr_shares: tuple[float, ...]
    num_rounds: int
    seeds: tuple[int, ...]

    @property
    def label(self) -> str:
        """The exponent."""
        return f"alpha {self.alpha:g}"


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """The exponents below 1 with learning rate 1, and alpha = 1 with several."""
    rounds, chosen = _ROUNDS[scale], chosen_seeds(seeds, _SEEDS[scale])
    slow = [Config(alpha, (_USUAL,), rounds, chosen) for alpha in _SLOW]
    return [*slow, Config(1.0, (*_TOO_SMALL, _PROVEN), rounds, chosen)]


def run(config: Config, run: RunFolder) -> None:
    """Play all learning rates and seeds, one row each."""
    at = np.unique(np.geomspace(10, config.num_rounds, _NUM_POINTS).astype(np.intp))
    # A block of seeds for every learning rate.
    lr = np.repeat(config.lr_shares, len(config.seeds)) * _GRADIENT_BOUND**2 / _MODULUS
    learners = Learners(config.alpha, lr)
    seeds = config.seeds * len(config.lr_shares)  # all learning rates see the same signs
    signs = draws(seeds, lambda rng: 2.0 * rng.integers(0, 2, _BLOCK) - 1.0)
    regrets, sums = play(signs, learners, at)
    bounds = proven_bound(learners, sums)
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


def claims(records: Sequence[Record]) -> list[Claim]:
    """Exponents, the logarithm, the price of a small learning rate, and the bound."""
    found = []
    for record in records:
        alpha = record.config.alpha
        for share in record.config.lr_shares:
            rounds, regret = _mean_regret(record, share)
            measured = slope(rounds, regret)
            if alpha < 1.0:
                name = f"exponent-{alpha:g}"
                sentence = (
                    f"alpha = {alpha:g}: the mean regret grows like T^{1.0 - alpha:g}: fitted "
                    "exponent"
                )
                limits = 1.0 - alpha - 0.06, 1.0 - alpha + 0.04
            elif share < _PROVEN:
                name = f"small-lr-{share:g}"
                sentence = (
                    f"alpha = 1 with lr = {share:g} G^2/mu: no logarithm but a power of T: its "
                    "exponent 1 - 2 lr mu / E|g|^2, where E|g|^2 falls from 2 at the start to 1 at "
                    "the solution"
                )
                limits = 1.0 - 8.0 * share, 1.0 - 4.0 * share
            else:
                name = "logarithm"
                sentence = (
                    "alpha = 1 with lr = G^2/mu: growth of the mean regret per unit of log T (a "
                    "step 4/t under this noise makes 8/7 of it)"
                )
                limits = 0.85, 1.45
                measured = float(np.polyfit(np.log(rounds), regret, 1)[0])
            seeds = len(record.config.seeds)
            claim = f"regret/{name}", sentence, WHERE, measured
            found.append(Claim(*claim, "between", limits, seeds))
    proven = [(r, share) for r in records for share in r.config.lr_shares if share >= _USUAL]
    worst = max(
        float((r.column("regret", lr_share=share) / r.column("bound", lr_share=share)).max())
        for r, share in proven
    )
    sentence = (
        "the regret stays below the bound of the corrected proof: largest regret / bound over all "
        "alpha, T and seeds"
    )
    return [*found, Claim("regret/bound", sentence, WHERE, worst, "<=", 1.0, seeds)]


def _mean_regret(record: Record, share: float) -> tuple[Array, Array]:
    """The rounds but the first ones, and the mean regret after them."""
    rounds, regret = (record.column(name, lr_share=share) for name in ("rounds", "regret"))
    late = rounds >= min(_FITTED_FROM, rounds[-1] / 10.0)
    return rounds[late], regret[late].mean(axis=1)


def figure(records: Sequence[Record]) -> Figure:
    """Regret against rounds: the exponents, and alpha = 1 with every learning rate."""
    slow, fast = (
        [r for r in records if (r.config.alpha < 1.0) == below] for below in (True, False)
    )
    panels = [
        figures.Panel(
            "alpha < 1: regret grows like T^(1 - alpha) (dotted)",
            [_curve(f"alpha {r.config.alpha:g}", r, _USUAL) for r in slow],
            guides=[_guide(r) for r in slow],
        ),
        figures.Panel(
            "alpha = 1: logarithmic if lr is G²/mu",
            [_curve(f"{share:g} G²/mu", r, share) for r in fast for share in r.config.lr_shares],
        ),
    ]
    return figures.curves_figure(
        panels,
        num_columns=2,
        y_label="regret",
        x_label="rounds T",
        x_scale="log",
        legends="own",
        legend_columns=3,
        panel_size=(4.6, 3.1),
    )


def _curve(name: str, record: Record, share: float) -> figures.Curve:
    rounds, regret = (record.column(each, lr_share=share) for each in ("rounds", "regret"))
    return figures.Curve(name, rounds, np.maximum(regret, 0.1))


def _guide(record: Record) -> figures.Guide:
    rounds, regret = _mean_regret(record, _USUAL)
    return "", rounds, regret[-1] * (rounds / rounds[-1]) ** (1.0 - record.config.alpha)
