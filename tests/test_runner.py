"""Runs are done once, resumed after an interruption, and repaired when damaged."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neada import tables
from neada.experiments import Claim, Record, last_request, reproduce, run_folder
from neada.report.content import collect
from neada.runs import RunFolder


@dataclass(frozen=True)
class Config:
    number: int
    seeds: int

    @property
    def label(self) -> str:
        return f"number {self.number}"


def counting_experiment(fails_at: int = -1, interrupts_at: int = -1) -> Any:
    done: list[int] = []

    def run(config: Config, run: RunFolder, progress: Any) -> None:
        progress(0.5)
        if config.number == fails_at:
            raise ValueError("a number\nnobody likes")
        if config.number == interrupts_at:
            raise KeyboardInterrupt
        run.append([{"square": config.number**2}])
        done.append(config.number)

    def claims(records: Sequence[Record]) -> list[Claim]:
        total = sum(r.rows[0]["square"] for r in records) if records else None
        return [Claim("toy/sum", "the sum of squares", "toy", total, "<=", 14.0)]

    return SimpleNamespace(
        TITLE="toy",
        WHERE="toy",
        PAPER="toy",
        configs=lambda scale, seeds=None: [Config(n, seeds or 1) for n in range(4)],
        run=run,
        claims=claims,
        done=done,
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    experiment = counting_experiment()
    install(monkeypatch, experiment)
    return experiment


def install(monkeypatch: pytest.MonkeyPatch, experiment: Any) -> None:
    monkeypatch.setattr(tables, "EXPERIMENTS", ("toy",))
    monkeypatch.setitem(sys.modules, "neada.experiments.toy", experiment)


def test_what_is_there_is_not_run_again(toy: Any, tmp_path: Path) -> None:
    first = reproduce(["toy"], "quick", tmp_path)
    assert (first.num_run, first.num_kept) == (4, 0)
    again = reproduce(["toy"], "quick", tmp_path)
    assert (again.num_run, again.num_kept) == (0, 4)
    assert toy.done == [0, 1, 2, 3]


def test_force_runs_everything_again(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path)
    assert reproduce(["toy"], "quick", tmp_path, overwrite=True).num_run == 4


def test_files_of_the_user_are_left_alone(toy: Any, tmp_path: Path) -> None:
    kept = [tmp_path / ".bashrc.20241117", tmp_path / "toy" / ".figure.png.0123abcd"]
    kept.append(run_folder(tmp_path, "toy", toy.configs("quick")[0]) / ".notes.20241117")
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    reproduce(["toy"], "quick", tmp_path)
    reproduce(["toy"], "quick", tmp_path, overwrite=True)
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize("name", ["report.html", "claims.json", "toy/figure.png"])
def test_a_report_replaces_only_files_of_a_reproduction(
    toy: Any, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match="reproduction"):
        reproduce(["toy"], "quick", tmp_path, overwrite=True)
    path.unlink()
    reproduce(["toy"], "quick", tmp_path)
    path.write_text("an earlier report")
    (tmp_path / tables.REQUEST_FILE).unlink()  # as the error about a damaged one advises
    reproduce(["toy"], "quick", tmp_path)


def test_other_settings_are_other_runs(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path, seeds=1)
    assert reproduce(["toy"], "quick", tmp_path, seeds=2).num_run == 4
    asked = {"names": ["toy"], "scale": "quick", "seeds": 2, "max_calls": None}
    assert last_request(tmp_path) == asked


def test_a_budget_is_another_run_where_one_can_be_chosen(toy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="toy"):
        reproduce(["toy"], "quick", tmp_path, max_calls=5)
    toy.configs = lambda scale, seeds=None, max_calls=None: [Config(max_calls or 1, 1)]
    assert reproduce(["toy"], "quick", tmp_path).num_run == 1
    assert reproduce(["toy"], "quick", tmp_path, max_calls=5).num_run == 1
    (section,) = collect(tmp_path, draw=False)[1]
    assert [line.config["number"] for line in section.runs] == [5]


def test_a_damaged_run_is_found_and_done_again(toy: Any, tmp_path: Path) -> None:
    reproduce(["toy"], "quick", tmp_path)
    folder = run_folder(tmp_path, "toy", Config(2, 1))
    (folder / "metrics.jsonl").write_text('{"square": 1000}\n', encoding="utf-8")
    outcome = reproduce(["toy"], "quick", tmp_path)
    assert outcome.num_run == 1
    ((where, why),) = outcome.redone
    assert where.startswith("toy/runs/number-2-")
    assert "metrics.jsonl" in why
    assert RunFolder(folder).rows() == [{"square": 4}]


def test_after_an_interruption_the_rest_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, counting_experiment(interrupts_at=2))
    with pytest.raises(KeyboardInterrupt):
        reproduce(["toy"], "quick", tmp_path)
    rest = counting_experiment()
    install(monkeypatch, rest)
    assert reproduce(["toy"], "quick", tmp_path).num_kept == 2
    assert rest.done == [2, 3]


def test_a_broken_run_is_told_in_one_line_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment = counting_experiment(fails_at=1)
    install(monkeypatch, experiment)
    outcome = reproduce(["toy"], "quick", tmp_path)
    assert outcome.broken == [("toy (number 1)", "ValueError: a number nobody likes")]
    assert experiment.done == [0, 2, 3]


def test_processes_give_the_same_files_as_one(tmp_path: Path) -> None:
    from neada.experiments import quadratic, runner

    configs = [
        dataclasses.replace(c, max_calls=((1.0, 60),)) for c in quadratic.configs("quick")[:3]
    ]
    tasks = [runner.Task("quadratic", config) for config in configs]
    for folder, execute in (
        ("one", runner._execute_here),
        ("two", runner._execute_in_processes),
    ):
        assert execute(tasks, tmp_path / folder, 2, lambda part, name: None) == []
    for config in configs:
        one, two = (
            RunFolder(run_folder(tmp_path / folder, "quadratic", config))
            .path.joinpath("metrics.jsonl")
            .read_bytes()
            for folder in ("one", "two")
        )
        assert one == two != b""
