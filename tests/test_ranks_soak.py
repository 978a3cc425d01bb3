"""Thousands of steps on two ranks with unequal data: they agree bit for bit, and nobody waits."""

import datetime
import hashlib
import json
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import neada
from neada import optim, robust, stopping
from neada.inner import InnerOptions
from neada.stopping import (
    FixedAccuracy,
    FixedSteps,
    GradientMapping,
    InnerSteps,
    RelativeAccuracy,
    StoppingRule,
)

EVERY = 100  # steps between two comparisons
LIMIT = 1500.0  # seconds for everything
CAP = InnerOptions(max_steps=6)


def rules(*, with_x: bool) -> list[StoppingRule]:
    """Every rule there is, alone and joined; those that look at the x gradient if asked for."""
    found: list[StoppingRule] = [
        GradientMapping(1e-2),
        GradientMapping(1e-3, power=0.5),
        InnerSteps(),
        InnerSteps(("log", 2)),
        InnerSteps(("power", 0.15)),
        InnerSteps(lambda t: 1 + t % 4),
        FixedSteps(3),
        FixedAccuracy(1e-3),
        GradientMapping(2e-3) | InnerSteps(),
        FixedAccuracy(0.1) & FixedSteps(2),
    ]
    if with_x:
        found += [RelativeAccuracy(tol=1e-3), RelativeAccuracy(0.5, tol=1e-3) | FixedSteps(4)]
    return found


# What is trained: a function makes a step, which takes a batch and returns its info.

Batch = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], Any]


class Game(NamedTuple):
    """One run, and what both ranks have of it."""

    step: Step
    inner: Any
    counters: Any
    tensors: Callable[[], list[Tensor]]
    is_joint: bool  # whether the ranks take the same inner steps


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight *= 3.0  # so that samples need different numbers of steps
        model[2].weight *= 3.0
    return model


def wrapped(kind: str) -> nn.Module:
    model = network()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def with_memory(optimizer: torch.optim.Optimizer, *tensors: Tensor) -> list[Tensor]:
    """The tensors, and what the optimizer remembers about each."""
    memory = [
        entry for kept in optimizer.state.values() for entry in kept.values() if entry is not None
    ]
    return [full(t.detach()) for t in (*tensors, *memory) if isinstance(t, Tensor)]


def wrm(kind: str, *, per_sample: bool = True) -> Game:
    model = wrapped(kind)
    objective = robust.WRM(model, cross_entropy, 0.1, per_sample=per_sample, inner=CAP)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Game(
        lambda inputs, targets: objective.step(x_optimizer, inputs, targets),
        objective.inner,
        objective.counters,
        lambda: with_memory(x_optimizer, *model.parameters()),
        is_joint=False,
    )


def nested(kind: str, make_x: Any, make_y: Any) -> Game:
    model = wrapped(kind)
    shift = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    x_optimizer, y_optimizer = make_x(model.parameters()), make_y([shift])
    stepper = neada.NeAda(x_optimizer, y_optimizer, inner=CAP)

    def step(inputs: Tensor, targets: Tensor) -> Any:
        return stepper.step(
            lambda: cross_entropy(model(inputs + shift), targets) - 0.3 * (shift * shift).sum()
        )

    return Game(
        step,
        stepper.inner,
        stepper.counters,
        lambda: [
            *with_memory(x_optimizer, *model.parameters()),
            *with_memory(y_optimizer, shift),
        ],
        is_joint=True,
    )


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.01)


def adgd(params: Any) -> torch.optim.Optimizer:
    return optim.AdGD(params, maximize=True)


def searching(params: Any) -> torch.optim.Optimizer:
    return optim.Backtracking(params, maximize=True)


RUNS: dict[str, tuple[int, Callable[[], Game]]] = {
    "NeAda": (10_000, lambda: nested("plain", adam, adgd)),
    "WRM": (10_000, lambda: wrm("plain")),
    "NeAda, ddp": (500, lambda: nested("ddp", adam, adgd)),
    "WRM, ddp": (500, lambda: wrm("ddp")),
    "WRM, fsdp": (500, lambda: wrm("fsdp")),
    "WRM, stopping together": (500, lambda: wrm("plain", per_sample=False)),
    "NeAda, line searches": (500, lambda: nested("plain", optim.Backtracking, searching)),
}


def batch(rank: int, generator: torch.Generator) -> Batch:
    """A batch of one rank: the second has more samples, which are sometimes far harder."""
    size = 3 + 4 * rank
    inputs = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    spread = torch.rand(1, generator=generator, dtype=torch.float64)
    targets = (inputs[:, 0] * inputs[:, 1] > 0.0).long()
    return inputs * (10.0 * spread**3 if rank else 0.3 * spread), targets


