"""How fast the gradient of a loss can change with the input: proven from the layers, or estimated.

A map with Lipschitz constant K whose Jacobian is S-Lipschitz, followed by one with k and s, has the
constants k K and k S + s K^2. Linear maps have (norm, 0); a table has activations whose first two
derivatives are bounded; the loss comes last.

A proof is about the function that the network computes. So it is read from modules of torch's own
classes that nobody has altered, never from a trace of Python code, which may decide otherwise for
other inputs; and what is evaluated is the copy that the proof is about.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.robust.losses import Loss, sample_losses
from neada.tensors import row_sums

__all__ = [
    "Errors",
    "Layer",
    "ProvenLoss",
    "estimated_smoothness",
    "is_unaltered",
    "proven_loss",
    "read_layers",
]


_UP = 1.0 + 1e-10  # a computed norm or product of norms is at most this factor below the true one
_UNIT = 1e-12  # bounds the relative rounding error of one layer in float64
_OWN = 1e9  # how much more a layer of the network itself may be away, in its own precision
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Layer:
    """A smooth map of each sample, in float64.

    Attributes:
        function: The map.
        first: A Lipschitz constant.
        second: A Lipschitz constant of its Jacobian; exactly 0 if the map is affine.
        deviation: How far an entry of what torch computes may be from the map in any case.
        rounding: How far the outputs may be, relative to `first` times the inputs plus the outputs.
    """

    function: Callable[[Tensor], Tensor]
    first: float
    second: float
    deviation: float = 0.0
    rounding: float = _UNIT


@dataclass(frozen=True)
class Errors:
    """Bounds of what computed numbers may miss, one per sample.

    Attributes:
        value: Of the loss.
        gradient: Of the norm of its gradient in the input.
    """

    value: Tensor
    gradient: Tensor


_CUT = 1e-15  # of exp(u) - 1 where u is near 0
_ELU = Layer(functional.elu, 1.0, 1.0, _CUT)
_TANH = Layer(torch.tanh, 1.0, 4.0 / (3.0 * math.sqrt(3.0)))
_SIGMOID = Layer(torch.sigmoid, 0.25, 1.0 / (6.0 * math.sqrt(3.0)))
_LOG_SIGMOID = Layer(functional.logsigmoid, 1.0, 0.25)
_SILU = Layer(functional.silu, 1.0999, 0.5)  # the slope 1.09984 is reached where u tanh(u/2) = 2
# GELU's slope is largest where its curvature phi(u) (2 - u^2) vanishes, at the root of 2.
_GELU = Layer(
    functional.gelu,
    0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi),
    math.sqrt(2.0 / math.pi),
)
_IDENTITY = Layer(lambda u: u, 1.0, 0.0)


def _linear(layer: nn.Linear) -> Layer | None:
    if layer.weight.numel() == 0:
        return None
    weight = layer.weight.detach().to(torch.float64, copy=True)
    bias = 0.0 if layer.bias is None else layer.bias.detach().to(torch.float64, copy=True)
    norm: Tensor = torch.linalg.matrix_norm(weight, ord=2)
    # A sum of n products is off by n units of at most the root of n times what is seen.
    rounding = max(_UNIT, 2.0**-52 * (layer.in_features + 1.0) ** 1.5)
    return Layer(lambda u: u @ weight.T + bias, norm.item() * _UP, 0.0, rounding=rounding)


def _flatten(layer: nn.Flatten) -> Layer | None:
    if layer.start_dim != 1:  # samples must stay apart
        return None
    return Layer(partial(torch.flatten, start_dim=1, end_dim=layer.end_dim), 1.0, 0.0)


def _celu(layer: nn.CELU) -> Layer | None:
    alpha = layer.alpha
    if not alpha > 0.0:
        return None
    return Layer(lambda u: torch.celu(u, alpha), 1.0, 1.0 / alpha, _CUT * alpha)


def _softplus(layer: nn.Softplus) -> Layer | None:
    # Where beta u is above the threshold torch returns u: less than the map by up to
    # exp(-threshold) / beta, and with a jump. A threshold above 88 overflows in float32.
    beta, threshold = layer.beta, layer.threshold
    if not (beta > 0.0 and 20.0 <= threshold <= 80.0):
        return None

    def smooth(u: Tensor) -> Tensor:
        return torch.logaddexp(beta * u, u.new_zeros(())) / beta

    return Layer(smooth, 1.0, beta / 4.0, math.exp(-threshold) / beta)


_LAYERS: dict[type[nn.Module], Callable[[Any], Layer | None]] = {
    nn.Linear: _linear,
    nn.Flatten: _flatten,
    nn.CELU: _celu,
    nn.Softplus: _softplus,
    nn.ELU: lambda layer: _ELU if layer.alpha == 1.0 else None,  # elsewhere the slope jumps at 0
    nn.GELU: lambda layer: _GELU if layer.approximate == "none" else None,
    nn.SiLU: lambda layer: _SILU,
    nn.Tanh: lambda layer: _TANH,
    nn.Sigmoid: lambda layer: _SIGMOID,
    nn.LogSigmoid: lambda layer: _LOG_SIGMOID,
    nn.Identity: lambda layer: _IDENTITY,
    nn.Dropout: lambda layer: _IDENTITY,  # in evaluation mode
}


def is_unaltered(module: nn.Module) -> bool:
    """Whether calling the module is calling its class's `forward`: no hooks, nothing replaced."""
    kind = type(module)
    owner = next(base for base in kind.__mro__ if "forward" in vars(base))
    return (
        not any(getattr(module, name) for name in _HOOKS)
        and not any(getattr(nn.modules.module, "_global" + name) for name in _HOOKS)
        and not any(hasattr(kind, name) for name in vars(module))  # such as forward
        and _is_defined_in(kind.__call__, nn.modules.module.__name__)
        and _is_defined_in(kind.forward, owner.__module__)
    )


