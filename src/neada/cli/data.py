"""`neada data`."""

from typing import Any

import neada
from neada.cli.output import print_json
from neada.training.config import DATA

__all__ = ["data"]


def data(
    name: str | None = None,
    /,
    *,
    data_folder: str | None = None,
    data_seed: int = 0,
    download: bool = False,
    json: bool = False,
) -> int:
    """Show the source, shapes and checksums of a data set, or list the data sets.

    Args:
        name: Data set, or the path of an .npz file; None: list the names.
        data_folder: Folder with the files of mnist or fashion-mnist.
        data_seed: Seed of random data and splits.
        download: Allow downloading missing data.
        json: Print JSON.
    """
    if name is None:
        print_json(list(DATA)) if json else print(*DATA, sep="\n")
        return 0
    found = neada.data.load(name, folder=data_folder, seed=data_seed, download=download)
    parts = {part: len(inputs) for part, (inputs, _) in found.splits.items()}
    counts = ", ".join(f"{size} {part}" for part, size in parts.items())
    per_class = found.targets_train.bincount(minlength=found.num_classes).tolist()
    if json:
        facts: dict[str, Any] = {
            "name": found.name,
            "description": found.description,
            "source": found.source,
            "shape": list(found.input_shape),
            "bounds": None if found.bounds is None else list(found.bounds),
            "num_classes": found.num_classes,
            "num_groups": found.num_groups,
            "parts": parts,
            "train_per_class": per_class,
            "checksums": dict(found.checksums),
        }
        print_json(facts)
        return 0
    limits = "unbounded" if found.bounds is None else "in [{:g}, {:g}]".format(*found.bounds)
    print(f"{found.name}: {found.description}")
    print(f"source:    {found.source}")
    print(f"samples:   {counts}")
    print(f"inputs:    {' x '.join(map(str, found.input_shape))}, {limits}")
    print(f"classes:   {found.num_classes}, {min(per_class)} to {max(per_class)} training samples")
    if found.num_groups is not None:
        print(f"groups:    {found.num_groups}")
    for file, checksum in found.checksums.items():
        print(f"sha256:    {checksum}  {file}")
    return 0
