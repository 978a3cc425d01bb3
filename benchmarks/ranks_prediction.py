"""What two ranks tell about more of them: a formula with its assumptions, and its tables."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

RANKS = (8, 64, 512)
PARAMETERS = {"10 M": 10**7, "1 G": 10**9}
GIGABITS = (10, 100)
SPEEDS = (1, 1000)
LATENCY = 3e-5  # seconds from one rank to the next
BUCKET = 25 * 2**20  # bytes that DDP reduces at once
NUM_SIMULATED = 200


class Costs(NamedTuple):
    """What a step on one rank takes, in seconds of the rank that was measured.

    Attributes:
        call: An inner evaluation, whatever its number of samples.
        sample: An inner evaluation, per sample.
        model: The gradient of the model and its optimizer, for the whole batch.
        backward: The part of it in which a reduction can hide.
    """

    call: float
    sample: float
    model: float
    backward: float

    def inner(self, counts: Tensor) -> Tensor:
        """The seconds of inner loops whose samples take so many evaluations, samples last."""
        return self.call * counts.amax(-1) + self.sample * counts.sum(-1)


def fitted(rows: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """The line a + b r through the times of evaluations of r samples, neither part negative."""
    r, t = (torch.tensor(list(v), dtype=torch.float64) for v in (rows, seconds))
    slope = float(((r - r.mean()) * (t - t.mean())).sum() / ((r - r.mean()) ** 2).sum())
    intercept = float(t.mean()) - slope * float(r.mean())
    return (intercept, slope) if intercept > 0.0 else (0.0, float((r * t).sum() / (r * r).sum()))


def counts_of(rows: Sequence[int]) -> list[int]:
    """How many evaluations each sample took part in, from the samples of each evaluation.

    Example:
        >>> counts_of([3, 1])
        [1, 1, 2]
    """
    left = [*rows[1:], 0]
    return [k + 1 for k, (n, m) in enumerate(zip(rows, left, strict=True)) for _ in range(n - m)]


def stragglers(pool: Tensor, costs: Costs, num_ranks: int, batch_size: int) -> tuple[float, float]:
    """The mean time of inner loops, and that of the slowest of the ranks, by simulation.

    Args:
        pool: Evaluations that samples took; every sample of every rank is drawn from these.
        costs: What evaluations take.
        num_ranks: Ranks.
        batch_size: Samples of each.
    """
    generator = torch.Generator().manual_seed(0)
    total, slowest = 0.0, 0.0
    for _ in range(NUM_SIMULATED):
        places = torch.randint(len(pool), (num_ranks, batch_size), generator=generator)
        seconds = costs.inner(pool[places])
        total += float(seconds.mean())
        slowest += float(seconds.max())
    return total / NUM_SIMULATED, slowest / NUM_SIMULATED


def reduction(num_parameters: int, num_ranks: int, gigabits: float) -> float:
    """Seconds of a ring all-reduce of float32 gradients, and of the three numbers of a decision."""
    size = 4 * num_parameters
    wire = 2 * (num_ranks - 1) / num_ranks * size / (gigabits * 1e9 / 8)
    num_collectives = math.ceil(size / BUCKET) + 1
    return wire + num_collectives * 2 * (num_ranks - 1) * LATENCY


def section(raw: dict[str, Any], costs: Costs, pool: Tensor) -> list[str]:
    """The predicted efficiency in Markdown."""
    batch_size, own = raw["batch_size"], raw["num_parameters"]
    weak = {n: stragglers(pool, costs, n, batch_size) for n in (2, *RANKS)}
    joint = max(RANKS[0] * batch_size, RANKS[-1])
    return [
        "## Predicted efficiency",
        "",
        "Nothing in this section was measured on more than two ranks. With $n$ ranks of $B$ "
        "samples each and $P$ parameters,",
        "",
        r"$$E = \frac{\bar t + m}{t_{\max}(n) + m + r - h}, \qquad r = \frac{2(n-1)}{n}\,"
        r"\frac{4P}{\text{bandwidth}} + 2(n-1)\,\lambda\,(\lceil 4P/25\,\text{MiB}\rceil + 1),$$",
        "",
        r"where $t$ is the time of a rank's inner loop, with mean $\bar t$, and $t_{\max}(n)$ is "
        "the expected largest of $n$; $m$ is the time of the model's gradient and its optimizer; "
        "$r$ is a ring all-reduce of float32 gradients, in buckets, and of the numbers of one "
        "decision; $h$ is what of it hides in the model's backward pass: nothing (no overlap) or "
        r"$\min(r, \text{backward})$ (full overlap). Each cell has these two bounds.",
        "",
        *_assumptions(raw, costs, pool),
        "",
        r"Stragglers alone ($r = 0$), by simulation:",
        "",
        r"| ranks | $t_{\max}(n) / \bar t$ | efficiency |",
        "|---|---|---|",
        *(
            f"| {n} | {slowest / mean:.3f} | {(mean + costs.model) / (slowest + costs.model):.3f} |"
            for n, (mean, slowest) in weak.items()
        ),
        "",
        f"Weak scaling: {batch_size} samples on every rank, so that the joint batch grows with "
        "$n$. No overlap to full overlap:",
        "",
        *_table(own, {n: Loads(*weak[n], costs.model, costs.backward) for n in RANKS}),
        "",
        f"Strong scaling: a joint batch of {joint} whatever $n$, so that a rank has {joint}/$n$ "
        "samples; its compute shrinks and the reduction does not. Relative to as many ranks that "
        f"share the work of {RANKS[0]} without loss:",
        "",
        *_table(own, _strong(pool, costs, batch_size, joint)),
        "",
        "What breaks first:",
        "",
        *_breaks(costs, own, weak[RANKS[-1]], pool),
    ]


def _assumptions(raw: dict[str, Any], costs: Costs, pool: Tensor) -> list[str]:
    speed = raw["flops_per_sample"] * raw["batch_size"] / costs.model / 1e9
    return [
        "Assumptions:",
        "",
        f"- An inner evaluation of $s$ samples takes $a + b s$, here $a$ = {1e3 * costs.call:.2f} "
        f"ms and $b$ = {1e3 * costs.sample:.3f} ms, and $m$ = {1e3 * costs.model:.0f} ms, of which "
        "two thirds are the backward pass. Evaluations without a gradient are left out.",
        "- Each sample's number of inner evaluations is drawn by itself from those of the second "
        f"half of the run above ({len(pool):,} samples, mean {float(pool.mean()):.2f}, "
        f"largest {int(pool.max())}), for {NUM_SIMULATED} steps. No simulated sample takes more "
        "than the largest number seen, and how many it takes does not change with $n$ or $P$.",
        "- Per-sample stopping; equal machines without jitter, whose data are at hand.",
        f"- All times are proportional to $P$ (the network has {raw['num_parameters']:,}). Speed 1 "
        f"is the processor core of this page, {speed:.0f} GFLOP/s in the model's gradient; speed "
        "1000 stands for an accelerator, and none was measured.",
        f"- {1e6 * LATENCY:.0f} µs from rank to rank, one link per rank with its full bandwidth in "
        "both directions. Rings for everything; trees would be faster for the three numbers.",
    ]


class Loads(NamedTuple):
    """What a rank has to do in a step, in seconds of the rank that was measured.

    Attributes:
        mean: Inner loops, as if all were equally long.
        slowest: The longest of them.
        model: The gradient of the model and its optimizer.
        backward: The part of it in which a reduction can hide.
    """

    mean: float
    slowest: float
    model: float
    backward: float


def _strong(pool: Tensor, costs: Costs, batch_size: int, joint: int) -> dict[int, Loads]:
    """What ranks have to do that share one joint batch."""
    found = {}
    first, _ = stragglers(pool, costs, RANKS[0], joint // RANKS[0])
    for n in RANKS:
        _, slowest = stragglers(pool, costs, n, joint // n)
        share = joint / n / batch_size
        found[n] = Loads(first * RANKS[0] / n, slowest, costs.model * share, costs.backward * share)
    return found


def _table(own: int, loads: dict[int, Loads]) -> list[str]:
    lines = [
        "| parameters | Gbit/s | speed | " + " | ".join(f"{n} ranks" for n in RANKS) + " |",
        "|---" * (3 + len(RANKS)) + "|",
    ]
    for (words, size), gigabits, speed in itertools.product(PARAMETERS.items(), GIGABITS, SPEEDS):
        bounds = [
            efficiencies(load, size / own / speed, reduction(size, n, gigabits))
            for n, load in loads.items()
        ]
        cells = " | ".join(f"{low:.2f} to {high:.2f}" for low, high in bounds)
        lines.append(f"| {words} | {gigabits} | {speed} | {cells} |")
    return lines


def efficiencies(load: Loads, factor: float, reduce: float) -> tuple[float, float]:
    """Without overlap, and with a reduction that hides in the backward pass.

    Args:
        load: Of a rank.
        factor: How many times as long everything in it takes.
        reduce: Seconds of the reduction.
    """
    useful = factor * (load.mean + load.model)
    spent = factor * (load.slowest + load.model) + reduce
    return useful / spent, useful / (spent - min(reduce, factor * load.backward))


def _breaks(costs: Costs, own: int, last: tuple[float, float], pool: Tensor) -> list[str]:
    mean, slowest = last
    step, waiting = mean + costs.model, slowest - mean
    wire = reduction(10**9, RANKS[-1], GIGABITS[0]) * own / 10**9  # as if for the own parameters
    capped = 100 * (costs.call + costs.sample)
    most = int(pool.max())
    return [
        f"- On processor cores (speed 1), stragglers: {RANKS[-1]} ranks add "
        f"{100 * waiting / step:.0f} % to a step by waiting for the slowest inner loop, and "
        f"{100 * wire / step:.2f} % by reducing 1 G parameters at {GIGABITS[0]} Gbit/s.",
        f"- On faster ranks, the network: at {GIGABITS[0]} Gbit/s the reduction costs more than "
        f"the waiting from a speed of {waiting / wire:.0f} on. $P$ cancels but for the latency, so "
        "that a larger model does not help; more samples per rank and lower precision in the "
        "reduction do.",
        "- Memory: with DDP a rank has the parameters, their gradients and the two moments of "
        "Adam, 16 GB for 1 G parameters in float32, before activations. `fully_shard` divides this "
        "by $n$ but gathers the parameters with every inner evaluation, twice where they are freed "
        f"in between: for {most} evaluations, the most seen here, {2 * most + 3} times $4P(n-1)/n$ "
        "bytes per step and rank, against 2 times with DDP.",
        "- The tail is bounded by the rule alone: t+1 steps, or the cap of 100. One sample that "
        f"goes to the cap takes 100 ($a + b$) = {capped:.2f} s here, {capped / step:.1f} times a "
        "step, and all ranks wait for it; a lower `max_steps` bounds that.",
    ]
