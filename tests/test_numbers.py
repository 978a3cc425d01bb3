"""The tables of the documentation are those that the files of benchmarks and runs give."""

import functools
import importlib
import json
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


def between(page: str, name: str) -> str:
    return page.split(f"<!-- begin {name} -->\n")[1].split(f"<!-- end {name} -->")[0]


def test_the_tables_on_the_paper_are_what_their_file_says() -> None:
    script_ = script("reproduction_page")
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- begin (\S+) -->", page)) == set(script_.TABLES)
    for name, table in script_.TABLES.items():
        assert between(page, name) == table(script_.read()), "run benchmarks/reproduction_page.py"


def test_the_calls_in_the_file_are_those_of_now() -> None:
    """Short solves only: the counts of long ones may depend on the rounding of a machine."""
    known = numbers_of("minimax_calls")["calls"]["auto"]
    short = {name: calls for name, calls in known.items() if calls is not None and calls <= 50}
    assert len(short) >= 10
    for name, calls in short.items():
        problem = neada.problems.make(name)
        sets = {"x_set": problem.x_set, "y_set": problem.y_set}
        result = neada.minimax(problem.fun, problem.x0, problem.y0, tol=1e-6, **sets)
        assert result.total_calls == calls, f"{name}: measure again with minimax_calls.py"
