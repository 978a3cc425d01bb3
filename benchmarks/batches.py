"""Time of an epoch of `Batches` against torch's DataLoader over the same tensors, in the same run.

    python benchmarks/batches.py [--rounds N] [--quick] [--write [FOLDER]] [--render]

Machines are noisy, so no time stands alone: in every round all ways are timed one right after the
other, and what is reported is the median over rounds of the ratio within a round. Every way
shuffles, and yields inputs, targets and indices. An epoch of `Batches` includes making its order.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pages
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from neada.data import Batches


class Size(NamedTuple):
    """So many samples of a shape."""

    name: str
    num_samples: int
    shape: tuple[int, ...]


BATCH_SIZE = 128
TARGET = 5.0
SIZES = [
    Size("synthetic", 10_000, (2,)),
    Size("digits", 1_438, (1, 8, 8)),
    Size("MNIST", 50_000, (1, 28, 28)),
]
USUAL, WHOLE = "DataLoader", "DataLoader, whole batches"


class WholeBatches(torch.utils.data.Dataset[tuple[Tensor, ...]]):
    """A data set that is asked for a list of indices at once: what a DataLoader can do at best."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, ids: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor[ids] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


def ways(size: Size) -> dict[str, Callable[[], Iterable[object]]]:
    """Functions that give an epoch, by name; ours first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(size.num_samples, *size.shape, generator=generator)
    y = torch.randint(10, (size.num_samples,), generator=generator)
    ids = torch.arange(size.num_samples)
    usual = DataLoader(TensorDataset(x, y, ids), BATCH_SIZE, shuffle=True, generator=generator)
    data = WholeBatches(x, y, ids)
    sampler = BatchSampler(RandomSampler(data, generator=generator), BATCH_SIZE, drop_last=False)
    whole = DataLoader(data, batch_size=None, sampler=sampler)
    batches = Batches(x, y, BATCH_SIZE, seed=0)
    return {"Batches": lambda: batches, USUAL: lambda: usual, WHOLE: lambda: whole}


def seconds(epoch: Iterable[object]) -> float:
    begin = time.perf_counter()
    for _ in epoch:
        pass
    return time.perf_counter() - begin


def timed(size: Size, rounds: int) -> tuple[float, dict[str, float]]:
    """Median seconds of an epoch of ours, and how many times as long the others take."""
    epochs = ways(size)
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for done in range(rounds + 1):
        for name, epoch in epochs.items():
            spent = seconds(epoch())
            if done > 0:  # the first round warms up
                times[name].append(spent)
        pages.progress(f"{size.name}: round {done} of {rounds}")
    own = times.pop("Batches")
    ratios = {
        name: statistics.median(other / mine for other, mine in zip(spent, own, strict=True))
        for name, spent in times.items()
    }
    return statistics.median(own), ratios


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of every size."""
    rounds, sizes = arguments.rounds, SIZES
    if arguments.quick:
        rounds, sizes = 1, [size._replace(num_samples=size.num_samples // 10) for size in SIZES]
    rows = []
    for size in sizes:
        own, ratios = timed(size, rounds)
        rows.append({**size._asdict(), "seconds": own, "ratios": ratios})
    return {"rounds": rounds, "rows": rows}


def render(record: pages.Record) -> str:
    """The page."""
    rounds, rows = record.numbers["rounds"], record.numbers["rows"]
    lines = [
        "# Benchmarks: batches",
        "",
        f"{pages.opening(record, 'batches')} An epoch of `Batches` against torch's `DataLoader` "
        f"over the same tensors in memory, batches of {BATCH_SIZE}, shuffled: the median over "
        f"{rounds} rounds of (time of the loader) / (time of `Batches` in the same round), so "
        "above 1 is faster than torch.",
        "",
        f"Target: at least {TARGET:g} against the usual loader (`TensorDataset`, `shuffle=True`); "
        "below it the number is in bold. The last column is a loader that indexes whole batches "
        "itself, the fastest a `DataLoader` can be.",
        "",
        f"| data | `Batches`, ms per epoch | {USUAL} | {WHOLE} |",
        "|---|---|---|---|",
    ]
    for row in rows:
        ratio = row["ratios"][USUAL]
        usual = f"**{ratio:.1f}**" if ratio < TARGET else f"{ratio:.1f}"
        shape = " x ".join(map(str, row["shape"]))
        lines.append(
            f"| {row['name']}, {row['num_samples']:,} of {shape} | {1e3 * row['seconds']:.2f} "
            f"| {usual} | {row['ratios'][WHOLE]:.1f} |"
        )
    missed = sum(row["ratios"][USUAL] < TARGET for row in rows)
    return "\n".join([*lines, "", f"Targets missed in this run: {missed}.", ""])


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """The smallest ratio."""
    slowest = min(row["ratios"][USUAL] for row in numbers["rows"])
    what = "`Batches` in memory, times as fast as torch's `DataLoader`"
    return [pages.Headline(what, slowest, "at least", TARGET, ".1f")]


BENCHMARK = pages.Benchmark("batches", "benchmarks-batches.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="rounds to take the median over")
    parser.add_argument(
        "--quick", action="store_true", help="one round of a tenth, to see that it runs"
    )
    arguments = pages.parse(parser)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
