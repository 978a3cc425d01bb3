"""The library works without its extras."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import neada

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]

IMPORT_ALL = """
import importlib, pkgutil, sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is an extra", name=name)

blocked = set(sys.argv[1:])
sys.meta_path.insert(0, Blocker())
import neada
for found in pkgutil.walk_packages(neada.__path__, "neada."):
    if found.name.startswith("neada.estimators."):
        continue  # users get these names from the package, which says what it needs
    try:
        module = importlib.import_module(found.name)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
    except ImportError as error:
        # Only a module that is nothing without an extra may need it, and it says which.
        assert "pip install 'neada[" in str(error), f"{found.name}: {error}"
        print("needs an extra:", found.name)
    else:
        print("imported:", found.name)
"""


def blocked_names() -> set[str]:
    """What the packages of all extras are imported as."""
    requirements = [line for lines in EXTRAS.values() for line in lines if "neada" not in line]
    packages = {re.split(r"[^\w.-]", line)[0].lower() for line in requirements}
    return {
        name
        for name, owners in packages_distributions().items()
        if packages & {owner.lower() for owner in owners} and name.isidentifier()
    }


def test_every_module_is_imported_without_extras() -> None:
    blocked = blocked_names()
    assert {"tqdm", "tyro", "matplotlib", "sklearn"} <= blocked
    assert not blocked & {"torch", "numpy", "neada"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *sorted(blocked)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(neada.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    needing = set(re.findall(r"needs an extra: neada\.(\w+)", done.stdout))
    assert needing <= {"estimators"}
    for module in ("plots", "training.loop", "cli.train", "robust.wrm"):
        assert f"imported: neada.{module}\n" in done.stdout
