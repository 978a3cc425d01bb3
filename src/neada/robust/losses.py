"""Losses per sample, and checks of the batches they are computed on."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from neada import tensors
from neada.optim.constrain import installed_sets
from neada.sets import Box
from neada.steppers.composed import check_descends

__all__ = [
    "Loss",
    "Network",
    "check_model",
    "check_x_optimizer",
    "checked_ids",
    "checked_inputs",
    "sample_losses",
    "take_rows",
    "unreduced",
]

Loss = Callable[..., Tensor]
Network = Callable[[Tensor], Tensor]


def unreduced(loss: Loss) -> Loss:
    """Return the same loss without its mean, if it has a `reduction` to switch off.

    A module with that attribute is copied, not changed; a function with that keyword is bound.
    """
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
    """Return one number per sample: the mean of the losses over further dimensions."""
    if (
        not isinstance(losses, Tensor)
        or losses.dim() == 0
        or len(losses) != num_samples
        or not losses.is_floating_point()
    ):
        shape = f" of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else ""
        raise ValueError(
            f"the loss returned a {type(losses).__name__}{shape} for {num_samples} samples: use "
            "one that returns a loss per sample, or that has a reduction keyword"
        )
    if losses.dtype in (torch.float16, torch.bfloat16):
        losses = losses.float()
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def take_rows(data: Any, rows: Tensor) -> Any:
    """Return some rows of a tensor, or of every tensor in a list, tuple or dictionary."""
    if isinstance(data, Mapping):
        return {name: take_rows(part, rows) for name, part in data.items()}
    if isinstance(data, list | tuple):
        return [take_rows(part, rows) for part in data]
    return data[rows]


def check_model(model: object) -> None:
    """Raise unless it is a network."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def checked_inputs(inputs: Tensor, bounds: Box | None) -> Tensor:
    """Return the clean inputs of a batch without graph; raise if they cannot be perturbed."""
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"inputs must be a tensor with samples first, not {type(inputs).__name__}: pass what "
            "is not perturbed in the targets, or in the model"
        )
    tensors.check_player([inputs], rowwise=True, what="inputs")
    if len(inputs) == 0:
        raise ValueError("the batch has no samples")
    clean = inputs.detach()
    if not math.isfinite(clean.sum().item()) and (bad := int((~clean.isfinite()).sum())):
        raise ValueError(f"the inputs have {bad} NaN or infinite entries: clean the data first")
    if bounds is not None and not bounds.contains(clean):
        raise ValueError(
            f"the inputs are outside the bounds: they are between {clean.min():g} and "
            f"{clean.max():g}, and the bounds are {bounds!r}"
        )
    return clean


def checked_ids(name: str, ids: object, num_samples: int, size: int | None = None) -> Tensor:
    """Return one integer per sample as int64.

    Args:
        name: The name of the argument.
        ids: What the user passed.
        num_samples: The number of samples in the batch.
        size: Ids are below this number; None for no limit.
    """
    if ids is None:
        raise TypeError(f"{name} must be given: one integer for each sample")
    found = torch.as_tensor(ids)
    if found.shape != (num_samples,) or not tensors.is_whole(found):
        raise ValueError(
            f"{name} must be integers, one for each of the {num_samples} samples, got shape "
            f"{tuple(found.shape)} and dtype {found.dtype}"
        )
    low, high = int(found.min()), int(found.max())
    if low < 0 or (size is not None and high >= size):
        limit = "" if size is None else f" and at most {size - 1}"
        raise ValueError(f"{name} must be at least 0{limit}, got {low} to {high}")
    return found.long()


def check_x_optimizer(x_optimizer: Optimizer, owners: Sequence[object]) -> None:
    """Raise unless the optimizer minimizes and moves a parameter of one of the modules.

    It also applies sets in the groups of torch's own optimizers.
    """
    check_descends(x_optimizer)
    installed_sets(x_optimizer)
    given = [p for group in x_optimizer.param_groups for p in group["params"] if p.requires_grad]
    modules = [owner for owner in owners if isinstance(owner, nn.Module)]
    owned = {id(p) for module in modules for p in module.parameters()}
    if not any(id(p) in owned for p in given):
        raise ValueError(
            "the x optimizer has no parameter of this model that requires a gradient: construct it "
            "with model.parameters()"
        )
