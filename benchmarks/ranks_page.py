"""The page of `benchmarks/ranks.py`, from its raw numbers."""

import statistics
from typing import Any

import pages
import torch
from ranks_prediction import Costs, counts_of, fitted, section
from torch import Tensor

from neada import tables

GAMMA, LR_X = 1.3, 1e-3
LEAST = 0.9
ALONE, CONTROL, PLAIN, DDP = ("alone", "two, independent", "two ranks, plain", "two ranks, DDP")
PHASES = ("alone 0", "alone 1", CONTROL, PLAIN, DDP)
PARTS = ("inner", "waiting", "reduction", "optimizer", "model")

Steps = list[dict[str, Any]]


def total(steps: Steps) -> float:
    return sum(step["seconds"] for step in steps)


def efficiency_of(times: dict[str, Any], name: str) -> float:
    """How much of the speed of two processes that are alone is left in one round."""
    shares = [total(times[f"alone {r}"][r]) / total(times[name][r]) for r in (0, 1)]
    return statistics.mean(shares)


def spread(numbers: list[float], digits: int = 2) -> str:
    """The median, and the smallest and largest number."""
    low, high = min(numbers), max(numbers)
    return f"{statistics.median(numbers):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def efficiency_rows(raw: dict[str, Any]) -> list[str]:
    rows = []
    for name in (CONTROL, PLAIN, DDP):
        found = [efficiency_of(times, name) for times in raw["rounds"]]
        against = [efficiency_of(t, name) / efficiency_of(t, CONTROL) for t in raw["rounds"]]
        rows.append(f"| {name} | {spread(found)} | {spread(against)} |")
    return rows


def headlines(raw: dict[str, Any]) -> list[pages.Headline]:
    """The efficiency of a plain module and of DDP."""
    return [
        pages.Headline(
            f"efficiency of {name}",
            statistics.median(efficiency_of(times, name) for times in raw["rounds"]),
            "at least",
            LEAST,
        )
        for name in (PLAIN, DDP)
    ]


def verdict(raw: dict[str, Any]) -> str:
    plain, ddp = ("met" if head.is_met else "missed" for head in headlines(raw))
    return f"Target: an efficiency of at least {LEAST:g}. Plain: **{plain}**, DDP: **{ddp}**."


def part_rows(raw: dict[str, Any]) -> list[str]:
    """Mean milliseconds of each part of a step, over rounds, ranks and steps."""
    rows = []
    for name, phases in {ALONE: PHASES[:2], **{n: (n,) for n in PHASES[2:]}}.items():
        steps = [
            step
            for times in raw["rounds"]
            for phase in phases
            for done in times[phase]
            if done is not None
            for step in done
        ]
        parts = [statistics.mean(step["parts"][part] for step in steps) for part in PARTS]
        whole = statistics.mean(step["seconds"] for step in steps)
        rows.append(
            f"| {name} | " + " | ".join(f"{1e3 * each:.1f}" for each in [*parts, whole]) + " |"
        )
    return rows


def traffic_rows(raw: dict[str, Any]) -> list[str]:
    """Collectives of one outer step; in a ring of two each rank sends as many bytes as it has."""
    rows = []
    for name, sizes in raw["collectives"].items():
        numbers, gradients = [s for s in sizes if s <= 24], [s for s in sizes if s > 24]
        buffers = raw["num_buffer_bytes"] if name == DDP else 0
        rows.append(
            f"| {name} | {len(numbers)} | {sum(numbers)} | {len(gradients)} | "
            f"{sum(gradients):,} | {buffers:,} |"
        )
    return rows


def quantiles(numbers: list[float]) -> str:
    ordered = sorted(numbers)
    cells = [ordered[round(q * (len(ordered) - 1))] for q in (0.0, 0.1, 0.5, 0.9, 1.0)]
    return " | ".join(f"{cell:g}" for cell in cells) + f" | {statistics.mean(numbers):.2f}"


