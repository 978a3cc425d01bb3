"""A run folder is whole, or known not to be."""

import json
from pathlib import Path

import pytest

from neada.runs import Run, environment

CONFIG = {"lr": 0.1, "budgets": ((1.0, 10),), "bound": float("inf")}


def finished(folder: Path) -> Run:
    run = Run(folder)
    run.start(CONFIG)
    run.append([{"calls": 1, "norm": 0.5}, {"calls": 2, "norm": float("nan")}])
    run.seal()
    return run


def test_a_finished_run_can_be_read_again(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.trouble(CONFIG) == ""
    assert run.config() == {"lr": 0.1, "budgets": [[1.0, 10]], "bound": float("inf")}
    first, second = run.rows()
    assert first == {"calls": 1, "norm": 0.5}
    assert second["norm"] != second["norm"]
    assert run.environment()["packages"]["torch"]
    assert run.seconds() >= 0.0


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    run = finished(tmp_path / "run")
    (run.folder / name).unlink()
    assert run.trouble(CONFIG) == f"{name} is missing"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metrics.jsonl", '{"calls": 1, "norm": 0.4}\n', "metrics.jsonl is not what the run wrote"),
        ("metrics.jsonl", "", "metrics.jsonl is not what the run wrote"),
        ("result.json", "{", "it cannot be read"),
        ("result.json", "[]", "metrics.jsonl is not what the run wrote"),
        ("config.json", '{"lr": 0.2}', "it was made with another config"),
    ],
)
def test_damage_is_known(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    run = finished(tmp_path / "run")
    (run.folder / name).write_text(content)
    assert run.trouble(CONFIG) == sentence


def test_an_unfinished_run_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.start(CONFIG)  # a second attempt that is interrupted
    assert run.trouble(CONFIG) == "result.json is missing"
    assert run.rows() == []


def test_files_are_standard_json(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for line in run.metrics_file.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    json.loads((run.folder / "config.json").read_text(), parse_constant=refuse)


def test_the_environment_is_plain_data() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["devices"][0] == "cpu"
