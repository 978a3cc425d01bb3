"""MNIST and Fashion-MNIST: four IDX files, found on this machine or downloaded."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neada.data.dataset import DataError, Dataset
from neada.data.download import fetch
from neada.data.idx import read_idx
from neada.data.limits import as_float32

__all__ = ["mnist_like"]

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_NUM_CLASSES = 10


class _Origin(NamedTuple):
    """What is known of a data set before looking."""

    description: str
    size: str
    folders: tuple[str, ...]  # where the files may be inside a place that holds several data sets
    system: str | None  # where a distribution's package puts them
    mirrors: tuple[str, ...]
    sha256: tuple[str, ...]  # of the gzipped files, as published
    test_labels_md5: str  # of the labels unpacked: tells the two apart, whoever gzipped them


_ORIGINS = {
    "mnist": _Origin(
        "70000 handwritten digits of 28x28 pixels",
        "12 MB",
        ("mnist", "MNIST/raw"),
        None,
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashion-mnist": _Origin(
        "70000 pieces of clothing of 28x28 pixels",
        "31 MB",
        ("fashion-mnist", "FashionMNIST/raw"),
        "/usr/share/dataset-fashion-mnist",
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


def mnist_like(name: str, folder: Path | None, download: bool) -> Dataset:
    """One of the two, from the first place that has all four files.

    The last sixth of the training images (10000 of the 60000) is held out, as the released scripts
    of the paper do, beside the real test set.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: The only place to look in, if given.
        download: Whether to fetch the files if no place has them.
    """
    files = _locate(name, folder, download)
    x, y = _read_part(files[0], files[1])
    x_test, y_test = _read_part(files[2], files[3])
    _refuse_the_other(name, files[3], y_test)
    if len(x) < 6:
        raise DataError(f"{files[0]} has {len(x)} images; at least 6 are needed")
    num_train = len(x) - len(x) // 6
    return Dataset(
        name=name,
        x_train=x[:num_train],
        y_train=y[:num_train],
        x_test=x_test,
        y_test=y_test,
        num_classes=_NUM_CLASSES,
        valid_range=(0.0, 1.0),
        source=str(files[0].parent),
        description=_ORIGINS[name].description,
        checksums={path.name: _file_checksum(path) for path in files},
        x_held_out=x[num_train:],
        y_held_out=y[num_train:],
    )


def _locate(name: str, folder: Path | None, download: bool) -> list[Path]:
    origin = _ORIGINS[name]
    if folder is not None:
        files = _files_in(folder, origin)
        if files is None:
            raise DataError(
                f"{folder} does not hold the four files of {name} ({_FILES[0]}, ..., gzipped or "
                "not); give the folder they are in"
            )
        return files
    cache = _cache_folder()
    variable = os.environ.get("NEADA_DATA")
    places = [Path(place) for place in (variable, origin.system) if place]
    for place in (*places, cache):
        files = _files_in(place, origin)
        if files is not None:
            return files
    if not download:
        looked = ", ".join(str(place) for place in (*places, cache))
        raise DataError(
            f"{name} was not found in {looked}; give its folder (--data-folder), set NEADA_DATA, "
            f"or allow the download of {origin.size} (--download, download=True)"
        )
    own = cache / name
    for file, sha256 in zip(_FILES, origin.sha256, strict=True):
        if not (own / f"{file}.gz").is_file():
            urls = [f"{mirror}{file}.gz" for mirror in origin.mirrors]
            fetch(urls, own / f"{file}.gz", sha256)
    return [own / f"{file}.gz" for file in _FILES]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    # An XDG path that is not absolute is to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "neada"


def _files_in(place: Path, origin: _Origin) -> list[Path] | None:
    """The four files in one folder of a place, the folder of that name first; None if not all."""
    for folder in (*(place / inner for inner in origin.folders), place):
        candidates = [(folder / file, folder / f"{file}.gz") for file in _FILES]
        files = [next(filter(os.path.exists, pair), None) for pair in candidates]
        found = [file for file in files if file is not None]
        if len(found) == len(_FILES):
            return found
    return None


def _read_part(images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise DataError(f"{images_file} does not hold images of bytes; fetch it again")
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise DataError(f"{labels_file} does not hold labels of bytes; fetch it again")
    if len(images) != len(labels):
        raise DataError(
            f"{images_file} has {len(images)} images but {labels_file.name} has {len(labels)} "
            "labels; fetch both again"
        )
    if labels.max() >= _NUM_CLASSES:
        raise DataError(
            f"{labels_file} has the label {labels.max()}; labels must be below {_NUM_CLASSES}"
        )
    x = torch.from_numpy(as_float32(images_file, images)).div_(255.0).unsqueeze(1)
    return x, torch.from_numpy(labels.astype(np.int64))


def _refuse_the_other(name: str, labels_file: Path, labels: Tensor) -> None:
    header = bytes((0, 0, 8, 1)) + len(labels).to_bytes(4, "big")
    content = header + labels.to(torch.uint8).numpy().tobytes()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    for other, origin in _ORIGINS.items():
        if other != name and origin.test_labels_md5 == md5:
            raise DataError(f"{labels_file.parent} holds {other}, not {name}; give another folder")


def _file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
