"""What the adversary of one batch maximizes: losses per sample, modes, checked batches."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.optimizer import Optimizer

from neada import distributed, tensors
from neada.inner import InnerLoop, InnerOptions, backward
from neada.sets import Box, Set
from neada.stopping import FixedSteps, StoppingRule

__all__ = [
    "BatchNorm",
    "Bounds",
    "Loss",
    "MakeOptimizer",
    "Network",
    "Problem",
    "check_loss",
    "check_model",
    "check_point",
    "check_same_shape",
    "check_stored",
    "checked_groups",
    "checked_inputs",
    "checked_norm",
    "checked_parameters",
    "described",
    "inner_modes",
    "model_backward",
    "no_parameter_gradients",
    "sample_losses",
    "take_rows",
    "unreduced",
    "without_last_step",
]

Loss = Callable[..., Tensor]
Network = Callable[[Tensor], Tensor]


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


def described(owner: object, model: nn.Module, loss: Loss, parts: Mapping[str, object]) -> str:
    """An objective in one line.

    Args:
        owner: The objective.
        model: Its network, of which the class is shown.
        loss: Its loss, of which the name is shown.
        parts: What else is shown, by name; None is left out.
    """
    loss_name = getattr(loss, "__name__", None) or type(loss).__name__
    shown = [f"{name}={part!r}" for name, part in parts.items() if part is not None]
    return f"{type(owner).__name__}({', '.join([type(model).__name__, loss_name, *shown])})"


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


BatchNorm = Literal["frozen", "batch"]
Bounds = tuple[float | Tensor, float | Tensor]
MakeOptimizer = Callable[[Sequence[Tensor]], Optimizer]

_DROPPING = (_DropoutNd, nn.MultiheadAttention)


def check_model(model: object) -> None:
    """Raise unless it is a network."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


@contextmanager
def inner_modes(
    model: nn.Module, batch_norm: BatchNorm, dropout: Literal["off", "on"]
) -> Iterator[None]:
    """Inside the block the layers follow the policies; afterwards every mode is what it was.

    Args:
        model: The network.
        batch_norm: "frozen" lets normalization layers use their running statistics, which stay as
            they are; "batch" leaves the layers in the mode they are in.
        dropout: "off" drops nothing; "on" leaves the layers in the mode they are in.
    """
    kinds: tuple[type[nn.Module], ...] = ()
    if batch_norm == "frozen":
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
    """Inside the block no parameter requires a gradient: none is computed, no graph kept for it.

    Shards are left alone: what is asked of them is copied into the gathered parameters and stays.
    """
    parameters = (p for module in modules for p in module.parameters())
    switched = [p for p in parameters if p.requires_grad and not distributed.is_shard(p)]
    try:
        for parameter in switched:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in switched:
            parameter.requires_grad_(True)


@dataclass(frozen=True)
class Problem:
    """One maximization problem per sample.

    Attributes:
        evaluate: The objective of each sample, with its graph, from y, clean inputs and `targets`.
        region_around: Where the samples live, from their clean inputs.
        clean: The clean inputs.
        targets: What the objective compares with: tensors with a row per sample.
        region: `region_around(clean)`.
    """

    evaluate: Callable[[Tensor, Tensor, Any], Tensor]
    region_around: Callable[[Tensor], Set | None]
    clean: Tensor
    targets: Any
    region: Set | None

    def values(self, y: Tensor) -> Tensor:
        """The objective of each sample."""
        tensors.drop_cached_casts()
        return self.evaluate(y, self.clean, self.targets)

    def moved(self, delta: Tensor) -> Tensor:
        """The clean inputs plus stored perturbations."""
        if delta.shape != self.clean.shape:
            raise ValueError(
                f"the store has perturbations of shape {tuple(delta.shape)} for a batch of shape "
                f"{tuple(self.clean.shape)}: construct it for these data"
            )
        return self.clean + delta.to(self.clean)

    def distances_sq(self, y: Tensor) -> Tensor:
        """The squared Euclidean distance of every sample from its clean input."""
        distances_sq = tensors.squared_distance([y], [self.clean], rowwise=True)
        assert isinstance(distances_sq, Tensor)
        return distances_sq

    def take(self, rows: Tensor) -> "Problem":
        """The problems of some samples."""
        clean = self.clean[rows]
        targets = take_rows(self.targets, rows)
        return replace(self, clean=clean, targets=targets, region=self.region_around(clean))


def without_last_step(stopping: StoppingRule | None, inner: InnerOptions) -> InnerLoop:
    """The loop without its last step, whose evaluation serves both players."""
    if not isinstance(stopping, FixedSteps) or stopping.num_steps < 1:
        raise ValueError(
            "reuse_last=True needs to know which step is the last: use stopping=FixedSteps(n) with "
            "at least one step"
        )
    rule = FixedSteps(stopping.num_steps - 1)
    return InnerLoop(rule, replace(inner, min_steps=0, max_steps=None), rule.num_steps)


