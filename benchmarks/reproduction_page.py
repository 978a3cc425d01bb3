"""The numbers of the page on the paper, from finished folders of the reproduction.

    python benchmarks/reproduction_page.py [RUNS_FOLDER ...] [--commit COMMIT]

Takes every experiment of the folders into `docs/reproduction.json` (the others stay as they are),
copies its figure into `docs/figures`, and writes the tables of `docs/reproduction.md` between their
marks. Without a folder only the tables are written again. The record of an experiment with another
number of calls than usual has that number in its name, as in `mnist-dro-7820`.
"""

import argparse
import datetime
import json
import shutil
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pages

from reproduction.experiment import SUBJECTS
from reproduction.robust_training import METHODS

NUMBERS, PAGE = pages.DOCS / "reproduction.json", pages.DOCS / "reproduction.md"
# What makes two runs the same but for their seed, by experiment; these have a table.
CELLS = {
    "synthetic-dro": ("method", "lr_y"),
    "mnist-dro": ("method", "lr_y"),
    "no-learning-rate": ("name", "lr_x", "lr_y"),
}
PARTS = ("held_out", "test")
SCALE = "standard"
OPTIONS = ("scale", "seeds", "max_calls")

Records = dict[str, pages.Record]
Cell = dict[str, Any]


# From a folder to records.


def read_folder(folder: Path, commit: str) -> Records:
    """A record for every experiment of a folder, which the source of a commit has filled."""
    file = folder / "claims.json"
    if not file.exists():
        raise SystemExit(f"{file} is not there; let `python -m reproduction` finish")
    found = json.loads(file.read_text(encoding="utf-8"))
    missing = [name for name, entry in found["experiments"].items() if entry["missing"]]
    if missing:
        raise SystemExit(f"{folder} has unfinished runs of {', '.join(missing)}")
    options = [f"--{key.replace('_', '-')} {shown(found[key])}" for key in OPTIONS if found[key]]
    records = {}
    for name, entry in found["experiments"].items():
        runs = [read_run(run) for run in sorted((folder / name / "runs").iterdir())]
        numbers = {
            "scale": found["scale"],
            "seconds": entry["seconds"],
            "runs": entry["num_runs"],
            "claims": {claim["id"]: short(claim) for claim in entry["claims"]},
            "cells": cells(runs, CELLS[name]) if name in CELLS else [],
        }
        records["-".join([name, *([str(found["max_calls"])] if found["max_calls"] else [])])] = (
            pages.Record(
                " ".join(["python -m reproduction", name, *options]),
                datetime.date.fromtimestamp(file.stat().st_mtime).isoformat(),
                commit,
                "",
                machine(folder / name),
                numbers,
            )
        )
    return records


def shown(value: Any) -> str:
    """The value of an option; seeds are separated by commas."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def short(claim: dict[str, Any]) -> dict[str, Any]:
    """What a claim measured."""
    return {
        key: claim[key]
        for key in ("subject", "result", "measured", "relation", "expected", "seeds", "note")
    }


def read_run(folder: Path) -> tuple[Cell, dict[str, Any]]:
    """The config and the last row of a run."""
    *_, last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), json.loads(last)


def machine(experiment: Path) -> str:
    """Processor and versions, as the first run has them."""
    first = min((experiment / "runs").glob("*/environment.json"))
    environment = json.loads(first.read_text(encoding="utf-8"))
    packages = environment["packages"]
    return (
        f"{environment['system']}, {environment['threads']} thread, Python "
        f"{environment['python']}, torch {packages['torch']}, neada {packages['neada']}"
    )


def cells(runs: list[tuple[Cell, dict[str, Any]]], keys: tuple[str, ...]) -> list[Cell]:
    """Mean, smallest and largest over the seeds, of the steps of x and of every accuracy in %."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for config, row in runs:
        groups.setdefault(tuple(config[key] for key in keys), []).append(row)
    found = []
    for group, rows in groups.items():
        cell: Cell = {**dict(zip(keys, group, strict=True)), "seeds": len(rows)}
        # The rows of a run that diverged have no steps of x.
        steps = [row["x_steps"] for row in rows if "x_steps" in row]
        cell["x_steps"] = spread(steps) if steps else None
        for name in sorted(rows[0]):
            if name.startswith(PARTS):
                cell[name] = spread([100.0 * row[name] for row in rows])
        found.append(cell)
    return found


