"""Two processes that train together against one: efficiency, where the time goes, bytes sent.

    python benchmarks/ranks.py [--rounds N] [--steps N] [--quick] [--write [FOLDER]] [--render]

Every process has one thread. The same two processes take the same steps in five ways: each alone
with its half of the batches, both at once but independently (the control), both together as a plain
module, both together as DDP. Times are wall-clock times; the page reports the median over rounds of
ratios within a round. Adam has a learning rate of 0 while times are taken, so that all ways take
the same inner steps.
"""

import argparse
import contextlib
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pages
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from neada import data, models, parallel, robust
from neada.training.config import DATA

GAMMA, LR_X = 1.3, 1e-3
LEAST = 0.9
ALONE, CONTROL, PLAIN, DDP = ("alone", "two, independent", "two ranks, plain", "two ranks, DDP")
PHASES = ("alone 0", "alone 1", CONTROL, PLAIN, DDP)
PARTS = ("inner", "waiting", "reduction", "optimizer", "model")

Batch = tuple[Tensor, Tensor]
Steps = list[dict[str, Any]]


# One rank's training, with a clock in every part.


class Training:
    """WRM with a model, and what each step does and how long its parts take."""

    def __init__(self, model: nn.Module, lr: float, state: dict[str, Any] | None = None) -> None:
        self.model = model
        self.objective = robust.WRM(model, self._losses, GAMMA)
        if state is not None:
            self.objective.load_state_dict(state)
        self.x_optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._rows: list[int] = []
        inner, move = self.objective.perturb, self.x_optimizer.step
        self.objective.perturb = self._timed("inner", inner)  # type: ignore[method-assign]
        self.x_optimizer.step = self._timed("optimizer", move)  # type: ignore[method-assign]

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            self._rows.append(len(outputs))
        return cross_entropy(outputs, targets, reduction="none")

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            others, begin = sum(self._spent.values()), time.perf_counter()
            found = function(*args, **options)
            # Without the parts that were called inside.
            inside = sum(self._spent.values()) - others
            self._spent[part] += time.perf_counter() - begin - inside
            return found

        return call

    def _reduce(self, tensor: Tensor, *args: Any, **options: Any) -> Any:
        """Time the reduction of a decision, in which ranks wait, or that of the gradients."""
        part = "waiting" if tensor.numel() <= 3 else "reduction"
        return self._timed(part, _all_reduce)(tensor, *args, **options)

    def steps(self, batches: list[Batch]) -> Steps:
        """Train, and return times and counts of each step."""
        found = []
        with mock.patch.object(dist, "all_reduce", self._reduce):
            for batch in batches:
                self._spent = dict.fromkeys(PARTS, 0.0)
                self._rows = []
                begin = time.perf_counter()
                info = self.objective.step(self.x_optimizer, *batch)
                seconds = time.perf_counter() - begin
                self._spent["model"] = seconds - sum(self._spent.values())
                # The last evaluation is that of the model.
                found.append(
                    {
                        "seconds": seconds,
                        "parts": self._spent,
                        "rows": self._rows[:-1],
                        "values": info.calls_value,
                    }
                )
        return found


_all_reduce = dist.all_reduce


@contextlib.contextmanager
def on_its_own() -> Iterator[None]:
    """Inside, the library trains in one process."""
    with mock.patch.object(parallel, "is_active", lambda: False):
        yield


# What both processes do.


