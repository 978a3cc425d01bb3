"""Per-sample stopping: every sample on its own, finished ones out of the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from neada import optim
from neada.robust import WRM, AdversarialTraining, Adversary
from neada.stopping import FixedAccuracy, FixedSteps, GradientMapping

GAMMA = 4.0
Make = Callable[[Sequence[Tensor]], Optimizer]


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Softplus(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(27, 3)).double()
    model(torch.randn(40, 1, 5, 5, dtype=torch.float64))  # running statistics of some kind
    return model


def batch(num: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(num, 1, 5, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(num)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Samples of very different difficulty, so that they stop at different times."""
    losses = functional.cross_entropy(outputs, targets % 3, reduction="none")
    return losses * 10.0 ** (targets % 9 / 4.0 - 1.5)


def wrm(model: nn.Module, loss: Any = weighted, **adversary: Any) -> WRM:
    return WRM(model, loss, GAMMA, adversary=Adversary(**adversary))


def torch_optimizer(name: str, **options: Any) -> Make:
    return lambda params: getattr(torch.optim, name)(params, maximize=True, **options)


def by_row(name: str, **options: Any) -> Make:
    options = {"rowwise": True, **options}
    return lambda params: getattr(optim, name)(params, maximize=True, **options)


OPTIMIZERS: dict[str, Make] = {
    "SGD": torch_optimizer("SGD", lr=0.1),
    "momentum": torch_optimizer("SGD", lr=0.05, momentum=0.8, nesterov=True),
    "Adam": torch_optimizer("Adam", lr=0.02),
    "AMSGrad": torch_optimizer("Adam", lr=0.02, amsgrad=True),
    "AdamW": torch_optimizer("AdamW", lr=0.02, weight_decay=0.01),
    "Adagrad": torch_optimizer("Adagrad", lr=0.1),
    "RMSprop": torch_optimizer("RMSprop", lr=0.01, centered=True, momentum=0.5),
    "Adadelta": torch_optimizer("Adadelta", lr=2.0),
    "Adamax": torch_optimizer("Adamax", lr=0.02),
    "NAdam": torch_optimizer("NAdam", lr=0.02),
    "RAdam": torch_optimizer("RAdam", lr=0.02),
    "Rprop": torch_optimizer("Rprop", lr=0.02),
    "AdaptiveSGD": lambda p: optim.AdaptiveSGD(p, 0.1, maximize=True),
    "AdGD": by_row("AdGD"),
    "GeneralizedAdaGrad": by_row("GeneralizedAdaGrad"),
    "averaged": by_row("GeneralizedAdaGrad", average=1.0),
    "Backtracking": by_row("Backtracking"),
    "LBFGS": by_row("LBFGS"),
    "SPG": by_row("SPG", lr=1.0 / (2.0 * GAMMA)),
    "SPG, probing": by_row("SPG"),
    "SPG, unguarded": by_row("SPG", lr=1.0 / (2.0 * GAMMA), safeguard=False),
    "DoG": by_row("DoG"),
    "KT": by_row("KT", bound=20.0),
}


