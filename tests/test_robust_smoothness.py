"""The smoothness of losses: above every Hessian, and no proof where something was altered."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from neada.robust.smoothness import proven_smoothness, read_layers
from test_robust_certificate import mlp

ACTIVATIONS: list[nn.Module] = [
    nn.ELU(),
    nn.CELU(0.5),
    nn.CELU(2.0),
    nn.Softplus(),
    nn.Softplus(beta=3.0, threshold=50.0),
    nn.GELU(),
    nn.SiLU(),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.LogSigmoid(),
]


def scaled(model: nn.Module, scale: float) -> nn.Module:
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p *= scale
    return model


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=str)
def test_the_bounds_of_activations_hold_and_are_tight(layer: nn.Module) -> None:
    u = torch.linspace(-12.0, 12.0, 48_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(u).sum(), u, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), u)
    (bounds,) = read_layers(layer) or []
    for found, bound in ((slope, bounds.first), (curvature, bounds.second)):
        largest = found.abs().max().item()
        assert 0.99 * bound <= largest <= bound * (1.0 + 1e-12)
    # and between the points: the slope itself changes no faster than the bound says
    changes = (slope.detach().diff() / u.detach().diff()).abs().max().item()
    assert changes <= bounds.second * (1.0 + 1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_the_smoothness_is_above_every_hessian(
    activation: nn.Module, label_smoothing: float
) -> None:
    loss = partial(functional.cross_entropy, label_smoothing=label_smoothing)
    for scale in (0.5, 2.0):
        model = mlp(activation, scale).double()
        bound = proven_smoothness(model, loss, class_targets=True)
        assert bound is not None
        norms = []
        points = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for i, z in enumerate(points * 3.0):
            target = torch.tensor([i % 3])

            def value(z: Tensor, target: Tensor = target, model: Any = model) -> Tensor:
                return loss(model(z[None]), target)

            hessian = torch.autograd.functional.hessian(value, z)
            norms.append(torch.linalg.matrix_norm(hessian, ord=2).item())
        assert max(norms) <= bound
        assert bound < 1e4 * max(norms)


def test_the_smoothness_of_a_linear_model_by_hand() -> None:
    model = nn.Linear(6, 4).double()
    norm = np.linalg.svd(model.weight.detach().numpy(), compute_uv=False)[0]
    bound = proven_smoothness(model, functional.cross_entropy, class_targets=True)
    assert math.isclose(bound or 0.0, norm**2 / 2.0, rel_tol=1e-9)
    bound = proven_smoothness(model, nn.MSELoss(), class_targets=False)
    assert math.isclose(bound or 0.0, 2.0 * norm**2, rel_tol=1e-9)


class Traced(nn.Module):
    """A forward that computes something else with a tensor than a trace of it says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(10.0 * inputs if isinstance(inputs, Tensor) else inputs)
        return outputs


class Doubling(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * super().forward(inputs)


class DoublingSequential(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = 2.0 * super().forward(inputs)
        return outputs


def hooked(kind: str, part: int | None = 0) -> nn.Module:
    model = mlp()
    layer = model if part is None else model[part]
    hooks: dict[str, Any] = {
        "forward_pre": lambda module, args: (100.0 * args[0],),
        "forward": lambda module, args, output: 100.0 * output,
        "full_backward_pre": lambda module, grads: (0.0 * grads[0],),
        "full_backward": lambda module, grads, outputs: (0.0 * grads[0],),
    }
    getattr(layer, f"register_{kind}_hook")(hooks[kind])
    return model


def replaced(name: str, part: int | None = 0) -> nn.Module:
    model = mlp()
    layer = model if part is None else model[part]
    own = getattr(layer, name)
    setattr(layer, name, lambda inputs: 100.0 * own(inputs))
    return model


def spectral() -> nn.Module:
    model = mlp()
    nn.utils.spectral_norm(model[0])
    return model


def pruned() -> nn.Module:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 2)
    return model


ALTERED: dict[str, Any] = {
    "a hook of a layer": lambda: hooked("forward"),
    "a hook of the network": lambda: hooked("forward", None),
    "a hook of an activation": lambda: hooked("forward_pre", 1),
    "a hook of the gradient": lambda: hooked("full_backward"),
    "a hook before the gradient": lambda: hooked("full_backward_pre", 2),
    "a forward of a layer": lambda: replaced("forward"),
    "a forward of an activation": lambda: replaced("forward", 1),
    "a forward of the network": lambda: replaced("forward", None),
    "a call of a layer": lambda: replaced("_call_impl"),
    "a forward of one's own": Traced,
}


def parametrized() -> nn.Module:
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


@pytest.mark.parametrize(
    "make",
    [
        *ALTERED.values(),
        parametrized,
        spectral,
        pruned,
        lambda: nn.Sequential(Doubling(2, 3)),
        lambda: DoublingSequential(nn.Linear(2, 3)),
        lambda: nn.Sequential(nn.LazyLinear(3)),
        lambda: mlp().bfloat16(),
        lambda: mlp().half(),
        lambda: nn.Sequential(nn.Linear(2, 3).double(), nn.Linear(3, 3)),
        lambda: mlp(nn.ReLU()),
        lambda: mlp(nn.Hardswish()),
        lambda: mlp(nn.ELU(alpha=2.0)),
        lambda: mlp(nn.CELU(alpha=-1.0)),
        lambda: mlp(nn.GELU("tanh")),
        lambda: mlp(nn.Softplus(threshold=0)),
        lambda: mlp(nn.Softplus(threshold=19.0)),
        lambda: mlp(nn.Softplus(threshold=1000.0)),  # overflows before
        lambda: mlp(nn.Softplus(beta=-1.0)),
        lambda: scaled(mlp(), 1e200),
        lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 2, 2), nn.Flatten()),
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)),
    ],
)
def test_what_has_no_proof_is_not_proven(make: Any) -> None:
    model = make().eval()
    assert proven_smoothness(model, functional.cross_entropy, class_targets=True) is None


def test_global_hooks_and_autocast_are_seen() -> None:
    def proven() -> bool:
        return proven_smoothness(mlp(), nn.CrossEntropyLoss(), class_targets=True) is not None

    hook = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    assert not proven()
    hook.remove()
    with torch.autocast("cpu"):
        assert not proven()
    assert proven()


def test_losses_without_a_proof_are_not_proven() -> None:
    def proven(loss: Any, class_targets: bool = True) -> bool:
        return proven_smoothness(mlp(), loss, class_targets) is not None

    weight = torch.ones(3)
    assert proven(nn.CrossEntropyLoss())
    assert not proven(functional.cross_entropy, class_targets=False)  # no distributions, perhaps
    assert not proven(nn.CrossEntropyLoss(weight))
    assert not proven(partial(functional.cross_entropy, weight=weight))
    assert not proven(lambda outputs, targets: functional.cross_entropy(outputs, targets))
    assert not proven(nn.MSELoss())  # only of linear models: its slope has no bound
    assert not proven(nn.CrossEntropyLoss(ignore_index=0))
    assert not proven(partial(functional.cross_entropy, ignore_index=0))
    loss = nn.CrossEntropyLoss()
    loss.forward = lambda outputs, targets: 2.0 * functional.cross_entropy(outputs, targets)  # type: ignore[method-assign]
    assert not proven(loss)
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(lambda module, args, output: 2.0 * output)
    assert not proven(loss)
