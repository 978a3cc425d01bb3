"""Names of a package that are imported when they are first used (PEP 562)."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, names: Sequence[str], sources: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        names: The public names: modules of the package, or names from the sources.
        sources: The modules that the other names come from, by their `__all__`, in the order in
            which they are looked at.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        modules = (importlib.import_module(source) for source in sources)
        found = next(getattr(module, name) for module in modules if name in module.__all__)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[package]), *names})