def digest(tensors: list[Tensor]) -> str:
    """Changes with every bit of the tensors."""
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def play(name: str, rank: int, file: Any) -> None:
    """Run a game, and write down what must be equal on both ranks and what is this rank's own."""
    num_steps, begin = RUNS[name]
    game = begin()
    generator = torch.Generator().manual_seed(rank)
    cycle = rules(with_x=game.is_joint)
    decisions: list[Any] = []
    own: list[int] = []
    reasons: dict[str, int] = {}
    for t in range(num_steps):
        game.inner.stopping = cycle[t % len(cycle)]
        info = game.step(*batch(rank, generator))
        own.append(info.inner_steps)
        reasons[info.stop_reason] = reasons.get(info.stop_reason, 0) + 1
        seen: list[Any] = [float(info.grad_sq_x).hex(), info.calls_x]
        if game.is_joint:
            seen += [info.calls_y, info.calls_value, info.inner_steps, info.stop_reason]
            seen += [float(info.grad_sq_y).hex(), float(info.value).hex()]
        decisions.append(seen)
        if (t + 1) % EVERY == 0:
            counters = game.counters.state_dict()
            joint = counters if game.is_joint else {"outer_steps": counters["outer_steps"]}
            equal = [digest(game.tensors()), joint, decisions]
            print(json.dumps({"run": name, "t": t + 1, "equal": equal, "own": own}), file=file)
            file.flush()
            decisions, own = [], []
    print(json.dumps({"run": name, "reasons": reasons}), file=file)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timeout
    )
    with (Path(folder) / f"{rank}.jsonl").open("w", encoding="utf-8") as file:
        for name in RUNS:
            begin = time.perf_counter()
            play(name, rank, file)
            seconds = time.perf_counter() - begin
            print(json.dumps({"run": name, "seconds": seconds}), file=file)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What both ranks wrote down; they are killed when they take too long."""
    folder = tmp_path_factory.mktemp("ranks")
    started = mp.spawn(work, (str(folder),), nprocs=2, join=False)
    end = time.monotonic() + LIMIT
    try:
        while not started.join(timeout=1.0):
            if time.monotonic() > end:
                pytest.fail(f"the ranks were not done after {LIMIT:g} s: {folder}")
    finally:
        for process in started.processes:
            process.kill()
    texts = [(folder / f"{rank}.jsonl").read_text(encoding="utf-8") for rank in (0, 1)]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


def of(run: str, key: str, found: list[dict[str, Any]]) -> list[Any]:
    return [line[key] for line in found if line["run"] == run and key in line]


def test_every_rule_is_among_them() -> None:
    classes = {
        kind
        for kind in map(vars(stopping).get, stopping.__all__)
        if isinstance(kind, type) and issubclass(kind, StoppingRule) and kind is not StoppingRule
    }
    assert {type(rule) for rule in rules(with_x=True)} >= classes
    assert classes - {type(rule) for rule in rules(with_x=False)} == {RelativeAccuracy}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_the_ranks_agree_bit_for_bit_after_every_hundred_steps(
    ranks: list[list[dict[str, Any]]], run: str
) -> None:
    mine, theirs = (of(run, "equal", found) for found in ranks)
    assert of(run, "t", ranks[0]) == list(range(EVERY, RUNS[run][0] + 1, EVERY))
    for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert one == other, f"the ranks part in the {EVERY} steps after {EVERY * i}"
    # The run goes somewhere: no two comparisons are about the same parameters.
    assert len({equal[0] for equal in mine}) == len(mine)


@pytest.mark.slow
@pytest.mark.parametrize("run", [name for name in RUNS if name.startswith("WRM")])
def test_the_data_are_unequal_enough(ranks: list[list[dict[str, Any]]], run: str) -> None:
    mine, theirs = (list(chain(*of(run, "own", found))) for found in ranks)
    parted = sum(a != b for a, b in zip(mine, theirs, strict=True))
    if run == "WRM, stopping together":
        assert parted == 0
    else:
        assert parted > len(mine) / 10


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_every_rule_fires(ranks: list[list[dict[str, Any]]], run: str) -> None:
    (reasons,) = of(run, "reasons", ranks[1])
    for rule in rules(with_x=run.startswith("NeAda")):
        parts = str(rule).strip("()").split(" or ")
        assert any(part in reason for part in parts for reason in reasons), rule
