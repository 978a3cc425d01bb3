"""Certificates of random networks under attack: nothing attained may be above a certified value.

The attacks share no code with the library: plain projected gradient ascent from 40 starts, on the
network that torch itself evaluates in float64.
"""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.robust import WRM, certificate

NUM_STARTS = 40

SMOOTH: list[Callable[[], nn.Module]] = [
    nn.ELU,
    lambda: nn.ELU(inplace=True),
    lambda: nn.CELU(0.3),
    lambda: nn.CELU(5.0),
    nn.Softplus,
    lambda: nn.Softplus(beta=4.0),
    lambda: nn.Softplus(beta=0.2, threshold=30.0),
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    lambda: nn.Sequential(nn.Tanh(), nn.Identity(), nn.Dropout(0.9)),
]
WITHOUT_PROOF: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    nn.Hardswish,
    lambda: nn.ELU(alpha=0.5),
    lambda: nn.GELU("tanh"),
    lambda: nn.Softplus(threshold=0),
    lambda: nn.Softplus(threshold=1.0),
]


@dataclass
class Case:
    """A network with its loss, data and options, and whether there is a proof for it."""

    model: nn.Module
    loss: Any
    inputs: Tensor
    targets: Tensor
    bounds: tuple[float, float] | None
    has_proof: bool

    def __post_init__(self) -> None:
        self.exact = copy.deepcopy(self.model).double().eval().requires_grad_(False)

    def losses(self, points: Tensor, targets: Tensor) -> Tensor:
        """In float64, as torch computes them; one per row."""
        outputs = self.exact(points)
        if self.loss is functional.mse_loss:
            return functional.mse_loss(outputs, targets, reduction="none").mean(1)
        smoothing = self.loss.keywords["label_smoothing"]
        return functional.cross_entropy(
            outputs, targets, reduction="none", label_smoothing=smoothing
        )


