"""Devices by name, their precision, and their random number generators."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "autocast",
    "choose",
    "compile_in_place",
    "descriptions",
    "of_module",
    "rng_state",
    "seeded",
    "set_rng_state",
]

_CPU = torch.device("cpu")


def choose(name: str = "auto") -> torch.device:
    """Return the device of a name.

    Args:
        name: "auto" is the accelerator of this machine, or "cpu" if there is none with float64.
            "cuda", "xpu" and so on are the accelerator's current device, "cuda:1" is a specific
            one. Under torchrun (the environment has LOCAL_RANK) a name without a number, and
            "auto", take the number LOCAL_RANK, modulo the number of devices.

    Raises:
        ValueError: This machine has no such device with float64.

    Example:
        >>> choose("cpu")
        device(type='cpu')
    """
    there = _accelerators()
    kinds = [device.type for device in there[:1]]
    if name == "cpu" or (name == "auto" and not there):
        return _CPU
    if name in ("auto", *kinds):
        if "LOCAL_RANK" in os.environ:
            return there[int(os.environ["LOCAL_RANK"]) % len(there)]
        return torch.device(kinds[0])
    known = ["cpu", *kinds, *map(str, there)]
    if name not in known:
        raise ValueError(f"device {name!r} is not available: use 'auto' or one of {known}")
    return torch.device(name)


def _accelerators() -> list[torch.device]:
    """The accelerators of this machine; without mps, which has no float64 for norms and steps."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None or kind.type == "mps":
        return []
    return [torch.device(kind.type, i) for i in range(torch.accelerator.device_count())]


def descriptions() -> list[str]:
    """Return the devices of this machine and their names, the CPU first.

    Example:
        >>> descriptions()[0]
        'cpu'
    """
    described = ["cpu"]
    for device in _accelerators():
        name = torch.get_device_module(device).get_device_name(device)
        described.append(f"{device} ({name})")
    return described


def of_module(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters; the CPU if it has none."""
    return next((parameter.device for parameter in module.parameters()), _CPU)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which networks are evaluated in a precision.

    Args:
        device: The device of the network.
        precision: "fp32" changes nothing, "bf16" is `torch.autocast` with bfloat16.
    """
    if precision == "fp32":
        return contextlib.nullcontext()
    # Converted weights are not cached: an optimizer may move the parameters inside the block.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def compile_in_place(model: nn.Module) -> None:
    """Compile the calls of a model with `torch.compile`; the names of its parameters stay."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    # `model.compile()` skips frames of torch itself, and so all of an nn.Sequential.
    model._compiled_call_impl = torch.compile(call)


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators of the CPU and of a device, and restore them after the block."""
    before = rng_state(device)
    fresh = {kind: torch.Generator(kind).manual_seed(seed).get_state() for kind in before}
    set_rng_state(device, fresh)
    try:
        yield
    finally:
        set_rng_state(device, before)


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators on the CPU and on a device, by kind of device."""
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


def set_rng_state(device: torch.device, state: Mapping[str, Tensor]) -> None:
    """Restore a `rng_state`, which may be that of another device: the CPU's state is then used."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type], device)
