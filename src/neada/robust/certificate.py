"""Certificates: a bound of the loss under every shift of the data's distribution.

How fast the gradient of a loss can change with the input is proven by layers, or estimated. A map
with Lipschitz constant K whose Jacobian is S-Lipschitz, followed by one with k and s, has the
constants k K and k S + s K^2. Linear maps have (norm, 0); a table has activations whose first two
derivatives are bounded; the loss comes last.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from neada.checks import check_number
from neada.robust.problem import (
    Loss,
    checked_inputs,
    no_parameter_gradients,
    sample_losses,
)
from neada.robust.wrm import WRM
from neada.tensors import row_sums

__all__ = ["Certificate", "certificate", "estimated_smoothness", "proven_smoothness"]


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


@dataclass(frozen=True)
class Certificate:
    r"""A bound of the mean loss under every shift of the data within a Wasserstein distance.

    Attributes:
        kind: "certified" where the smoothness is proven; "estimated" elsewhere: then the number
            is no guarantee.
        value: The bound, ``surrogate + gap + price``.
        surrogate: The mean of :math:`\ell(z_i) - \gamma\|z_i - v_i\|^2` at the points found.
        gap: A bound of the mean by which those points miss the inner maximum.
        price: ``gamma * rho``.
        gamma: The price of a unit of squared distance.
        rho: The size of the shift: the mean squared distance that the inputs may be moved.
        smoothness: The smoothness of the loss in the input that was used.
        num_samples: How many samples were looked at.
        reason: Why it is of this kind, in a sentence.
    """

    kind: Literal["certified", "estimated"]
    value: float
    surrogate: float
    gap: float
    price: float
    gamma: float
    rho: float
    smoothness: float
    num_samples: int
    reason: str


def certificate(
    objective: WRM,
    data: Iterable[Any],
    *,
    rho: float,
    gamma: float | None = None,
    tol: float = 1e-4,
    max_steps: int = 200,
    num_probed: int = 256,
) -> Certificate:
    r"""Bound the loss of a network under every shift of the data.

    .. math::
        \sup_{W(Q, P) \le \rho} \mathbb{E}_Q\,\ell
        \ \le\ \gamma\rho + \frac1n \sum_i \max_z\ \ell(z) - \gamma\|z - v_i\|^2
        \ \le\ \gamma\rho + \frac1n \sum_i \Bigl(\phi_i + \frac{\|g_i\|^2}{2(2\gamma - L)}\Bigr)

    where :math:`P` is the empirical distribution of the data (nothing is said about data that were
    not looked at), :math:`W` the squared-distance transport cost, :math:`\phi_i` and :math:`g_i`
    the inner objective and its gradient at the points found, and :math:`L` the smoothness of the
    loss in the input. With bounds the gap is the maximum within them of the same quadratic bound.

    The network is evaluated in evaluation mode, as a copy in float64. The smoothness is proven for
    chains of linear layers and smooth activations (ELU, CELU, softplus, GELU, SiLU, tanh, sigmoid)
    with cross-entropy of class numbers, or with the squared error if the network is linear. For
    other networks (convolutions, pooling, batch norm) it is estimated from the curvature at some
    of the data, and so is the result.

    Args:
        objective: The `WRM` objective: its network, loss, gamma and bounds are used.
        data: Batches whose first two entries are inputs and targets.
        rho: The size of the shift, in squared distance.
        gamma: The certificate's own price, if the training's is too small; every
            gamma > L / 2 gives a valid bound.
        tol: How large a sample's gap may be before its inner maximization stops.
        max_steps: A cap of the steps of one batch.
        num_probed: How many samples the smoothness is estimated from.

    Returns:
        The bound and its parts.

    Raises:
        ValueError: gamma is at most half the smoothness, so that the inner problem need not be
            concave.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> data = [(torch.randn(8, 2), torch.randint(2, (8,)))]
        >>> objective = WRM(model, nn.functional.cross_entropy, gamma=2.0)
        >>> certificate(objective, data, rho=0.1).kind
        'certified'
    """
    if not isinstance(objective, WRM):
        raise TypeError(
            f"a certificate is about a WRM objective, not {type(objective).__name__}: construct "
            "WRM(model, loss, gamma)"
        )
    check_number("rho", rho, strict=False)
    check_number("tol", tol)
    check_number("num_probed", num_probed, above=1, strict=False, whole=True)
    gamma = objective.gamma if gamma is None else gamma
    check_number("gamma", gamma)
    model = _exact_copy(objective.model)
    batches = _read(data)
    probed = list(_first(batches, num_probed))
    if not probed:
        raise ValueError("the data have no batches, so there is nothing to certify")

    loss = _exact_loss(objective._sample_loss)

    def losses(z: Tensor, targets: Any) -> Tensor:
        return sample_losses(loss(model(z), targets), len(z))

    with no_parameter_gradients([model]):
        proven = proven_smoothness(model, objective.loss_function, _are_classes(probed[0][1]))
        smoothness = (
            max(estimated_smoothness(partial(losses, targets=t), z) for z, t in probed)
            if proven is None
            else proven
        )
        if 2.0 * gamma <= smoothness:
            raise ValueError(
                f"gamma = {gamma:g} is not above half the smoothness {smoothness:g} of the loss, "
                "so the inner problem need not be concave and has no bound: pass a gamma > "
                f"{smoothness / 2.0:g} to the certificate (the training's may stay as it is)"
            )
        surrogate, gap, num_samples = 0.0, 0.0, 0
        for inputs, targets in chain(probed, batches):
            if _are_classes(targets) != _are_classes(probed[0][1]):
                raise ValueError("some targets are class numbers and some are not: use one kind")
            climb = _Climb(objective, gamma, smoothness, inputs, partial(losses, targets=targets))
            values, gaps = climb.maximize(tol, max_steps)
            surrogate += values.sum().item()
            gap += gaps.sum().item()
            num_samples += len(inputs)
    surrogate, gap, price = surrogate / num_samples, gap / num_samples, gamma * rho
    return Certificate(
        kind="estimated" if proven is None else "certified",
        value=surrogate + gap + price,
        surrogate=surrogate,
        gap=gap,
        price=price,
        gamma=gamma,
        rho=rho,
        smoothness=smoothness,
        num_samples=num_samples,
        reason=(
            f"the curvature at {sum(len(z) for z, _ in probed)} samples stands in for the "
            "smoothness, which is proven only for linear layers with smooth activations"
            if proven is None
            else "the smoothness is proven from the norms of the layers"
        ),
    )


class _Climb:
    """Gradient ascent on one batch's inner problems, with bounds of what is missing."""

    def __init__(
        self,
        objective: WRM,
        gamma: float,
        smoothness: float,
        clean: Tensor,
        losses: Callable[[Tensor], Tensor],
    ) -> None:
        self.bounds = objective.bounds
        self.gamma = gamma
        self.concavity = 2.0 * gamma - smoothness
        self.clean = clean
        self.losses = losses

    def maximize(self, tol: float, max_steps: int) -> tuple[Tensor, Tensor]:
        """The objective and the bound of the gap, for each sample where its sum was best."""
        z = self.clean.clone()
        values, gradients = self._evaluate(z)
        gaps = self._gaps(z, gradients)
        for _ in range(max_steps):
            if bool((gaps <= tol).all()):
                break
            # The curvature is between 2 gamma - L and 2 gamma + L: the best fixed step.
            z = z + gradients / (2.0 * self.gamma)
            if self.bounds is not None:
                z = self.bounds.project_(z)
            new_values, gradients = self._evaluate(z)
            new_gaps = self._gaps(z, gradients)
            better = new_values + new_gaps < values + gaps
            values = torch.where(better, new_values, values)
            gaps = torch.where(better, new_gaps, gaps)
        return values, gaps

    def _evaluate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            values = self.losses(z) - self.gamma * row_sums((z - self.clean).square())
            (gradients,) = torch.autograd.grad(values.sum(), z)
        return values.detach(), gradients

    def _gaps(self, z: Tensor, gradients: Tensor) -> Tensor:
        """The maximum over d of <g, d> - (2 gamma - L) |d|^2 / 2 with z + d in the box."""
        step = gradients / self.concavity
        if self.bounds is not None:
            step = self.bounds.project(z + step) - z
        return row_sums(gradients * step - 0.5 * self.concavity * step.square())


