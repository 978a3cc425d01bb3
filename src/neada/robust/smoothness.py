"""How fast the gradient of a loss can change with the input: proven by layers, or estimated.

A map with Lipschitz constant K whose Jacobian is S-Lipschitz, followed by one with k and s, has
the constants k K and k S + s K^2. Linear maps have (norm, 0); the table has activations whose
first two derivatives are bounded; the loss comes last.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional

from neada.robust.losses import Loss

__all__ = ["estimated_smoothness", "proven_smoothness"]

_ROUNDING = 1.0 + 1e-12  # a computed singular value is at most this factor below the true one


class Bounds(NamedTuple):
    """Upper bounds of the first derivative and of its own Lipschitz constant."""

    first: float
    second: float


# GELU's slope is largest where its curvature phi(u) (2 - u^2) vanishes, at the root of 2.
_GELU = Bounds(
    0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi), math.sqrt(2 / math.pi)
)
_ELU = Bounds(1.0, 1.0)
_SIGMOID = Bounds(0.25, 1.0 / (6.0 * math.sqrt(3.0)))
_TANH = Bounds(1.0, 4.0 / (3.0 * math.sqrt(3.0)))
_SILU = Bounds(1.0999, 0.5)  # the slope 1.09984 is reached where u tanh(u/2) = 2
_IDENTITY = Bounds(1.0, 0.0)

_FUNCTIONS: dict[object, Bounds] = {
    functional.elu: _ELU,
    functional.silu: _SILU,
    functional.gelu: _GELU,
    functional.sigmoid: _SIGMOID,
    functional.tanh: _TANH,
    torch.sigmoid: _SIGMOID,
    torch.tanh: _TANH,
}

_USUAL = {"alpha": 1.0, "approximate": "none", "inplace": False}

# Those without bounds here have them computed from their options.
_LAYERS: dict[type[nn.Module], Bounds | None] = {
    nn.Linear: None,
    nn.Flatten: None,
    nn.ELU: None,
    nn.CELU: None,
    nn.Softplus: None,
    nn.GELU: _GELU,
    nn.SiLU: _SILU,
    nn.Tanh: _TANH,
    nn.Sigmoid: _SIGMOID,
    nn.LogSigmoid: Bounds(1.0, 0.25),
    nn.Identity: _IDENTITY,
    nn.Dropout: _IDENTITY,
}


def proven_smoothness(model: nn.Module, loss: Loss, class_targets: bool) -> float | None:
    """An upper bound of the smoothness in the input of `loss(model(input), target)`, everywhere.

    Args:
        model: The network, in evaluation mode.
        loss: The loss.
        class_targets: The targets are class numbers, as the bound for cross-entropy requires.

    Returns:
        The bound, or None where there is no proof: the network is not a chain of linear layers and
        smooth activations, or the loss is another.
    """
    last = _loss_bounds(loss, class_targets)
    chain = None if last is None else _chain(model)
    if last is None or chain is None:
        return None
    total = _IDENTITY
    for bounds in chain:
        total = _composed(total, bounds)
    bound = _composed(total, last).second * _ROUNDING
    return bound if math.isfinite(bound) else None


def _composed(inner: Bounds, outer: Bounds) -> Bounds:
    # The slope of the squared error is unbounded, which does not matter after a linear map.
    curved = outer.first * inner.second if inner.second > 0.0 else 0.0
    return Bounds(outer.first * inner.first, curved + outer.second * inner.first**2)


def _loss_bounds(loss: Loss, class_targets: bool) -> Bounds | None:
    """For one sample's loss as a function of the outputs."""
    options = loss.keywords if isinstance(loss, partial) else {}
    function = loss.func if isinstance(loss, partial) else loss
    if isinstance(loss, partial) and (loss.args or set(options) - {"reduction", "label_smoothing"}):
        return None
    if function is functional.cross_entropy or (
        type(function) is nn.CrossEntropyLoss and function.weight is None
    ):
        # The gradient is a difference of two distributions; the Hessian diag(p) - p p^T has rows
        # whose absolute entries sum to 2 p (1 - p).
        return Bounds(math.sqrt(2.0), 0.5) if class_targets else None
    if function is functional.mse_loss or type(function) is nn.MSELoss:
        return Bounds(math.inf, 2.0)
    return None


def _chain(model: nn.Module) -> list[Bounds] | None:
    """The bounds of the layers in order, if the network is a chain of known ones."""
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return None
    root = nn.Sequential(model)  # a layer by itself is then seen as a layer
    try:
        graph = torch.fx.symbolic_trace(root).graph
    except Exception:  # whatever a network does that cannot be traced, it is no simple chain
        return None
    chain: list[Bounds] = []
    before: torch.fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            if before is not None:
                return None
        elif not node.args or node.args[0] is not before:
            return None
        elif node.op != "output":
            bounds = _node_bounds(root, node)
            if bounds is None:
                return None
            chain.append(bounds)
        before = node
    return chain


def _node_bounds(root: nn.Module, node: torch.fx.Node) -> Bounds | None:
    options = (*node.args[1:], *node.kwargs.values())
    if node.op == "call_module" and not options:
        return _layer_bounds(root.get_submodule(str(node.target)))
    if node.target in (torch.flatten, "flatten") and options == (1,):
        return _IDENTITY
    usual = all(_USUAL.get(name) == option for name, option in node.kwargs.items())
    if node.op == "call_function" and usual and len(node.args) == 1:
        return _FUNCTIONS.get(node.target)
    return None


def _layer_bounds(layer: nn.Module) -> Bounds | None:
    if type(layer) not in _LAYERS:  # a subclass may do something else
        return None
    if isinstance(layer, nn.Linear):
        norm: Tensor = torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2)
        return Bounds(norm.item() * _ROUNDING, 0.0)
    if isinstance(layer, nn.Flatten):
        return _IDENTITY if layer.start_dim == 1 else None
    if isinstance(layer, nn.ELU):
        return _ELU if layer.alpha == 1.0 else None  # elsewhere the slope jumps at 0
    if isinstance(layer, nn.CELU):
        return Bounds(1.0, 1.0 / layer.alpha) if layer.alpha > 0.0 else None
    if isinstance(layer, nn.Softplus):
        return Bounds(1.0, layer.beta / 4.0) if layer.beta > 0.0 else None
    if isinstance(layer, nn.GELU) and layer.approximate != "none":
        return None
    return _LAYERS[type(layer)]


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
