"""Everything that has a name: data sets, models, experiments, and where their functions are.

Checks, the choices of the command line, the lists in the docs and the batteries of tests are made
from these tables. They import no torch, so that listing names is quick; `resolve` imports the
function of an entry when it is used.

To add a data set or a model, write its function and add one entry:

- `DATA`: a function that returns a `neada.data.Dataset`, its description, those arguments of
  `neada.data.load` that it takes ("name", "seed", "test_fraction", "folder", "download"), and the
  model that is usual for it;
- `MODELS`: a function ``(input_shape, num_classes) -> nn.Sequential``, its description, and the
  options of `neada.models.make` that it takes besides;
- `EXPERIMENTS`: a module of `neada.experiments`, its name with hyphens, in the order of the paper.
"""

import importlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

__all__ = [
    "DATA",
    "EXPERIMENTS",
    "MODELS",
    "SCALES",
    "DataEntry",
    "Entry",
    "ModelEntry",
    "Scale",
    "resolve",
]


@dataclass(frozen=True)
class Entry:
    """One line of a table.

    Attributes:
        function: Where the function or class is, as "module:name".
        description: What it is, in a few words.
        options: The optional arguments that it takes, of those that its kind can have.
    """

    function: str
    description: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataEntry(Entry):
    """A data set.

    Attributes:
        model: The name of the usual model for it.
    """

    model: str = "mlp"


@dataclass(frozen=True)
class ModelEntry(Entry):
    """A model.

    Attributes:
        channels_last: Whether that memory layout makes it faster.
    """

    channels_last: bool = False


def resolve(path: str) -> Any:
    """What an entry refers to.

    Args:
        path: A module and a name in it, as "module:name".

    Example:
        >>> resolve("math:sqrt")(4.0)
        2.0
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


_SPLIT = ("seed", "test_fraction")
_FILES = ("name", "folder", "download")

DATA: dict[str, DataEntry] = {
    "synthetic": DataEntry(
        "neada.data.sources:synthetic",
        "points of the plane inside (0) or outside (1) the circle of radius sqrt(2)",
        ("seed",),
        model="mlp",
    ),
    "digits": DataEntry(
        "neada.data.sources:digits",
        "1797 handwritten digits of 8x8 pixels",
        _SPLIT,
        model="small-cnn",
    ),
    "mnist-5k": DataEntry(
        "neada.data.sources:mnist_5k",
        "5000 images of MNIST, 500 of each digit",
        _SPLIT,
        model="cnn",
    ),
    "mnist": DataEntry(
        "neada.data.sources:mnist_like",
        "70000 handwritten digits of 28x28 pixels",
        _FILES,
        model="cnn",
    ),
    "fashion-mnist": DataEntry(
        "neada.data.sources:mnist_like",
        "70000 pieces of clothing of 28x28 pixels",
        _FILES,
        model="cnn",
    ),
}

MODELS: dict[str, ModelEntry] = {
    "linear": ModelEntry("neada.models:linear", "one affine layer"),
    "mlp": ModelEntry("neada.models:mlp", "affine layers with ELU between them", ("hidden",)),
    "cnn": ModelEntry("neada.models:cnn", "the paper's network for MNIST", channels_last=True),
    "small-cnn": ModelEntry("neada.models:small_cnn", "two convolutions, for small images"),
}

EXPERIMENTS: tuple[str, ...] = (
    "quadratic",
    "mccormick",
    "synthetic-dro",
    "mnist-dro",
    "lemma",
    "deterministic-rate",
    "stochastic-rate",
    "regret",
    "high-probability",
    "agnostic",
    "errata",
)
Scale = Literal["quick", "standard", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""How long experiments may take: seconds each, minutes, as long as the paper's."""