def spread(values: list[float]) -> list[float]:
    """The mean, the smallest and the largest."""
    return [statistics.fmean(values), min(values), max(values)]


# From records to tables.


def results(records: Records) -> str:
    """The tallies, and the results of every experiment with the claims that are not supported."""
    names = ("supported", "not supported", "not tested")
    head = f"| {' | '.join(names)} |"
    every = [c for r in records.values() for c in r.numbers["claims"].values()]
    lines = [f"| {head}", "|---|---|---|---|"]
    for subject, words in SUBJECTS.items():
        counts = Counter(c["result"] for c in every if c["subject"] == subject)
        lines.append(f"| {words} | {' | '.join(str(counts[name]) for name in names)} |")
    lines += ["", f"| experiment {head} minutes | claims that are not supported or not tested |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, record in records.items():
        claims = record.numbers["claims"]
        by_result = {
            result: [key for key, claim in claims.items() if claim["result"] == result]
            for result in names
        }
        counts_row = [*map(len, by_result.values()), record.numbers["seconds"] / 60]
        others = [
            f"`{key.split('/', 1)[1]}`"
            for key in (*by_result["not supported"], *by_result["not tested"])
        ]
        if claims:
            lines.append(f"| `{name}` | {numbers_of(counts_row)} | {', '.join(others)} |")
    return "\n".join([*lines, ""])


def numbers_of(counts: list[float]) -> str:
    """Three counts and some minutes."""
    minutes = f"{counts[3]:.1f}" if counts[3] >= 0.05 else "< 0.1"
    return " | ".join([*map(str, counts[:3]), minutes])


def figure_3(records: Records) -> str:
    """Accuracy under attack by method and learning rate, with the smallest and largest."""
    found = {(c["method"], c["lr_y"]): c["test_0.5"] for c in cells_of(records, "synthetic-dro")}
    lines = ["| | lr_y = 0.08 | equal rates (0.01) |", "|---|---|---|"]
    for method, words in METHODS.items():
        shown = (found[method, lr_y] for lr_y in (0.08, 0.01))
        row = (f"{mean:.1f} % ({low:.1f} to {high:.1f})" for mean, low, high in shown)
        lines.append(f"| {words} | {' | '.join(row)} |")
    return "\n".join([*lines, ""])


MNIST_METHODS = {
    "gdmax": "Adam-15",
    "neada": "NeAda",
    "library": "NeAda, library",
    "default": "default, no lr_y",
}


def figure_4(records: Records, name: str = "mnist-dro") -> str:
    """Accuracies by method and learning rate: means, and at the largest eps the spread."""
    found = {(c["method"], c["lr_y"]): c for c in cells_of(records, name)}
    columns = ["", "steps of x", "clean", "0.02", "0.05", "0.1", "0.1, over seeds", "test, 0.1"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for method, words in MNIST_METHODS.items():
        for lr_y in (0.001, 0.01, None):
            if (method, lr_y) not in found:
                continue
            cell = found[method, lr_y]
            # Where nothing is held out, as at scale quick, the test set stands in.
            part = "held_out" if "held_out_clean" in cell else "test"
            _, low, high = cell[f"{part}_0.1"]
            row = [
                words if lr_y is None else f"{words}, lr_y = {lr_y:g}",
                f"{cell['x_steps'][0]:.0f}",
                *(f"{cell[f'{part}_{eps}'][0]:.1f}" for eps in ("clean", "0.02", "0.05", "0.1")),
                f"{low:.1f} to {high:.1f}" if cell["seeds"] > 1 else "one seed",
                f"{cell['test_0.1'][0]:.1f}",
            ]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, ""])


