"""The experiments by name, in the order of the paper."""

import difflib
import importlib
from typing import cast

from neada.experiments.experiment import Experiment

__all__ = ["get", "names"]

_NAMES = (
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


def names() -> list[str]:
    """The names of all experiments.

    Example:
        >>> names()[:2]
        ['quadratic', 'mccormick']
    """
    return list(_NAMES)


def get(name: str) -> Experiment:
    """The module of an experiment.

    Raises:
        ValueError: There is none of that name; the sentence has the nearest one.
    """
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_NAMES)}."
        raise ValueError(f"there is no experiment {name!r}: {hint}")
    module = importlib.import_module(f"neada.experiments.{name.replace('-', '_')}")
    return cast(Experiment, module)