_ACCURACY = {  # by their speed
    **{"Backtracking": 1e-4, "LBFGS": 1e-4, "Adadelta": 0.1, "Adamax": 0.1},
    **{"SPG": 1e-6, "SPG, unguarded": 1e-6},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_stops_early_and_all_is_as_in_a_batch(name: str) -> None:
    model, data = network(), batch()
    found = [
        wrm(
            model, optimizer=OPTIMIZERS[name], stopping=FixedSteps(6), per_sample=per_sample
        ).perturb(*data)
        for per_sample in (False, True)
    ]
    assert torch.equal(found[0].inputs, found[1].inputs)
    assert found[0].samples_y == found[1].samples_y == 6 * 9
    assert found[0].stop_reason == found[1].stop_reason == "6 inner steps"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sample_does_not_care_who_is_in_its_batch(name: str) -> None:
    model, (inputs, targets) = network(), batch()
    options: Any = {
        "optimizer": OPTIMIZERS[name],
        "stopping": FixedAccuracy(_ACCURACY.get(name, 0.02)) | FixedSteps(15),
        "per_sample": True,
    }
    together, alone = wrm(model, **options), wrm(model, **options)
    worst = together.perturb(inputs, targets)
    each = [alone.perturb(inputs[i : i + 1], targets[i : i + 1]) for i in range(9)]
    assert len({one.inner_steps for one in each}) > 1
    # matrix products of another size round differently, and a line search decides by the last bit
    expected = torch.cat([one.inputs for one in each])
    torch.testing.assert_close(worst.inputs, expected, rtol=1e-9, atol=1e-9)
    assert worst.samples_y == together.samples_y == sum(one.samples_y for one in each)
    assert worst.inner_steps == max(one.inner_steps for one in each)
    assert worst.calls_y == max(one.calls_y for one in each)
    mean = sum(one.grad_sq_y for one in each) / 9
    assert abs(worst.grad_sq_y - mean) < 1e-9 * (1.0 + mean)


def test_every_sample_satisfies_its_own_rule() -> None:
    model, (inputs, targets) = network(), batch(20)
    rule = GradientMapping(scale=1e-3)
    robust = wrm(model, optimizer=OPTIMIZERS["SGD"], stopping=rule, per_sample=True)
    robust.outer_steps = 4
    worst = robust.perturb(inputs, targets)
    model.eval()
    z = worst.inputs.requires_grad_()
    losses = weighted(model(z), targets).sum()
    value = losses - GAMMA * (z - inputs).square().sum()
    (gradient,) = torch.autograd.grad(value, z)
    assert bool((gradient.flatten(1).square().sum(1) <= 1e-3 / 5 * (1 + 1e-9)).all())
    assert worst.samples_y < 20 * worst.calls_y


@pytest.mark.parametrize("t", [10, 30, 100])
def test_the_default_looks_once_at_samples_that_need_no_step(t: int) -> None:
    model, (inputs, targets) = network(), batch(18)
    robust = wrm(model)
    robust.outer_steps = t
    worst = robust.perturb(inputs, targets)
    model.eval()

    def gradients(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        losses = weighted(model(z), targets).sum()
        return torch.autograd.grad(losses - GAMMA * (z - inputs).square().sum(), z)[0]

    start = gradients(inputs)
    easy = start.flatten(1).square().sum(1) <= 1.0 / (t + 1)
    assert 0 < int(easy.sum()) < 18
    one_step = inputs + start / (2.0 * GAMMA)
    torch.testing.assert_close(worst.inputs[easy], one_step[easy], rtol=1e-9, atol=1e-9)
    others = robust.perturb(inputs[~easy], targets[~easy])
    torch.testing.assert_close(worst.inputs[~easy], others.inputs, rtol=1e-9, atol=1e-9)
    assert worst.samples_y == int(easy.sum()) + others.samples_y
    # The rule holds at the end for every sample all the same.
    assert float(gradients(worst.inputs).flatten(1).square().sum(1).max()) <= 1.0 / (t + 1)


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
@pytest.mark.parametrize("bounds", [None, (-4.0, 4.0)])
def test_balls_follow_their_samples(norm: Any, bounds: Any) -> None:
    model, (inputs, targets) = network(), batch()
    inputs = inputs.clamp(-4.0, 4.0)
    adversary = Adversary(
        optimizer=torch_optimizer("SGD", lr=1.0),
        stopping=FixedAccuracy(0.5) | FixedSteps(12),
        per_sample=True,
    )
    robust = AdversarialTraining(model, weighted, 0.3, norm, bounds=bounds, adversary=adversary)
    worst = robust.perturb(inputs, targets)
    each = [robust.perturb(inputs[i : i + 1], targets[i : i + 1]) for i in range(9)]
    assert len({one.inner_steps for one in each}) > 1
    expected = torch.cat([one.inputs for one in each])
    torch.testing.assert_close(worst.inputs, expected, rtol=1e-9, atol=1e-9)


def test_targets_in_lists_and_dictionaries_follow_too() -> None:
    model, (inputs, targets) = network(), batch()

    def loss(outputs: Tensor, given: Any) -> Tensor:
        (label,) = given["labels"]
        return weighted(outputs, label) * given["factors"]

    options: Any = {"stopping": FixedAccuracy(0.1) | FixedSteps(20), "per_sample": True}
    options["optimizer"] = torch_optimizer("Adam", lr=0.02)
    given = {"labels": [targets], "factors": torch.ones(9, dtype=torch.float64)}
    found = wrm(model, loss, **options).perturb(inputs, given)
    plain = wrm(model, **options).perturb(inputs, targets)
    assert torch.equal(found.inputs, plain.inputs)
    assert found.samples_y < 9 * found.calls_y


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (by_row("AdGD", rowwise=False), "rowwise"),
        (torch_optimizer("Adafactor", lr=0.1), "Adafactor"),
    ],
)
def test_optimizers_that_couple_samples_raise(make: Make, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        wrm(network(), optimizer=make, per_sample=True).perturb(*batch())


def test_with_batch_statistics_the_samples_depend_on_each_other() -> None:
    # Why "frozen" is the default: this is what it protects from.
    model, (inputs, targets) = network(), batch()
    robust = wrm(model, stopping=FixedSteps(3), per_sample=True, batch_norm="batch")
    together = robust.perturb(inputs, targets).inputs[:4]
    apart = robust.perturb(inputs[:4], targets[:4]).inputs
    assert (together - apart).abs().max() > 1e-4
