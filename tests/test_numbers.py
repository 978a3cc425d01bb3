"""The tables of the documentation are those that the files of benchmarks and runs give.

`test_sentences.py` is about the numbers in prose.
"""

import functools
import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import neada

ROOT = Path(__file__).parents[1]
DOCS, BENCHMARKS = ROOT / "docs", ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def script(name: str) -> Any:
    if name == "estimators":
        pytest.importorskip("sklearn", minversion="1.6", reason="estimators need scikit-learn")
    return importlib.import_module(name)


@functools.cache
def numbers_of(benchmark: str) -> Any:
    return json.loads((BENCHMARKS / "results" / f"{benchmark}.json").read_text(encoding="utf-8"))[
        "numbers"
    ]


NAMES = sorted(
    path.stem
    for path in (BENCHMARKS / "results").glob("*.json")
    if "numbers" in json.loads(path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_what_its_file_of_numbers_says(name: str) -> None:
    pages, benchmark = script("pages"), script(name).BENCHMARK
    record = pages.read(BENCHMARKS / "results" / f"{name}.json")
    assert record.command.startswith(f"python benchmarks/{name}.py")
    text, page = benchmark.render(record), (DOCS / benchmark.page).read_text(encoding="utf-8")
    if benchmark.is_part:
        text = pages.put_between(page, name, text)
    assert page == text, f"run `python benchmarks/{name}.py --render --write`"
    assert f"`{record.command}`" in page


def test_every_page_of_benchmarks_has_a_file_and_a_row_in_the_summary() -> None:
    summary = script("summary")
    script("estimators")
    benchmarks = summary.benchmarks()
    assert sorted(benchmark.name for benchmark in benchmarks) == NAMES
    found = {path.name for path in DOCS.glob("benchmarks-*.md")}
    assert found == {benchmark.page for benchmark in benchmarks if not benchmark.is_part}
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert page == summary.render(), "run `python benchmarks/summary.py --write`"
    listed = page.split("```{toctree}")[1].split()[1:-1]
    assert {f"{name}.md" for name in listed} == found


def test_a_number_on_the_wrong_side_of_its_target_is_called_missed() -> None:
    headline = script("pages").Headline
    assert headline("what", 1.2, "at most", 1.1).cells()[2:] == ["≤ 1.1", "**missed**"]
    assert headline("what", 1.1, "at most", 1.1).cells()[3] == "met"
    assert headline("what", 1.2, "at least", 1.3).cells()[3] == "**missed**"
    assert headline("what", math.nan, "at least", 1.3).cells()[3] == "**missed**"
    assert headline("what", 7.849).cells()[1:] == ["7.85", "none", ""]


def between(page: str, name: str) -> str:
    return page.split(f"<!-- begin {name} -->\n")[1].split(f"<!-- end {name} -->")[0]


def test_the_tables_on_the_paper_are_what_their_file_says() -> None:
    script_ = script("reproduction_page")
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- begin (\S+) -->", page)) == set(script_.TABLES)
    for name, table in script_.TABLES.items():
        assert between(page, name) == table(script_.read()), "run benchmarks/reproduction_page.py"


def rows_of(table: str) -> list[list[str]]:
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    lines = between(page, table).splitlines()[2:]
    return [[c.strip() for c in line[1:-1].split("|")] for line in lines if line.startswith("|")]


@pytest.mark.parametrize("name", ["mnist-dro", "mnist-dro-7820"])
def test_the_rows_of_figure_4_have_the_means_of_the_file(name: str) -> None:
    rows = {row[0]: row[1:] for row in rows_of("figure-4" + name.removeprefix("mnist-dro"))}
    words = {"gdmax": "Adam-15", "neada": "NeAda", "default": "default, no lr_y"}
    cells = json.loads((DOCS / "reproduction.json").read_text(encoding="utf-8"))[name]["numbers"][
        "cells"
    ]
    for cell in cells:
        label = words[cell["method"]]
        if cell["lr_y"] is not None:
            frozen = ", statistics frozen" if cell["batch_norm"] == "frozen" else ""
            label += f"{frozen}, lr_y = {cell['lr_y']}"
        row = rows.pop(label)
        shown = [f"{cell[f'held_out_{eps}'][0]:.1f}" for eps in ("clean", 0.02, 0.05, 0.1)]
        assert row[1:5] == shown and row[6] == f"{cell['test_0.1'][0]:.1f}"
        low, high = (f"{end:.1f}" for end in cell["held_out_0.1"][1:])
        assert row[5] == ("one seed" if cell["seeds"] == 1 else f"{low} to {high}")
    assert not rows


def test_the_grid_of_learning_rates_has_the_means_of_the_file() -> None:
    records = json.loads((DOCS / "reproduction.json").read_text(encoding="utf-8"))
    cells = records["no-learning-rate"]["numbers"]["cells"]
    names = iter(["default", *["adam-15"] * 3, *["neada-adam"] * 3, *["tiada"] * 3])
    for row in rows_of("no-learning-rate"):
        name, lr_y = next(names), None if row[1] == "none" else float(row[1])
        own = {c["lr_x"]: c for c in cells if c["name"] == name and c["lr_y"] == lr_y}
        assert row[2:] == [f"{own[lr_x]['test_0.1'][0]:.1f}" for lr_x in sorted(own)]
        assert len(own) == 4
    assert next(names, None) is None


def test_a_folder_of_runs_becomes_means_over_seeds_and_verdicts(tmp_path: Path) -> None:
    runs = tmp_path / "synthetic-dro" / "runs"
    accuracies = {("gdmax", 0.08): (0.5, 0.75), ("neada", 0.08): (0.6, 0.7)}
    accuracies |= {("gdmax", 0.01): (0.2, 0.4), ("neada", 0.01): (1.0, 1.0)}
    environment = {"system": "s", "threads": 1, "python": "3", "packages": {}}
    environment["packages"] = {"torch": "t", "neada": "n"}
    for (method, lr_y), values in accuracies.items():
        for seed, value in enumerate(values):
            run = runs / f"{method}-{lr_y}-{seed}"
            run.mkdir(parents=True)
            config = {"method": method, "lr_y": lr_y, "seed": seed}
            (run / "config.json").write_text(json.dumps(config), encoding="utf-8")
            (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
            rows = [{"test_0.5": 0.9}, {"x_steps": 10 * seed, "test_0.5": value}]
            (run / "metrics.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
            )
    claim = {"relation": ">", "expected": 0.0, "seeds": 2, "note": "", "sentence": "", "where": ""}
    claims = [
        claim | {"id": "synthetic-dro/a", "verdict": "holds", "measured": 1.0},
        claim | {"id": "synthetic-dro/b/c", "verdict": "fails", "measured": "inf"},
    ]
    entry = {"claims": claims, "num_runs": 8, "missing": [], "seconds": 90.0}
    found = {"scale": "standard", "seeds": 2, "max_calls": None}
    found["experiments"] = {"synthetic-dro": entry}
    (tmp_path / "claims.json").write_text(json.dumps(found), encoding="utf-8")
    script_ = script("reproduction_page")
    records = script_.read_folder(tmp_path, "abc")
    assert (
        records["synthetic-dro"].command
        == "neada reproduce synthetic-dro --scale standard --seeds 2"
    )
    first = records["synthetic-dro"].numbers["cells"][0]
    assert first["seeds"] == 2 and first["x_steps"] == [5.0, 0, 10]
    rows = script_.figure_3(records).splitlines()[2:]
    assert rows == [
        "| Adam, 15 inner steps | 62.5 % (50.0 to 75.0) | 30.0 % (20.0 to 40.0) |",
        "| NeAda-Adam | 65.0 % (60.0 to 70.0) | 100.0 % (100.0 to 100.0) |",
    ]
    assert "| `synthetic-dro` | 1 | 1 | 0 | 1.5 | `b/c` |" in script_.verdicts(records)
    entry["missing"] = ["gdmax 0.08 seed 1"]
    (tmp_path / "claims.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(SystemExit, match="has unfinished runs of synthetic-dro"):
        script_.read_folder(tmp_path, "abc")


def test_the_calls_beside_problems_of_the_zoo_are_those_of_the_benchmark() -> None:
    calls = numbers_of("minimax_calls")["calls"]["neada"]
    table = (
        (DOCS / "minimax.md")
        .read_text(encoding="utf-8")
        .split("| problem | by what |")[1]
        .split("\n\n")[0]
    )
    found = re.findall(r"`([\w.]+)` \((\d+)\)", table)
    assert len(found) >= 20
    assert {name: int(number) for name, number in found} == {name: calls[name] for name, _ in found}


def test_the_calls_in_the_file_are_those_of_now() -> None:
    """Short solves only: the counts of long ones may depend on the rounding of a machine."""
    known = numbers_of("minimax_calls")["calls"]["neada"]
    short = {name: calls for name, calls in known.items() if calls is not None and calls <= 50}
    assert len(short) >= 10
    for name, calls in short.items():
        problem = neada.problems.make(name)
        sets = {"x_set": problem.x_set, "y_set": problem.y_set}
        result = neada.minimax(problem.fun, problem.x0, problem.y0, tol=1e-6, **sets)
        assert result.total_calls == calls, f"{name}: measure again with minimax_calls.py"