def _is_defined_in(function: Any, module: str) -> bool:
    # What wraps a function takes over its name and module, but not the globals.
    return getattr(function, "__globals__", {}).get("__name__") == module


def read_layers(module: nn.Module) -> list[Layer] | None:
    """The maps that a network consists of, in evaluation mode; None if they are not all known."""
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


@dataclass(frozen=True)
class ProvenLoss:
    """A network with its loss, as a copy in float64 whose smoothness in the input is proven.

    Attributes:
        smoothness: An upper bound of the smoothness, everywhere.
        layers: The maps of the network.
        sample_loss: The loss of outputs and targets, without a mean over the samples.
        of_classes: The loss is cross-entropy, and otherwise the squared error.
    """

    smoothness: float
    layers: Sequence[Layer]
    sample_loss: Loss
    of_classes: bool

    def outputs(self, inputs: Tensor) -> Tensor:
        """What the network returns."""
        for layer in self.layers:
            inputs = layer.function(inputs)
        return inputs

    def losses(self, inputs: Tensor, targets: Any) -> Tensor:
        """The loss of each sample."""
        return sample_losses(self.sample_loss(self.outputs(inputs), targets), len(inputs))

    def check(self, model: nn.Module, inputs: Tensor, targets: Any) -> None:
        """Raise unless the copy speaks of these data, and computes there what the network does.

        Args:
            model: The network itself, in evaluation mode.
            inputs: A batch in float64.
            targets: What the loss compares with.
        """
        if inputs.dim() < 2:
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)} have no features beside the samples: pass "
                "inputs[:, None]"
            )
        with torch.no_grad():
            outputs = self.outputs(inputs)
            dtype = next((p.dtype for p in model.parameters()), inputs.dtype)
            distance = row_sums((model(inputs.to(dtype)).double() - outputs).square()).sqrt()
            if not bool((distance <= self._spread(inputs, _OWN)[0]).all()):
                raise ValueError(
                    f"the network in {dtype} is {distance.max():g} away from what its layers say, "
                    "so nothing can be proven: remove what alters it, or certify model.double()"
                )
        if not self.of_classes:
            if targets.shape != outputs.shape:
                raise ValueError(
                    f"targets of shape {tuple(targets.shape)} are compared with outputs of shape "
                    f"{tuple(outputs.shape)}: reshape them to that"
                )
        elif not bool(((targets >= 0) & (targets < outputs.shape[1])).all()):
            raise ValueError(
                f"targets must be classes from 0 to {outputs.shape[1] - 1}, got {targets.min()} to "
                f"{targets.max()}: leave out the samples that the loss ignores"
            )

    def errors(self, inputs: Tensor, losses: Tensor, prices: Tensor, gamma: float) -> Errors:
        r"""What :math:`\ell(z) - \gamma\|z - v\|^2` and its gradient may miss.

        The errors are those of rounding, and for the value also each layer's `deviation`.

        Args:
            inputs: The points z where they were computed.
            losses: The computed losses.
            prices: The computed :math:`\gamma\|z - v\|^2`.
            gamma: The price of a unit.
        """
        moved, turned, slope = self._spread(inputs)
        steep, curved = math.sqrt(2.0) * torch.ones_like(losses), 0.5
        if not self.of_classes:
            steep, curved = 2.0 * losses.sqrt(), 2.0
        value = steep * moved + 0.5 * curved * moved.square() + _UNIT * (losses.abs() + prices)
        gradient = steep * turned + (curved * moved + _UNIT * steep) * slope
        gradient = gradient + _UNIT * 2.0 * (gamma * prices).sqrt()
        return Errors(value, gradient)

    def _spread(self, u: Tensor, times: float = 1.0) -> tuple[Tensor, Tensor, float]:
        """Errors of outputs and of Jacobians, and the Lipschitz constant.

        Args:
            u: The inputs.
            times: Layers round so many times worse than in float64.
        """
        moved = turned = u.new_zeros(len(u))
        slope = 1.0
        for layer in self.layers:
            after = layer.function(u)
            unit, sizes = times * layer.rounding, layer.first * _norms(u) + _norms(after)
            apart = layer.deviation * math.sqrt(after[0].numel())
            turned = layer.first * turned + (layer.second * moved + unit * layer.first) * slope
            moved = layer.first * moved + unit * sizes + apart
            slope *= layer.first
            u = after
        return moved, turned, slope


