"""Objectives in a real training loop: resuming, half precision, bad inputs."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neada.optim import Backtracking, GeneralizedAdaGrad
from neada.robust import TRADES, WRM, AdversarialTraining, Adversary
from neada.stopping import FixedSteps


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Dropout(0.2), nn.Linear(16, 3)]
    return nn.Sequential(*layers).to(dtype)


def data(num: int = 96, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, 5, generator=generator).to(dtype)
    targets = inputs[:, :3].argmax(1)
    return list(zip(inputs.split(16), targets.split(16), torch.arange(num).split(16), strict=True))


def wrm(model: nn.Module, loss: Any = functional.cross_entropy, **adversary: Any) -> WRM:
    return WRM(model, loss, 1.3, adversary=Adversary(**adversary))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([entry.flatten().double() for entry in model.state_dict().values()])


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, maximize=True)


def attacked(model: nn.Module) -> float:
    """The loss of all data after ten steps of an attack."""
    robust = wrm(model, stopping=FixedSteps(10), optimizer=sgd)
    inputs, targets = (torch.cat([part[i] for part in data()]) for i in (0, 1))
    model.eval()
    loss = robust.loss(robust.perturb(inputs, targets)).item()
    model.train()
    return loss


def test_the_loop_of_five_lines_learns() -> None:
    model, loader = network(), [(inputs, targets) for inputs, targets, _ in data()]
    before = attacked(model)
    robust = wrm(model)
    x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for inputs, targets in loader * 4:
        info = robust.step(x_optimizer, inputs, targets)
    assert attacked(model) < 0.8 * before
    assert robust.outer_steps == robust.calls_x == 24
    assert info.calls_x == 1


def test_a_step_is_perturb_loss_backward_and_step() -> None:
    ours, plain = network(), network()
    robust, by_hand = wrm(ours), wrm(plain)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (ours, plain)]
    for inputs, targets, _ in data():
        torch.manual_seed(7)  # dropout of the x step
        robust.step(optimizers[0], inputs, targets)
        torch.manual_seed(7)
        worst = by_hand.perturb(inputs, targets)
        loss = by_hand.loss(worst)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    assert torch.equal(weights(ours), weights(plain))
    assert robust.counters == by_hand.counters


def test_accumulated_batches_are_one_outer_step() -> None:
    model = network().eval()
    robust = wrm(model, stopping=FixedSteps(2))
    parts = data()[:3]
    for i, (inputs, targets, _) in enumerate(parts):
        (robust.loss(robust.perturb(inputs, targets), advance=i == 2) / 3).backward()
    gradient = model[0].weight.grad
    assert gradient is not None
    model[0].weight.grad = None
    inputs, targets = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    robust.loss(robust.perturb(inputs, targets)).backward()
    torch.testing.assert_close(gradient, model[0].weight.grad)
    assert (robust.outer_steps, robust.calls_x, robust.samples_x) == (2, 4, 96)


@pytest.mark.parametrize("make", [Backtracking, GeneralizedAdaGrad])
def test_optimizers_of_neada_train_the_model_too(make: Any) -> None:
    model = network().eval()
    robust = wrm(model)
    inputs, targets, _ = data()[0]
    x_optimizer = make(model.parameters())
    infos = [robust.step(x_optimizer, inputs, targets) for _ in range(10)]
    assert infos[-1].value < 0.9 * infos[0].value
    assert (infos[0].calls_value > 0) == (make is Backtracking)


# State.

OBJECTIVES: dict[str, Any] = {
    "WRM": wrm,
    "WRM, per sample": lambda model: wrm(model, per_sample=True),
    "WRM, kept": lambda model: wrm(model, start="kept"),
    "ball, random": lambda model: AdversarialTraining(
        model, functional.cross_entropy, 0.3, adversary=Adversary(start="random")
    ),
    "TRADES": lambda model: TRADES(model, functional.cross_entropy, 0.3),
    "TRADES, kept": lambda model: TRADES(
        model, functional.cross_entropy, 0.3, adversary=Adversary(start="kept")
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_resumed_run_is_the_same_bit_for_bit(name: str) -> None:
    def make() -> Any:
        model = network()
        robust = OBJECTIVES[name](model)
        robust.generator = torch.Generator().manual_seed(3)
        return model, robust, torch.optim.Adam(model.parameters(), lr=0.01)

    def run(model: Any, robust: Any, x_optimizer: Any, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            inputs, targets, ids = data()[step % 6]
            robust.step(x_optimizer, inputs, targets, ids if "kept" in name else None)

    whole, first, second = make(), make(), make()
    run(*whole, range(14))
    run(*first, range(8))
    checkpoint = io.BytesIO()
    torch.save([part.state_dict() for part in first], checkpoint)
    run(*first, range(8, 11))  # lost with the process
    checkpoint.seek(0)
    for part, state in zip(second, torch.load(checkpoint, weights_only=True), strict=True):
        part.load_state_dict(state)
    run(*second, range(8, 14))
    assert torch.equal(weights(second[0]), weights(whole[0]))
    assert second[1].counters == whole[1].counters
    if "kept" in name:
        assert torch.equal(second[1].state_dict()["kept"], whole[1].state_dict()["kept"])