def _exact_copy(model: nn.Module) -> nn.Module:
    """The network in float64 and evaluation mode."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    exact = copy.deepcopy(model).double().eval()
    for name, tensor in exact.state_dict().items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"the model's {name} is not finite, so there is nothing to certify")
    for layer in exact.modules():
        if isinstance(layer, nn.Softplus):
            # Where torch goes over to the identity the slope jumps: not before rounding hides it.
            layer.threshold = max(layer.threshold, 40.0)
    return exact


def _exact_loss(loss: Loss) -> Loss:
    """The loss with its own tensors, such as weights of the classes, in float64."""
    if isinstance(loss, nn.Module):
        return copy.deepcopy(loss).double()
    if isinstance(loss, partial):
        args = [_as_exact(entry) for entry in loss.args]
        keywords = {name: _as_exact(entry) for name, entry in loss.keywords.items()}
        return partial(_exact_loss(loss.func), *args, **keywords)
    return loss


def _as_exact(entry: Any) -> Any:
    floating = isinstance(entry, Tensor) and entry.is_floating_point()
    return entry.double() if floating else entry


def _read(data: Iterable[Any]) -> Iterator[tuple[Tensor, Any]]:
    for batch in data:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise TypeError(
                "data must be batches (inputs, targets), such as a DataLoader yields, not "
                f"{type(batch).__name__}"
            )
        inputs, targets = batch[0], batch[1]
        if len(inputs):
            yield checked_inputs(inputs.double(), None), _as_exact(targets)


def _first(batches: Iterator[tuple[Tensor, Any]], num_samples: int) -> Iterator[tuple[Tensor, Any]]:
    """So many batches that they have the number of samples."""
    while num_samples > 0 and (batch := next(batches, None)) is not None:
        num_samples -= len(batch[0])
        yield batch


def _are_classes(targets: Any) -> bool:
    return isinstance(targets, Tensor) and not targets.is_floating_point()
