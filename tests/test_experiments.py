"""Every experiment at a tiny scale: the right files, claims judged, a figure drawn."""

import ast
import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

from neada import experiments, plots
from neada.experiments import Record, run_folder
from neada.runs import RunFolder, write_json

# How to shrink the configs of an experiment until one run takes a moment.
TINY: dict[str, dict[str, Any]] = {
    "quadratic": {"max_calls": ((1.0, 60), (2.0, 60), (4.0, 60), (8.0, 60))},
    "mccormick": {"max_calls": ((0.01, 60), (0.03, 60), (0.05, 60)), "num_seeds": 2},
}


def tiny_configs(name: str) -> list[Any]:
    configs = experiments.make(name).configs("quick", 2)
    return [
        dataclasses.replace(
            config, **{k: v for k, v in TINY.get(name, {}).items() if hasattr(config, k)}
        )
        for config in configs
    ]


def records(name: str, out: Path, configs: list[Any]) -> list[Record]:
    experiment = experiments.make(name)
    found = []
    for config in configs:
        run = RunFolder(run_folder(out, name, config))
        run.start(dataclasses.asdict(config))
        experiment.run(config, run, lambda part: None)
        run.finish()
        assert run.problem(dataclasses.asdict(config)) == ""
        found.append(Record(config, run.rows()))
    return found


@pytest.mark.parametrize("name", list(TINY))
def test_a_tiny_run_has_files_claims_and_a_figure(name: str, tmp_path: Path) -> None:
    found = records(name, tmp_path, tiny_configs(name))
    experiment = experiments.make(name)
    claims = experiment.claims(found)
    assert claims
    assert all(claim.verdict in ("holds", "fails") for claim in claims)
    figure = experiment.figure(found)
    for axes in figure.axes:
        named = [line for line in axes.lines if not line.get_label().startswith("_")]
        looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in named}
        assert len(looks) == len(named), [line.get_label() for line in named]
        assert "-" not in axes.get_title() or not axes.get_title().islower()  # words, no slugs
    png, svg = plots.save(figure, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", experiments.names())
def test_without_runs_every_claim_is_not_run(name: str) -> None:
    claims = experiments.make(name).claims([])
    assert claims
    assert {claim.verdict for claim in claims} == {"not run"}


@pytest.mark.parametrize("name", experiments.names())
@pytest.mark.parametrize("scale", experiments.SCALES)
def test_configs_are_frozen_distinct_and_plain(name: str, scale: Any, tmp_path: Path) -> None:
    configs = experiments.make(name).configs(scale)
    folders = {run_folder(tmp_path, name, config) for config in configs}
    assert len(folders) == len(configs) > 0
    write_json(tmp_path / "config.json", [dataclasses.asdict(config) for config in configs])
    with pytest.raises(dataclasses.FrozenInstanceError):
        configs[0].anything = 1


def test_the_ids_of_claims_are_unique() -> None:
    ids = [claim.id for name in experiments.names() for claim in experiments.make(name).claims([])]
    assert len(ids) == len(set(ids))


def test_seeds_are_obeyed() -> None:
    (first, *_) = experiments.make("mccormick").configs("standard", 13)
    assert first.num_seeds == 13
    assert experiments.make("mccormick").configs("standard")[0].num_seeds >= 10


def test_a_wrong_number_flips_the_verdict(tmp_path: Path) -> None:
    (config,) = [
        dataclasses.replace(c, max_calls=((4.0, 2000),))
        for c in experiments.make("quadratic").configs("quick")
        if c.label == "GDA"
    ]
    (record,) = records("quadratic", tmp_path, [config])

    def verdict(rows: Any) -> str:
        claims = experiments.make("quadratic").claims([Record(config, rows)])
        return {claim.id: claim.verdict for claim in claims}["quadratic/gda-constant"]

    rows = [*record.rows, *({**row, "ratio": r} for row in record.rows for r in (1.0, 2.0, 8.0))]
    assert verdict(rows) == "holds"
    rows[3] = {**rows[3], "grad_x": [rows[3]["grad_x"][0] * 1.001]}
    assert verdict(rows) == "fails"


# What users have too; the last two belong to every package.
PUBLIC = {
    *("neada", "neada.attacks", "neada.data", "neada.inner", "neada.models", "neada.optim"),
    *("neada.plots", "neada.problems", "neada.robust", "neada.runs", "neada.sets"),
    *("neada.steppers", "neada.stopping", "neada.training", "neada.checks", "neada.tables"),
}
FILES = sorted(Path(experiments.__file__).parent.glob("*.py"))


def borrowed(source: str) -> set[tuple[str, str]]:
    """The names of other packages of neada that a file uses: (module, name)."""
    tree = ast.parse(source)
    found, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.add((node.module or "", alias.name))
                if f"{node.module}.{alias.name}" in PUBLIC:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            found.add((modules[ast.unparse(node.value)], node.attr))
    return {
        (module, name)
        for module, name in found
        if module.split(".")[0] == "neada" and not module.startswith("neada.experiments")
    }


def is_public(module: str, name: str) -> bool:
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and name in importlib.import_module(module).__all__


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_experiments_use_only_what_users_have(path: Path) -> None:
    for module, name in borrowed(path.read_text(encoding="utf-8")):
        assert is_public(module, name), f"{module}.{name}"
