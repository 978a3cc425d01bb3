"""Figure 2: McCormick's function with noisy gradients, three ratios, many seeds.

Adam and AMSGrad use eps = 0.8 here, as the authors' scripts do, with which they are nearly SGD with
momentum; the stopping rule has the constants of the scripts and is evaluated at the current y. The
figure of the paper shows one start; here every seed has its own noise, and all claims are checked
twice: with all seeds at the paper's start, and with a random start for every seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from neada import problems
from neada.runs import RunFolder
from neada.stopping import GradientMapping, InnerSteps
from reproduction import figures
from reproduction.experiment import Claim, Record, Scale, Seeds, chosen_seeds
from reproduction.play import METHODS, Rows, curves, end_level, play, write_curves

TITLE = "McCormick's function with noise"
WHERE = "Figure 2"
PAPER = (
    "On McCormick's function coupled with y, with Gaussian noise of 0.01, Adam, AMSGrad and GDA "
    "fail at the ratio 0.01. GDA converges from 0.03 on, Adam and AMSGrad only at 0.05. NeAda with "
    "an adaptive subroutine converges at all three ratios."
)
KNOWN = {
    "mccormick/random/neada-*": (
        "The figure shows one start. From some others these methods need more calls than the "
        "figure's: with four times as many NeAda-AMSGrad converges at 0.01 from all ten starts, "
        "with sixteen times as many NeAda-AdaGrad at 0.03 and 0.05 (`mccormick/longer`)."
    ),
    "mccormick/random/*": (
        "The figure shows one start. Whether a method without nesting converges at a ratio depends "
        "on the start: from about half of them Adam and AMSGrad do where the figure has them fail, "
        "and from some they fail where it has them converge."
    ),
}

_MAX_CALLS = ((0.01, 40000), (0.03, 15000), (0.05, 23000))
_LONGER = (("NeAda-AMSGrad", 0.01, 4), ("NeAda-AdaGrad", 0.03, 16), ("NeAda-AdaGrad", 0.05, 16))
"""Methods and ratios that are also run from random starts with so many times the calls."""
_NUM_SEEDS: dict[Scale, int] = {"quick": 4, "standard": 10, "paper": 30}
_EPS = 0.8
_STOPPING = GradientMapping() | InnerSteps(lambda t: t)
_COMPARED = ("Adam", "AMSGrad", "GDA", "NeAda-Adam", "NeAda-AMSGrad", "NeAda-AdaGrad")
"""The methods about which the paper says whether they converge."""
_CONVERGED = 0.2
_LIMIT = np.array([_CONVERGED, _CONVERGED])
"""Largest |grad_x| in the last tenth of the calls; it is about 3 at the start."""

Start = Literal["paper", "random"]
_STARTS: dict[Start, str] = {"paper": "the paper's start", "random": "random starts"}


@dataclass(frozen=True)
class Config:
    """One method on some ratios and starts, and all seeds.

    Attributes:
        method: Its name in `reproduction.play.METHODS`.
        seeds: Of the noise at the paper's start, and of as many random starts.
        max_calls: The ratios lr_y / lr_x, each with its gradient calls.
        lr_y: The learning rate of y.
        noise_std: Standard deviation of the noise on every coordinate of every gradient used.
        num_points: Points kept of each curve.
        starts: Which kinds of starts; longer runs have random ones only.
    """

    method: str
    seeds: tuple[int, ...]
    max_calls: tuple[tuple[float, int], ...] = _MAX_CALLS
    lr_y: float = 0.01
    noise_std: float = 0.01
    num_points: int = 200
    starts: tuple[Start, ...] = tuple(_STARTS)

    @property
    def is_longer(self) -> bool:
        """Whether the run has more calls than the figure."""
        return self.starts != tuple(_STARTS)

    @property
    def label(self) -> str:
        """The method, and the ratio of a longer run."""
        return f"{self.method} longer {self.max_calls[0][0]:g}" if self.is_longer else self.method


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Every method, with a quarter of the paper's calls at scale quick, and the longer runs."""
    chosen = chosen_seeds(seeds, _NUM_SEEDS[scale])
    part = 4 if scale == "quick" else 1
    max_calls = tuple((ratio, calls // part) for ratio, calls in _MAX_CALLS)
    longer = [
        Config(method, chosen, ((ratio, times * dict(_MAX_CALLS)[ratio]),), starts=("random",))
        for method, ratio, times in (() if scale == "quick" else _LONGER)
    ]
    return [*(Config(method, chosen, max_calls) for method in METHODS), *longer]


def _start(kind: Start, seed: int) -> Tensor:
    """Both players' start: x1, x2, y1, y2."""
    if kind == "random":
        return torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal(4))
    # What torch draws after the seed 8 of the scripts.
    return torch.randn(4, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def run(config: Config, run: RunFolder) -> None:
    """Run all ratios, starts and seeds, one row each."""
    cells = [(ratio, calls, kind) for ratio, calls in config.max_calls for kind in config.starts]
    num_seeds = len(config.seeds)
    starts = torch.stack([_start(kind, seed) for _, _, kind in cells for seed in config.seeds])
    ratios = torch.tensor([ratio for ratio, _, _ in cells], dtype=torch.float64)
    lr_y = torch.full((len(starts),), config.lr_y, dtype=torch.float64)
    rows = Rows(
        x=starts[:, :2].clone(),
        y=starts[:, 2:].clone(),
        lr_x=lr_y / ratios.repeat_interleave(num_seeds),
        lr_y=lr_y,
        max_calls=torch.tensor([calls for _, calls, _ in cells]).repeat_interleave(num_seeds),
        stopping=_STOPPING,
        eps=_EPS,
    )
    method, fun = METHODS[config.method], problems.make("mccormick").fun
    calls, norms = play(method, fun, rows, _noise(config, len(cells)))
    for number, (ratio, max_calls, kind) in enumerate(cells):
        mine = slice(number * num_seeds, (number + 1) * num_seeds)
        facts = {"ratio": ratio, "start": kind}
        write_curves(run, calls[:, mine], norms[:, mine], max_calls, config.num_points, facts)


def _noise(config: Config, num_cells: int) -> Callable[[Tensor], Tensor]:
    """Gaussian noise by seed and call: runs of one seed see the same, whatever their company."""
    length = max(calls for _, calls in config.max_calls)
    streams = [np.random.default_rng(seed) for seed in config.seeds]
    draws = np.stack([stream.standard_normal((length, 4)) for stream in streams])
    noise = config.noise_std * torch.from_numpy(draws)
    seed = torch.arange(len(config.seeds)).repeat(num_cells)
    return lambda calls: noise[seed, calls.clamp(max=length - 1)]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Who converges at which ratio, as a share of the seeds."""
    return [
        _claim(record, start, ratio)
        for record in records
        if record.config.method in _COMPARED
        for start in record.config.starts
        for ratio, _ in record.config.max_calls
    ]


def _converges(method: str, ratio: float) -> bool:
    """What the paper says."""
    if method.startswith("NeAda") or ratio == 0.05:
        return True
    return method == "GDA" and ratio == 0.03


def _claim(record: Record, start: Start, ratio: float) -> Claim:
    name, budget = record.config.method, dict(_MAX_CALLS)[ratio]
    converges = _converges(name, ratio)
    levels = end_level(record, ratio, start=start)
    share = float((levels <= _CONVERGED).mean())
    limit = 0.9 if converges else 0.1
    times = dict(record.config.max_calls)[ratio] / budget
    # With fewer calls than the figure's, only convergence and divergence are evidence.
    undecided = times < 1.0 and bool(np.isfinite(levels).any()) and share < limit
    longer = f" with {times:g} times the figure's calls" if record.config.is_longer else ""
    panel = "abc"[[r for r, _ in _MAX_CALLS].index(ratio)]
    return Claim(
        f"mccormick/{'longer' if longer else start}/{name.lower()}-{ratio:g}",
        f"{name} {'converges' if converges else 'does not converge'} at ratio {ratio:g} from "
        f"{_STARTS[start]}{longer}: share of seeds with |grad_x| <= {_CONVERGED:g} in the last "
        "tenth of the calls",
        f"Figure 2({panel})",
        share,
        ">=" if converges else "<=",
        limit,
        seeds=len(levels),
        note=f"median level {np.median(levels):.1e}",
        untested="fewer calls than in the figure" if undecided else "",
    )


def figure(records: Sequence[Record]) -> Figure:
    """Per ratio: curves from the paper's start, and where the random starts end."""
    drawn = [record for record in records if not record.config.is_longer]
    panels = [
        figures.Panel(
            _title(drawn, ratio, "paper"),
            [figures.Curve(r.config.method, *curves(r, ratio, start="paper")) for r in drawn],
        )
        for ratio, _ in _MAX_CALLS
    ]
    panels += [
        figures.Panel(
            _title(drawn, ratio, "random"),
            [_ends(record, ratio) for record in drawn],
            guides=[("", np.array([1.0, len(drawn[0].config.seeds)]), _LIMIT)],
            x_label="random start, the best first",
            y_label="" if number else "largest |grad_x f| at the end",
        )
        for number, (ratio, _) in enumerate(_MAX_CALLS)
    ]
    return figures.curves_figure(
        panels,
        num_columns=3,
        y_label="|grad_x f|, noiseless",
        largest=100.0,
        note="ratio = lr_y / lr_x; below: the last tenth of the calls, dotted: the limit of "
        "convergence; diverged runs are above the panels",
    )


def _title(records: Sequence[Record], ratio: float, start: Start) -> str:
    """The share of the runs that converge, with and without NeAda's inner loop."""
    shares = []
    for is_nested, words in ((True, "NeAda"), (False, "others")):
        converged = [
            end_level(record, ratio, start=start) <= _CONVERGED
            for record in records
            if record.config.method.startswith("NeAda") == is_nested
        ]
        if converged:
            shares.append(f"{words} {100.0 * np.mean(converged):.0f} %")
    return f"ratio {ratio:g}, {_STARTS[start]}:\n{', '.join(shares)} converged"


def _ends(record: Record, ratio: float) -> figures.Curve:
    """The levels at the end, sorted."""
    levels = np.sort(end_level(record, ratio, start="random"))
    return figures.Curve(record.config.method, np.arange(1.0, len(levels) + 1.0), levels)
