"""Two processes that train together against one: efficiency, where the time goes, bytes sent.

    python benchmarks/ranks.py [--rounds N] [--steps N] [--quick] [--write [FOLDER]] [--render]

Every process has one thread. The same two processes take turns at five ways of doing the same
steps: each of them alone with its half of the batches, both at once without knowing of each other
(the control: what the machine gives), both together as a plain module, both together as DDP. Times
are those of a clock on the wall; what is reported is the median over rounds of ratios within a
round. The model is at rest while times are taken (Adam with a learning rate of 0), so that all ways
do the same inner steps.
"""

import argparse
import contextlib
import copy
import json
import statistics
import sys
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
from ranks_page import CONTROL, DDP, GAMMA, LR_X, PARTS, PHASES, PLAIN, headlines, render
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from neada import data, models, parallel, robust, tables
from neada.stopping import FixedSteps

ROWS = (1, 4, 16, 64)

Batch = tuple[Tensor, Tensor]
Steps = list[dict[str, Any]]


# One rank's training, with a clock in every part.


class Training:
    """WRM with a model, and what each step does and how long its parts take."""

    def __init__(self, model: nn.Module, lr: float, first: int = 0) -> None:
        self.model = model
        self.objective = robust.WRM(model, self._losses, GAMMA)
        self.objective.outer_steps = first
        self.x_optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._rows: list[int] = []
        # A step finds the worst inputs as `perturb` does, and keeps them after x has moved.
        inner, move = self.objective._worst_near, self.x_optimizer.step
        self.objective._worst_near = self._timed("inner", inner)  # type: ignore[method-assign]
        self.x_optimizer.step = self._timed("optimizer", move)  # type: ignore[method-assign]

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            self._rows.append(len(outputs))
        return cross_entropy(outputs, targets, reduction="none")

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._spent[part] += time.perf_counter() - begin

        return call

    def _reduce(self, tensor: Tensor, *args: Any, **options: Any) -> Any:
        """The collective in which a rank waits for the others, or that of the gradients."""
        part = "waiting" if tensor.numel() <= 3 else "reduction"
        return self._timed(part, _all_reduce)(tensor, *args, **options)

    def steps(self, batches: list[Batch]) -> Steps:
        """Train, and say for each step what it took."""
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
    """Inside, the library does not know of the other process."""
    with mock.patch.object(parallel, "is_active", lambda: False):
        yield


# What both processes do.


def work(rank: int, folder: str, setting: dict[str, Any]) -> None:
    """Train together, then take turns; rank 0 writes what all of it gave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    found = data.load(setting["data"])
    model = models.make(
        tables.DATA[setting["data"]].model, found.input_shape, found.num_classes, seed=0
    )
    size, num_first = setting["batch_size"], setting["training_steps"]
    order = torch.randperm(len(found.inputs_train), generator=torch.Generator().manual_seed(0))
    order = order[: len(order) // (2 * size) * 2 * size].view(-1, 2, size)[:, rank]
    all_batches = [(found.inputs_train[ids], found.targets_train[ids]) for ids in order]
    training = Training(model, LR_X)
    batches = [all_batches[i % len(all_batches)] for i in range(num_first + setting["steps"])]
    first = gathered(training.steps(batches[:num_first]))
    progress(rank, "trained")
    (state, _) = gathered(copy.deepcopy(model.state_dict()))
    model.load_state_dict(state)
    batches = batches[num_first:]
    rounds = []
    for i in range(setting["num_rounds"] + 1):
        times = {name: turn(name, rank, model, num_first, batches) for name in PHASES}
        if i:  # the first round warms up
            rounds.append(times)
        progress(rank, f"round {i} of {setting['num_rounds']}")
    sent = {name: collectives(name, model, num_first, batches) for name in (PLAIN, DDP)}
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
        with on_its_own():
            raw["evaluations"] = evaluation_times(model, batches[0], setting["repeats"])
            raw["flops_per_sample"] = flops(model, batches[0]) / size
        (Path(folder) / "raw.json").write_text(json.dumps(raw), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def gathered(mine: Any) -> list[Any]:
    """What both ranks have."""
    both = [None, None]
    dist.all_gather_object(both, mine)
    return both


def fresh(name: str, model: nn.Module, first: int) -> Training:
    """A training of a copy of the model, which stays where it is."""
    mine = copy.deepcopy(model)
    return Training(DistributedDataParallel(mine) if name == DDP else mine, 0.0, first)


def turn(
    name: str, rank: int, model: nn.Module, first: int, batches: list[Batch]
) -> list[Steps | None]:
    """The steps of both ranks in one way; None for one that had no turn."""
    training = fresh(name, model, first)
    dist.barrier()
    mine = None
    if name in (PLAIN, DDP):
        mine = training.steps(batches)
    elif name in (CONTROL, f"alone {rank}"):
        with on_its_own():
            mine = training.steps(batches)
    dist.barrier()
    return gathered(mine)


def collectives(name: str, model: nn.Module, first: int, batches: list[Batch]) -> list[int]:
    """The bytes that each reduction of one step is about."""
    training = fresh(name, model, first)
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


def evaluation_times(model: nn.Module, batch: Batch, repeats: int) -> list[list[float]]:
    """Samples and median seconds of inner evaluations: what three more of them add to a loop."""
    found = []
    for rows in (r for r in ROWS if r <= len(batch[0])):
        some = [entry[:rows] for entry in batch]
        differences = []
        for _ in range(repeats):
            seconds = {}
            for num_steps in (1, 4):
                adversary = robust.Adversary(stopping=FixedSteps(num_steps), per_sample=False)
                objective = robust.WRM(model, cross_entropy, GAMMA, adversary=adversary)
                begin = time.perf_counter()
                objective.perturb(*some)
                seconds[num_steps] = time.perf_counter() - begin
            differences.append((seconds[4] - seconds[1]) / 3)
        found.append([rows, statistics.median(differences)])
    return found


def flops(model: nn.Module, batch: Batch) -> int:
    """Floating-point operations of one gradient of the model."""
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(batch[0]), batch[1]).backward()
    return counter.get_total_flops()


def progress(rank: int, words: str) -> None:
    if rank == 0 and sys.stderr.isatty():
        print(f"\r{words:<40}", end="", file=sys.stderr)


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
        "repeats": 7,
    }
    if arguments.quick:
        setting |= {"data": "digits", "batch_size": 8, "training_steps": 6}
        setting |= {"num_rounds": 1, "steps": 2, "repeats": 1}
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, setting), nprocs=2)
        raw: dict[str, Any] = json.loads((Path(folder) / "raw.json").read_text(encoding="utf-8"))
    return raw


BENCHMARK = pages.Benchmark("ranks", "benchmarks-ranks.md", measure, render, headlines)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds to take the median over")
    parser.add_argument("--steps", type=int, default=6, help="steps of each way in a round")
    parser.add_argument("--quick", action="store_true", help="little of each, to see that it runs")
    arguments = pages.parse(parser)
    if arguments.rounds < 1 or arguments.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    torch.set_num_threads(1)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()
