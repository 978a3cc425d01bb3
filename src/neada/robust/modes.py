"""How a network is evaluated inside the inner loop, and that nothing of it stays behind."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

__all__ = ["DropoutPolicy", "NormPolicy", "check_model", "inner_modes", "no_parameter_gradients"]

NormPolicy = Literal["frozen", "batch"]
DropoutPolicy = Literal["off", "on"]

_DROPPING = (_DropoutNd, nn.MultiheadAttention)


def check_model(model: object) -> None:
    """Raise unless it is a network."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


@contextmanager
def inner_modes(model: nn.Module, norm: NormPolicy, dropout: DropoutPolicy) -> Iterator[None]:
    """Inside the block the layers follow the policies; afterwards every mode is what it was.

    Args:
        model: The network.
        norm: "frozen" lets normalisation layers use their running statistics, which stay as they
            are; "batch" leaves the layers in the mode they are in.
        dropout: "off" drops nothing; "on" leaves the layers in the mode they are in.
    """
    kinds: tuple[type[nn.Module], ...] = ()
    if norm == "frozen":
        kinds += (_NormBase,)
    if dropout == "off":
        kinds += _DROPPING
    # By kind and not by `model.eval()`: some networks return something else then.
    switched = [m for m in model.modules() if isinstance(m, kinds) and m.training]
    # Recurrent layers need their mode for the backward pass, and drop by a number of their own.
    dropping = [m for m in model.modules() if isinstance(m, nn.RNNBase) and dropout == "off"]
    rates = [module.dropout for module in dropping]
    try:
        for module in switched:
            module.training = False
        for recurrent in dropping:
            recurrent.dropout = 0.0
        yield
    finally:
        for module in switched:
            module.training = True
        for recurrent, rate in zip(dropping, rates, strict=True):
            recurrent.dropout = rate


@contextmanager
def no_parameter_gradients(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the block no parameter requires a gradient: none is computed, no graph kept for it."""
    switched = [p for module in modules for p in module.parameters() if p.requires_grad]
    try:
        for parameter in switched:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in switched:
            parameter.requires_grad_(True)
