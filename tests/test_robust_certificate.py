"""The certificate: bounds that hold against brute force, and that say when they are none."""

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.robust import WRM, AdversarialTraining, certificate
from neada.robust.certificate import _FUNCTIONS, _layer_bounds, proven_smoothness

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


def mlp(activation: nn.Module | None = None, scale: float = 1.0, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    act = activation or nn.ELU()
    model = nn.Sequential(nn.Linear(2, 5), act, nn.Linear(5, 4), act, nn.Linear(4, 3))
    with torch.no_grad():
        for p in model.parameters():
            p *= scale
    return model


def batch(num: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(num, 2, generator=generator), torch.randint(3, (num,), generator=generator)


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=str)
def test_the_bounds_of_activations_hold_and_are_tight(layer: nn.Module) -> None:
    u = torch.linspace(-12.0, 12.0, 48_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(u).sum(), u, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), u)
    bounds = _layer_bounds(layer)
    assert bounds is not None
    for found, bound in ((slope, bounds.first), (curvature, bounds.second)):
        largest = found.abs().max().item()
        assert 0.99 * bound <= largest <= bound * (1.0 + 1e-12)
    # and between the points: the slope itself changes no faster than the bound says
    changes = (slope.detach().diff() / u.detach().diff()).abs().max().item()
    assert changes <= bounds.second * (1.0 + 1e-6)


def test_functions_have_the_bounds_of_their_layers() -> None:
    layers = {"elu": nn.ELU(), "silu": nn.SiLU(), "gelu": nn.GELU(), "tanh": nn.Tanh()}
    for function, bounds in _FUNCTIONS.items():
        name = getattr(function, "__name__", "")
        assert bounds == _layer_bounds(layers.get(name, nn.Sigmoid()))


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


