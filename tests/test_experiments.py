"""Every experiment at a tiny scale: the right files, claims judged, a figure drawn."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from neada.runs import RunFolder, write_json
from reproduction import experiment as experiments
from reproduction import figures
from reproduction.experiment import Record, run_folder

TINY = ("quadratic", "mccormick")


def tiny_configs(name: str) -> list[Any]:
    """Every run of the scale "paper" with two seeds, and 60 calls for each ratio."""
    return [
        dataclasses.replace(config, max_calls=tuple((ratio, 60) for ratio, _ in config.max_calls))
        for config in experiments.make(name).configs("paper", (0, 1))
    ]


def records(name: str, out: Path, configs: list[Any]) -> list[Record]:
    experiment = experiments.make(name)
    found = []
    for config in configs:
        run = RunFolder(run_folder(out, name, config))
        run.start(dataclasses.asdict(config))
        experiment.run(config, run)
        run.finish()
        assert run.problem(dataclasses.asdict(config)) == ""
        found.append(Record(config, run.rows()))
    return found


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_run_has_files_claims_and_a_figure(name: str, tmp_path: Path) -> None:
    found = records(name, tmp_path, tiny_configs(name))
    experiment = experiments.make(name)
    claims = experiment.claims(found)
    assert claims
    assert all(claim.measured is not None for claim in claims)
    assert len({claim.id for claim in claims}) == len(claims)
    figure = experiment.figure(found)
    for axes in figure.axes:
        named = [line for line in axes.lines if not line.get_label().startswith("_")]
        looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in named}
        assert len(looks) == len(named), [line.get_label() for line in named]
        assert "-" not in axes.get_title() or not axes.get_title().islower()  # words, no slugs
    png, svg = figures.save(figure, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", experiments.EXPERIMENTS)
@pytest.mark.parametrize("scale", experiments.SCALES)
def test_configs_are_frozen_distinct_and_plain(name: str, scale: Any, tmp_path: Path) -> None:
    configs = experiments.make(name).configs(scale)
    folders = {run_folder(tmp_path, name, config) for config in configs}
    assert len(folders) == len(configs) > 0
    write_json(tmp_path / "config.json", [dataclasses.asdict(config) for config in configs])
    with pytest.raises(dataclasses.FrozenInstanceError):
        configs[0].anything = 1


def test_seeds_are_obeyed() -> None:
    (first, *_) = experiments.make("mccormick").configs("standard", (3, 5, 8))
    assert first.seeds == (3, 5, 8)
    assert len(experiments.make("mccormick").configs("standard")[0].seeds) >= 10


def test_a_wrong_number_flips_the_verdict(tmp_path: Path) -> None:
    configs = [
        dataclasses.replace(c, max_calls=((1.0, 60), (2.0, 60), (4.0, 2000), (8.0, 60)))
        for c in experiments.make("quadratic").configs("quick")
    ]
    found = records("quadratic", tmp_path, configs)

    def verdict() -> str:
        claims = experiments.make("quadratic").claims(found)
        return {claim.id: claim.result for claim in claims}["quadratic/gda-constant"]

    assert verdict() == "supported"
    (gda,) = [record for record in found if record.config.label == "GDA"]
    row = next(row for row in gda.rows if row["ratio"] == 4.0 and row["calls"] > 100)
    row["grad_x"] = [row["grad_x"][0] * 1.001]
    assert verdict() == "not supported"
