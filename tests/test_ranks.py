"""Two ranks with half of a batch each do what one process does with all of it, or fail alike."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import neada
from neada import optim, robust
from neada.stopping import FixedSteps, GradientMapping, InnerSteps

KINDS = ("plain", "ddp", "fsdp, kept", "fsdp, freed", "compiled")
Step = Callable[[Tensor, Tensor, Tensor], Any]


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(12, 4, generator=generator, dtype=dtype),
            torch.randint(3, (12,), generator=generator),
            torch.randint(3, (12,), generator=generator),
        )
        for _ in range(20)
    ]


def wrapped(model: nn.Sequential, kind: str) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "compiled":
        return torch.compile(model, backend="eager")  # type: ignore[return-value]
    if kind.startswith("fsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh, reshard_after_forward=kind == "fsdp, freed")
    return model


# What is trained: for each name a function that takes the model and returns a step.


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3)


def of_objective(make: Callable[[nn.Module], Any], make_x: Any = sgd) -> Any:
    def begin(model: nn.Module) -> Step:
        objective, x_optimizer = make(model), make_x(model)
        groups = isinstance(objective, robust.GroupDRO)

        def step(inputs: Tensor, targets: Tensor, group_ids: Tensor) -> Any:
            return objective.step(x_optimizer, inputs, targets, *([group_ids] if groups else []))

        step.player = objective.weights if groups else torch.zeros(1)  # type: ignore[attr-defined]
        return step

    return begin


def of_stepper(make: Callable[[nn.Module, Tensor], Any]) -> Any:
    def begin(model: nn.Module) -> Step:
        dtype = next(model.parameters()).dtype
        shift = torch.zeros(4, dtype=dtype, requires_grad=True)
        stepper = make(model, shift)

        def step(inputs: Tensor, targets: Tensor, group_ids: Tensor) -> Any:
            return stepper.step(
                lambda: cross_entropy(model(inputs + shift), targets) - 0.1 * (shift * shift).sum()
            )

        step.player = shift  # type: ignore[attr-defined]
        return step

    return begin


class WithoutNoise(robust.TRADES):
    """Starts at a fixed point near the clean inputs, whatever the size of the batch."""

    def _start(self, problem: Any, ids: Tensor | None) -> Tensor:
        return problem.clean + 0.01 * problem.clean.sin()


TIGHT = GradientMapping(1e-4) | InnerSteps()
GAMES: dict[str, Any] = {
    "WRM": of_objective(lambda m: robust.WRM(m, cross_entropy, 0.5, stopping=TIGHT)),
    "WRM, together": of_objective(
        lambda m: robust.WRM(m, cross_entropy, 0.5, per_sample=False, stopping=TIGHT)
    ),
    "WRM, reuse": of_objective(
        lambda m: robust.WRM(
            m,
            cross_entropy,
            0.5,
            stopping=FixedSteps(2),
            inner=neada.inner.InnerOptions(reuse_last=True),
        )
    ),
    "WRM, of the mean": of_objective(
        lambda m: robust.WRM(
            m,
            cross_entropy,
            0.5,
            y_optimizer=lambda y: torch.optim.SGD(y, lr=1.0, maximize=True),
            stopping=GradientMapping(1e-4) | InnerSteps(),
            inner=neada.inner.InnerOptions(measure="batch"),
        )
    ),
    "TRADES": of_objective(lambda m: WithoutNoise(m, cross_entropy, 0.3)),
    "adversarial": of_objective(lambda m: robust.AdversarialTraining(m, cross_entropy, 0.3)),
    "group, kl": of_objective(lambda m: robust.GroupDRO(m, cross_entropy, 3)),
    "group, chi2": of_objective(
        lambda m: robust.GroupDRO(m, cross_entropy, 3, regularizer="chi2", estimate="unbiased")
    ),
    "group, none": of_objective(lambda m: robust.GroupDRO(m, cross_entropy, 3, regularizer=None)),
    "NeAda": of_stepper(
        lambda m, shift: neada.NeAda(sgd(m), optim.AdGD([shift], maximize=True), TIGHT)
    ),
    "TiAda": of_stepper(lambda m, shift: neada.TiAda(m.parameters(), [shift])),
}
SEARCHES: dict[str, Any] = {
    "WRM, line search": of_objective(
        lambda m: robust.WRM(m, cross_entropy, 0.5), lambda m: optim.Backtracking(m.parameters())
    ),
    "NeAda, line searches": of_stepper(
        lambda m, shift: neada.NeAda(
            optim.Backtracking(m.parameters()), optim.Backtracking([shift], maximize=True)
        )
    ),
}
CASES = [(game, kind) for game in GAMES for kind in KINDS] + [
    (game, kind) for game in SEARCHES for kind in ("plain", "ddp")
]
UNEQUAL = [(game, kind) for game in GAMES if game != "NeAda" for kind in ("plain", "ddp")][:-2]
"""Steppers know nothing of samples: their users weigh what they evaluate."""


def play(
    game: str, kind: str | None, rank: int | None, dtype: torch.dtype, first: int = 6
) -> list[float]:
    """Train for twenty batches, of which rank 0 has the first so many samples."""
    model: nn.Module = network(dtype)
    if kind is not None:
        model = wrapped(model, kind)  # type: ignore[arg-type]
    step = {**GAMES, **SEARCHES}[game](model)
    for batch in batches(dtype):
        part = {None: slice(None), 0: slice(first), 1: slice(first, None)}[rank]
        if first == 12 and rank == 1:  # one that counts for nothing
            with neada.distributed.idle():
                step(*(entry[:1] for entry in batch))
        else:
            step(*(entry[part] for entry in batch))
    found = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([t.detach().flatten() for t in (*found, step.player)]).tolist()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timeout
    )
    found: dict[str, Any] = {}
    for game, kind in CASES:
        found[f"{game}/{kind}"] = play(game, kind, rank, torch.float64)
    for game, kind in UNEQUAL:
        for first in (8, 12):
            found[f"{game}/{kind}/{first}"] = play(game, kind, rank, torch.float64, first)
    for kind in ("plain", "ddp", "fsdp, freed"):
        found[f"float32/{kind}"] = play("WRM", kind, rank, torch.float32)
    try:
        optim.Backtracking(wrapped(network(), "fsdp, freed").parameters())
    except TypeError as error:
        found["sharded"] = str(error)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.parametrize(("game", "kind"), CASES)
def test_two_ranks_train_as_one_process_does(ranks: Any, game: str, kind: str) -> None:
    alone = play(game, None, None, torch.float64)
    for found in ranks:
        assert found[f"{game}/{kind}"] == pytest.approx(alone, rel=1e-10, abs=1e-10)
    assert ranks[0][f"{game}/{kind}"] == ranks[1][f"{game}/{kind}"]


@pytest.mark.parametrize("first", [8, 12])
@pytest.mark.parametrize(("game", "kind"), UNEQUAL)
def test_ranks_may_have_unequally_many_samples(
    ranks: Any, game: str, kind: str, first: int
) -> None:
    alone = play(game, None, None, torch.float64)
    for found in ranks:
        assert found[f"{game}/{kind}/{first}"] == pytest.approx(alone, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp, freed"])
def test_single_precision_agrees_to_its_own(ranks: Any, kind: str) -> None:
    alone = play("WRM", None, None, torch.float32)
    for found in ranks:
        assert found[f"float32/{kind}"] == pytest.approx(alone, rel=1e-5, abs=1e-5)


def test_sharded_parameters_need_another_optimizer(ranks: Any) -> None:
    assert "sharded" in ranks[0]["sharded"]