class Chain(nn.Module):
    """A class of one's own whose forward is a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(functional.elu(self.first(torch.flatten(inputs, 1))))


class Steeper(Chain):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(functional.elu(self.first(inputs), alpha=2.0))


class Residual(Chain):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.elu(self.first(inputs))
        return self.second(hidden + torch.tanh(hidden))


class Branching(Chain):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


class Doubling(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * super().forward(inputs)


def hooked() -> nn.Module:
    model = mlp()
    model[0].register_forward_hook(lambda module, args, output: 100.0 * output)
    return model


def parametrized() -> nn.Module:
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


@pytest.mark.parametrize(
    "model",
    [
        Steeper(),
        Residual(),
        Branching(),
        hooked(),
        parametrized(),
        nn.Sequential(Doubling(2, 3)),
        mlp(nn.ReLU()),
        mlp(nn.ELU(alpha=2.0)),
        mlp(nn.GELU("tanh")),
        nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 2, 2), nn.Flatten()),
        nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)),
    ],
)
def test_what_has_no_proof_is_not_proven(model: nn.Module) -> None:
    assert proven_smoothness(model.eval(), functional.cross_entropy, class_targets=True) is None


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
    assert proven_smoothness(Chain(), functional.cross_entropy, class_targets=True) is not None


def brute_force(model: nn.Module, gamma: float, v: Tensor, target: Tensor, box: Any) -> float:
    """The inner maximum of one sample over a fine grid, refined around its best points."""
    center, width, best = v.double(), 6.0, -math.inf
    exact = in_double(model)
    for _ in range(6):
        steps = torch.linspace(-width, width, 61, dtype=torch.float64)
        grid = center + torch.cartesian_prod(steps, steps)
        if box is not None:
            grid = grid.clamp(*box)
        losses = functional.cross_entropy(exact(grid), target.expand(len(grid)), reduction="none")
        values = losses - gamma * (grid - v.double()).square().sum(1)
        best, center, width = max(best, values.max().item()), grid[values.argmax()], width / 12.0
    return best


def in_double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double().eval()


@pytest.mark.parametrize("box", [None, (-3.0, 3.0)])
@pytest.mark.parametrize("tol", [1e-8, 1.0])
@pytest.mark.parametrize("activation", [nn.ELU(), nn.Softplus(), nn.Tanh()], ids=str)
@torch.no_grad()
def test_the_certified_bound_is_above_the_brute_force_maximum(
    activation: nn.Module, tol: float, box: Any
) -> None:
    model, (inputs, targets) = mlp(activation, 1.5), batch()
    smoothness = proven_smoothness(model, functional.cross_entropy, class_targets=True)
    assert smoothness is not None
    gamma = 0.6 * smoothness
    objective = WRM(model, functional.cross_entropy, gamma, bounds=box)
    loader = list(zip(inputs.split(5), targets.split(5), strict=True))
    found = certificate(objective, loader, rho=0.2, tol=tol)
    maxima = [
        brute_force(model, gamma, v, t, box) for v, t in zip(inputs, targets[:, None], strict=True)
    ]
    exact = np.mean(maxima) + gamma * 0.2
    assert found.kind == "certified"
    assert found.value >= exact
    assert found.value <= exact + tol + 1e-6
    assert found.surrogate <= np.mean(maxima) + 1e-9
    assert math.isclose(found.value, found.surrogate + found.gap + found.price, rel_tol=1e-12)
    assert (found.num_samples, found.gamma, found.rho) == (12, gamma, 0.2)
    assert math.isclose(found.smoothness, smoothness, rel_tol=1e-6)


def test_no_shift_of_the_data_within_rho_is_worse() -> None:
    model, (inputs, targets) = mlp(scale=1.5), batch()
    smoothness = proven_smoothness(model, functional.cross_entropy, class_targets=True) or 0.0
    objective = WRM(model, functional.cross_entropy, gamma=0.51 * smoothness)
    found = certificate(objective, [(inputs, targets)], rho=0.3)
    worst = 0.0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        shift = torch.randn(12, 2, generator=generator) * torch.rand(12, 1, generator=generator)
        shift *= math.sqrt(0.3 / shift.square().sum(1).mean().item())
        with torch.no_grad():
            worst = max(worst, functional.cross_entropy(model(inputs + shift), targets).item())
    assert worst <= found.value


def test_a_gamma_that_is_too_small_is_refused_and_another_suggested() -> None:
    model, data = mlp(scale=3.0), [batch()]
    objective = WRM(model, functional.cross_entropy, gamma=0.1)
    with pytest.raises(
        ValueError, match=r"gamma = 0.1 is not above half .* pass a gamma > "
    ) as info:
        certificate(objective, data, rho=0.1)
    suggested = float(str(info.value).split("gamma > ")[1].split(" ")[0])
    assert certificate(objective, data, rho=0.1, gamma=1.01 * suggested).kind == "certified"


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 3, 3), nn.ELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)],
        [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ELU(), nn.Flatten(), nn.Linear(48, 2)],
        [nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2)],
    ],
)
def test_other_networks_are_estimated(layers: list[nn.Module]) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(*layers), torch.randn(9, 1, 6, 6)
    targets = torch.randint(2, (9,))
    modes = [m.training for m in model.modules()]
    state = {name: entry.clone() for name, entry in model.state_dict().items()}
    found = certificate(WRM(model, functional.cross_entropy, 3.0), [(inputs, targets)], rho=0.1)
    assert found.kind == "estimated"
    assert "9 samples" in found.reason
    assert found.surrogate + found.gap >= functional.cross_entropy(model.eval()(inputs), targets)
    model.train()
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(entry, state[name]) for name, entry in model.state_dict().items())
    # the estimate is the largest eigenvalue at the data, here by whole Hessians
    exact = in_double(model)
    norms = []
    for z, target in zip(inputs.double(), targets, strict=True):

        def value(z: Tensor, target: Tensor = target) -> Tensor:
            return functional.cross_entropy(exact(z.reshape(1, 1, 6, 6)), target[None])

        hessian = torch.autograd.functional.hessian(value, z.flatten())
        norms.append(torch.linalg.matrix_norm(hessian, ord=2).item())
    assert 0.9 * max(norms) <= found.smoothness <= max(norms) * (1.0 + 1e-9)


def test_probability_targets_are_estimated() -> None:
    inputs, targets = batch()
    soft = functional.one_hot(targets, 3).float()
    objective = WRM(mlp(), functional.cross_entropy, 20.0)
    assert certificate(objective, [(inputs, soft)], rho=0.1).kind == "estimated"
    with pytest.raises(ValueError, match="some targets are class numbers and some are not"):
        certificate(objective, [(inputs, targets), (inputs, soft)], rho=0.1, num_probed=1)


@pytest.mark.parametrize("as_module", [True, False])
def test_a_loss_with_weights_of_the_classes_is_estimated(as_module: bool) -> None:
    weight = torch.tensor([1.0, 2.0, 0.5])
    loss: Any = (
        nn.CrossEntropyLoss(weight=weight)
        if as_module
        else partial(functional.cross_entropy, weight=weight)
    )
    assert certificate(WRM(mlp(), loss, 20.0), [batch()], rho=0.1).kind == "estimated"
    assert weight.dtype == torch.float32


def test_what_is_not_finite_is_not_certified() -> None:
    inputs, targets = batch()
    objective = WRM(mlp(), functional.cross_entropy, 20.0)
    broken = inputs.clone()
    broken[0, 0] = torch.nan
    with pytest.raises(ValueError, match="1 NaN or infinite entries"):
        certificate(objective, [(broken, targets)], rho=0.1)
    with torch.no_grad():
        next(objective.model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="is not finite, so there is nothing to certify"):
        certificate(objective, [(inputs, targets)], rho=0.1)


def test_misuse() -> None:
    model, data = mlp(), [batch()]
    objective = WRM(model, functional.cross_entropy, 20.0)
    ball: Any = AdversarialTraining(model, functional.cross_entropy, 0.1)
    with pytest.raises(TypeError, match="about a WRM objective, not AdversarialTraining"):
        certificate(ball, data, rho=0.1)
    with pytest.raises(ValueError, match="rho must be a number at least 0"):
        certificate(objective, data, rho=-1.0)
    with pytest.raises(ValueError, match="no batches"):
        certificate(objective, [], rho=0.1)
    with pytest.raises(TypeError, match="data must be batches"):
        certificate(objective, [torch.zeros(3, 2)], rho=0.1)
