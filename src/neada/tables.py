"""Everything that has a name, in words, and where its function or class is.

Checks, the choices of the command line, the lists in the docs and the batteries of tests are made
from these tables. They import no torch, so that listing names is quick; `resolve` imports the
function of an entry when it is used.

To add a thing, write its function or class and add one entry:

- `DATA`: a function that returns a `neada.data.Dataset`, its description, those arguments of
  `neada.data.load` that it takes ("name", "seed", "test_fraction", "folder", "download"), and the
  model that is usual for it;
- `MODELS`: a function ``(input_shape, num_classes) -> nn.Sequential``, its description, and the
  options of `neada.models.make` that it takes besides;
- `ATTACKS`: a function of model, inputs, targets and eps, with `norm`, `bounds` and `loss`;
- `OBJECTIVES`: a function of a `TrainConfig`, a model and data that makes an objective of
  `neada.robust`, and those fields of the config that it takes and not every objective takes;
- `METHODS` of training: a class of `neada.training.players`, fields likewise, and how many inner
  steps it takes;
- `OPTIMIZERS` of training: an optimizer of torch, or one with the same arguments, and its usual
  learning rates.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ATTACKS",
    "DATA",
    "METHODS",
    "MODELS",
    "OBJECTIVES",
    "OPTIMIZERS",
    "DataEntry",
    "Entry",
    "MethodEntry",
    "ModelEntry",
    "ObjectiveEntry",
    "OptimizerEntry",
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


@dataclass(frozen=True)
class OptimizerEntry(Entry):
    """An optimizer of training.

    Attributes:
        lr_x: The usual learning rate of a model.
        lr_y: The usual learning rate of an adversary, for inputs between 0 and 1.
        arguments: More arguments.
    """

    lr_x: float = 1.0
    lr_y: float = 1.0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectiveEntry(Entry):
    """An objective of training.

    Attributes:
        has_groups: Whether it is about groups, so that the worst one is measured.
    """

    has_groups: bool = False


@dataclass(frozen=True)
class MethodEntry(Entry):
    """A method of training.

    Attributes:
        inner_steps: How many inner steps it takes unless told; None where a rule decides.
        has_inner_loop: Whether the adversary starts anew with every batch.
    """

    inner_steps: int | None = None
    has_inner_loop: bool = True


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

ATTACKS: dict[str, Entry] = {
    "fgsm": Entry("neada.attacks.gradient:fgsm", "one step along the gradient of the loss"),
    "pgd": Entry(
        "neada.attacks.gradient:pgd",
        "projected gradient ascent from several points",
    ),
    "apgd": Entry(
        "neada.attacks.auto_pgd:apgd",
        "gradient ascent that chooses its step sizes by its progress",
    ),
    "ensemble": Entry(
        "neada.attacks.worst_case:attack_in_turn",
        "the worst case over APGD with cross-entropy, APGD towards other classes, and Square",
    ),
}

_PERTURBING = ("per_sample", "warm_start")
OBJECTIVES: dict[str, ObjectiveEntry] = {
    "wrm": ObjectiveEntry(
        "neada.training.players:make_wrm",
        "perturb the inputs at a price",
        (*_PERTURBING, "gamma"),
    ),
    "adversarial": ObjectiveEntry(
        "neada.training.players:make_adversarial",
        "perturb the inputs within a distance",
        (*_PERTURBING, "random_start", "eps", "norm"),
    ),
    "trades": ObjectiveEntry(
        "neada.training.players:make_trades",
        "perturb the inputs within a distance so that the outputs change",
        (*_PERTURBING, "random_start", "eps", "norm", "beta"),
    ),
    "group": ObjectiveEntry(
        "neada.training.players:make_group",
        "shift the mixture of groups",
        ("regularizer", "strength", "adjustment"),
        has_groups=True,
    ),
}

_NESTED = ("x_optimizer", "y_optimizer", "per_sample", "random_start")
METHODS: dict[str, MethodEntry] = {
    "neada": MethodEntry(
        "neada.training.players:configured_players",
        "a rule decides about the inner steps",
        _NESTED,
    ),
    "gdmax": MethodEntry(
        "neada.training.players:configured_players",
        "so many inner steps with every batch",
        (*_NESTED, "inner_steps"),
        inner_steps=15,
    ),
    "tiada": MethodEntry(
        "neada.training.players:tiada_players",
        "both players move once with every batch",
        inner_steps=1,
        has_inner_loop=False,
    ),
}

OPTIMIZERS: dict[str, OptimizerEntry] = {
    "adam": OptimizerEntry("torch.optim:Adam", "Adam", lr_x=1e-3, lr_y=1e-2),
    "amsgrad": OptimizerEntry(
        "torch.optim:Adam", "AMSGrad", lr_x=1e-3, lr_y=1e-2, arguments={"amsgrad": True}
    ),
    "sgd": OptimizerEntry("torch.optim:SGD", "plain gradient steps", lr_x=0.1, lr_y=0.1),
    "adagrad": OptimizerEntry("torch.optim:Adagrad", "AdaGrad", lr_x=1e-2, lr_y=0.1),
    "dog": OptimizerEntry("neada.optim:DoG", "distance over gradients, no learning rate needed"),
    "dowg": OptimizerEntry(
        "neada.optim:DoWG", "distance over weighted gradients, no learning rate needed"
    ),
}
