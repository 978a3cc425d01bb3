"""Warnings are errors while an example of the gallery runs."""

import warnings
from typing import Any

_strict: list[warnings.catch_warnings] = []


def as_errors(gallery_conf: dict[str, Any], name: str, when: str) -> None:
    """Called by sphinx-gallery before and after every example."""
    if when == "before":
        _strict.append(warnings.catch_warnings())
        _strict[-1].__enter__()
        # Behind the filters that are there: what Python and sphinx-gallery ignore stays ignored.
        warnings.simplefilter("error", append=True)
    else:
        _strict.pop().__exit__(None, None, None)
