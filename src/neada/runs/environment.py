"""What a number was measured with: versions, threads, devices."""

import importlib.metadata
import os
import platform
from typing import Any

import torch

__all__ = ["environment"]

_PACKAGES = ("neada", "torch", "numpy", "matplotlib", "scikit-learn", "mlxtend", "tqdm")


def environment() -> dict[str, Any]:
    """Versions, threads and devices of this process, as plain JSON.

    Example:
        >>> environment()["threads"] >= 1
        True
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": _devices(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _devices() -> list[str]:
    accelerators = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ["cpu", *accelerators]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