def _norms(tensor: Tensor) -> Tensor:
    return row_sums(tensor.square()).sqrt()


def proven_loss(model: nn.Module, loss: Loss, class_targets: bool) -> ProvenLoss | None:
    """The network with its loss, if the smoothness of `loss(model(input), target)` can be proven.

    Args:
        model: The network, whose evaluation mode is meant.
        loss: The loss.
        class_targets: The targets are class numbers, as the bound for cross-entropy requires.

    Returns:
        A copy with the bound, or None where there is no proof: the network is not an
        `nn.Sequential` of linear layers and smooth activations as torch has them, in float32 or
        float64, or the loss is another.
    """
    own_loss = _read_loss(loss, class_targets)
    layers = None if own_loss is None else read_layers(model)
    if own_loss is None or layers is None or not _computes_as_said(list(model.parameters())):
        return None
    first, second = 1.0, 0.0
    for layer in layers:
        first, second = _composed((first, second), (layer.first, layer.second))
    # Cross-entropy: the gradient is a difference of two distributions; the Hessian diag(p) - p p^T
    # has rows whose absolute entries sum to 2 p (1 - p). The slope of the squared error is
    # unbounded, which does not matter after an affine map.
    of_classes = own_loss.func is functional.cross_entropy
    bound = _composed((first, second), (math.sqrt(2.0), 0.5) if of_classes else (math.inf, 2.0))
    smoothness = bound[1] * _UP
    if not math.isfinite(smoothness) or not math.isfinite(first):
        return None
    return ProvenLoss(smoothness, tuple(layers), own_loss, of_classes)


def _computes_as_said(parameters: list[nn.Parameter]) -> bool:
    """Whether products with these tensors are torch's own, in at least single precision."""
    dtypes = {p.dtype for p in parameters}
    return (
        dtypes in (set(), {torch.float32}, {torch.float64})
        and all(type(p) is nn.Parameter for p in parameters)
        and not any(torch.is_autocast_enabled(p.device.type) for p in parameters)
    )


def _composed(inner: tuple[float, float], outer: tuple[float, float]) -> tuple[float, float]:
    first = outer[0] * inner[0] * _UP if inner[0] else 0.0
    if inner[1] == outer[1] == 0.0:
        return first, 0.0
    curved = outer[0] * inner[1] if inner[1] > 0.0 else 0.0
    # What underflows is still curved.
    return first, max((curved + outer[1] * inner[0] * inner[0]) * _UP, sys.float_info.min)


def _read_loss(loss: Loss, class_targets: bool) -> partial[Tensor] | None:
    """The loss without a mean, if it is a known one for these targets."""
    options: dict[str, Any] = {}
    if isinstance(loss, partial):
        if loss.args:
            return None
        options, loss = loss.keywords, loss.func
    if isinstance(loss, nn.Module):
        if options or not is_unaltered(loss):
            return None
        if type(loss) is nn.MSELoss:
            loss = functional.mse_loss
        elif type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.ignore_index < 0:
            options = {"label_smoothing": loss.label_smoothing}
            loss = functional.cross_entropy
    if set(options) - {"reduction", "label_smoothing"}:
        return None
    is_known = loss is functional.mse_loss or (loss is functional.cross_entropy and class_targets)
    if not is_known or not _is_defined_in(loss, functional.__name__):
        return None
    return partial(loss, **{**options, "reduction": "none"})


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
