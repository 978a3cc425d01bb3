"""The tables of the documentation contain the numbers of the files they are generated from."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import neada

ROOT = Path(__file__).parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
NUMBERS = {
    path.stem: content["numbers"]
    for path in sorted(RESULTS.glob("*.json"))
    if "numbers" in (content := json.loads(path.read_text(encoding="utf-8")))
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pytest.importorskip("sklearn", minversion="1.6", reason="estimators need scikit-learn")
    return importlib.import_module


@pytest.mark.parametrize("name", NUMBERS)
def test_a_page_is_generated_from_its_numbers(script: Any, name: str) -> None:
    pages, benchmark = script("pages"), script(name).BENCHMARK
    record = pages.read(RESULTS / f"{name}.json")
    text, page = benchmark.render(record), (DOCS / benchmark.page).read_text(encoding="utf-8")
    if benchmark.is_part:
        text = pages.put_between(page, name, text)
    assert page == text, f"run `python benchmarks/{name}.py --render --write`"


def test_the_summary_has_every_benchmark(script: Any) -> None:
    summary = script("summary")
    assert set(summary.SCRIPTS) == set(NUMBERS)
    page = (DOCS / summary.PAGE).read_text(encoding="utf-8")
    assert page == summary.render(), "run `python benchmarks/summary.py --write`"


def test_the_tables_on_the_paper_are_generated_from_their_file(script: Any) -> None:
    pages, reproduction = script("pages"), script("reproduction_page")
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for name, table in reproduction.TABLES.items():
        again = pages.put_between(page, name, table(reproduction.read()))
        assert page == again, "run benchmarks/reproduction_page.py"


def test_the_calls_in_the_file_are_those_of_now() -> None:
    """Short solves only: the counts of long ones may depend on the rounding of a machine."""
    known = NUMBERS["minimax_calls"]["calls"]["auto"]
    short = {name: calls for name, calls in known.items() if calls is not None and calls <= 50}
    assert len(short) >= 10
    for name, calls in short.items():
        problem = neada.problems.make(name)
        sets = {"x_set": problem.x_set, "y_set": problem.y_set}
        result = neada.minimax(problem.fun, problem.x0, problem.y0, tol=1e-6, **sets)
        assert result.total_calls == calls, f"{name}: measure again with minimax_calls.py"