def work(rank: int, folder: str, setting: dict[str, Any]) -> None:
    """Train together, then take turns; rank 0 writes what all of it gave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    found = data.load(setting["data"])
    model = models.make(DATA[setting["data"]], found.input_shape, found.num_classes, seed=0)
    size, num_first = setting["batch_size"], setting["training_steps"]
    order = torch.randperm(len(found.inputs_train), generator=torch.Generator().manual_seed(0))
    order = order[: len(order) // (2 * size) * 2 * size].view(-1, 2, size)[:, rank]
    all_batches = [(found.inputs_train[ids], found.targets_train[ids]) for ids in order]
    training = Training(model, LR_X)
    batches = [all_batches[i % len(all_batches)] for i in range(num_first + setting["steps"])]
    first = gathered(training.steps(batches[:num_first]))
    (state, _) = gathered(copy.deepcopy(model.state_dict()))
    model.load_state_dict(state)
    batches, counted = batches[num_first:], training.objective.state_dict()
    rounds = []
    for i in range(setting["num_rounds"] + 1):
        times = {name: turn(name, rank, model, counted, batches) for name in PHASES}
        if i:  # the first round warms up
            rounds.append(times)
        if rank == 0:
            pages.progress(f"round {i} of {setting['num_rounds']}")
    sent = {name: collectives(name, model, counted, batches) for name in (PLAIN, DDP)}
    raw = {
        **setting,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "num_buffer_bytes": sum(b.nbytes for b in model.buffers()),
        "training": first,
        "rounds": rounds,
        "collectives": sent,
    }
    dist.barrier()
    if rank == 0:
        (Path(folder) / "raw.json").write_text(json.dumps(raw), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def gathered(mine: Any) -> list[Any]:
    """What both ranks have."""
    both = [None, None]
    dist.all_gather_object(both, mine)
    return both


def fresh(name: str, model: nn.Module, state: dict[str, Any]) -> Training:
    """A training of a copy of the model that does not move it."""
    mine = copy.deepcopy(model)
    return Training(DistributedDataParallel(mine) if name == DDP else mine, 0.0, state)


def turn(
    name: str, rank: int, model: nn.Module, state: dict[str, Any], batches: list[Batch]
) -> list[Steps | None]:
    """The steps of both ranks in one way; None for one that had no turn."""
    training = fresh(name, model, state)
    dist.barrier()
    mine = None
    if name in (PLAIN, DDP):
        mine = training.steps(batches)
    elif name in (CONTROL, f"alone {rank}"):
        with on_its_own():
            mine = training.steps(batches)
    dist.barrier()
    return gathered(mine)


def collectives(
    name: str, model: nn.Module, state: dict[str, Any], batches: list[Batch]
) -> list[int]:
    """The bytes that each reduction of one step is about."""
    training = fresh(name, model, state)
    sizes: list[int] = []

    def reduce(tensor: Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(tensor.nbytes)
        return _all_reduce(tensor, *args, **options)

    if isinstance(training.model, DistributedDataParallel):
        # The same reductions as without a hook, by a function that can be watched.
        training.model.register_comm_hook(None, allreduce_hook)
    for batch in batches[:2]:  # DDP makes its buckets anew after the first step
        sizes.clear()
        with mock.patch.object(dist, "all_reduce", reduce):
            training.objective.step(training.x_optimizer, *batch)
    return sizes


# The page.


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


def render(record: pages.Record) -> str:
    """Everything as a Markdown page."""
    raw = record.numbers
    size, num_steps = raw["batch_size"], raw["steps"]
    lines = [
        "# Benchmarks: several ranks",
        "",
        f"{pages.opening(record, 'ranks')} Two processes with one thread each, gloo. `WRM` with "
        f"its defaults (per-sample stopping, gamma = {GAMMA:g}), the "
        f'network "{DATA[raw["data"]]}" ({raw["num_parameters"]:,} parameters) on '
        f"{raw['data']}, {size} samples per rank.",
        "",
        "## Efficiency",
        "",
        f"After {raw['training_steps']} joint steps: {num_steps} steps with a learning rate of 0, "
        f"in {len(raw['rounds'])} rounds. In each round every process takes the steps of its half "
        "of the batches alone, then both do so at once but independently (the control), then both "
        "train together. Efficiency is the time alone divided by the time in this way, the mean "
        "of the two ranks; medians over the rounds, with the smallest and the largest.",
        "",
        "| way | efficiency | relative to the control |",
        "|---|---|---|",
        *efficiency_rows(raw),
        "",
        verdict(raw),
        "",
        "## Where the time of an outer step goes",
        "",
        "Milliseconds, means over rounds, ranks and steps. Waiting is the time of the reductions "
        "of stopping decisions, in which the ranks wait for each other. Reduction is that of the "
        "gradients of a plain module. DDP reduces in its backward pass and sends the buffers "
        "before its forward pass; both are in the column of the model's gradient.",
        "",
        "| way | inner evaluations | waiting | reduction | optimizer | model's gradient | step |",
        "|---|---|---|---|---|---|---|",
        *part_rows(raw),
        "",
        "## Bytes per outer step",
        "",
        "Counted in one step. In a ring of $n$ ranks each rank sends $2(n-1)/n$ times these bytes.",
        "",
        "| way | reductions of numbers | bytes | reductions of gradients | bytes | bytes of "
        "buffers, by broadcast |",
        "|---|---|---|---|---|---|",
        *traffic_rows(raw),
        "",
        "## Inner evaluations per rank and step",
        "",
        f"In the second half of the {raw['training_steps']} joint steps (Adam, {LR_X:g}).",
        "",
        "| | least | 10 % | median | 90 % | most | mean |",
        "|---|---|---|---|---|---|---|",
        *distribution_rows(raw),
    ]
    if raw["quick"]:
        lines += ["", "A quick run: the numbers are not meaningful."]
    return "\n".join(lines) + "\n"


# The command.


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run both processes."""
    setting: dict[str, Any] = {
        "quick": arguments.quick,
        "data": "mnist-5k",
        "batch_size": 64,
        "training_steps": 100,
        "num_rounds": arguments.rounds,
        "steps": arguments.steps,
    }
    if arguments.quick:
        setting |= {"data": "digits", "batch_size": 8, "training_steps": 6}
        setting |= {"num_rounds": 1, "steps": 2}
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, setting), nprocs=2)
        raw: dict[str, Any] = json.loads((Path(folder) / "raw.json").read_text(encoding="utf-8"))
    return raw


BENCHMARK = pages.Benchmark("ranks", "benchmarks-ranks.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds to take the median over")
    parser.add_argument("--steps", type=int, default=6, help="steps of each way in a round")
    parser.add_argument("--quick", action="store_true", help="little of each, to see that it runs")
    arguments = pages.parse(parser)
    torch.set_num_threads(1)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
