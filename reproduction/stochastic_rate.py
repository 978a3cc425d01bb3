"""Theorem 3: the samples that an accuracy costs with noise, for every sublinear inner solver.

The game is a long tail on which descent is nearly as slow as on any smooth function, with noise in
both gradients. The error is the theorem's: the mean over runs of the root mean squared x gradient
up to outer step T, plus the root mean squared distance of y from its best response. The theory is
an error of order sqrt(log T / T), and samples that are a known power of T, logarithms aside.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from neada.inner import InnerOptions
from neada.optim import GeneralizedAdaGrad
from neada.runs import RunFolder
from neada.steppers import NeAda
from neada.stopping import InnerSteps
from reproduction.experiment import (
    Array,
    Claim,
    Progress,
    Record,
    Relation,
    Scale,
    Seeds,
    chosen_seeds,
)
from reproduction.inner_solvers import COUNTS, SOLVERS
from reproduction.rates import complexity_exponent, marks, rate_figure, rate_panel, slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PAPER", "TITLE", "WHERE", "Config", "claims", "configs", "figure", "run"]

TITLE = "Samples for an accuracy, with noise"
WHERE = "Theorem 3"
PAPER = (
    "NeAda-AdaGrad with t + 1 inner steps (criterion II), batches of eps^-2 samples for x and a "
    "subroutine with error 1/k inside finds a point of accuracy eps after eps^-4 samples up to "
    "logarithms. Growing batches would do as well."
)

_NUM_SEEDS: dict[Scale, int] = {"quick": 96, "standard": 192, "paper": 384}
_SGD = "SGD 1/(mu k)"
_EPSILONS: dict[Scale, tuple[float, ...]] = {
    "quick": (0.4, 0.3, 0.23, 0.18, 0.14),
    "standard": (0.4, 0.27, 0.18, 0.12, 0.08, 0.06),
    "paper": (0.4, 0.27, 0.18, 0.12, 0.08, 0.055, 0.04),
}
_TAIL, _Y_RADIUS = 0.1, 100.0
_BLOCK = 1024
Case = tuple[str, str, str]
_OTHER_CASES: tuple[Case, ...] = (
    (_SGD, "t+1", "eps^-2"),
    (_SGD, "t+1", "1"),
    (_SGD, "t log^2 t", "t+1"),
    ("coin betting", "t log^2 t", "t+1"),
    ("FreeRexMomentum", "t log^2 t", "t+1"),
    ("AdaGrad alpha 3/4", "(t+1)^4/3", "t+1"),
    ("AdaGrad alpha 1/2", "(t+1)^2", "t+1"),
    (_SGD, "5", "t+1"),
)


@dataclass(frozen=True)
class Config:
    """One inner solver under one rule.

    Attributes:
        solver: The inner solver, by name.
        count: The number of inner steps, as a formula in t.
        x_batch: The samples of an x gradient: "t+1", "1", or "eps^-2" for the theorem's setting,
            with 4 eps^-2 outer steps for every eps.
        num_outer: How many outer steps; those of the smallest eps where there are several.
        seeds: Of the runs.
        epsilons: The accuracies of the theorem's setting.
    """

    solver: str
    count: str
    x_batch: str
    num_outer: int
    seeds: tuple[int, ...]
    epsilons: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Solver, steps, batch."""
        return f"{self.solver}, {self.count} steps, batch {self.x_batch}"


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """All solvers with t+1 steps and batches of t+1; other steps and batches for some."""
    chosen = chosen_seeds(seeds, _NUM_SEEDS[scale])
    found = []
    for solver, count, x_batch in (*_plain_cases(), *_OTHER_CASES):
        epsilons = _EPSILONS[scale] if x_batch == "eps^-2" else ()
        num_outer = _horizon(min(epsilons)) if epsilons else COUNTS[count].outer_steps[scale]
        found.append(Config(solver, count, x_batch, num_outer, chosen, epsilons))
    return found


