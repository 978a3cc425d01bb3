"""`neada data`."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from neada import data, plots
from neada.cli.arguments import Commands, UsageError, add_output_options, output_folder
from neada.files import replacing

__all__ = ["add_data", "add_data_options"]


def add_data(commands: Commands) -> None:
    """Add the command `data`."""
    parser = commands.add_parser(
        "data",
        help="show where a data set is and what is in it",
        description="Show where a data set comes from, its shapes and checksums, and draw it.",
        epilog=f"data sets:\n  {', '.join(data.names())}, or a file .npz with x and y\n"
        "\nexamples:\n"
        "  neada data digits\n"
        "  neada data digits --sheet digits.png\n"
        "  neada data mnist --data-folder ~/mnist --json",
    )
    parser.add_argument("data", nargs="?", metavar="NAME", help="which one; left out, their names")
    add_data_options(parser)
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="draw it as a PNG")
    add_output_options(parser)
    parser.set_defaults(command=_data)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where data are looked for."""
    parser.add_argument(
        "--data-folder", metavar="DIR", help="where the files of mnist or fashion-mnist are"
    )
    parser.add_argument(
        "--data-seed", type=int, metavar="N", help="of random data and splits (default: 0)"
    )
    parser.add_argument(
        "--download", action="store_true", default=None, help="allow to download missing files"
    )


def _data(args: argparse.Namespace) -> int:
    if args.data is None:
        print(json.dumps(data.names()) if args.json else "\n".join(data.names()))
        return 0
    if args.sheet is not None:
        if args.sheet.suffix != ".png":
            raise UsageError(f"--sheet writes .png, not {args.sheet.suffix or args.sheet}")
        output_folder(args.sheet.parent)
    try:
        found = data.load(
            args.data,
            folder=args.data_folder,
            seed=args.data_seed or 0,
            download=bool(args.download),
        )
        if args.sheet is not None:
            _draw(found, args.sheet)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _show(args, found)
    return 0


def _draw(found: data.Dataset, path: Path) -> None:
    counts = ", ".join(f"{len(x)} {part}" for part, (x, _) in found.splits.items())
    figure = plots.contact_sheet(
        found.inputs_train.numpy(), found.targets_train.numpy(), f"{found.name}: {counts}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path.absolute()) as file:
        figure.savefig(file, format="png", dpi=150)


def _show(args: argparse.Namespace, found: data.Dataset) -> None:
    facts: dict[str, Any] = {
        "name": found.name,
        "description": found.description,
        "source": found.source,
        "shape": list(found.input_shape),
        "range": None if found.bounds is None else list(found.bounds),
        "num_classes": found.num_classes,
        "num_groups": found.num_groups,
        "parts": {part: len(x) for part, (x, _) in found.splits.items()},
        "train_per_class": torch.bincount(
            found.targets_train, minlength=found.num_classes
        ).tolist(),
        "checksums": dict(found.checksums),
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    parts = ", ".join(f"{size} {part}" for part, size in facts["parts"].items())
    limits = "any numbers" if found.bounds is None else "in [{:g}, {:g}]".format(*facts["range"])
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