def distribution_rows(raw: dict[str, Any]) -> list[str]:
    """Inner evaluations and the samples in them, in the second half of the training."""
    rows = []
    halves = [steps[len(steps) // 2 :] for steps in raw["training"]]
    for rank, steps in enumerate(halves):
        rows.append(f"| evaluations, rank {rank} | {quantiles([len(s['rows']) for s in steps])} |")
    size = raw["batch_size"]
    for rank, steps in enumerate(halves):
        work = [sum(s["rows"]) / size for s in steps]
        rows.append(f"| samples in them / {size}, rank {rank} | {quantiles(work)} |")
    gaps = [float(abs(len(a["rows"]) - len(b["rows"]))) for a, b in zip(*halves, strict=True)]
    rows.append(f"| evaluations, between the ranks | {quantiles(gaps)} |")
    return rows


def costs_of(raw: dict[str, Any]) -> Costs:
    rows, seconds = zip(*raw["evaluations"], strict=True)
    call, sample = fitted(rows, seconds)
    model = [
        step["parts"]["model"] + step["parts"]["optimizer"]
        for times in raw["rounds"]
        for r in (0, 1)
        for step in times[f"alone {r}"][r]
    ]
    seconds_of_model = statistics.median(model)
    return Costs(call, sample, seconds_of_model, 2 / 3 * seconds_of_model)


def pool_of(raw: dict[str, Any]) -> Tensor:
    """How many evaluations each sample took, in the second half of the training."""
    return torch.tensor(
        [
            count
            for steps in raw["training"]
            for step in steps[len(steps) // 2 :]
            for count in counts_of(step["rows"])
        ],
        dtype=torch.float64,
    )


def predicted_for_two(raw: dict[str, Any], costs: Costs) -> float:
    """The efficiency that waiting for the slower inner loop leaves, from counts alone."""
    pairs = zip(*(raw["rounds"][0][f"alone {r}"][r] for r in (0, 1)), strict=True)
    useful, slowest = 0.0, 0.0
    for pair in pairs:
        seconds = [float(costs.inner(torch.tensor(counts_of(s["rows"])))) for s in pair]
        useful += statistics.mean(seconds) + costs.model
        slowest += max(seconds) + costs.model
    return useful / slowest


def render(record: pages.Record) -> str:
    """Everything as a Markdown page."""
    raw = record.numbers
    costs, pool = costs_of(raw), pool_of(raw)
    size, num_steps = raw["batch_size"], raw["steps"]
    lines = [
        "# Benchmarks: several ranks",
        "",
        f"{pages.opening(record, 'ranks')} Two processes with one thread each, gloo. `WRM` with "
        f"its defaults (per-sample stopping, gamma = {GAMMA:g}), the "
        f'network "{tables.DATA[raw["data"]].model}" ({raw["num_parameters"]:,} parameters) on '
        f"{raw['data']}, {size} samples per rank.",
        "",
        "## Efficiency",
        "",
        f"After {raw['training_steps']} joint steps, {num_steps} steps with the model at rest, in "
        f"{len(raw['rounds'])} rounds; in each of them every process does its half of the batches "
        "alone, both do so at once without knowing of each other (the control), and both train "
        "together. Efficiency is (time alone) / (time in this way), the mean of the two ranks; "
        "medians over the rounds, with the smallest and largest.",
        "",
        "| way | efficiency | relative to the control |",
        "|---|---|---|",
        *efficiency_rows(raw),
        "",
        f"{verdict(raw)} Waiting for the slower of the two inner loops alone, from the counts of "
        f"evaluations, leaves {predicted_for_two(raw, costs):.3f}.",
        "",
        "## Where the time of an outer step goes",
        "",
        "Milliseconds, means over rounds, ranks and steps. Waiting is the reduction in which a "
        "rank that is done with its inner loop meets the other; reduction is that of the gradients "
        "of a plain module. DDP reduces within its backward pass, and sends the buffers before its "
        "forward pass, which are both in the column of the model's gradient.",
        "",
        "| way | inner evaluations | waiting | reduction | optimizer | model's gradient | step |",
        "|---|---|---|---|---|---|---|",
        *part_rows(raw),
        "",
        "## Bytes per outer step",
        "",
        "Counted in one step. A ring of $n$ ranks sends $2(n-1)/n$ times these bytes from each "
        "rank, so these very bytes for two. No collective takes place within the inner loop.",
        "",
        "| way | reductions of numbers | bytes | reductions of gradients | bytes | bytes of "
        "buffers, by broadcast |",
        "|---|---|---|---|---|---|",
        *traffic_rows(raw),
        "",
        "## Inner evaluations per rank and step",
        "",
        f"In the second half of the {raw['training_steps']} joint steps (Adam, {LR_X:g}). Where "
        "the ranks differ, one of them waits.",
        "",
        "| | least | 10 % | median | 90 % | most | mean |",
        "|---|---|---|---|---|---|---|",
        *distribution_rows(raw),
        "",
        *section(raw, costs, pool),
    ]
    if raw["quick"]:
        lines += ["", "A quick run: the numbers mean nothing."]
    return "\n".join(lines) + "\n"
