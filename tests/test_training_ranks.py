"""Training on two ranks: equal to one process, resumed exactly, and with skipped batches."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from neada.training import TrainConfig, train
from tests import test_training_skips as skips
from tests.launch import on_two_ranks
from tests.test_training_resume import BASE, KINDS, data, interrupting_after, model, outcome

EQUAL = ("wrm", "wrm, kept", "group")
RESUMED = (*EQUAL, "trades")
SKIPPING = ("kept", "group")


def config(kind: str) -> TrainConfig:
    return dataclasses.replace(BASE, epochs=3, max_calls=10_000, **KINDS[kind])


def network(kind: str) -> nn.Module:
    """Two ranks draw different dropout masks and have statistics of half a batch."""
    torch.default_generator.manual_seed(2)
    plain = nn.Sequential(nn.Linear(4, 6), nn.ELU(), nn.Linear(6, 2))
    return plain if kind in EQUAL else model()


def work(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"folder": str(folder)}
    for kind in RESUMED:
        where = folder / kind

        def run(name: str, kind: str = kind, where: Path = where, **options: Any) -> dict[str, Any]:
            given = {"model": network(kind), "data": data(40), **options}
            return outcome(train(config(kind), where / name, **given))

        found[kind] = run("two")
        # The signal arrives at one of the ranks only.
        stopping = interrupting_after(7, active=rank == 1)
        assert run("interrupted", progress=stopping)["status"] == "INTERRUPTED"
        if rank == 0:
            shutil.copytree(where / "interrupted", where / "one")
        dist.barrier()
        found[f"{kind}, resumed"] = run("interrupted", resume=True)
    found["padded"] = outcome(train(config("wrm"), data=data(43), model=network("wrm")))
    for kind in SKIPPING:
        asked = dataclasses.replace(skips.BASE, **skips.KINDS[kind])
        given: dict[str, Any] = {"data": skips.data(), "model": skips.Undefined()}
        found[f"{kind}, skipped"] = outcome(train(asked, **given))
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = on_two_ranks(work, tmp_path_factory.mktemp("ranks"))
    assert first == second
    statuses = {each["status"] for name, each in first.items() if name != "folder"}
    assert statuses == {"FINISHED"}
    return first


@pytest.mark.parametrize("kind", EQUAL)
def test_two_ranks_train_like_one_process(found: dict[str, Any], kind: str) -> None:
    alone = outcome(train(config(kind), model=network(kind), data=data(40)))
    for row, other in zip(found[kind]["rows"], alone["rows"], strict=True):
        assert row == pytest.approx(other, rel=2e-4, abs=2e-5)
    for name, numbers in found[kind]["weights"].items():
        assert numbers == pytest.approx(alone["weights"][name], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kind", RESUMED)
def test_a_signal_to_one_rank_stops_both_and_resume_is_exact(
    found: dict[str, Any], kind: str
) -> None:
    assert found[f"{kind}, resumed"] == found[kind]


@pytest.mark.parametrize("kind", EQUAL)
def test_one_process_resumes_a_run_of_two_ranks(found: dict[str, Any], kind: str) -> None:
    given = {"model": network(kind), "data": data(40)}
    result = train(config(kind), Path(found["folder"]) / kind / "one", resume=True, **given)
    assert result.status.name == "FINISHED"


@pytest.mark.parametrize("kind", SKIPPING)
def test_all_ranks_skip_a_batch_of_which_one_has_a_bad_part(
    found: dict[str, Any], kind: str
) -> None:
    asked = dataclasses.replace(skips.BASE, **skips.KINDS[kind])
    alone = outcome(train(asked, data=skips.data(), model=skips.Undefined()))
    for name in ("skipped", "x_steps"):
        assert found[f"{kind}, skipped"]["rows"][-1][name] == alone["rows"][-1][name] > 0
