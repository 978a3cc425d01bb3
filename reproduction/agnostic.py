"""Which share of all learning rates works: NeAda against every other method, on the zoo.

A grid of (lr_x, lr_y) over six decades around 1. A method solves a problem with a pair if, within a
budget of calls, it comes to a point where both gradient-mapping norms are at most a thousandth of
the larger one at the start, by the true gradients. Gradients of either player and values count as
calls, for every pair its own. Methods without lr_y (Algorithm 3 with a solver inside that needs no
rate) or without any rate are constant along what they do not have. At `standard`, minutes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import neada
from neada import problems
from neada.runs import RunFolder
from reproduction import figures
from reproduction.experiment import Array, Claim, Record, Scale, Seeds

TITLE = "Which share of all learning rates works"
WHERE = "neada"
PAPER = (
    "The paper calls a method parameter-agnostic if it converges for learning rates that know "
    "nothing about the problem, and proves that of NeAda-AdaGrad. It varies the ratio of the two "
    "rates in its figures, not both rates; this is the library's own measurement of that."
)
KNOWN = {
    "agnostic/neada-*": (
        "A nested method needs no ratio of learning rates, but how far it comes is tied to the "
        "size of its steps, and inner loops cost calls: within a budget nesting alone does not "
        "make more learning rates work."
    ),
}

_DEFAULT = "auto"
_FAMILIES = {
    "gda": "neada-gda",
    "adagrad": "neada-adagrad-coordinate",
    "adam": "neada-adam",
    "amsgrad": "neada-amsgrad",
}
_ALGORITHM_3 = ("neada", "neada-adgd")
_NEADA = (*_FAMILIES.values(), *_ALGORITHM_3)
_OTHERS = (*_FAMILIES, "tiada", "extragradient")
METHODS = (_DEFAULT, *_NEADA, *_OTHERS)
_DRAWN = {
    _DEFAULT: "default of minimax",
    "neada": "NeAda",
    "neada-adgd": "NeAda-AdGD",
    "neada-adam": "NeAda-Adam",
    "tiada": "TiAda",
    "adam": "Adam",
    "gda": "GDA",
    "extragradient": "Extragradient",
}
_QUICK = ("quadratic", "mccormick")  # the two of the paper
# The calls of each row, and the grid's points for each decade.
_SIZES: dict[Scale, tuple[int, int]] = {"quick": (250, 2), "standard": (500, 2), "paper": (2000, 2)}


@dataclass(frozen=True)
class Config:
    """One method on the whole grid and some problems.

    Attributes:
        method: Its name in `neada.methods()`.
        problems: Names in the zoo.
        max_calls: Gradients of both players and values, for each pair of rates.
        per_decade: Points of the grid for each decade.
        decades: The rates go from 10^-decades to 10^decades.
        tol: Both norms must be at most this times the larger one at the start.
    """

    method: str
    problems: tuple[str, ...]
    max_calls: int
    per_decade: int
    decades: int = 3
    tol: float = 1e-3

    @property
    def label(self) -> str:
        """The method."""
        return self.method

    @property
    def rates(self) -> Array:
        """The learning rates of either player."""
        return np.logspace(-self.decades, self.decades, 2 * self.decades * self.per_decade + 1)


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Every method with a learning rate, and the default; nothing is random."""
    names = _QUICK if scale == "quick" else tuple(problems.names(hard=False))
    return [Config(method, names, *_SIZES[scale]) for method in METHODS]


def run(config: Config, run: RunFolder) -> None:
    """Try all pairs at once on one problem after the other.

    A row of the metrics has the problem, lr_x, and for every lr_y the calls it took.
    """
    rates = torch.from_numpy(config.rates)
    lr_x, lr_y = (grid.flatten() for grid in torch.meshgrid(rates, rates, indexing="ij"))
    options = {"lr_x": lr_x, "lr_y": lr_y}
    if config.method in _ALGORITHM_3:
        options = {"lr_x": rates}
    elif config.method == _DEFAULT:
        options = {}
    num_rows = len(options["lr_x"]) if options else 1
    for name in config.problems:
        problem, limits = problems.make(name), (config.max_calls, config.tol)
        calls = calls_to_arrive(config.method, problem, options, num_rows, *limits)
        shape = (-1, len(rates)) if num_rows == len(lr_x) else (-1, 1)
        grid = calls.reshape(shape).expand(len(rates), len(rates))
        run.append(
            [
                {"problem": name, "lr_x": rate, "calls": found}
                for rate, found in zip(rates.tolist(), grid.tolist(), strict=True)
            ]
        )


_FAR = 1e8  # the players of the zoo start within 30 of the origin


