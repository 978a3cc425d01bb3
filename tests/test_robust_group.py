"""GroupDRO against hand computation, closed forms, and the online method of Sagawa et al."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada import constrain
from neada.inner import InnerOptions
from neada.optim import Backtracking, GeneralizedAdaGrad
from neada.optim.mirror import ExponentiatedGradient
from neada.robust import GroupDRO
from neada.sets import Simplex
from neada.steppers import Extragradient, NeAda, Simultaneous, TiAda
from neada.stopping import FixedAccuracy, FixedSteps, RelativeAccuracy

SIZES = [50, 30, 20]
SHARES = np.array([0.5, 0.3, 0.2])


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2).double()


def batch(num: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(2, (num,), generator=generator), torch.arange(num) % 3


def objective(model: nn.Module | None = None, **options: Any) -> GroupDRO:
    options = {"sizes": SIZES, **options}
    return GroupDRO(model or network(), functional.cross_entropy, 3, **options)


def losses_by_hand(model: nn.Linear, inputs: Tensor, targets: Tensor) -> Any:
    logits = inputs.numpy() @ model.weight.detach().numpy().T + model.bias.detach().numpy()
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), targets.numpy()]


@pytest.mark.parametrize("regularizer", ["kl", "chi2", None])
def test_the_value_by_hand(regularizer: Any) -> None:
    model, (inputs, targets, groups) = network(), batch()
    strength = 0.7 if regularizer else 1.0
    group = objective(model, regularizer=regularizer, strength=strength, adjustment=2.0)
    y = np.array([0.2, 0.5, 0.3])
    group.weights.data[:] = torch.from_numpy(y)
    losses = losses_by_hand(model, inputs, targets)
    means = np.array([losses[groups.numpy() == g].mean() for g in range(3)])
    divergence = {
        "kl": (y * np.log(y / SHARES)).sum(),
        "chi2": ((y - SHARES) ** 2 / SHARES).sum(),
        None: 0.0,
    }[regularizer]
    expected = (y * (means + 2.0 / np.sqrt(SIZES))).sum() - strength * divergence
    value = group.closure(inputs, targets, groups)()
    np.testing.assert_allclose(value.item(), expected, rtol=1e-12)
    value.backward()
    slope = {
        "kl": np.log(y / SHARES) + 1.0,
        "chi2": 2.0 * (y - SHARES) / SHARES,
        None: np.zeros(3),
    }[regularizer]
    by_hand = means + 2.0 / np.sqrt(SIZES) - 0.7 * slope
    assert group.weights.grad is not None
    np.testing.assert_allclose(group.weights.grad.numpy(), by_hand, rtol=1e-12)
    assert model.weight.grad is not None


def closed_form(losses: Any, regularizer: str, strength: float) -> Any:
    """The maximum over the simplex: a softmax, or thresholding with the threshold bisected."""
    if regularizer == "kl":
        weights = SHARES * np.exp(losses / strength)
        return weights / weights.sum()
    low, high = losses.min() - 10.0 * strength, losses.max() + 2.0 * strength
    for _ in range(200):
        middle = (low + high) / 2.0
        weights = SHARES * np.maximum(0.0, 1.0 + (losses - middle) / (2.0 * strength))
        low, high = (middle, high) if weights.sum() > 1.0 else (low, middle)
    return weights


@pytest.mark.parametrize("regularizer", ["kl", "chi2"])
@pytest.mark.parametrize("strength", [0.05, 0.5, 5.0])
def test_the_inner_maximum_is_the_closed_form(regularizer: Any, strength: float) -> None:
    model, data = network(), batch()
    options: Any = {"stopping": FixedAccuracy(1e-9), "adjustment": 1.0}
    options["inner"] = InnerOptions(max_steps=2000)
    group = objective(model, regularizer=regularizer, strength=strength, **options)
    adjusted = group.group_losses(*data).detach().numpy() + 1.0 / np.sqrt(SIZES)
    info = group.step(torch.optim.SGD(model.parameters(), lr=0.0), *data)
    expected = closed_form(adjusted, regularizer, strength)
    np.testing.assert_allclose(group.weights.detach().numpy(), expected, atol=1e-7)
    if regularizer == "kl":
        assert info.inner_steps == 1  # the default's learning rate makes it one step
    distance = np.linalg.norm(expected - SHARES)
    np.testing.assert_allclose(info.perturbation, distance, atol=1e-7)


def test_the_x_step_is_that_of_the_weighted_losses() -> None:
    model, twin, (inputs, targets, groups) = network(), network(), batch()
    group = objective(model, strength=0.5, sizes=None, adjustment=0.0)
    x_optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    info = group.step(x_optimizer, inputs, targets, groups)
    losses = functional.cross_entropy(twin(inputs), targets, reduction="none")
    means = torch.stack([losses[groups == g].mean() for g in range(3)])
    weights = torch.softmax(means.detach() / 0.5, 0)
    total = (weights * means).sum()
    total.backward()
    with torch.no_grad():
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q - 0.3 * q.grad)
    assert abs(info.loss - total.item()) < 1e-12
    assert (info.calls_x, info.samples_x, group.outer_steps) == (1, 30, 1)
    assert info.calls_y == group.calls_y >= info.inner_steps == group.inner_steps
    assert info.samples_y == 30 * info.calls_y == group.samples_y


def test_the_model_is_evaluated_once_per_step() -> None:
    model, data = network(), batch()
    calls: list[int] = []
    model.register_forward_hook(lambda *args: calls.append(1))
    group = objective(model, regularizer="chi2", strength=0.1, stopping=FixedSteps(7))
    info = group.step(torch.optim.SGD(model.parameters(), lr=0.1), *data)
    assert (len(calls), info.calls_y) == (1, 7)


def test_an_x_optimizer_that_tries_points_gets_them_evaluated() -> None:
    model, data = network(), batch()
    group = objective(model, strength=0.3)
    x_optimizer = Backtracking(model.parameters())
    values = [group.step(x_optimizer, *data) for _ in range(5)]
    assert values[-1].value < values[0].value
    assert values[0].calls_value > 0


def test_without_regularizer_it_is_the_online_method() -> None:
    model, twin, (inputs, targets, groups) = network(), network(), batch()
    group = objective(
        model,
        regularizer=None,
        sizes=[10, 10, 10],
        adjustment=0.5,
        y_optimizer=lambda weights: ExponentiatedGradient(weights, 0.01),
    )
    x_optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    y = np.full(3, 1.0 / 3.0)
    for _ in range(8):
        group.step(x_optimizer, inputs, targets, groups)
        losses = functional.cross_entropy(twin(inputs), targets, reduction="none")
        means = torch.stack([losses[groups == g].mean() for g in range(3)])
        twin.zero_grad()
        (torch.from_numpy(y) * means).sum().backward()
        y = y * np.exp(0.01 * (means.detach().numpy() + 0.5 / np.sqrt(10)))
        y /= y.sum()
        with torch.no_grad():
            for q in twin.parameters():
                q -= 0.2 * q.grad
    np.testing.assert_allclose(group.weights.detach().numpy(), y, rtol=1e-12)
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-12, atol=1e-12)
    assert (group.calls_x, group.calls_y, group.outer_steps) == (8, 8, 8)


STEPPERS: dict[str, Any] = {
    "simultaneous": lambda g: Simultaneous(
        torch.optim.SGD(g.model.parameters(), lr=0.3), ExponentiatedGradient([g.weights], 0.5)
    ),
    "nested": lambda g: NeAda(
        GeneralizedAdaGrad(g.model.parameters()),
        GeneralizedAdaGrad([g.weights], maximize=True, constraint=Simplex()),
    ),
    "constrained": lambda g: NeAda(
        torch.optim.Adam(g.model.parameters(), lr=0.1),
        constrain(torch.optim.SGD([g.weights], lr=0.05, maximize=True), Simplex()),
    ),
    "TiAda": lambda g: TiAda(g.model.parameters(), [g.weights], y_set=Simplex()),
    "extragradient": lambda g: Extragradient(
        g.model.parameters(), [g.weights], 0.2, 0.05, y_set=Simplex()
    ),
}


@pytest.mark.parametrize("name", STEPPERS)
@pytest.mark.parametrize("regularizer", ["kl", "chi2"])
def test_any_stepper_moves_the_weights_towards_the_worst_group(name: str, regularizer: Any) -> None:
    inputs, targets, groups = batch()
    targets = torch.where(groups == 2, 1 - (inputs[:, 0] > 0).long(), (inputs[:, 0] > 0).long())
    group = objective(regularizer=regularizer, strength=0.5)
    stepper = STEPPERS[name](group)
    for _ in range(60):
        stepper.step(group.closure(inputs, targets, groups), batch_size=30)
    weights = group.weights.detach()
    assert abs(weights.sum().item() - 1.0) < 1e-9
    assert weights.min() >= 0.0
    # two groups pull one way and the small one the other, so it must gain weight
    assert weights[2] > 0.25 > SHARES[2]


# Batches without some group.


def test_a_missing_group_is_neither_rewarded_nor_punished() -> None:
    model, (inputs, targets, groups) = network(), batch()
    group = objective(model)
    full = group.group_losses(inputs, targets, groups).detach()
    present = groups != 1
    part = group.group_losses(inputs[present], targets[present], groups[present])
    torch.testing.assert_close(part.detach(), full)  # group 1 as it was last seen
    gradients = torch.autograd.grad(part.sum(), model.weight, retain_graph=True)[0]
    alone = torch.autograd.grad(part[[0, 2]].sum(), model.weight)[0]
    torch.testing.assert_close(gradients, alone)
    fresh = objective(model)
    first = fresh.group_losses(inputs[present], targets[present], groups[present]).detach()
    torch.testing.assert_close(first[1], first[[0, 2]].mean())  # never seen: in the middle
    torch.testing.assert_close(first[[0, 2]], full[[0, 2]])


# State, failure, refusal.


@pytest.mark.parametrize("regularizer", ["kl", "chi2", None])
@pytest.mark.parametrize("rule", [None, RelativeAccuracy(0.5) | FixedSteps(9)])
def test_a_resumed_run_is_the_same_bit_for_bit(regularizer: Any, rule: Any) -> None:
    inputs, targets, groups = batch()

    def make() -> tuple[GroupDRO, torch.optim.Optimizer]:
        strength = {} if regularizer is None else {"strength": 0.2}
        group = objective(regularizer=regularizer, stopping=rule, **strength)
        return group, torch.optim.Adam(group.model.parameters(), lr=0.05)

    def run(group: GroupDRO, x_optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            own = groups != step % 3
            group.step(x_optimizer, inputs[own], targets[own], groups[own])

    state = None if rule is None else rule.state_dict()
    whole = make()
    run(*whole, range(8))
    if rule is not None:
        rule.load_state_dict(state)
    first = make()
    run(*first, range(3))
    saved = first[0].state_dict()
    second = make()
    second[0].model.load_state_dict(first[0].model.state_dict())
    second[0].load_state_dict(saved)
    second[1].load_state_dict(first[1].state_dict())
    assert second[0].state_dict()["inner"] == saved["inner"]
    run(*second, range(3, 8))
    assert torch.equal(second[0].weights, whole[0].weights)
    assert torch.equal(second[0].model.weight, whole[0].model.weight)
    assert second[0].counters == whole[0].counters


def test_a_weight_of_zero_has_a_finite_gradient() -> None:
    group = objective(strength=1.0)
    group.weights.data[:] = torch.tensor([0.0, 0.4, 0.6])
    group.closure(*batch())().backward()
    assert group.weights.grad is not None
    assert bool(group.weights.grad.isfinite().all())
    assert group.weights.grad[0] > 10.0  # back into the simplex


def test_exponentiated_gradient_on_large_numbers() -> None:
    weights = torch.full((3,), 1.0 / 3.0, requires_grad=True)
    optimizer = ExponentiatedGradient([weights], lr=1.0)
    weights.grad = torch.tensor([1e4, 0.0, -1e4])
    optimizer.step()
    assert weights.tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="lr"):
        ExponentiatedGradient([weights], lr=0.0)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_the_adaptive_step_has_little_regret_in_any_unit(seed: int, unit: float) -> None:
    """Against numpy, and against the bound, for losses that no fixed rate suits."""
    generator = np.random.default_rng(seed)
    num_groups, num_steps = 5, 400
    losses = unit * (100.0 + generator.uniform(size=(num_steps, num_groups)))
    losses[: num_steps // 2, 0] += unit
    losses[num_steps // 2 :, 3] += 3.0 * unit
    weights = torch.full((num_groups,), 1.0 / num_groups, dtype=torch.float64, requires_grad=True)
    optimizer = ExponentiatedGradient([weights])
    gained = spread_sq = 0.0
    total = np.zeros(num_groups)
    for loss in losses:
        gained += float(weights.detach().numpy() @ loss)
        weights.grad = torch.from_numpy(loss)
        optimizer.step()
        total += loss
        spread_sq += np.ptp(loss) ** 2
        logits = np.sqrt(np.log(num_groups) / spread_sq) * (total - total.max())
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(weights.detach().numpy(), expected, rtol=1e-6, atol=1e-9)
    regret = losses.sum(0).max() - gained
    assert regret <= 2.0 * np.sqrt(np.log(num_groups) * spread_sq)
    assert regret < 0.2 * (losses.sum(0).max() - losses.mean(1).sum())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"regularizer": "l2"}, "regularizer"),
        ({"strength": 0.0}, "strength"),
        ({"regularizer": None, "strength": 2.0}, "strength"),
        ({"adjustment": 1.0, "sizes": None}, "sizes"),
        ({"sizes": [5, 5, 0]}, "sizes"),
        ({"y_optimizer": lambda p: torch.optim.SGD(p, maximize=True)}, "weights"),
    ],
)
def test_bad_options_raise(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        objective(**options)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, list])
def test_group_ids_are_whole_numbers_of_any_kind(kind: Any) -> None:
    inputs, targets, groups = batch()
    given = groups.tolist() if kind is list else groups.to(kind)
    expected = objective().group_losses(inputs, targets, groups)
    assert torch.equal(objective().group_losses(inputs, targets, given), expected)


def test_bad_group_ids_raise() -> None:
    inputs, targets, groups = batch()
    group = objective()
    for wrong in (groups + 1, groups[:5], groups == 1):
        with pytest.raises(ValueError, match="groups"):
            group.group_losses(inputs, targets, wrong)
    with pytest.raises(ValueError, match="groups"):
        GroupDRO(network(), functional.cross_entropy, 2).load_state_dict(group.state_dict())
