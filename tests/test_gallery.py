"""The scripts of the gallery have the form that their pages need; `make docs` runs them."""

import ast
import json
import re
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))
RESULTS = sorted((GALLERY / "results").glob("*"))


def docstring_of(script: Path) -> str:
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    assert docstring is not None
    return docstring


def strings_of(script: Path) -> set[str]:
    nodes = ast.walk(ast.parse(script.read_text(encoding="utf-8")))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def has_full_run(script: Path) -> bool:
    return "--full" in strings_of(script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
class TestScript:
    def test_its_name_has_a_number_of_its_own(self, script: Path) -> None:
        assert re.fullmatch(r"\d\d_[a-z0-9_]+\.py", script.name)
        assert [path for path in SCRIPTS if path.name[:2] == script.name[:2]] == [script]

    def test_a_title_then_a_sentence_that_says_who_it_is_for(self, script: Path) -> None:
        title, line, blank, *text = docstring_of(script).splitlines()
        assert line == "=" * len(title)
        assert blank == ""
        assert re.match(r"For [a-z]", text[0])

    def test_it_ends_with_a_figure(self, script: Path) -> None:
        statements = ast.parse(script.read_text(encoding="utf-8")).body
        assert ast.unparse(statements[-1]) == "plt.show()"
        assert "plt.subplots(" in script.read_text(encoding="utf-8")

    def test_a_full_run_is_named_and_its_results_are_there(self, script: Path) -> None:
        results = GALLERY / "results" / f"{script.stem}.json"
        if not has_full_run(script):
            assert not results.exists()
            return
        assert f"python examples/gallery/{script.name} --full" in script.read_text(encoding="utf-8")
        assert any(string.endswith(results.name) for string in strings_of(script))
        assert json.loads(results.read_text(encoding="utf-8"))


def test_every_results_file_has_a_script() -> None:
    assert {path.stem for path in RESULTS} == {path.stem for path in SCRIPTS if has_full_run(path)}
