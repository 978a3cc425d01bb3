"""The experiments by name, in the order of the paper."""

import difflib
import importlib
import inspect
from typing import Any, cast

from neada.experiments.experiment import Experiment, Scale

__all__ = ["configs", "get", "names"]

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


def configs(
    name: str, scale: Scale, seeds: int | None = None, budget: int | None = None
) -> list[Any]:
    """The runs of an experiment.

    Args:
        name: Which experiment.
        scale: Which of its scales.
        seeds: How many seeds instead of the scale's.
        budget: Gradient calls per run instead of the scale's.

    Raises:
        ValueError: The experiment has no budget that could be replaced.
    """
    if budget is None:
        return get(name).configs(scale, seeds)
    if not _takes_budget(name):
        others = ", ".join(other for other in _NAMES if _takes_budget(other))
        raise ValueError(
            f"a budget can be chosen for {others}, and not for {name}: name only those"
        )
    return cast(Any, get(name)).configs(scale, seeds, budget)  # type: ignore[no-any-return]


def _takes_budget(name: str) -> bool:
    return "budget" in inspect.signature(get(name).configs).parameters
