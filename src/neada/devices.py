"""Where tensors live: the processor or an accelerator, its precision and its random numbers.

Whatever depends on the kind of device is in this file, one function each.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neada.checks import check_choice, environment_number

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
    """The device of a name.

    Args:
        name: "auto" is the accelerator of this machine, or "cpu" without one that knows float64.
            "cuda", "xpu" and so on are the accelerator's current device, "cuda:1" is a certain
            one. Under torchrun (the environment has LOCAL_RANK) a name without a number, and
            "auto", take the number LOCAL_RANK, modulo the number of devices.

    Raises:
        ValueError: This machine has no such device, or it cannot compute in float64.

    Example:
        >>> choose("cpu")
        device(type='cpu')
    """
    there = _accelerators()
    if name == "cpu" or (name == "auto" and not there):
        return _CPU
    if name == "auto":
        found = _of_this_process(there)
        return found if _knows_float64(found) else _CPU
    kinds = [device.type for device in there[:1]]
    if name not in (*kinds, *map(str, there)):
        known = ", ".join(repr(one) for one in ("cpu", *kinds, *map(str, there)))
        raise ValueError(
            f"device {name!r} is not on this machine: use 'auto', or one of those that are, {known}"
        )
    found = _of_this_process(there) if name in kinds else torch.device(name)
    if not _knows_float64(found):
        raise ValueError(
            f"device {name!r} has no float64, in which norms and step sizes are computed: use 'cpu'"
        )
    return found


def _accelerators() -> list[torch.device]:
    """The accelerators of this machine, all of one kind."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return [torch.device(kind.type, i) for i in range(torch.accelerator.device_count())]


def _of_this_process(there: list[torch.device]) -> torch.device:
    if "LOCAL_RANK" not in os.environ:
        return torch.device(there[0].type)
    return there[environment_number("LOCAL_RANK", 0) % len(there)]


def _knows_float64(device: torch.device) -> bool:
    """Whether a device can add up float64: not all can, and some only say so when asked to."""
    try:
        return torch.ones(2, dtype=torch.float64, device=device).sum().item() == 2.0
    except (RuntimeError, TypeError):
        return False


def descriptions() -> list[str]:
    """The devices of this machine in words, the processor first.

    Example:
        >>> descriptions()[0]
        'cpu'
    """
    return ["cpu", *(_described(device) for device in _accelerators())]


def _described(device: torch.device) -> str:
    name_of = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(device) if name_of is None else f"{device} ({name_of(device)})"


def of_module(module: nn.Module) -> torch.device:
    """Where the parameters of a module are; the processor for one that has none."""
    return next((parameter.device for parameter in module.parameters()), _CPU)


# Precision.


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """A block in which networks are evaluated in a precision; parameters keep their dtype.

    Args:
        device: Where they are evaluated.
        precision: "fp32" leaves everything as it is, "bf16" is `torch.autocast` with bfloat16.
    """
    check_choice("precision", precision, ("fp32", "bf16"))
    if precision == "fp32":
        return contextlib.nullcontext()
    # Converted weights are not kept: an optimizer may move the parameters inside the block.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def compile_in_place(model: nn.Module, inputs: Tensor) -> None:
    """Let calls of a model go through `torch.compile`; its parameters and their names stay.

    Args:
        model: The network; it is evaluated once, in the mode it is in, to see whether it works.
        inputs: A few inputs, on the model's device.

    Raises:
        ValueError: It cannot be compiled here, for want of a C++ compiler for example; it is then
            as it was.
    """
    plain = model._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    try:
        # `model.compile()` skips frames of torch itself, and so all of an nn.Sequential.
        model._compiled_call_impl = torch.compile(call)
        with torch.no_grad():
            model(inputs)
    except Exception as error:  # torch raises a dozen kinds, of several packages
        model._compiled_call_impl = plain
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise ValueError(
            f"compile=True does not work here ({type(error).__name__}: {reason}): leave it out, or "
            "install what is missing, a C++ compiler for example"
        ) from error


# Random numbers, and states for checkpoints.


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """A block with random numbers of its own; afterwards torch's generators are as before.

    Args:
        device: Whose generator is seeded, besides the processor's.
        seed: Of both.
    """
    before = rng_state(device)
    torch.default_generator.manual_seed(seed)
    if device != _CPU:
        with _current(device) as module:
            module.manual_seed(seed)
    try:
        yield
    finally:
        set_rng_state(device, before)


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Where torch's generators are: that of the processor and, by its kind, that of the device."""
    state = {"cpu": torch.get_rng_state()}
    if device != _CPU:
        with _current(device) as module:
            state[device.type] = module.get_rng_state()
    return state


def set_rng_state(device: torch.device, state: Mapping[str, Tensor]) -> None:
    """Put torch's generators where they were.

    Args:
        device: Whose generator, besides the processor's; it stays as it is if it was not saved.
        state: What `rng_state` gave, maybe for another device.
    """
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        with _current(device) as module:
            module.set_rng_state(state[device.type])


@contextlib.contextmanager
def _current(device: torch.device) -> Iterator[Any]:
    """The module of a kind of device, with this one as the current one."""
    module = torch.get_device_module(device)
    guard = getattr(module, "device", None)
    with contextlib.nullcontext() if guard is None else guard(device):
        yield module