def checked_inputs(inputs: Tensor, bounds: Box | None) -> Tensor:
    """The clean inputs of a batch, or one sentence about what is wrong with them."""
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"inputs must be a tensor with samples first, not {type(inputs).__name__}: what the "
            "adversary leaves alone can be part of the targets or of the model"
        )
    tensors.check_player([inputs], rowwise=True, what="inputs")
    if len(inputs) == 0:
        raise ValueError("the batch has no samples")
    clean = inputs.detach()
    if not math.isfinite(clean.sum().item()) and (bad := int((~clean.isfinite()).sum())):
        raise ValueError(f"the inputs have {bad} NaN or infinite entries: clean the data first")
    if bounds is not None and not bounds.contains(clean):
        raise ValueError(
            f"the inputs leave the bounds: they are between {clean.min():g} and {clean.max():g}, "
            f"and the bounds are {bounds!r}; give the range that the inputs really have"
        )
    return clean


def model_backward(
    model: nn.Module,
    loss: Tensor,
    params: list[Tensor],
    scaler: torch.amp.GradScaler | None,
    share: float,
    others: Sequence[Tensor] = (),
) -> None:
    """Leave the gradient of a batch's loss in the parameters: of all ranks, if there are several.

    Args:
        model: The network; where no wrapper averages its gradients, that is done here.
        loss: Of this rank's batch.
        params: The parameters.
        scaler: Of the loss.
        share: What the loss of this rank is multiplied by, see `distributed.Meeting`.
        others: More tensors whose gradients are wanted, those of this rank.
    """
    backward(loss if share == 1.0 else share * loss, [*params, *others], scaler)
    wrapped = distributed.wrapped_parameters([model])
    own = [p for p in params if id(p) not in wrapped and not distributed.is_shard(p)]
    if distributed.is_active() and own:
        for param in own:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        distributed.average([p.grad for p in own if p.grad is not None], loss.detach())


def checked_norm(params: list[Tensor]) -> float:
    """The squared norm of the model's gradient, which is finite on all ranks or raises on all."""
    grads = [p.grad for p in params if p.grad is not None]
    if any(distributed.is_shard(gradient) for gradient in grads):
        norm = distributed.squared_norm_of_shards(grads)
    else:
        norm = float(tensors.squared_norm(grads))
    if not math.isfinite(norm):
        tensors.raise_non_finite(grads)
    return norm


def check_loss(loss: Tensor) -> None:
    """Raise NonFiniteGradient unless the loss of a batch is finite."""
    if not math.isfinite(loss.item()):
        raise tensors.NonFiniteGradient(
            f"the loss is {loss.item()}; nothing was changed: lower the learning rate or check the "
            "data"
        )


def check_point(y: Tensor) -> None:
    """Raise NonFiniteGradient unless perturbed inputs are finite."""
    if not math.isfinite(y.sum().item()) and not bool(y.isfinite().all()):
        raise tensors.NonFiniteGradient(
            "the last step of the adversary overflows; nothing was changed: lower its learning rate"
        )


def check_stored(delta: Tensor, dtype: torch.dtype) -> None:
    """Raise NonFiniteGradient unless perturbations are finite in the dtype of their store."""
    stored = delta.to(dtype)
    if math.isfinite(stored.sum().item()) or bool(stored.isfinite().all()):
        return
    check_point(delta)
    raise tensors.NonFiniteGradient(
        f"a perturbation of size {delta.abs().max().item():g} is infinite as {dtype}, the dtype of "
        "the store; nothing was changed: construct the store with a wider dtype, or lower the "
        "learning rate of the adversary"
    )


def checked_parameters(x_optimizer: Optimizer, owners: Sequence[object]) -> list[Tensor]:
    """The parameters that the model's optimizer moves, or one sentence about what is wrong.

    Args:
        x_optimizer: The optimizer.
        owners: The modules whose parameters it may move, of which at least one must be there.
    """
    given = [p for group in x_optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not given:
        raise ValueError("the x optimizer has no parameter that requires a gradient")
    moved = {id(p) for p in given}
    modules = (owner for owner in owners if isinstance(owner, nn.Module))
    if not any(id(p) in moved for module in modules for p in module.parameters()):
        raise ValueError(
            "the x optimizer has no parameter of this model: construct it with model.parameters()"
        )
    return given


def check_same_shape(shape: tuple[int, ...], start: Tensor) -> None:
    """Raise unless a batch has the shape of the one that left its y optimizer's state."""
    if shape != tuple(start.shape):
        raise ValueError(
            f"the y optimizer's state was left by a batch of shape {shape} and this one has shape "
            f"{tuple(start.shape)}: use keep='nothing', or batches of one size (drop_last=True)"
        )


def checked_groups(
    groups: Tensor | Sequence[int], num_samples: int, num_groups: int, device: torch.device
) -> Tensor:
    """The group ids of a batch as int64, or one sentence about what is wrong with them."""
    if groups is None:
        raise TypeError("groups must be whole numbers, one for each sample, not None: pass groups=")
    ids = torch.as_tensor(groups, device=device)
    if num_samples == 0:
        raise ValueError("the batch has no samples")
    if ids.shape != (num_samples,) or not tensors.is_whole(ids):
        raise ValueError(
            f"groups must be whole numbers, one for each of the {num_samples} samples, got shape "
            f"{tuple(ids.shape)} and dtype {ids.dtype}"
        )
    ids = ids.long()
    if not 0 <= int(ids.min()) <= int(ids.max()) < num_groups:
        raise ValueError(
            f"group ids must be from 0 to {num_groups - 1}, got {int(ids.min())} to "
            f"{int(ids.max())}"
        )
    return ids
