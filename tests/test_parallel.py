"""What two ranks agree on; one process is left alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neada import parallel, robust
from tests.launch import on_two_ranks


def found_by(rank: int) -> dict[str, Any]:
    """Every function, on numbers that depend on the rank."""
    pair = torch.tensor([rank, 3.0 * rank])
    parallel.average_([pair])
    params = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    params[0].grad = torch.full((1,), 1.0 + 2.0 * rank)
    if rank == 1:
        params[1].grad = torch.full((1,), 4.0)
    value = torch.tensor(float(rank))
    parallel.average_gradients_(params, value)
    copied = torch.full((2,), float(rank))
    parallel.copy_from_first_([copied])
    return {
        "ranks": [parallel.is_active(), parallel.num_ranks(), parallel.rank()],
        "agree": [parallel.agree(float(rank)), parallel.agree(float(rank), weight=1.0 + 2 * rank)],
        "nan": math.isnan(parallel.agree(math.nan if rank == 1 else 1.0)),
        "average": pair.tolist(),
        "gradients": [None if p.grad is None else p.grad.item() for p in params] + [value.item()],
        "rows": parallel.gather_rows(torch.tensor([[rank], [10 + rank]])).tolist(),
        "first": parallel.from_first({"rank": rank}),
        "copied": copied.tolist(),
    }


def kept(rows: slice) -> Tensor:
    """The perturbations kept after three epochs, of which this process sees some rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    inputs, ids = torch.randn(8, 4, dtype=torch.float64), torch.tensor([3, 1, 4, 0, 9, 2, 6, 5])
    adversary = robust.Adversary(start="kept")
    objective = robust.WRM(model, cross_entropy, 0.5, adversary=adversary)
    x_optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        objective.step(x_optimizer, inputs[rows], (ids % 3)[rows], ids[rows])
    found: Tensor = objective.state_dict()["kept"]
    return found


def work(rank: int, folder: Path) -> dict[str, Any]:
    return {**found_by(rank), "kept": kept(slice(4 * rank, 4 * rank + 4)).tolist()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(work, tmp_path_factory.mktemp("ranks"))


def test_one_process_is_left_alone() -> None:
    assert found_by(1) == {
        "ranks": [False, 1, 0],
        "agree": [1.0, 1.0],
        "nan": True,
        "average": [1.0, 3.0],
        "gradients": [3.0, 4.0, None, 1.0],
        "rows": [[1], [11]],
        "first": {"rank": 1},
        "copied": [1.0, 1.0],
    }


def test_two_ranks_agree(ranks: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(ranks):
        assert {name: entry for name, entry in found.items() if name != "kept"} == {
            "ranks": [True, 2, rank],
            "agree": [0.5, 0.75],
            "nan": True,
            "average": [0.5, 1.5],
            "gradients": [2.0, 2.0, 0.0, 0.5],
            "rows": [[0], [10], [1], [11]],
            "first": {"rank": 0},
            "copied": [0.0, 0.0],
        }


def test_perturbations_of_all_ranks_are_kept_on_each(ranks: list[dict[str, Any]]) -> None:
    expected = kept(slice(None))
    for found in ranks:
        torch.testing.assert_close(
            torch.tensor(found["kept"], dtype=torch.float64), expected, rtol=0.0, atol=1e-12
        )
