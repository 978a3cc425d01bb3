"""The tables of names: complete, resolvable, and read without torch."""

import ast
import inspect
from pathlib import Path

import pytest

from neada import data, models, tables

ENTRIES = {**tables.DATA, **tables.MODELS}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_has_its_function_and_words(name: str) -> None:
    entry = ENTRIES[name]
    parameters = inspect.signature(tables.resolve(entry.function)).parameters
    assert set(entry.options) <= set(parameters)
    assert entry.description and not entry.description.endswith(".")


def test_what_is_listed_is_what_is_in_the_tables() -> None:
    assert data.names() == list(tables.DATA)
    assert models.names() == list(tables.MODELS)
    assert {entry.model for entry in tables.DATA.values()} <= set(tables.MODELS)


def test_a_new_data_set_is_one_function_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = tables.DataEntry("neada.data.sources:synthetic", "the same again", ("seed",))
    monkeypatch.setitem(tables.DATA, "again", entry)
    assert "again" in data.names()
    assert data.load("again", seed=1).checksums == data.load("synthetic", seed=1).checksums


def test_a_new_model_is_one_function_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.MODELS, "plain", tables.ModelEntry("neada.models:linear", "affine"))
    assert "plain" in models.names()
    assert len(models.make("plain", (3,), 2)) == 2


@pytest.mark.parametrize("name", ["checks", "files", "tables"])
def test_the_ground_floor_imports_no_torch(name: str) -> None:
    tree = ast.parse((Path(tables.__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] in ("torch", "neada") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "torch"
            assert not (node.module or "").startswith("neada") or node.module == "neada.checks"