def calls_to_arrive(
    method: str,
    problem: problems.Problem,
    rates: Mapping[str, Tensor],
    num_rows: int,
    max_calls: int,
    tol: float,
) -> Tensor:
    """After how many calls each row has found a stationary point; infinite if it has not.

    The norms that the method itself sees tell when to look; what counts is a fresh evaluation of
    both gradients at one point, which is not charged. A row that has arrived, run away or used up
    its calls is frozen at the start with a zero gradient, so that it cannot stop the others.

    Args:
        method: Its name in `neada.methods()`.
        problem: From the zoo; every row begins at its start.
        rates: The method's learning rates, each with one entry per row; may be empty.
        num_rows: How many rows.
        max_calls: Gradients of both players and values, for each row.
        tol: Both mapping norms must be at most this times the larger one at the start.

    Example:
        >>> from neada import problems
        >>> rate = torch.tensor([1e-3, 0.1, 10.0], dtype=torch.float64)
        >>> rates = {"lr_x": rate / 10, "lr_y": rate}
        >>> calls_to_arrive("gda", problems.make("quadratic"), rates, 3, 300, 1e-3)
        tensor([ inf, 226.,  inf], dtype=torch.float64)
    """
    x0, y0 = problem.x0.repeat(num_rows, 1), problem.y0.repeat(num_rows, 1)
    x, y = x0.clone().requires_grad_(), y0.clone().requires_grad_()
    goal = tol * float(torch.stack(problem.stationarity(problem.x0, problem.y0)).max())
    x_set, y_set = problem.row_sets()
    players = neada.Players([x], [y], x_set, y_set, rowwise=True, stochastic=False, tol=goal)
    stepper = neada.make_stepper(method, players, rates)
    racing = torch.ones(num_rows, dtype=torch.bool)
    arrival = torch.full((num_rows,), math.inf, dtype=torch.float64)

    def closure() -> Tensor:
        if torch.is_grad_enabled():  # a trial point of a line search may be far out
            for player in (x, y):
                racing.logical_and_(player.detach().abs().amax(1) < _FAR)
            racing.logical_and_(stepper.row_calls < max_calls)
        rows = racing[:, None]
        return problem.fun(torch.where(rows, x, x0), torch.where(rows, y, y0))

    while bool(racing.any()):
        seen_x, seen_y = x.detach().clone(), y.detach().clone()
        info = stepper.step(closure)
        if stepper.measured_at == "middle":
            seen_y = y.detach()
        seen_sq = torch.maximum(torch.as_tensor(info.grad_sq_x), torch.as_tensor(info.grad_sq_y))
        arrived = racing & (seen_sq <= goal**2) & (stepper.row_calls <= max_calls)
        if bool(arrived.any()):
            arrived &= torch.maximum(*problem.stationarity(seen_x, seen_y)) <= goal
            arrival[arrived] = stepper.row_calls[arrived].double()
            racing &= ~arrived
        stepper.freeze(~racing)
        with torch.no_grad():
            for player, start in ((x, x0), (y, y0)):
                player.copy_(torch.where(racing[:, None], player, start))
    return arrival


def claims(records: Sequence[Record]) -> list[Claim]:
    """Nesting against not nesting for each rule, and the best of NeAda against all others."""
    shares = {r.config.method: float(_solved(r).mean()) for r in records}
    found = [
        _claim(
            nested,
            f"nesting {plain} makes more learning rates work: share of the grid that {nested} "
            f"solves minus that of {plain}, mean over problems",
            shares,
            (nested,),
            (plain,),
        )
        for plain, nested in _FAMILIES.items()
    ]
    best = (
        "some NeAda with a learning rate works for more of them than every other method of the "
        "comparison: largest share among the former minus largest among the latter"
    )
    default = (
        "the default, which has no learning rate, solves more problems than any other method does "
        "on average over the grid: share of problems minus largest share"
    )
    return [
        *found,
        _claim("best-neada", best, shares, _NEADA, _OTHERS),
        _claim("default", default, shares, (_DEFAULT,), _OTHERS),
    ]


def _claim(
    name: str,
    sentence: str,
    shares: dict[str, float],
    ours: Sequence[str],
    others: Sequence[str],
) -> Claim:
    """The claim that the best of our methods solves more than the best of the others."""
    lead = max(shares[m] for m in ours) - max(shares[m] for m in others)
    ranked = sorted((*ours, *others), key=lambda m: -shares[m])
    note = ", ".join(f"{m} {100 * shares[m]:.1f} %" for m in ranked)
    return Claim(f"agnostic/{name}", sentence, "neada", lead, ">", 0.0, note=note)


def _solved(record: Record) -> Array:
    """Which share of the problems each pair solves, shape (lr_x, lr_y)."""
    calls = np.array([row["calls"] for row in record.rows])
    num_rates = len(record.config.rates)
    solved: Array = np.isfinite(calls).reshape(-1, num_rates, num_rates).mean(axis=0)
    return solved


def figure(records: Sequence[Record]) -> Figure:
    """One map for each of eight methods, the best first."""
    maps = []
    drawn = [record for record in records if record.config.method in _DRAWN]
    for record in sorted(drawn, key=lambda r: -_solved(r).mean()):
        solved, rates = _solved(record), record.config.rates
        title = f"{_DRAWN[record.config.method]}\n{100 * solved.mean():.0f} %"
        maps.append(figures.HeatMap(title, rates, rates, solved.T))
    config = records[0].config
    return figures.heat_maps_figure(
        maps,
        num_columns=4,
        panel_size=(2.4, 2.4),
        x_label="lr_x",
        y_label="lr_y",
        value_label="share of the problems solved",
        value_range=(0.0, 1.0),
        note="solved: both gradient norms are at most "
        f"{config.tol:g} times the larger one at the start, within {config.max_calls} gradient and "
        f"value calls; color: share of {len(config.problems)} problems; the number above a map: "
        "its mean; NeAda and NeAda-AdGD have lr_x only, the default has no learning rate",
    )
