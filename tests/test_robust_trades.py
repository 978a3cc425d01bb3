"""TRADES: one step by hand, the divergence, the start, and training with it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada import attacks, data, models
from neada.data import Dataset
from neada.robust import TRADES, Adversary
from neada.stopping import FixedSteps

EPS = 0.1
NOISE = 1e-3
CE = functional.cross_entropy


def network(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(18, 12), nn.BatchNorm1d(12), nn.ELU(), nn.Linear(12, 3)]
    return nn.Sequential(*(x for x in layers if norm or not isinstance(x, nn.BatchNorm1d))).double()


def batches(num: int = 1, size: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.rand(size, 2, 3, 3, generator=generator, dtype=torch.float64),
            torch.randint(3, (size,), generator=generator),
        )
        for _ in range(num)
    ]


def divergence(clean: Tensor, moved: Tensor) -> Tensor:
    """KL between the softmax of two tables of logits, per row, as its definition has it."""
    p, q = clean.softmax(1), moved.softmax(1)
    return (p * (p / q).log()).sum(1)


@pytest.mark.parametrize("with_norm", [False, True], ids=["plain", "batch norm"])
def test_steps_are_those_written_by_hand(with_norm: bool) -> None:
    beta, num_steps, lr_y = 2.5, 4, 2.0
    model, by_hand = network(with_norm), network(with_norm)
    robust = TRADES(
        *(model, CE, EPS),
        beta=beta,
        bounds=(0.0, 1.0),
        adversary=Adversary(
            optimizer=lambda params: torch.optim.SGD(params, lr=lr_y, maximize=True),
            stopping=FixedSteps(num_steps),
        ),
    )
    robust.generator = torch.Generator().manual_seed(5)
    x_optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    noise = torch.Generator().manual_seed(5)
    for inputs, targets in batches(6):
        info = robust.step(x_optimizer, inputs, targets)

        low, high = (inputs - EPS).clamp(min=0.0), (inputs + EPS).clamp(max=1.0)
        draw = torch.randn(inputs.shape, generator=noise, dtype=torch.float64)
        z = torch.minimum(torch.maximum(inputs + NOISE * draw, low), high)
        by_hand.eval()
        reference = by_hand(inputs).detach()
        for _ in range(num_steps):
            z.requires_grad_()
            value = beta * divergence(reference, by_hand(z)).sum()
            (gradient,) = torch.autograd.grad(value, z)
            z = torch.minimum(torch.maximum(z.detach() + lr_y * gradient, low), high)
        by_hand.train()
        outputs = by_hand(inputs)
        loss = CE(outputs, targets) + beta * divergence(outputs, by_hand(z)).mean()
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
                parameter -= 0.2 * gradient

        assert info.loss == pytest.approx(loss.item(), rel=1e-12)
        assert (info.calls_x, info.calls_y, info.calls_value) == (1, num_steps, 1)
    for key, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], tensor, rtol=0.0, atol=1e-12)


def test_without_a_price_it_is_plain_training() -> None:
    model, plain = network(), network()
    robust = TRADES(model, CE, EPS, beta=0.0, adversary=Adversary(stopping=FixedSteps(2)))
    x_optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x_plain = torch.optim.SGD(plain.parameters(), lr=0.2)
    for inputs, targets in batches(5):
        robust.step(x_optimizer, inputs, targets)
        x_plain.zero_grad()
        CE(plain(inputs), targets).backward()  # type: ignore[no-untyped-call]
        x_plain.step()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0.0, atol=1e-14)


# The divergence.


def value_and_gradient(robust: TRADES, clean: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """What a sample maximizes and its gradient, as the inner loop finds them."""
    against = robust._against(robust.model, clean, None)
    z = z.clone().requires_grad_()
    values = robust._values(robust.model, z, clean, against)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    return values.detach(), gradient


def test_the_gradient_in_the_inputs_against_finite_differences() -> None:
    model, ((inputs, _),) = network(), batches(size=4)
    robust = TRADES(model, CE, EPS, beta=3.0)
    z = inputs + 0.05 * torch.randn_like(inputs)
    values, gradient = value_and_gradient(robust, inputs, z)
    torch.testing.assert_close(values, 3.0 * divergence(model(inputs), model(z)).detach())
    h = 1e-6
    for place in range(18):
        shift = torch.zeros(18, dtype=torch.float64)
        shift[place] = h
        up, down = (
            value_and_gradient(robust, inputs, z + s * shift.view(2, 3, 3))[0] for s in (1, -1)
        )
        slope = gradient.flatten(1)[:, place]
        torch.testing.assert_close((up - down) / (2 * h), slope, rtol=1e-6, atol=1e-8)


def test_it_is_zero_without_gradient_at_the_clean_input() -> None:
    ((inputs, _),) = batches()
    values, gradient = value_and_gradient(TRADES(network(), CE, EPS), inputs, inputs)
    assert values.tolist() == [0.0] * 10
    assert gradient.abs().max() < 1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_probabilities_of_zero_do_no_harm(dtype: torch.dtype) -> None:
    class Masked(nn.Module):
        """Logits that rule out one class altogether, and nearly so another."""

        def forward(self, z: Tensor) -> Tensor:
            off = torch.tensor([-math.inf, -2e4, 0.0, 0.0], dtype=z.dtype)
            return z + off

    model: Any = Masked()
    clean = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 9.0, -90.0, 90.0]], dtype=dtype)
    z = clean + torch.tensor([0.05, -0.05, 0.05, -0.05], dtype=dtype)
    values, gradient = value_and_gradient(TRADES(model, CE, EPS), clean, z)
    assert bool(values.isfinite().all()) and bool(gradient.isfinite().all())
    assert values[0] > 0.0
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    outer = TRADES(model, CE, EPS)._x_losses(model, z * weight, clean, torch.tensor([2, 3]))
    outer.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None and bool(weight.grad.isfinite().all())


def test_pixels_have_a_divergence_each_and_count_with_their_mean() -> None:
    class PerPixel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 3, 1).double()

        def forward(self, z: Tensor) -> Tensor:
            outputs: Tensor = self.layer(z)
            return outputs

    model, ((inputs, _),) = PerPixel(), batches()
    targets = torch.randint(3, (10, 3, 3))
    robust = TRADES(model, CE, EPS, beta=2.0)
    worst = robust.perturb(inputs, targets)
    clean, moved = (model(z).movedim(1, -1).flatten(0, 2) for z in (inputs, worst.inputs))
    expected = CE(clean, targets.flatten()) + 2.0 * divergence(clean, moved).mean()
    torch.testing.assert_close(robust.loss(worst), expected)


# Where y starts, and what it depends on.


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_start_is_noise_in_the_ball_and_the_bounds(norm: Any) -> None:
    ((inputs, targets),) = batches(size=200)
    inputs[:100] = 0.0  # on the border of the bounds
    still = Adversary(stopping=FixedSteps(0), min_steps=0)
    robust = TRADES(network(), CE, 0.5, norm, bounds=(0.0, 1.0), adversary=still)
    start = robust.perturb(inputs, targets).inputs
    assert start.min() >= 0.0
    inside = ((inputs > 0.01) & (inputs < 0.99))[100:]
    assert (start - inputs)[100:][inside].std().item() == pytest.approx(NOISE, rel=0.1)
    assert bool(((start - inputs)[:100] == 0.0).any())
    small = TRADES(network(), CE, 1e-4, norm, adversary=still)
    order = {"linf": torch.inf, "l2": 2.0, "l1": 1.0}[norm]
    moved = (small.perturb(inputs, targets).inputs - inputs).flatten(1)
    assert torch.linalg.vector_norm(moved, order, dim=1).max() <= 1e-4 * (1 + 1e-9)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_sample_does_not_depend_on_the_others_of_its_batch(norm: Any) -> None:
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3.0
    ((inputs, targets),) = batches()
    kept = 0.01 * torch.randn(10, 2, 3, 3, dtype=torch.float64)
    ids = torch.arange(10)

    def worst(rows: Tensor) -> Any:
        adversary = Adversary(start="kept")  # without noise
        robust = TRADES(model, CE, 0.3, norm, bounds=(0.0, 1.0), adversary=adversary)
        robust.load_state_dict({**robust.state_dict(), "kept": kept})
        robust.outer_steps = 50
        return robust.perturb(inputs[rows], targets[rows], rows)

    together = worst(ids)
    alone = [worst(ids[i : i + 1]) for i in range(10)]
    assert len({one.inner_steps for one in alone}) > 1
    torch.testing.assert_close(
        together.inputs, torch.cat([one.inputs for one in alone]), rtol=0.0, atol=1e-9
    )
    assert together.samples_y == sum(one.samples_y for one in alone)


# Training.


def digits_batches(points: Dataset, num: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(len(points.inputs_train), (64,), generator=generator) for _ in range(num)]
    return [(points.inputs_train[r], points.targets_train[r]) for r in rows]


def test_training_with_it_makes_digits_robust() -> None:
    points = data.load("digits")
    found = []
    for beta in (0.0, 6.0):
        model = models.make("mlp", points.input_shape, 10, seed=0, hidden=(64,))
        five = Adversary(stopping=FixedSteps(5))
        objective = TRADES(model, CE, EPS, beta=beta, bounds=(0.0, 1.0), adversary=five)
        objective.generator = torch.Generator().manual_seed(0)
        x_optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for inputs, targets in digits_batches(points, 150):
            objective.step(x_optimizer, inputs, targets)
        test = [(points.inputs_test, points.targets_test)]
        found.append(attacks.robust_accuracy(model, test, "pgd", (EPS,), bounds=(0.0, 1.0)))
    plain, robust = found
    assert robust.clean > 0.9
    assert robust.attacked[EPS] > plain.attacked[EPS] + 0.1