def random_case(seed: int) -> Case:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    dim, num_classes, num = choose.randint(1, 4), choose.randint(2, 4), choose.randint(1, 6)
    squared = choose.random() < 0.15
    is_tight = choose.random() < 0.2  # the bound of the smoothness is attained
    num_classes = (1 if squared else 2) if is_tight else num_classes
    depth = 1 if is_tight else choose.randint(1, 2) if squared else choose.randint(1, 3)
    has_proof = squared or is_tight or choose.random() < 0.85
    activation = choose.choice(SMOOTH if has_proof else WITHOUT_PROOF)()  # the same one each time
    layers: list[nn.Module] = [nn.Flatten()]
    width = dim
    for i in range(depth):
        out = num_classes if i == depth - 1 else choose.randint(1, 6)
        layers.append(nn.Linear(width, out, bias=choose.random() < 0.8))
        layers.append(nn.Dropout(0.5) if squared or is_tight else activation)
        width = out
    keeps_last = not has_proof or choose.random() < 0.2  # an activation at the end
    model = nn.Sequential(*layers) if keeps_last else nn.Sequential(*layers[:-1])
    scale = choose.choice([0.0, 1e-3, 0.5, 1.0, 2.0, 2.0, 4.0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale
            if is_tight and not squared:
                parameter[1] = -parameter[0]
    if choose.random() < 0.3:
        model = model.double()
    inputs, bounds = random_inputs(choose, (num, 1, dim))
    targets = torch.randn(num, num_classes) if squared else torch.randint(num_classes, (num,))
    smoothing = choose.choice([0.0, 0.0, 0.2])
    smoothed = partial(functional.cross_entropy, label_smoothing=smoothing)
    loss = functional.mse_loss if squared else smoothed
    return Case(model, loss, inputs, targets, bounds, has_proof)


def random_inputs(
    choose: random.Random, shape: tuple[int, ...]
) -> tuple[Tensor, tuple[float, float] | None]:
    inputs = torch.randn(shape)
    kind = choose.choice(["usual", "usual", "constant", "twice", "huge", "tiny", "far"])
    if kind == "constant":
        inputs = torch.full(shape, choose.choice([0.0, 0.1, -3.0]))
    elif kind == "twice":
        inputs = inputs[:1].expand(shape).clone()
    elif kind == "huge":
        inputs = 1e6 * inputs
    elif kind == "tiny":
        inputs = 1e-30 * inputs
    elif kind == "far":
        inputs = inputs + 1e4
    where = choose.choice(["nowhere", "nowhere", "around", "at the edge", "at a point"])
    low, high = inputs.min().item(), inputs.max().item()
    bounds = {
        "nowhere": None,
        "around": (low - 0.3, high + 0.3),
        "at the edge": (low, high),
        "at a point": (low, high + 1e-9),
    }[where]
    return inputs, bounds


def ascend(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    project: Callable[[Tensor], Tensor],
    steps: Tensor,
    num_steps: int,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    """The best points and values of each row, over all steps."""
    z = project(start)
    best = torch.full((len(z),), -math.inf, dtype=torch.float64)
    best_z = z.clone()
    for _ in range(num_steps + 1):
        z = z.detach().requires_grad_()
        values = objective(z)
        (gradient,) = torch.autograd.grad(values.sum(), z)
        better = values.detach() > best
        best = torch.where(better, values.detach(), best)
        best_z[better] = z.detach()[better]
        if normalized:
            norms = gradient.flatten(1).norm(dim=1).clamp_min(1e-300)
            gradient = gradient / norms.reshape(-1, *[1] * (z.dim() - 1))
        z = project(z.detach() + steps.reshape(-1, *[1] * (z.dim() - 1)) * gradient)
    return best_z, best


def starts(clean: Tensor, radius: float) -> Tensor:
    """40 copies: the clean points, and random ones near and far."""
    noise = torch.randn(NUM_STARTS, *clean.shape, dtype=torch.float64)
    sizes = radius * torch.logspace(-3, 1, NUM_STARTS, dtype=torch.float64)
    sizes[0] = 0.0
    return clean + noise * sizes.reshape(-1, *[1] * clean.dim())


def attack_samples(case: Case, gamma: float, smoothness: float) -> tuple[Tensor, Tensor]:
    """The best points found for every sample at a price, and their values."""
    clean = case.inputs.double()
    low, high = case.bounds or (-math.inf, math.inf)
    anchors = clean.repeat(NUM_STARTS, *[1] * (clean.dim() - 1))
    targets = case.targets.repeat(NUM_STARTS, *[1] * (case.targets.dim() - 1))
    floor = torch.minimum(anchors, torch.full_like(anchors, low))  # data in float32 may be outside
    ceiling = torch.maximum(anchors, torch.full_like(anchors, high))

    def priced(z: Tensor) -> Tensor:
        return case.losses(z, targets) - gamma * (z - anchors).square().flatten(1).sum(1)

    radius = 1.0 / math.sqrt(gamma)
    steps = torch.full((len(anchors),), 1.0 / (2.0 * gamma + smoothness), dtype=torch.float64)
    first = starts(clean, radius).reshape(anchors.shape)
    points, values = ascend(priced, first, lambda z: z.clamp(floor, ceiling), steps, 80, False)
    rows = values.reshape(NUM_STARTS, len(clean)).argmax(0) * len(clean) + torch.arange(len(clean))
    return points[rows], values[rows]


def attack_jointly(case: Case, rho: float) -> float:
    """The largest mean loss found with a mean squared distance of at most rho."""
    clean = case.inputs.double()
    low, high = case.bounds or (-math.inf, math.inf)
    floor = torch.minimum(clean, torch.full_like(clean, low))
    ceiling = torch.maximum(clean, torch.full_like(clean, high))
    num = len(clean)
    budget = math.sqrt(num * rho) * (1.0 - 1e-12)
    targets = case.targets.repeat(NUM_STARTS, *[1] * (case.targets.dim() - 1))

    def project(z: Tensor) -> Tensor:
        shift = z.clamp(floor, ceiling) - clean
        norms = shift.flatten(1).norm(dim=1).clamp_min(1e-300)
        shift = shift * (budget / norms).clamp_max(1.0).reshape(-1, *[1] * clean.dim())
        return clean + shift

    def mean_loss(z: Tensor) -> Tensor:
        return case.losses(z.flatten(0, 1), targets).reshape(NUM_STARTS, num).mean(1)

    steps = budget * torch.logspace(-2, 0, NUM_STARTS, dtype=torch.float64)
    first = starts(clean, budget / math.sqrt(clean[0].numel()))
    points, values = ascend(mean_loss, first, project, steps, 60, True)
    # rounding of huge data may have spent more
    spent = (points - clean).square().flatten(1).sum(1) / num
    return values[spent <= rho].max().item() if bool((spent <= rho).any()) else -math.inf


def above(bound: float, value: float) -> bool:
    """A bound of float64 numbers holds up to rounding."""
    return bound >= value - 1e-12 * (1.0 + abs(value))


def withstands(case: Case, seed: int) -> bool:
    """Certify a case and attack it; False if there was nothing certified to attack."""
    choose = random.Random(seed)
    data = [(case.inputs, case.targets)]
    very_large = WRM(case.model, case.loss, 1e12, bounds=case.bounds)
    found = certificate(very_large, data, rho=0.0)
    assert (found.kind == "certified") == case.has_proof
    if not case.has_proof:
        return False
    clean = case.losses(case.inputs.double(), case.targets).mean().item()
    assert above(found.value, clean)
    smoothness = max(found.smoothness, 1e-6)
    gamma = 0.5 * smoothness * choose.choice([1.0 + 1e-6, 1.01, 1.5, 10.0])
    gamma = max(gamma, 0.51 * found.smoothness) if smoothness == 1e-6 else gamma
    points, values = attack_samples(case, gamma, smoothness)
    # At this rho the points attain what the dual bound says, up to the gap.
    spent = (points - case.inputs.double()).square().flatten(1).sum(1).mean().item()
    rho = choose.choice([spent, spent, 0.1, 0.0])
    objective = WRM(case.model, case.loss, gamma, bounds=case.bounds)
    tol, max_steps = choose.choice([(1e-9, 400), (1e-2, 200), (1.0, 0)])
    found = certificate(objective, data, rho=rho, tol=tol, max_steps=max_steps)
    assert found.kind == "certified" and found.gap >= 0.0
    assert above(found.surrogate + found.gap, values.mean().item())
    assert above(found.value, clean)
    if spent <= rho:
        assert above(found.value, case.losses(points, case.targets).mean().item())
    assert above(found.value, attack_jointly(case, rho))
    return True


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_attack_exceeds_a_certificate(first: int) -> None:
    survived = sum(withstands(random_case(seed), seed) for seed in range(first, first + 10))
    assert survived >= 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_no_attack_of_many_exceeds_a_certificate(first: int) -> None:
    survived = sum(withstands(random_case(seed), seed) for seed in range(first, first + 100))
    assert survived >= 60


def test_the_attack_exceeds_the_certificate_of_another_network() -> None:
    def case(activation: nn.Module) -> Case:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 5), activation, nn.Linear(5, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 3.0
        loss = partial(functional.cross_entropy, label_smoothing=0.0)
        return Case(model, loss, torch.randn(6, 1, 2).flatten(1), torch.arange(6) % 3, None, True)

    smooth, cut = case(nn.Softplus()), case(nn.Softplus(threshold=0.5))
    data = [(smooth.inputs, smooth.targets)]
    smoothness = certificate(WRM(smooth.model, smooth.loss, 1e12), data, rho=0.0).smoothness
    gamma = 0.51 * smoothness
    found = certificate(WRM(smooth.model, smooth.loss, gamma), data, rho=0.01)
    _, values = attack_samples(smooth, gamma, smoothness)
    assert above(found.surrogate + found.gap, values.mean().item())
    assert found.surrogate + found.gap <= values.mean().item() + 1e-3
    _, values = attack_samples(cut, gamma, smoothness)
    assert values.mean().item() > found.surrogate + found.gap
