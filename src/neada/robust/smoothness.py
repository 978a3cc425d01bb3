"""How fast the gradient of a loss can change with the input: proven from the layers, or estimated.

A map with Lipschitz constant K whose Jacobian is S-Lipschitz, followed by one with k and s, has the
constants k K and k S + s K^2. Linear maps have (norm, 0); a table has activations whose first two
derivatives are bounded; the loss comes last.

A proof is about the function that the network computes, up to floating-point rounding. It is read
from unaltered modules of torch's own classes, never from a trace of Python code, which may take
another branch for other inputs.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.robust.losses import Loss

__all__ = ["Layer", "estimated_smoothness", "is_unaltered", "proven_smoothness", "read_layers"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Layer(NamedTuple):
    """The Lipschitz constants of a map of each sample, and of its Jacobian (0 if affine)."""

    first: float
    second: float


def _linear(layer: nn.Linear) -> Layer | None:
    if layer.weight.numel() == 0:
        return None
    return Layer(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2).item(), 0.0)


def _softplus(layer: nn.Softplus) -> Layer | None:
    # Above the threshold torch returns its input, which is less than the smooth map by up to
    # exp(-threshold) / beta. A threshold above 88 overflows in float32.
    if not (layer.beta > 0.0 and 20.0 <= layer.threshold <= 80.0):
        return None
    return Layer(1.0, layer.beta / 4.0)


_IDENTITY = Layer(1.0, 0.0)
# GELU's slope is largest where its curvature phi(u) (2 - u^2) vanishes, at the root of 2.
_GELU = Layer(
    0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi), math.sqrt(2.0 / math.pi)
)
_LAYERS: dict[type[nn.Module], Callable[[Any], Layer | None]] = {
    nn.Linear: _linear,
    nn.Flatten: lambda layer: _IDENTITY if layer.start_dim == 1 else None,
    nn.CELU: lambda layer: Layer(1.0, 1.0 / layer.alpha) if layer.alpha > 0.0 else None,
    nn.Softplus: _softplus,
    nn.ELU: lambda layer: Layer(1.0, 1.0) if layer.alpha == 1.0 else None,  # else the slope jumps
    nn.GELU: lambda layer: _GELU if layer.approximate == "none" else None,
    nn.SiLU: lambda layer: Layer(1.0999, 0.5),  # the slope 1.09984 is reached where u tanh(u/2) = 2
    nn.Tanh: lambda layer: Layer(1.0, 4.0 / (3.0 * math.sqrt(3.0))),
    nn.Sigmoid: lambda layer: Layer(0.25, 1.0 / (6.0 * math.sqrt(3.0))),
    nn.LogSigmoid: lambda layer: Layer(1.0, 0.25),
    nn.Identity: lambda layer: _IDENTITY,
    nn.Dropout: lambda layer: _IDENTITY,  # in evaluation mode
}


def is_unaltered(module: nn.Module) -> bool:
    """Whether calling the module is calling its class's `forward`: no hooks, nothing replaced."""
    return (
        not any(getattr(module, name) for name in _HOOKS)
        and not any(getattr(nn.modules.module, "_global" + name) for name in _HOOKS)
        and not any(hasattr(type(module), name) for name in vars(module))  # such as forward
    )


def read_layers(module: nn.Module) -> list[Layer] | None:
    """The constants of a network's layers in evaluation mode; None if one is unknown."""
    if not is_unaltered(module):
        return None
    if type(module) is nn.Sequential:
        layers: list[Layer] = []
        for part in module:
            read = read_layers(part)
            if read is None:
                return None
            layers += read
        return layers
    make = _LAYERS.get(type(module))  # a subclass may do something else
    layer = None if make is None else make(module)
    return None if layer is None else [layer]


def proven_smoothness(model: nn.Module, loss: Loss, class_targets: bool) -> float | None:
    """An upper bound of the smoothness of `loss(model(input), target)` in the input.

    Args:
        model: The network, whose evaluation mode is meant.
        loss: The loss.
        class_targets: The targets are class numbers, as the bound for cross-entropy requires.

    Returns:
        The bound, or None where there is no proof: the network is not an `nn.Sequential` of linear
        layers and smooth activations as torch has them, in float32 or float64, or the loss is
        neither cross-entropy nor the squared error.
    """
    # Cross-entropy: the gradient is a difference of two distributions; the Hessian diag(p) - p p^T
    # has rows whose absolute entries sum to 2 p (1 - p). The slope of the squared error is
    # unbounded, which does not matter after an affine map.
    losses = {functional.cross_entropy: Layer(math.sqrt(2.0), 0.5)} if class_targets else {}
    outer = (losses | {functional.mse_loss: Layer(math.inf, 2.0)}).get(_function_of(loss))
    layers = None if outer is None else read_layers(model)
    parameters = list(model.parameters())
    if (
        outer is None
        or layers is None
        or {p.dtype for p in parameters} not in (set(), {torch.float32}, {torch.float64})
        or any(torch.is_autocast_enabled(p.device.type) for p in parameters)
    ):
        return None
    first, second = 1.0, 0.0
    for layer in [*layers, outer]:
        curved = layer.first * second if second > 0.0 else 0.0
        first, second = layer.first * first, curved + layer.second * first * first
    return second if math.isfinite(second) else None


def _function_of(loss: Loss) -> Any:
    """The function of `torch.nn.functional` behind a loss without weights; None for others."""
    options: dict[str, Any] = {}
    if isinstance(loss, partial):
        if loss.args:
            return None
        options, loss = loss.keywords, loss.func
    if isinstance(loss, nn.Module):
        if options or not is_unaltered(loss):
            return None
        if type(loss) is nn.MSELoss:
            return functional.mse_loss
        if type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.ignore_index < 0:
            return functional.cross_entropy
        return None
    return None if set(options) - {"reduction", "label_smoothing"} else loss


def estimated_smoothness(
    losses: Callable[[Tensor], Tensor],
    points: Tensor,
    num_rounds: int = 20,
) -> float:
    """The largest curvature of the losses found at some points, by the power method.

    A lower bound of the truth: other points may be worse, and the method may not have converged.

    Args:
        losses: One loss per row of its argument.
        points: Where to look, one point per row.
        num_rounds: Products with the Hessian.
    """
    z = points.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(losses(z).sum(), z, create_graph=True)
    if not gradient.requires_grad:  # a piecewise linear loss
        return 0.0
    generator = torch.Generator(device=z.device).manual_seed(0)
    direction = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
    curvature = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    for _ in range(num_rounds):
        norms = direction.reshape(len(z), -1).norm(dim=1).clamp_min(torch.finfo(z.dtype).tiny)
        direction = direction / norms.reshape(-1, *[1] * (z.dim() - 1))
        (product,) = torch.autograd.grad(
            gradient, z, direction, retain_graph=True, allow_unused=True
        )
        if product is None:
            return 0.0
        direction = product
        curvature = torch.maximum(curvature, product.reshape(len(z), -1).norm(dim=1))
    return curvature.max().item()
