"""Certificates: a bound of the loss under every shift of the data's distribution."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neada import parallel
from neada.checks import check_number
from neada.robust.losses import Loss, checked_inputs, sample_losses, unreduced
from neada.robust.smoothness import estimated_smoothness, is_unaltered, proven_smoothness
from neada.robust.wrm import WRM
from neada.sets import Box
from neada.tensors import is_whole, row_sums

__all__ = ["Certificate", "certificate"]

_NUM_PROBED = 256
"""How many samples, at least, the smoothness is estimated from."""


@dataclass(frozen=True)
class Certificate:
    r"""A bound of the mean loss under every shift of the data within a Wasserstein distance.

    Attributes:
        kind: "certified" if the smoothness is proven, up to floating-point rounding; "estimated"
            otherwise: the value is then no guarantee.
        value: The bound, ``surrogate + gap + price``.
        surrogate: The mean of :math:`\ell(z_i) - \gamma\|z_i - v_i\|^2` at the points found.
        gap: A bound of the mean by which those points miss the inner maximum; never negative.
        price: ``gamma * rho``.
        gamma: The price of a unit of squared distance.
        rho: The size of the shift: the mean squared distance that the inputs may be moved.
        smoothness: The smoothness of the loss in the input that was used.
        num_samples: The number of samples.
        reason: Why it is of this kind.
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