def _plain_cases() -> list[Case]:
    """FreeRexMomentum is left out: its logarithm needs more than t+1 steps."""
    return [(solver, "t+1", "t+1") for solver in SOLVERS if solver != "FreeRexMomentum"]


def _horizon(epsilon: float) -> int:
    return int(np.ceil(4.0 * epsilon**-2))


def run(config: Config, run: RunFolder, progress: Progress) -> None:
    """Run all seeds, and in the theorem's setting all accuracies, one row each.

    f(x, y) = (1 + x^2)^(-1/20) - (y - x)^2 / 2 with y in [-100, 100], from x = 1, y = 0, standard
    Gaussian noise in both gradients. The mean of M samples of the x gradient has one disturbance
    of variance 1/M, which is the same in law. The set is for the solvers whose proofs require one;
    it is so large that y stays inside.
    """
    groups, num_seeds = config.epsilons or (None,), len(config.seeds)
    num_rows = len(groups) * num_seeds
    x = torch.ones(num_rows, 1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(num_rows, 1, dtype=torch.float64, requires_grad=True)
    solver = SOLVERS[config.solver]
    stepper = NeAda(
        GeneralizedAdaGrad([x], rowwise=True),
        solver.make(y, _Y_RADIUS),
        InnerSteps(COUNTS[config.count].limit),
        inner=InnerOptions(keep=solver.keep),
        rowwise=True,
    )
    noise = _noise(config.seeds, len(groups))
    drawn = shrink = torch.empty(0)

    def closure() -> Tensor:
        nonlocal drawn
        drawn = next(noise)
        value = (1.0 + x * x) ** (-_TAIL / 2.0) - 0.5 * (y - x) ** 2
        return (value + shrink * drawn[:, :1] * x + drawn[:, 1:] * y)[:, 0]

    wanted = {e: {_horizon(e)} if e else set(marks(config.num_outer).tolist()) for e in groups}
    x_sum, y_sum = np.zeros(num_rows), np.zeros(num_rows)
    x_samples = dict.fromkeys(groups, 0)
    for t in range(config.num_outer):
        batches = [_batch(config, epsilon, t) for epsilon in groups]
        shrink = torch.tensor(batches, dtype=torch.float64).rsqrt()
        shrink = shrink.repeat_interleave(num_seeds)[:, None]
        best = x.detach().clamp(-_Y_RADIUS, _Y_RADIUS)
        stepper.step(closure)
        assert x.grad is not None
        x_sum += (x.grad - shrink * drawn[:, :1]).square()[:, 0].numpy()
        y_sum += (y.detach() - best).square()[:, 0].numpy()
        for number, epsilon in enumerate(groups):
            x_samples[epsilon] += batches[number]
            if t + 1 in wanted[epsilon]:
                mine = slice(number * num_seeds, (number + 1) * num_seeds)
                samples = stepper.inner_steps + x_samples[epsilon]
                row = {"t": t + 1, "epsilon": epsilon, "samples": samples}
                run.append([row | _errors(x_sum[mine] / (t + 1), y_sum[mine] / (t + 1))])
        progress(((t + 1) / config.num_outer) ** 2)


def _noise(seeds: Sequence[int], num_groups: int) -> Iterator[Tensor]:
    """Two standard normal numbers per row and call, from one stream per seed."""
    streams = [np.random.default_rng(seed) for seed in seeds]
    while True:
        block = np.stack([stream.standard_normal((_BLOCK, 2)) for stream in streams], axis=1)
        yield from torch.from_numpy(np.tile(block, (1, num_groups, 1)))


def _batch(config: Config, epsilon: float | None, t: int) -> int:
    """The samples of the x gradient at outer step t."""
    if epsilon is not None:
        return int(np.ceil(epsilon**-2))
    return t + 1 if config.x_batch == "t+1" else 1


def _errors(x_mean: Array, y_mean: Array) -> dict[str, object]:
    """The theorem's error over all runs, and over each quarter of them for the spread."""

    def error(x_part: Array, y_part: Array) -> float:
        return float(np.sqrt(x_part).mean() + np.sqrt(y_part.mean()))

    num_parts = min(4, len(x_mean))
    parts = zip(np.array_split(x_mean, num_parts), np.array_split(y_mean, num_parts), strict=True)
    return {"error": error(x_mean, y_mean), "of_quarters": [error(x, y) for x, y in parts]}


_PLAIN = ("t+1", "t+1")
_PROMISES: tuple[tuple[str, Case, str, str], ...] = (
    ("theorem", (_SGD, "t+1", "eps^-2"), "M = eps^-2, T = 4 eps^-2, SGD 1/(mu k)", WHERE),
    ("sgd", (_SGD, *_PLAIN), "M = t+1, SGD 1/(mu k), which knows mu", WHERE),
    ("sgd-log", (_SGD, "t log^2 t", "t+1"), "t log^2 t inner steps, SGD 1/(mu k)", WHERE),
    ("one-sample", (_SGD, "t+1", "1"), "M = 1, SGD 1/(mu k)", "Theorem 1"),
    ("coin", ("coin betting", *_PLAIN), "coin betting, averaged", WHERE),
    ("coin-log", ("coin betting", "t log^2 t", "t+1"), "coin betting, t log^2 t steps", WHERE),
    ("freerex", ("FreeRexMomentum", "t log^2 t", "t+1"), "FreeRexMomentum, t log^2 t steps", WHERE),
    ("alpha-1", ("AdaGrad alpha 1", *_PLAIN), "alpha = 1, lr = 1, which knows mu and G", WHERE),
    ("averaged", ("AdaGrad averaged", *_PLAIN), "alpha = 1/2, averaged", "neada"),
    ("averaged-0.1", ("AdaGrad averaged, lr 0.1", *_PLAIN), "the same with lr = 0.1", "neada"),
    ("averaged-10", ("AdaGrad averaged, lr 10", *_PLAIN), "the same with lr = 10", "neada"),
    ("carried", ("AdaGrad carried", *_PLAIN), "alpha = 1/2, carried sum", "neada"),
    ("dog", ("DoG", *_PLAIN), "DoG, averaged", "neada"),
    ("power-3/4", ("AdaGrad alpha 3/4", "(t+1)^4/3", "t+1"), "(t+1)^4/3 steps, 3/4", "neada"),
    ("power-1/2", ("AdaGrad alpha 1/2", "(t+1)^2", "t+1"), "(t+1)^2 steps, 1/2", "neada"),
)
_MARGIN = 1.25  # as wide, in proportion, as what finite ranges do to runs that have the rate
_LAST = "the last iterate, alpha = {} and t+1 steps, has error samples^(-alpha/4), not ^(-1/4)"
_SLOPES: tuple[tuple[str, Case, str, float | tuple[float, float]], ...] = (
    ("alpha-1/2", ("AdaGrad alpha 1/2", *_PLAIN), _LAST.format("1/2"), (-0.16, -0.09)),
    ("alpha-3/4", ("AdaGrad alpha 3/4", *_PLAIN), _LAST.format("3/4"), (-0.23, -0.13)),
    ("fixed-steps", (_SGD, "5", "t+1"), "five inner steps in every loop do not converge", -0.05),
)


_SMALL_RATES = (
    (
        *("alpha-1-small-lr", "AdaGrad alpha 1, lr 1/4", "AdaGrad alpha 1"),
        *("alpha = 1 below its threshold of the learning rate (lr = 1/4)", "Theorem 4"),
    ),
    (
        *("carried-0.1", "AdaGrad carried, lr 0.1", "AdaGrad carried"),
        *("a carried sum does not repair a small learning rate (lr = 0.1)", "neada"),
    ),
)


def claims(records: Sequence[Record]) -> list[Claim]:
    """The rate where the hypotheses hold, and its absence where they do not."""
    by_case = {_case(record): record for record in records}
    return [
        *(_promised(name, case, words, where, by_case) for name, case, words, where in _PROMISES),
        *(_refuted(name, case, words, limit, by_case) for name, case, words, limit in _SLOPES),
        *(_small_lr(*names, by_case) for names in _SMALL_RATES),
    ]


def _promised(name: str, case: Case, words: str, where: str, by_case: dict[Case, Record]) -> Claim:
    power, record = COUNTS[case[1]].power, by_case.get(case)
    # A single sample leaves the noise of the x gradient: an error of order T^(-1/4).
    theory = power * (4.0 if case[2] == "1" else 2.0)
    sentence = (
        f"{words}: the samples for an error eps are eps^-p up to logarithms: p (theory "
        f"{theory:.3g}), as {power:.3g} times the exponent of the outer steps"
    )
    measured, note, seeds = None, "", 0
    if record is not None:
        steps, error = record.column("t"), record.column("error")
        measured = power * complexity_exponent(
            steps, error, log_power=1.0, first_cost=_first(record)
        )
        note, seeds = f"last error {error[-1]:.2g}", len(record.config.seeds)
    limit = _MARGIN * theory
    return Claim(f"stochastic-rate/{name}", sentence, where, measured, "<=", limit, seeds, note)


def _refuted(
    name: str,
    case: Case,
    words: str,
    expected: float | tuple[float, float],
    by_case: dict[Case, Record],
) -> Claim:
    relation: Relation = "between" if isinstance(expected, tuple) else ">="
    measured, note, seeds = None, "", 0
    if (record := by_case.get(case)) is not None:
        fitted = record.column("t") >= _first(record)
        samples, error = record.column("samples")[fitted], record.column("error")[fitted]
        measured = slope(samples, error)
        note, seeds = f"last error {error[-1]:.2g}", len(record.config.seeds)
    sentence = f"{words}: slope of log error against log samples"
    where = "Theorem 3, erratum" if "alpha" in name else "Theorem 3"
    return Claim(
        f"stochastic-rate/{name}", sentence, where, measured, relation, expected, seeds, note
    )


def _small_lr(
    name: str, small: str, usual: str, words: str, where: str, by_case: dict[Case, Record]
) -> Claim:
    sentence = f"{words}: last error with it / last error with lr 1"
    measured, seeds = None, 0
    records = [
        by_case[solver, *_PLAIN] for solver in (small, usual) if (solver, *_PLAIN) in by_case
    ]
    if len(records) == 2:
        first, second = (record.column("error")[-1] for record in records)
        measured, seeds = float(first / second), len(records[0].config.seeds)
    return Claim(f"stochastic-rate/{name}", sentence, where, measured, ">=", 5.0, seeds)


def _case(record: Record) -> Case:
    return record.config.solver, record.config.count, record.config.x_batch


def _first(record: Record) -> float:
    """The outer step at which fits begin; in the theorem's setting every point counts."""
    return 0.0 if record.config.epsilons else record.config.num_outer / 10.0


def figure(records: Sequence[Record]) -> "Figure":
    """Solvers with the rate, solvers without it, and other steps and batches."""
    promised = {case for _, case, _, _ in _PROMISES}
    panels: dict[str, list[tuple[str, Array, Array]]] = {}
    for record in records:
        name, count, x_batch = case = _case(record)
        if (count, x_batch) == _PLAIN:
            title = f"t+1 steps, M = t+1, rate {'' if case in promised else 'not '}promised"
        else:
            title = "other steps, other batches"
            name += f", M = {x_batch}" if count == "t+1" else f", {count} steps"
        curve = (name, record.column("samples"), record.column("of_quarters"))
        panels.setdefault(title, []).append(curve)
    law = "sqrt(log samples) samples^(-1/4)"
    drawn = [rate_panel(title, law, _law, curves) for title, curves in panels.items()]
    return rate_figure(drawn, 3, "samples", "M: samples of an x gradient")


def _law(samples: Array) -> Array:
    law: Array = np.sqrt(np.log(samples)) * samples**-0.25
    return law
