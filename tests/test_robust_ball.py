"""AdversarialTraining: exact sets, random starts, and what one step must be."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.robust import AdversarialTraining, Adversary
from neada.sets import Box
from neada.sets.regions import Region
from neada.stopping import FixedAccuracy, FixedSteps

ORDER = {"l2": 2.0, "linf": torch.inf, "l1": 1.0}


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(18, 12), nn.ELU(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).to(dtype)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(10, 2, 3, 3, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(3, (10,), generator=generator)


def adversarial(
    eps: float, norm: Any, bounds: Any = None, model: nn.Module | None = None, **adversary: Any
) -> AdversarialTraining:
    return AdversarialTraining(
        *(model or network(), functional.cross_entropy, eps, norm),
        bounds=bounds,
        adversary=Adversary(**adversary),
    )


def norms(delta: Tensor, norm: str) -> Tensor:
    return torch.linalg.vector_norm(delta.double().flatten(1), ORDER[norm], dim=1)


@pytest.mark.parametrize(
    ("dtype", "start"),
    [(torch.float32, "clean"), (torch.float64, "clean"), (torch.float32, "random")],
)
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_the_worst_inputs_are_worse_and_in_the_ball_and_the_bounds(
    norm: Any, bounds: Any, dtype: torch.dtype, start: Any
) -> None:
    model, (inputs, targets) = network(dtype), batch(dtype)
    robust = adversarial(0.4, norm, bounds, model, stopping=FixedSteps(20), start=start)
    kept = inputs.clone()
    worst = robust.perturb(inputs, targets)
    assert torch.equal(inputs, kept)
    eps = torch.finfo(dtype).eps
    assert norms(worst.inputs - inputs, norm).max() <= 0.4 + 16 * eps
    assert norms(worst.inputs - inputs, norm).min() > 0.3  # a maximum is at the edge
    if bounds is not None:
        assert worst.inputs.min() >= 0.0
        assert worst.inputs.max() <= 1.0
    before, after = (
        functional.cross_entropy(model(z), targets, reduction="none")
        for z in (inputs, worst.inputs)
    )
    assert bool((after > before).all())
    assert worst.penalty == 0.0


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_the_first_step_of_the_default_reaches_the_border(norm: Any) -> None:
    inputs, targets = batch()
    robust = adversarial(0.4, norm, stopping=FixedSteps(1))
    lengths = norms(robust.perturb(inputs, targets).inputs - inputs, norm)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.4), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_the_rule_looks_at_the_relative_gap(norm: Any, bounds: Any) -> None:
    """What the rule saw last, against the formula; with bounds it can only be smaller."""
    model, (inputs, targets) = network(), batch()
    robust = adversarial(0.1, norm, bounds, model, stopping=FixedAccuracy(0.2))
    worst = robust.perturb(inputs, targets)
    z = worst.inputs.clone().requires_grad_()
    losses = functional.cross_entropy(model(z), targets, reduction="sum")
    gradient = torch.autograd.grad(losses, z)[0].flatten(1)
    dual = torch.linalg.vector_norm(gradient, {"linf": 1, "l2": 2, "l1": torch.inf}[norm], dim=1)
    moved = (worst.inputs - inputs).flatten(1)
    gaps = (0.1 * dual - (moved * gradient).sum(1)) / (0.1 * dual)
    if bounds is None:
        assert worst.grad_sq_y == pytest.approx(gaps.mean().item(), rel=1e-6, abs=1e-9)
    assert -1e-9 <= worst.grad_sq_y <= gaps.mean().item() + 1e-9
    assert worst.grad_sq_y <= 0.2**2


def test_a_linear_model_is_maximized_exactly() -> None:
    inputs = torch.rand(6, 5, dtype=torch.float64)
    model = nn.Linear(5, 1, bias=False).double()
    slope = model.weight.detach()[0]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]

    best: dict[Literal["l2", "linf", "l1"], Tensor] = {
        "l2": 0.3 * slope / slope.norm(),
        "linf": 0.3 * slope.sign(),
        "l1": 0.3 * functional.one_hot(slope.abs().argmax(), 5) * slope.sign(),
    }
    for norm, delta in best.items():
        adversary = Adversary(
            optimizer=lambda p: torch.optim.SGD(p, lr=50.0, maximize=True), stopping=FixedSteps(3)
        )
        robust = AdversarialTraining(model, loss, 0.3, norm, adversary=adversary)
        worst = robust.perturb(inputs, torch.zeros(6))
        torch.testing.assert_close(worst.inputs, inputs + delta)


def test_random_starts_fill_the_ball_and_resume() -> None:
    inputs, targets = batch()

    def make() -> AdversarialTraining:
        robust = adversarial(0.4, "l2", stopping=FixedSteps(0), start="random", min_steps=0)
        robust.generator = torch.Generator().manual_seed(5)
        return robust

    first, second = make(), make()
    starts = [first.perturb(inputs, targets).inputs for _ in range(40)]
    lengths = torch.stack([norms(start - inputs, "l2") for start in starts])
    # uniform in 18 dimensions: P(length <= s r) = s^18, mean 18/19 r
    assert abs(lengths.mean() / 0.4 - 18 / 19) < 0.01
    assert lengths.max() <= 0.4 * (1 + 1e-9)
    for _ in range(3):
        second.perturb(inputs, targets)
    resumed = make()
    resumed.load_state_dict(second.state_dict())
    assert torch.equal(resumed.perturb(inputs, targets).inputs, starts[3])


# The part of a ball that lies in a box.


def projected(v: Any, c: Any, lower: Any, upper: Any, radius: float, norm: str) -> Any:
    """By bisection of the multiplier, one row, in numpy."""
    inside_box = np.clip(v, lower, upper)
    order = 2 if norm == "l2" else 1

    def point(multiplier: float) -> Any:
        d = v - c
        if norm == "l2":
            shrunk = d / (1.0 + multiplier)
        else:
            shrunk = np.sign(d) * np.maximum(np.abs(d) - multiplier, 0.0)
        return np.clip(c + shrunk, lower, upper)

    if np.linalg.norm(inside_box - c, order) <= radius:
        return inside_box
    low, high = 0.0, 1.0
    while np.linalg.norm(point(high) - c, order) > radius:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (
            (middle, high) if np.linalg.norm(point(middle) - c, order) > radius else (low, middle)
        )
    return point(high)


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("upper", [1.0, np.inf])
def test_the_projection_is_exact(norm: Any, scale: float, upper: float) -> None:
    rng = np.random.default_rng(4)
    center = rng.uniform(0.0, 1.0, size=(60, 8))
    center[:10, :4] = 0.0  # on the edge of the box
    points = center + scale * rng.normal(size=center.shape)
    points[10] = center[10]
    radius = 0.7
    part = Region(torch.from_numpy(center), radius, norm, Box(0.0, upper))
    found = part.project(torch.from_numpy(points)).numpy()
    expected = [
        projected(v, c, 0.0, upper, radius, norm) for v, c in zip(points, center, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12)
    again = part.project(torch.from_numpy(found))
    assert torch.equal(again, torch.from_numpy(found))  # a point inside stays
    assert bool(torch.as_tensor(part.contains(again)).all())
    outside = torch.from_numpy(points)[torch.from_numpy(np.abs(found - points).max(1) > 1e-6)]
    rows = torch.from_numpy(center)[torch.from_numpy(np.abs(found - points).max(1) > 1e-6)]
    elsewhere = Region(rows, radius, norm, Box(0.0, upper))
    assert not bool(torch.as_tensor(elsewhere.contains(outside)).any())


def test_bounds_per_channel_and_the_mapping() -> None:
    center = torch.full((4, 2, 3), 0.5, dtype=torch.float64)
    upper = torch.tensor([[0.6], [2.0]], dtype=torch.float64)
    part = Region(center, 0.5, "l2", Box(0.0, upper))
    gradient = torch.ones_like(center)
    mapping = part.gradient_mapping(center, gradient)
    # the first channel stops at 0.6, the second shares what is left of the radius
    rest = np.sqrt((0.5**2 - 3 * 0.1**2) / 3)
    torch.testing.assert_close(mapping[:, 0], torch.full_like(mapping[:, 0], -0.1))
    torch.testing.assert_close(mapping[:, 1], torch.full_like(mapping[:, 1], -rest))
