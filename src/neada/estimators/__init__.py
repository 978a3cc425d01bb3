"""Robust estimators for scikit-learn; they require the extra `neada[sklearn]`.

`RobustClassifier` and `RobustRegressor` are trained on adversarially perturbed inputs,
`GroupRobustClassifier` for the worst group. They work in pipelines, grid searches and
cross-validation, and with `clone` and pickle.

Names load on first use: importing this package alone does not import scikit-learn.
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
            "neada.estimators requires scikit-learn: pip install 'neada[sklearn]'"
        ) from error