def no_learning_rate(records: Records) -> str:
    """The grid of learning rates, and the model without one."""
    found = cells_of(records, "no-learning-rate")
    methods = {
        "default": "**default**",
        "adam-15": "Adam, 15 inner steps",
        "neada-adam": "NeAda-Adam",
        "tiada": "TiAda",
    }
    rates = sorted({c["lr_x"] for c in found if c["name"] == "default"})
    multiples = [f"{rate / 0.001:g} x" for rate in rates]
    lines = [
        f"| | lr_y | lr_x: {' | '.join(multiples)} |",
        "|---|---|" + "---|" * len(multiples),
    ]
    for name, words in methods.items():
        for lr_y in dict.fromkeys(sorted_rates(found, name, "lr_y")):
            row = [c for c in found if c["name"] == name and c["lr_y"] == lr_y]
            row.sort(key=lambda c: c["lr_x"])
            shown = " | ".join(f"{c['test_0.1'][0]:.1f}" for c in row)
            lines.append(f"| {words} | {'none' if lr_y is None else f'{lr_y:g}'} | {shown} |")
            words = ""
    free = {c["name"]: c["test_0.1"][0] for c in found if c["name"] in ("dog", "dowg")}
    return "\n".join(
        [
            *lines,
            "",
            "The model moved by an optimizer without lr_x, with the default adversary: "
            f"`DoG` {free['dog']:.1f}, `DoWG` {free['dowg']:.1f}.",
            "",
        ]
    )


def sorted_rates(found: list[Cell], name: str, key: str) -> list[float | None]:
    """The learning rates of a method; one that has none has None."""
    return sorted((c[key] for c in found if c["name"] == name), key=lambda rate: rate or 0.0)


def cells_of(records: Records, name: str) -> list[Cell]:
    """The cells of an experiment."""
    found: list[Cell] = records[name].numbers["cells"]
    return found


def sources(records: Records) -> str:
    """Where the numbers of the page come from."""
    lines = [
        "Written by `python benchmarks/reproduction_page.py RUNS_FOLDER` from the folders that "
        "these commands fill, by way of `docs/reproduction.json`, which has every claim of "
        "this edition with its number:",
        "",
    ]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, record in records.items():
        command = record.command.replace(f" {name} ", " NAME ")
        when = record.source or f"{record.date}, commit {record.commit}"
        groups.setdefault((command, when, record.machine), []).append(f"`{name}`")
    for (command, when, where), names in groups.items():
        where = f"; {where}" if where else ""
        lines.append(f"- {', '.join(names)}: `{command}` ({when}{where}).")
    return "\n".join([*lines, ""])


TABLES: dict[str, Callable[[Records], str]] = {
    "sources": sources,
    "results": results,
    "figure-3": figure_3,
    "figure-4": figure_4,
    "figure-4-7820": lambda records: figure_4(records, "mnist-dro-7820"),
    "no-learning-rate": no_learning_rate,
}


# The command.


def read(file: Path = NUMBERS) -> Records:
    """The records of all experiments, by their names."""
    if not file.exists():
        return {}
    return {
        name: pages.Record(**record)
        for name, record in json.loads(file.read_text(encoding="utf-8")).items()
    }


def main() -> None:
    """Take the folders in, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*", help="finished folders of reproduce")
    parser.add_argument("--commit", default=pages.commit(), help="of the source that ran them")
    arguments = parser.parse_args()
    records = read()
    for folder in arguments.folders:
        for name, record in read_folder(folder, arguments.commit).items():
            if record.numbers["scale"] != SCALE:
                parser.error(f"{folder} is of another scale; the page is about {SCALE}")
            records[name] = record
            experiment = record.command.split()[3]
            shutil.copyfile(
                folder / experiment / "figure.png", pages.DOCS / "figures" / f"{name}.png"
            )
    if arguments.folders:
        text = pages.dumps({name: asdict(record) for name, record in records.items()})
        NUMBERS.write_text(f"{text}\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        page = pages.put_between(page, name, table(records))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
