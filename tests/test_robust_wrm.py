"""WRM against hand computation, and the promises about modes and gradients."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.inner import BudgetExhausted
from neada.robust import WRM, Adversary
from neada.stopping import FixedAccuracy, FixedSteps

GAMMA = 1.3


def batch(num: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(num, 1, 6, 6, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), torch.randint(3, (num,), generator=generator)


def network(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(5)
    # Without a bias that batch norm would cancel: Adam makes steps of its rounding errors.
    layers = [
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ELU(),
        nn.Dropout(dropout),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(64, 3)).to(dtype)


def sgd(lr: float = 0.1) -> Any:
    return lambda params: torch.optim.SGD(params, lr=lr, maximize=True)


def wrm(model: nn.Module, loss: Any = functional.cross_entropy, **adversary: Any) -> WRM:
    return WRM(model, loss, GAMMA, adversary=Adversary(**adversary))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([entry.flatten().double() for entry in model.state_dict().values()])


# The formula.


def test_five_steps_on_a_logistic_model_by_hand() -> None:
    rng = np.random.default_rng(0)
    v, w, sign = rng.normal(size=(7, 4)), rng.normal(size=4), rng.choice([-1.0, 1.0], size=7)
    model = nn.Linear(4, 1, bias=False).double()
    model.weight.data[:] = torch.from_numpy(w)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.softplus(-targets * outputs[:, 0])

    robust = wrm(model, loss, optimizer=sgd(0.2), stopping=FixedSteps(5))
    worst = robust.perturb(torch.from_numpy(v), torch.from_numpy(sign))
    z = v.copy()
    for _ in range(5):
        slope = -sign / (1.0 + np.exp(sign * (z @ w)))
        z += 0.2 * (slope[:, None] * w - 2.0 * GAMMA * (z - v))
    np.testing.assert_allclose(worst.inputs.numpy(), z, rtol=1e-12)
    distances = np.linalg.norm(z - v, axis=1)
    assert math.isclose(worst.perturbation, distances.mean(), rel_tol=1e-12)
    assert math.isclose(worst.penalty, GAMMA * (distances**2).mean(), rel_tol=1e-12)
    mean_loss = np.log1p(np.exp(-sign * (z @ w))).mean()
    info = robust.step(
        torch.optim.SGD(model.parameters(), lr=0.0), *map(torch.from_numpy, (v, sign))
    )
    assert math.isclose(info.loss, mean_loss, rel_tol=1e-12)
    assert math.isclose(info.value, mean_loss - worst.penalty, rel_tol=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    model, (inputs, targets) = network().eval(), batch(3)
    start = inputs + 0.1 * inputs.sin()

    def objective(z: Tensor) -> float:
        with torch.no_grad():
            losses = functional.cross_entropy(model(z), targets, reduction="sum")
            value = losses - GAMMA * (z - inputs).square().sum()
        return float(value)

    slopes = torch.zeros_like(inputs)
    for place in np.ndindex(*inputs.shape):
        shift = torch.zeros_like(inputs)
        shift[place] = 1e-5
        slopes[place] = (objective(start + shift) - objective(start - shift)) / 2e-5

    robust = wrm(model, optimizer=sgd(1.0), stopping=FixedSteps(1), start="kept")
    robust.load_state_dict({**robust.state_dict(), "kept": start - inputs})
    worst = robust.perturb(inputs, targets, ids=torch.arange(3))
    torch.testing.assert_close(worst.inputs - start, slopes, rtol=1e-6, atol=1e-8)
    expected = slopes.square().sum().item() / 3
    assert math.isclose(worst.grad_sq_y, expected, rel_tol=1e-6)


# Counting and stopping.


def test_the_accepting_gradient_is_counted_and_a_count_costs_none() -> None:
    model, data = network(), batch()
    accurate = wrm(model, optimizer=sgd(), stopping=FixedAccuracy(1e-4))
    worst = accurate.perturb(*data)
    assert worst.calls_y == worst.inner_steps + 1 > 3
    assert worst.grad_sq_y <= 1e-8
    assert worst.stop_reason == "gradient mapping <= 0.0001"
    assert worst.samples_y == accurate.samples_y == 12 * worst.calls_y
    worst = wrm(model, optimizer=sgd(), stopping=FixedSteps(4)).perturb(*data)
    assert (worst.calls_y, worst.inner_steps, worst.stop_reason) == (4, 4, "4 inner steps")
    capped = wrm(model, stopping=FixedAccuracy(1e-9), max_steps=3).perturb(*data)
    assert (capped.inner_steps, capped.stop_reason) == (3, "the cap of 3 inner steps")


def test_the_default_rule_tightens_with_t() -> None:
    robust = wrm(network(), optimizer=sgd(0.02))
    x_optimizer = torch.optim.SGD(robust.model.parameters(), lr=0.0)
    infos = [robust.step(x_optimizer, *batch()) for _ in range(40)]
    for t, info in enumerate(infos):
        assert info.grad_sq_y <= 1.0 / (t + 1) or info.inner_steps == t + 1
    assert infos[-1].inner_steps > infos[0].inner_steps == 1
    assert robust.outer_steps == 40


def test_the_budget_ends_inside_the_inner_loop_with_the_model_untouched() -> None:
    model = network()
    robust = wrm(model, stopping=FixedSteps(5))
    robust.max_calls = 8
    x_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    robust.step(x_optimizer, *batch())
    before = weights(model)
    with pytest.raises(BudgetExhausted):
        robust.step(x_optimizer, *batch())
    assert robust.total_calls == 8
    assert torch.equal(weights(model), before)
    assert all(p.requires_grad for p in model.parameters())


# Modes, parameters, gradients.


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_statistics_are_frozen_or_not_by_name(norm: Any) -> None:
    model, (inputs, targets) = network(), batch()
    before = {name: b.clone() for name, b in model.named_buffers()}
    seen: list[tuple[bool, bool]] = []
    model[1].register_forward_hook(lambda m, a, o: seen.append((m.training, model.training)))
    robust = wrm(model, stopping=FixedSteps(2), batch_norm=norm)
    worst = robust.perturb(inputs, targets)
    # With frozen statistics one more evaluation judges the last step.
    assert seen == [(norm == "batch", True)] * (2 if norm == "batch" else 3)
    same = all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert same == (norm == "frozen")
    robust.loss(worst)
    assert seen[-1] == (True, True)  # x trains as it always does
    assert model[1].num_batches_tracked == (1 if norm == "frozen" else 3)


def test_dropout_is_off_or_on_by_name() -> None:
    model, data = network(dropout=0.5), batch()

    def perturbed(dropout: Any) -> Tensor:
        return wrm(model, stopping=FixedSteps(2), dropout=dropout).perturb(*data).inputs

    assert torch.equal(perturbed("off"), perturbed("off"))
    assert not torch.equal(perturbed("on"), perturbed("on"))
    before = torch.get_rng_state()
    perturbed("off")
    assert torch.equal(torch.get_rng_state(), before)


def test_perturbing_works_in_inference_mode() -> None:
    model, (inputs, targets) = network(), batch()
    robust = wrm(model, stopping=FixedSteps(2))
    expected = robust.perturb(inputs, targets).inputs
    with torch.inference_mode():
        assert torch.equal(robust.perturb(inputs, targets).inputs, expected)


def test_an_optimizer_that_wants_a_closure_is_refused_before_anything_is_spent() -> None:
    model, (inputs, targets) = network(), batch()
    robust = wrm(model)
    with pytest.raises(ValueError, match="neada"):
        robust.step(torch.optim.LBFGS(model.parameters()), inputs, targets)
    assert robust.total_calls == 0


class BrokenError(Exception):
    pass


def test_everything_is_restored_after_an_exception() -> None:
    model, (inputs, targets) = network(dropout=0.1), batch()
    model[5].bias.requires_grad_(False)
    model[1].eval()
    modes = [m.training for m in model.modules()]
    needs = [p.requires_grad for p in model.parameters()]
    calls: list[bool] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(any(p.requires_grad for p in model.parameters()))
        if len(calls) == 3:
            raise BrokenError
        return functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(BrokenError):
        wrm(model, loss, stopping=FixedSteps(9)).perturb(inputs, targets)
    assert calls == [False] * 3
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == needs


def test_gradients_of_parameters_are_left_alone() -> None:
    model, data = network(), batch()
    marks = [torch.full_like(p, 7.0) for p in model.parameters()]
    for p, mark in zip(model.parameters(), marks, strict=True):
        p.grad = mark
    criterion = nn.PReLU().double()  # a loss with a parameter of its own

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shape = criterion

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return self.shape(outputs).logsumexp(1)

    wrm(model, Loss(), stopping=FixedSteps(2)).perturb(*data)
    assert all(p.grad is mark for p, mark in zip(model.parameters(), marks, strict=True))
    assert all(bool((mark == 7.0).all()) for mark in marks)
    assert criterion.weight.grad is None
    assert criterion.weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_not_modified_and_keep_their_format(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2)).to(dtype)
    inputs = torch.randn(4, 3, 6, 6, dtype=dtype).to(memory_format=torch.channels_last)
    kept = inputs.clone()
    for per_sample in (False, True):
        robust = wrm(model, per_sample=per_sample)
        robust.outer_steps = 20
        worst = robust.perturb(inputs, torch.tensor([0, 1, 1, 0]))
        assert torch.equal(inputs, kept)
        assert worst.inputs.dtype == dtype
        assert not worst.inputs.requires_grad
        assert worst.inputs.is_contiguous(memory_format=torch.channels_last)
        assert not torch.equal(worst.inputs, inputs)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 2, 2, 2)])
def test_inputs_of_any_shape_and_range(shape: tuple[int, ...]) -> None:
    inputs = 255.0 * torch.rand(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    targets = torch.zeros(5, dtype=torch.float64)

    class Sums(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.reshape(5, -1).sum(1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return 3.0 * outputs - targets

    adversary = Adversary(optimizer=sgd(0.5), stopping=FixedAccuracy(1e-9))
    worst = WRM(Sums(), loss, gamma=0.5, adversary=adversary).perturb(inputs, targets)
    torch.testing.assert_close(worst.inputs, inputs + 3.0)  # where 3 = 2 gamma (z - v)


def test_the_box_is_kept_and_measured_by_its_mapping() -> None:
    inputs = torch.tensor([[0.95, 0.5]], dtype=torch.float64)
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data[:] = torch.tensor([[2.0, -0.2]])

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]

    adversary = Adversary(optimizer=sgd(0.2), stopping=FixedAccuracy(1e-10))
    robust = WRM(model, loss, 1.0, bounds=(0.0, 1.0), adversary=adversary)
    worst = robust.perturb(inputs, torch.zeros(1))
    torch.testing.assert_close(worst.inputs, torch.tensor([[1.0, 0.4]], dtype=torch.float64))
    assert worst.grad_sq_y <= 1e-20
    with pytest.raises(ValueError, match="bounds"):
        robust.perturb(torch.tensor([[2.0, 0.5]], dtype=torch.float64), torch.zeros(1))


# Losses.


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        partial(functional.cross_entropy, reduction="mean"),
        lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
        lambda o, t: -functional.log_softmax(o, 1).gather(1, t[:, None]),
    ],
)
def test_losses_in_every_form_are_the_same(loss: Any) -> None:
    model, data = network(), batch()

    def worst(loss: Any) -> Tensor:
        return wrm(model, loss, stopping=FixedSteps(3)).perturb(*data).inputs

    torch.testing.assert_close(worst(loss), worst(functional.cross_entropy), rtol=1e-12, atol=1e-12)
    if isinstance(loss, nn.Module):
        assert loss.reduction in ("mean", "sum")


def test_further_dimensions_are_averaged() -> None:
    model = nn.Conv2d(1, 2, 1).double()
    inputs, targets = batch(3)[0], torch.randint(2, (3, 6, 6))
    robust = wrm(model)
    loss = robust.loss(robust.perturb(inputs, targets), advance=False)
    worst = robust.perturb(inputs, targets)
    torch.testing.assert_close(loss, functional.cross_entropy(model(worst.inputs), targets))


@pytest.mark.parametrize("loss", [lambda o, t: o.mean(), lambda o, t: o[:2, 0], lambda o, t: 0.5])
def test_a_loss_that_is_not_per_sample_is_refused(loss: Any) -> None:
    with pytest.raises(ValueError, match="samples"):
        wrm(network(), loss).perturb(*batch())


# Misuse.


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_norm": "eval"}, "batch_norm"),
        ({"dropout": True}, "dropout"),
        ({"per_sample": "no"}, "per_sample"),
        ({"min_steps": 5, "max_steps": 3}, "min_steps"),
        ({"start": "stored"}, "start"),
    ],
)
def test_bad_adversaries_raise(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        wrm(network(), **options)
