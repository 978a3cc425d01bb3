"""Two ranks with half of a batch each match one process with the joint batch, or fail alike."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import neada
from neada import optim, robust
from neada.stopping import GradientMapping, InnerSteps
from tests.launch import on_two_ranks

Step = Callable[[Tensor, Tensor, Tensor], Any]


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(dtype: torch.dtype, num_steps: int = 20) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(12, 4, generator=generator, dtype=dtype),
            torch.randint(3, (12,), generator=generator),
            torch.randint(3, (12,), generator=generator),
        )
        for _ in range(num_steps)
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

    def _started(self, clean: Tensor, region: Any, ids: Tensor | None) -> Tensor:
        return clean + 0.01 * clean.sin()


def ascent(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1.0, maximize=True)


TIGHT = GradientMapping(1e-4) | InnerSteps()
ADVERSARY = robust.Adversary(stopping=TIGHT)
SPOILED = ("value", "y gradient")
GAMES: dict[str, Any] = {
    "WRM": of_objective(lambda m: robust.WRM(m, cross_entropy, 0.5, adversary=ADVERSARY)),
    "WRM, together": of_objective(
        lambda m: robust.WRM(m, cross_entropy, 0.5, adversary=replace(ADVERSARY, per_sample=False))
    ),
    "WRM, SGD": of_objective(
        lambda m: robust.WRM(m, cross_entropy, 0.5, adversary=replace(ADVERSARY, optimizer=ascent))
    ),
    "TRADES": of_objective(lambda m: WithoutNoise(m, cross_entropy, 0.3)),
    "adversarial": of_objective(lambda m: robust.AdversarialTraining(m, cross_entropy, 0.3)),
    "group, kl": of_objective(lambda m: robust.GroupDRO(m, cross_entropy, 3)),
    "group, chi2": of_objective(lambda m: robust.GroupDRO(m, cross_entropy, 3, regularizer="chi2")),
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
SHARDED = ("WRM", "TRADES", "adversarial", "group, kl", "NeAda", "TiAda")
CASES = [
    *((game, kind) for game in (*GAMES, *SEARCHES) for kind in ("plain", "ddp")),
    *((game, "fsdp, freed") for game in SHARDED),
    *((game, kind) for game in ("WRM", "TiAda") for kind in ("fsdp, kept", "compiled")),
]
# A stepper does not see the samples of its closure, so its users weight the ranks.
UNEQUAL = [
    (game, kind) for game in GAMES if game not in ("NeAda", "TiAda") for kind in ("plain", "ddp")
]
NAN = [(game, kind, case) for game in SHARDED for kind in ("plain", "ddp") for case in SPOILED]


def play(
    game: str,
    kind: str | None,
    rank: int | None,
    dtype: torch.dtype = torch.float64,
    first: int = 6,
    num_steps: int = 20,
) -> list[float]:
    """Train; rank 0 has the first so many samples of each batch."""
    model: nn.Module = network(dtype)
    if kind is not None:
        model = wrapped(model, kind)  # type: ignore[arg-type]
    step = {**GAMES, **SEARCHES}[game](model)
    for batch in batches(dtype, num_steps):
        part = {None: slice(None), 0: slice(first), 1: slice(first, None)}[rank]
        step(*(entry[part] for entry in batch))
    found = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([t.detach().flatten() for t in (*found, step.player)]).tolist()


@functools.cache
def alone(game: str, dtype: torch.dtype = torch.float64, num_steps: int = 20) -> list[float]:
    return play(game, None, None, dtype, num_steps=num_steps)


def spoiled(game: str, kind: str, rank: int, case: str) -> str:
    """The error that a step raises where the network of rank 1 returns NaN, and no other error."""
    model = network()
    model.append(Spoil(case if rank == 1 else ""))
    step = GAMES[game](wrapped(model, kind))
    inputs, targets, groups = batches(torch.float64)[0]
    before = [p.detach().clone() for p in model.parameters()]
    try:
        step(inputs[:6], targets[:6], groups[:6])
    except FloatingPointError as error:
        assert all(map(torch.equal, before, model.parameters()))
        return type(error).__name__
    return "no error"


class Spoil(nn.Module):
    """Make the value, or only its gradient, NaN."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case

    def forward(self, outputs: Tensor) -> Tensor:
        if self.case == "value":
            return outputs * torch.nan
        if self.case == "y gradient":
            return outputs + (outputs - outputs.detach()).abs().sqrt()
        return outputs


def work(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for game, kind in CASES:
        found[f"{game}/{kind}"] = play(game, kind, rank)
    for game, kind in UNEQUAL:
        found[f"{game}/{kind}/unequal"] = play(game, kind, rank, first=8, num_steps=5)
    for game, kind, case in NAN:
        found[f"nan/{game}/{kind}/{case}"] = spoiled(game, kind, rank, case)
    for kind in ("plain", "ddp", "fsdp, freed"):
        found[f"float32/{kind}"] = play("WRM", kind, rank, torch.float32)
    try:
        optim.Backtracking(wrapped(network(), "fsdp, freed").parameters())
    except TypeError as error:
        found["sharded"] = str(error)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("game", "kind"), CASES)
def test_two_ranks_train_as_one_process_does(ranks: Any, game: str, kind: str) -> None:
    first, second = (found[f"{game}/{kind}"] for found in ranks)
    assert first == second
    assert first == pytest.approx(alone(game), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("game", "kind"), UNEQUAL)
def test_unequal_batches_are_weighted_by_their_samples(ranks: Any, game: str, kind: str) -> None:
    for found in ranks:
        expected = pytest.approx(alone(game, num_steps=5), rel=1e-10, abs=1e-10)
        assert found[f"{game}/{kind}/unequal"] == expected


@pytest.mark.parametrize(("game", "kind", "case"), NAN)
def test_nan_on_one_rank_raises_on_all(ranks: Any, game: str, kind: str, case: str) -> None:
    for found in ranks:
        assert found[f"nan/{game}/{kind}/{case}"] == "NonFiniteGradient"


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp, freed"])
def test_single_precision_agrees_to_its_own(ranks: Any, kind: str) -> None:
    for found in ranks:
        expected = pytest.approx(alone("WRM", torch.float32), rel=1e-5, abs=1e-5)
        assert found[f"float32/{kind}"] == expected


def test_line_searches_reject_sharded_parameters(ranks: Any) -> None:
    assert "sharded" in ranks[0]["sharded"]
