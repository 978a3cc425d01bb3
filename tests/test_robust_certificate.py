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

from neada.robust import WRM, certificate
from neada.robust import smoothness as of_smoothness


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


def proven_smoothness(model: nn.Module) -> float:
    found = of_smoothness.proven_smoothness(model, functional.cross_entropy, class_targets=True)
    assert found is not None
    return found


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
    smoothness = proven_smoothness(model)
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


def test_a_gamma_that_is_too_small_is_refused_and_another_suggested() -> None:
    model, data = mlp(scale=3.0), [batch()]
    objective = WRM(model, functional.cross_entropy, gamma=0.1)
    with pytest.raises(ValueError, match="gamma") as info:
        certificate(objective, data, rho=0.1)
    suggested = float(str(info.value).split("one above ")[1].split(" ")[0])
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
    with pytest.raises(ValueError, match="targets"):
        certificate(objective, [(inputs, targets), (inputs, soft)], rho=0.1)


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


def test_data_outside_the_bounds_are_refused() -> None:
    # accepted, the first had the "certified" value -3.99 with a clean loss of 6.00
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.zero_()
    objective = WRM(model, functional.cross_entropy, 2.0, bounds=(0.0, 1.0))
    inside, outside = torch.tensor([[0.5]]), torch.tensor([[3.0]])
    target = torch.tensor([0])
    with pytest.raises(ValueError, match="inputs"):
        certificate(objective, [(outside, target)], rho=0.1)
    with pytest.raises(ValueError, match="inputs"):
        certificate(objective, [(inside, target), (outside, target)], rho=0.1)
    # a rounding error is no reason: 0.1 in float32 is above 0.1
    objective = WRM(model, functional.cross_entropy, 2.0, bounds=(-0.1, 0.1))
    edge = torch.tensor([[0.1]])
    found = certificate(objective, [(edge, target)], rho=0.0, max_steps=0)
    clean = functional.cross_entropy(copy.deepcopy(model).double()(edge.double()), target).item()
    assert found.kind == "certified" and found.gap >= 0.0 and found.value >= clean


def test_the_edge_of_the_bounds_has_no_gap_beyond() -> None:
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
    objective = WRM(model, functional.cross_entropy, 2.0, bounds=(0.0, 1.0))
    data = [(torch.tensor([[1.0]]), torch.tensor([0]))]  # uphill is outside
    assert 0.0 <= certificate(objective, data, rho=0.0).gap < 1e-10
    data = [(torch.tensor([[0.0]]), torch.tensor([0]))]
    assert certificate(objective, data, rho=0.0, max_steps=0).gap > 1e-2


def test_targets_that_the_loss_leaves_out_are_refused() -> None:
    inputs, targets = batch()
    targets[:9] = -100  # their losses are 0, and torch's mean is over the other three
    with pytest.raises(ValueError, match="classes from 0, got -100"):
        certificate(WRM(mlp(), nn.CrossEntropyLoss(), 20.0), [(inputs, targets)], rho=0.1)


def test_samples_that_depend_on_each_other_are_refused() -> None:
    square = WRM(nn.Linear(4, 4), functional.mse_loss, 20.0)
    with pytest.raises(ValueError, match="inputs"):
        certificate(square, [(torch.randn(4), torch.randn(4))], rho=0.1)


def test_the_mode_of_the_caller_does_not_matter() -> None:
    objective = WRM(mlp(), functional.cross_entropy, 20.0)
    expected = certificate(objective, [batch()], rho=0.1)
    with torch.inference_mode():
        data = [batch()]
        assert certificate(objective, data, rho=0.1) == expected
    with torch.no_grad():
        assert certificate(objective, data, rho=0.1) == expected


def test_what_is_not_finite_is_not_certified() -> None:
    inputs, targets = batch()
    objective = WRM(mlp(), functional.cross_entropy, 20.0)
    broken = inputs.clone()
    broken[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        certificate(objective, [(broken, targets)], rho=0.1)
    linear = WRM(nn.Linear(2, 2), functional.mse_loss, 20.0)
    with pytest.raises(ValueError, match="bound"):
        certificate(linear, [(inputs, torch.full((12, 2), torch.nan))], rho=0.1)
    with torch.no_grad():
        next(objective.model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="nothing"):
        certificate(objective, [(inputs, targets)], rho=0.1)