@torch.inference_mode(False)
def certificate(
    objective: WRM,
    data: Iterable[Any],
    *,
    rho: float,
    gamma: float | None = None,
    tol: float = 1e-4,
    max_steps: int = 200,
) -> Certificate:
    r"""Bound the loss of a network under every shift of the data.

    .. math::
        \sup_{W(Q, P) \le \rho} \mathbb{E}_Q\,\ell
        \ \le\ \gamma\rho + \frac1n \sum_i \max_z\ \ell(z) - \gamma\|z - v_i\|^2
        \ \le\ \gamma\rho + \frac1n \sum_i \Bigl(\phi_i + \frac{\|g_i\|^2}{2(2\gamma - L)}\Bigr)

    where :math:`P` is the empirical distribution of the data (there is no statement about other
    data), :math:`W` the squared-distance transport cost, :math:`\phi_i` and :math:`g_i`
    the inner objective and its gradient at the points found, and :math:`L` the smoothness of the
    loss in the input. With bounds only shifts within them are meant, and the gap is the maximum
    within them of the same quadratic bound.

    The bound holds up to floating-point rounding. The network is evaluated in evaluation mode, as a
    copy in float64. The smoothness is proven for an `nn.Sequential` of linear layers
    and smooth activations (ELU, CELU, softplus, GELU, SiLU, tanh, sigmoid) with cross-entropy of
    class numbers, or with the squared error if the network is linear. For other networks
    (convolutions, pooling, batch norm, a custom `forward`, hooks, replaced methods, half
    precision) it is estimated from the curvature at some of the data, and so is the result.

    Args:
        objective: The `WRM` objective: its network, loss, gamma and bounds are used.
        data: Batches whose first two entries are inputs and targets.
        rho: The size of the shift, in squared distance.
        gamma: The certificate's own price, if the training's is too small; every
            gamma > L / 2 gives a valid bound.
        tol: How large a sample's gap may be before its inner maximization stops.
        max_steps: A cap of the steps of one batch.

    Returns:
        The bound and its parts.

    Raises:
        ValueError: gamma is at most half the smoothness, so that the inner problem need not be
            concave; or inputs are outside the bounds, targets are negative classes (which the loss
            may ignore), or a number is NaN or Inf.

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
    gamma = objective.gamma if gamma is None else gamma
    check_number("rho", rho, strict=False)
    check_number("gamma", gamma)
    check_number("tol", tol)
    check_number("max_steps", max_steps, strict=False, whole=True)
    model = parallel.unwrapped(objective.model)
    losses = _exact_losses(model, objective.loss_function)
    batches = _read(data, objective.bounds)
    probed = _first(batches, _NUM_PROBED)
    if not probed:
        raise ValueError("the data have no batches, so there is nothing to certify")
    of_classes = _are_classes(probed[0][1])
    smoothness = proven_smoothness(model, objective.loss_function, of_classes)
    kind: Literal["certified", "estimated"] = "certified"
    reason = "the smoothness is proven from the norms of the layers"
    if smoothness is None:
        smoothness = max(estimated_smoothness(partial(losses, targets=t), z) for z, t in probed)
        kind = "estimated"
        reason = (
            f"the smoothness is estimated from the curvature at {sum(len(z) for z, _ in probed)} "
            "samples; it is proven only for an unaltered nn.Sequential of linear layers and smooth "
            "activations"
        )
    if not 2.0 * gamma > smoothness:
        raise ValueError(
            f"gamma={gamma:g} is not above half the smoothness {smoothness:g} of the loss, "
            "so the inner problem need not be concave and has no bound: give the certificate "
            f"one above {smoothness / 2.0:g} (the training's may stay as it is)"
        )
    surrogate, gap, num_samples = 0.0, 0.0, 0
    for inputs, targets in chain(probed, batches):
        if _are_classes(targets) != of_classes:
            raise ValueError("some targets are class numbers and some are not: use one kind")
        if of_classes and bool((targets < 0).any()):
            raise ValueError(
                f"targets must be classes from 0, got {targets.min()}: leave out the samples that "
                "the loss ignores"
            )
        inner = _InnerProblem(partial(losses, targets=targets), inputs, objective.bounds, gamma)
        values, gaps = inner.bounds(2.0 * gamma - smoothness, tol, max_steps)
        surrogate += values.sum().item()
        gap += gaps.sum().item()
        num_samples += len(inputs)
    surrogate, gap, price = surrogate / num_samples, gap / num_samples, gamma * rho
    return Certificate(
        kind=kind,
        value=surrogate + gap + price,
        surrogate=surrogate,
        gap=gap,
        price=price,
        gamma=gamma,
        rho=rho,
        smoothness=smoothness,
        num_samples=num_samples,
        reason=reason,
    )


class _InnerProblem:
    """The inner problems of a batch: the losses minus the price, in the box."""

    def __init__(
        self, losses: Callable[[Tensor], Tensor], clean: Tensor, box: Box | None, gamma: float
    ) -> None:
        self.losses, self.clean, self.gamma = losses, clean, gamma
        self.lower = torch.full_like(clean, -math.inf)
        self.upper = torch.full_like(clean, math.inf)
        if box is not None:
            # Data may leave the bounds by a rounding error; then they are the bounds.
            self.lower = torch.minimum(box.project(self.lower), clean)
            self.upper = torch.maximum(box.project(self.upper), clean)

    def bounds(self, concavity: float, tol: float, max_steps: int) -> tuple[Tensor, Tensor]:
        """The value found and a bound of what it misses, for each sample where the sum was best."""
        z = self.clean
        values, gaps, gradients = self._evaluate(z, concavity)
        for _ in range(max_steps):
            if bool((gaps <= tol).all()):
                break
            # The curvature is between 2 gamma - L and 2 gamma + L: the best fixed step.
            z = (z + gradients / (2.0 * self.gamma)).clamp(self.lower, self.upper)
            new_values, new_gaps, gradients = self._evaluate(z, concavity)
            better = new_values + new_gaps < values + gaps
            values = torch.where(better, new_values, values)
            gaps = torch.where(better, new_gaps, gaps)
        if not bool((values + gaps).isfinite().all()):
            raise ValueError(
                "the bound of a sample is NaN or Inf: check the model and the targets, or use a "
                "gamma further above half the smoothness"
            )
        return values, gaps

    def _evaluate(self, z: Tensor, concavity: float) -> tuple[Tensor, Tensor, Tensor]:
        """The values, the bounds of what they miss, and the gradients.

        A bound is the maximum over d of <g, d> - concavity |d|^2 / 2 with z + d in the box.
        """
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            values = self.losses(z) - self.gamma * row_sums((z - self.clean).square())
            (gradients,) = torch.autograd.grad(values.sum(), z)
        z = z.detach()
        step = (gradients / concavity).clamp(self.lower - z, self.upper - z)
        gaps = row_sums(step * (gradients - 0.5 * concavity * step))
        return values.detach(), gaps, gradients


def _exact_losses(model: nn.Module, loss: Loss) -> Callable[..., Tensor]:
    """The losses of samples in evaluation mode, in float64 as far as the network allows it."""
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
            raise ValueError(f"the model's {name} has NaN or Inf: there is nothing to certify")
    model = copy.deepcopy(model).eval().requires_grad_(False)
    dtype = torch.float64
    if all(is_unaltered(part) for part in model.modules()):
        model = model.double()
    else:  # hooks and replaced methods may compute with tensors of the network's own precision
        dtype = next((p.dtype for p in model.parameters()), dtype)
    sample_loss = unreduced(loss)
    if isinstance(sample_loss, nn.Module):
        sample_loss = copy.deepcopy(sample_loss).double().requires_grad_(False)
    elif isinstance(sample_loss, partial):  # with weights of the classes, for example
        keywords = {name: _as_exact(entry) for name, entry in sample_loss.keywords.items()}
        sample_loss = partial(sample_loss.func, *map(_as_exact, sample_loss.args), **keywords)

    def losses(z: Tensor, targets: Any) -> Tensor:
        return sample_losses(sample_loss(model(z.to(dtype)).double(), targets), len(z))

    return losses


def _as_exact(entry: Any) -> Any:
    if not isinstance(entry, Tensor):
        return entry
    dtype = torch.float64 if entry.is_floating_point() else entry.dtype
    return entry.detach().to(dtype, copy=True)  # a copy of an inference tensor is a usual one


def _read(data: Iterable[Any], bounds: Box | None) -> Iterator[tuple[Tensor, Any]]:
    for batch in data:
        inputs, targets, *_ = batch
        if isinstance(inputs, Tensor) and is_whole(inputs):
            inputs = inputs.double()
        clean = checked_inputs(inputs, bounds)
        if clean.dim() < 2:
            raise ValueError(
                f"inputs of shape {tuple(clean.shape)} have no features beside the samples: pass "
                "inputs[:, None]"
            )
        yield clean.to(torch.float64, copy=True), _as_exact(targets)


def _first(batches: Iterator[tuple[Tensor, Any]], num_samples: int) -> list[tuple[Tensor, Any]]:
    """As many batches as are needed for the number of samples."""
    found = []
    while num_samples > 0 and (batch := next(batches, None)) is not None:
        num_samples -= len(batch[0])
        found.append(batch)
    return found


def _are_classes(targets: Any) -> bool:
    return isinstance(targets, Tensor) and not targets.is_floating_point()
