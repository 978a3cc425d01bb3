"""One loss per sample, from whatever loss function people have."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Loss", "sample_losses", "take_rows", "unreduced"]

Loss = Callable[..., Tensor]


def unreduced(loss: Loss) -> Loss:
    """The same loss without its mean, if it has a `reduction` to switch off.

    A module with that attribute is copied, not changed; a function with that keyword is bound.
    """
    if not callable(loss):
        raise TypeError(
            f"loss must be a function of (outputs, targets), not {type(loss).__name__}: pass "
            "torch.nn.functional.cross_entropy, for example"
        )
    if isinstance(loss, nn.Module):
        if hasattr(loss, "reduction"):
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 (unknown to the type of a module)
        return loss
    try:
        has_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        has_reduction = False
    return partial(loss, reduction="none") if has_reduction else loss


def sample_losses(losses: object, num_samples: int) -> Tensor:
    """What a loss returned as one number per sample: the mean over further dimensions."""
    if (
        not isinstance(losses, Tensor)
        or losses.dim() == 0
        or len(losses) != num_samples
        or not losses.is_floating_point()
    ):
        found = (
            f"a tensor of shape {tuple(losses.shape)}"
            if isinstance(losses, Tensor)
            else f"a {type(losses).__name__}"
        )
        raise ValueError(
            f"the loss gave {found} for {num_samples} samples: use one that returns a loss per "
            "sample, or that has a reduction keyword such as torch's own"
        )
    if losses.dtype in (torch.float16, torch.bfloat16):
        losses = losses.float()
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def take_rows(data: Any, rows: Tensor) -> Any:
    """Some rows of a tensor, or of every tensor in a list, tuple or dictionary."""
    if isinstance(data, Tensor):
        return data[rows]
    if isinstance(data, Mapping):
        return {name: take_rows(part, rows) for name, part in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [take_rows(part, rows) for part in data]
    raise TypeError(
        f"targets of type {type(data).__name__} cannot be cut to the samples that go on: use a "
        "tensor (or a list or dictionary of tensors), or per_sample=False"
    )
