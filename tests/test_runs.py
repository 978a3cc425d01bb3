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


@pytest.mark.parametrize(
    "name", ["config.json", "environment.json", "result.json", "metrics.jsonl"]
)
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
        ("result.json", "[]", "result.json is not what the run wrote"),
        ("result.json", "{}", "result.json is not what the run wrote"),
        ("environment.json", "{}", "environment.json is not what the run wrote"),
        ("config.json", '{"lr": 0.2}', "it was made with another config"),
    ],
)
def test_damage_is_known(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    run = finished(tmp_path / "run")
    (run.folder / name).write_text(content, encoding="utf-8")
    assert run.trouble(CONFIG) == sentence


def digits_changed(content: bytes) -> list[bytes]:
    """The content with one digit changed, for each digit that does not lead a number."""
    found = []
    for place in range(1, len(content)):
        if content[place : place + 1].isdigit() and content[place - 1 : place] not in b' -"[':
            other = b"7" if content[place : place + 1] != b"7" else b"3"
            found.append(content[:place] + other + content[place + 1 :])
    return found


@pytest.mark.parametrize(
    "name", ["config.json", "environment.json", "result.json", "metrics.jsonl"]
)
def test_another_digit_anywhere_is_known(tmp_path: Path, name: str) -> None:
    run = finished(tmp_path / "run")
    content = (run.folder / name).read_bytes()
    changed = digits_changed(content)
    assert changed
    for other in changed:
        (run.folder / name).write_bytes(other)
        assert run.trouble(CONFIG) != ""
    (run.folder / name).write_bytes(content)
    assert run.trouble(CONFIG) == ""


def test_what_is_sealed_is_what_was_appended_and_not_what_is_in_the_file(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.start(CONFIG)
    run.append([{"calls": 1}])
    run.metrics_file.write_text('{"calls": 2}\n', encoding="utf-8")
    run.append([{"calls": 3}])
    run.seal()
    assert run.trouble(CONFIG) == "metrics.jsonl is not what the run wrote"


def test_a_seal_of_before_it_protected_itself_still_counts(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    result = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
    older = {name: result[name] for name in ("seconds", "metrics_sha256")}
    (run.folder / "result.json").write_text(json.dumps(older), encoding="utf-8")
    assert run.trouble(CONFIG) == ""
    (run.folder / "result.json").write_text(
        json.dumps({**older, "metrics_sha256": "0"}), encoding="utf-8"
    )
    assert run.trouble(CONFIG) == "metrics.jsonl is not what the run wrote"


def test_a_mark_vouches_for_all_but_what_may_change(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", may_change=("lr",))
    run.start(CONFIG)
    run.append([{"calls": 1}])
    mark = run.mark()
    again = Run(tmp_path / "run", may_change=("lr",))
    again.check(mark)
    again.write_config({**CONFIG, "lr": 0.5})
    again.check(mark)
    with pytest.raises(ValueError, match=r"config.json is not what the run wrote"):
        Run(tmp_path / "run").check(mark)
    again.write_config({**CONFIG, "bound": 1.0})
    with pytest.raises(ValueError, match=r"config.json is not what the run wrote"):
        again.check(mark)


def test_an_unfinished_run_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.start(CONFIG)  # a second attempt that is interrupted
    assert run.trouble(CONFIG) == "result.json is missing"
    assert run.rows() == []


def test_files_are_standard_json(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for line in run.metrics_file.read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=refuse)
    json.loads((run.folder / "config.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_the_environment_is_plain_data() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["devices"][0] == "cpu"
