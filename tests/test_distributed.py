"""Two processes with unequal data take the same decisions; one process is left alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.optim import SGD

from neada import distributed
from neada.steppers import NeAda
from neada.stopping import FixedSteps, GradientMapping
from neada.tensors import NonFiniteGradient


def test_without_a_process_group_nothing_is_changed() -> None:
    like = torch.zeros(1)
    rows = torch.tensor([1.0, 2.0])
    gradients = [torch.tensor([3.0])]
    assert not distributed.is_active()
    assert distributed.num_ranks() == 1
    assert distributed.mean(0.1, like) == 0.1
    assert distributed.average(gradients, rows) is rows
    assert gradients == [torch.tensor([3.0])]
    assert distributed.any_rank(True, like) and not distributed.any_rank(False, like)
    with pytest.raises(ValueError, match="^as it is$"), distributed.together(like):
        raise ValueError("as it is")


def nested_run(rank: int) -> list[tuple[int, str]]:
    """Inner steps and stop reasons of six outer steps; the ranks' data differ in size and kind."""
    generator = torch.Generator().manual_seed(rank)
    data = torch.randn(5 + 20 * rank, 2, dtype=torch.float64, generator=generator)
    data *= 0.3 + 2.0 * rank
    x, y = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def closure() -> Tensor:
        losses = ((data + y - x - 1.0) ** 2).sum(1).log1p()
        return losses.mean() - 2.0 * (y * y).sum()

    rule = GradientMapping(scale=1e-3) | FixedSteps(12)
    stepper = NeAda(SGD([x], lr=0.5), SGD([y], lr=0.05, maximize=True), rule)
    infos = [stepper.step(closure) for _ in range(6)]
    return [(info.inner_steps, info.stop_reason) for info in infos]


def broken_run(rank: int) -> str:
    """The gradient is undefined on rank 1 only."""
    x, y = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    factor = 1.0 if rank == 0 else torch.nan
    stepper = NeAda(SGD([x]), SGD([y], maximize=True), FixedSteps(3))
    try:
        stepper.step(lambda: (factor * x * y - y * y).sum())
    except NonFiniteGradient:
        return "stopped"
    return "went on"


def keep_own(tensors: list[Tensor], value: Tensor, error: Exception | None = None) -> Tensor:
    return value


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    like = torch.zeros(1)
    found: dict[str, Any] = {
        "active": [distributed.is_active(), distributed.num_ranks()],
        "mean": distributed.mean(float(rank), like),
        "rows": distributed.average([], torch.tensor([rank, 3.0 * rank])).tolist(),
        "agreed": nested_run(rank),
        "broken": broken_run(rank),
    }
    dist.barrier()
    distributed.average = keep_own
    found["alone"] = nested_run(rank)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found; both runs share them, because starting is slow."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, args=(str(folder),), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_two_processes_know_of_each_other(ranks: list[dict[str, Any]]) -> None:
    assert [found["active"] for found in ranks] == [[True, 2]] * 2


def test_numbers_and_rows_are_averaged(ranks: list[dict[str, Any]]) -> None:
    assert [found["mean"] for found in ranks] == [0.5, 0.5]
    assert [found["rows"] for found in ranks] == [[0.5, 1.5], [0.5, 1.5]]


def test_every_rank_stops_at_the_same_step_for_the_same_reason(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["agreed"] == ranks[1]["agreed"]
    assert len({reason for _, reason in ranks[0]["agreed"]}) == 2  # both parts of the rule fire


def test_without_the_mean_the_ranks_would_part(ranks: list[dict[str, Any]]) -> None:
    steps = [[count for count, _ in found["alone"]] for found in ranks]
    assert steps[0] != steps[1]
    assert all(found["alone"] != found["agreed"] for found in ranks)


def test_a_bad_gradient_on_one_rank_stops_them_all(ranks: list[dict[str, Any]]) -> None:
    assert [found["broken"] for found in ranks] == ["stopped", "stopped"]
