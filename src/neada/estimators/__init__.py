"""Estimators for scikit-learn whose training has an adversary; an extra, `neada[sklearn]`.

`RobustClassifier` and `RobustRegressor` are trained on inputs that an adversary moves, and
`GroupRobustClassifier` for the group that fares worst. They are scikit-learn estimators in every
respect: pipelines, grid searches, cross-validation, `clone` and pickle work as usual.

The names load when they are first used: importing this package alone does not import scikit-learn.
"""

from typing import TYPE_CHECKING, Any

from neada.lazy import lazy_names

if TYPE_CHECKING:
    from neada.estimators.group import GroupRobustClassifier
    from neada.estimators.perturbed import RobustClassifier, RobustRegressor

__all__ = ["GroupRobustClassifier", "RobustClassifier", "RobustRegressor"]

_get, __dir__ = lazy_names(
    "neada.estimators", __all__, ("neada.estimators.perturbed", "neada.estimators.group")
)


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError(
            "neada.estimators needs scikit-learn: pip install 'neada[sklearn]'"
        ) from error
