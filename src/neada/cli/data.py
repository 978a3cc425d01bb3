"""`neada data`."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import neada
from neada import tables
from neada.cli.arguments import (
    DOWNLOAD,
    Parser,
    add_flag,
    add_output_options,
    output_file,
    read_path,
    refusals,
)
from neada.runs import atomic_write
from neada.training.config import DataOptions, options_of

if TYPE_CHECKING:
    from neada.data import Dataset

__all__ = ["add_data"]


def add_data(parser: Parser) -> None:
    """Fill the command `data`."""
    parser.description = "Show where a data set comes from, its shapes and checksums, and draw it."
    parser.epilog = (
        f"data sets:\n  {', '.join(tables.DATA)}, or a file .npz with inputs and targets\n"
        "\nexamples:\n"
        "  neada data digits\n"
        "  neada data digits --sheet digits.png\n"
        "  neada data mnist --data-folder ~/mnist --json"
    )
    parser.add_argument("data", nargs="?", metavar="NAME", help="which one; left out, their names")
    for option in options_of(DataOptions):
        if option.name in ("data_folder", "data_seed"):
            add_flag(parser, option)
    add_flag(parser, DOWNLOAD)
    sheet = partial(read_path, "--sheet")
    parser.add_argument("--sheet", type=sheet, metavar="FILE", help="draw it as a PNG")
    add_output_options(parser)
    parser.set_defaults(command=_data)


def _data(args: argparse.Namespace) -> int:
    if args.data is None:
        print(json.dumps(list(tables.DATA)) if args.json else "\n".join(tables.DATA))
        return 0
    if args.sheet is not None:
        output_file(args.sheet, "--sheet", (".png",))
    with refusals(["download"]):
        found = neada.data.load(
            args.data, folder=args.data_folder, seed=args.data_seed, download=args.download
        )
        if args.sheet is not None:
            _draw(found, args.sheet)
    _show(args, found)
    return 0


def _draw(found: "Dataset", path: Path) -> None:
    counts = ", ".join(f"{len(inputs)} {part}" for part, (inputs, _) in found.splits.items())
    figure = neada.plots.contact_sheet(
        found.inputs_train.numpy(), found.targets_train.numpy(), f"{found.name}: {counts}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path.absolute()) as file:
        figure.savefig(file, format="png", dpi=150)


def _show(args: argparse.Namespace, found: "Dataset") -> None:
    facts: dict[str, Any] = {
        "name": found.name,
        "description": found.description,
        "source": found.source,
        "shape": list(found.input_shape),
        "bounds": None if found.bounds is None else list(found.bounds),
        "num_classes": found.num_classes,
        "num_groups": found.num_groups,
        "parts": {part: len(inputs) for part, (inputs, _) in found.splits.items()},
        "train_per_class": found.targets_train.bincount(minlength=found.num_classes).tolist(),
        "checksums": dict(found.checksums),
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    parts = ", ".join(f"{size} {part}" for part, size in facts["parts"].items())
    limits = "any numbers" if found.bounds is None else "in [{:g}, {:g}]".format(*facts["bounds"])
    print(f"{found.name}: {found.description}")
    print(f"from:      {found.source}")
    print(f"samples:   {parts}")
    print(f"inputs:    {' x '.join(map(str, facts['shape']))}, {limits}")
    per_class = facts["train_per_class"]
    print(f"classes:   {found.num_classes}, {min(per_class)} to {max(per_class)} training samples")
    if found.num_groups is not None:
        print(f"groups:    {found.num_groups}")
    for name, checksum in facts["checksums"].items():
        print(f"sha256:    {checksum}  {name}")
    if args.sheet is not None:
        print(f"sheet:     {args.sheet}")
