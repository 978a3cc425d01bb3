"""Misuse from Python: one row per kind of mistake; nothing is written before the error."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neada
from neada import attacks, data, models, optim, robust, sets, steppers, stopping, training
from neada.inner import InnerOptions
from neada.training import TrainConfig, train

CONFIG = TrainConfig(data="synthetic", max_calls=20, eval_eps=(0.5,))
MODEL, LOSS = nn.Linear(2, 2), nn.functional.cross_entropy
INPUTS, TARGETS, IDS = torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), torch.arange(4)
X, Y = (torch.zeros(2, 2, requires_grad=True) for _ in range(2))


def sgd(params: Any = None, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params or MODEL.parameters(), lr=0.1, **options)


def wrm(bounds: Any = None, **adversary: Any) -> robust.WRM:
    return robust.WRM(MODEL, LOSS, 1.0, bounds=bounds, adversary=robust.Adversary(**adversary))


def f(x: Any, y: Any) -> Any:
    return (x * y).sum() - 0.5 * (y * y).sum() + 0.5 * (x * x).sum()


def step_with_backward() -> None:
    def closure() -> torch.Tensor:
        value = (X * Y).sum()
        value.backward()
        return value

    neada.Simultaneous(sgd([X]), sgd([Y], maximize=True)).step(closure)


def step_with_two_closures() -> None:
    stepper = neada.Simultaneous(sgd([X]), sgd([Y], maximize=True))
    stepper.step(lambda: (X * Y).sum(), lambda: -(X * Y).sum())


CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # Numbers out of range, NaN, of another type.
    (lambda: optim.AdGD([X], lr=0.0), ValueError, "lr"),
    (lambda: stopping.FixedAccuracy(math.nan), ValueError, "tol"),
    (lambda: InnerOptions(max_steps=1.5), ValueError, "max_steps"),
    (lambda: sets.LinfBall(-1.0), ValueError, "radius"),
    (lambda: steppers.UniversalMirrorProx([X], [Y], math.nan), ValueError, "diameter"),
    (lambda: robust.AdversarialTraining(MODEL, LOSS, math.nan), ValueError, "eps"),
    (lambda: attacks.apgd(MODEL, INPUTS, TARGETS, 0.1, num_steps=0), ValueError, "num_steps"),
    (lambda: models.make("mlp", (2,), 1), ValueError, "num_classes"),
    # Names that do not exist.
    (lambda: neada.minimax(f, [0.5], [0.1], method="neda"), ValueError, "neada"),
    (lambda: attacks.fgsm(MODEL, INPUTS, TARGETS, 0.1, norm="l3"), ValueError, "norm"),
    # Options that do not fit each other.
    (lambda: robust.GroupDRO(MODEL, LOSS, 3, adjustment=1.0), ValueError, "sizes"),
    (lambda: data.load("synthetic", test_fraction=0.5), ValueError, "test_fraction"),
    (lambda: wrm(stopping=stopping.RelativeAccuracy(0.5)), ValueError, "x gradient"),
    (lambda: wrm(start="random"), ValueError, "ball"),
    (lambda: wrm().perturb(INPUTS, TARGETS, ids=IDS), ValueError, "kept"),
    (lambda: wrm(start="kept").perturb(INPUTS, TARGETS), TypeError, "ids"),
    (lambda: wrm(start="kept").perturb(INPUTS, TARGETS, ids=IDS > 1), ValueError, "ids"),
    # Objects of the wrong kind.
    (lambda: wrm().loss(INPUTS), TypeError, "perturb"),
    (lambda: neada.constrain(sgd(), "ball"), TypeError, "set"),
    (lambda: neada.constrain("sgd", sets.L2Ball(1.0)), TypeError, "optimizer"),
    (lambda: stopping.FixedSteps(2) | 3, TypeError, "rule"),
    (lambda: neada.minimax(f, "a", [0.1]), TypeError, "x0"),
    (lambda: neada.NeAda([X], [Y]), TypeError, "optimizer"),
    (lambda: neada.NeAda(MODEL, nn.Linear(1, 1)), TypeError, "optimizer"),
    (lambda: neada.NeAda(sgd([X]), [Y]), TypeError, "optimizer"),
    (lambda: neada.NeAda(sgd([X]), nn.Linear(1, 1)), TypeError, "optimizer"),
    (lambda: neada.TiAda(nn.Sequential(MODEL), [Y]), TypeError, "parameters"),
    (lambda: models.mlp((2,), 2, hidden=8), TypeError, "hidden"),
    (lambda: models.make("mlp", (2,), 2, hidden=8), TypeError, "hidden"),
    (lambda: wrm(stopping=7), TypeError, "stopping"),
    (lambda: wrm(optimizer=sgd([X])), TypeError, "function"),
    (lambda: robust.WRM(MODEL, LOSS, 1.0, adversary={"start": "clean"}), TypeError, "Adversary"),
    # Closures.
    (step_with_backward, ValueError, "backward"),
    (step_with_two_closures, TypeError, "one closure"),
    # Players, functions and data that do not fit.
    (lambda: neada.minimax(lambda x, y: x, [0.5, 0.2], [0.1]), ValueError, "number"),
    (lambda: steppers.Extragradient([], [Y], 0.1, 0.1), ValueError, "x"),
    (lambda: steppers.TiAda([X], [Y]).load_state_dict({}), ValueError, "TiAda"),
    (lambda: wrm().step(sgd(), INPUTS[:0], TARGETS[:0]), ValueError, "samples"),
    (lambda: wrm().step(sgd([X]), INPUTS, TARGETS), ValueError, "model"),
    (lambda: wrm().perturb(INPUTS * math.nan, TARGETS), ValueError, "inputs"),
    (lambda: wrm().perturb(INPUTS / 0.0, TARGETS), ValueError, "inputs"),
    (lambda: robust.certificate(wrm(), [], rho=0.1), ValueError, "batches"),
    # Paths.
    (lambda: data.load("nowhere.npz"), data.DataError, "nowhere"),
    (lambda: data.load("fashon_mnist"), data.DataError, "fashion"),
    (lambda: data.load("mnist", folder="."), data.DataError, "mnist"),
    # Training.
    (lambda: TrainConfig(gamma=0.0), ValueError, "gamma"),
    (lambda: TrainConfig(max_calls=1.5), ValueError, "max_calls"),
    (lambda: TrainConfig(objective="wrn"), ValueError, "wrm"),
    (lambda: train(TrainConfig(data="synthetic", device="gpu")), ValueError, "device"),
    (lambda: TrainConfig(strength=2.0), ValueError, "strength"),
    (lambda: train(CONFIG, resume=True), ValueError, "folder"),
    (lambda: training.open_run("nowhere"), ValueError, "nowhere"),
]  # fmt: skip


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_misuse(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function, kind, word = CALLS[call]
    with pytest.raises(kind, match=word) as caught:
        function()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600
    assert os.listdir(tmp_path) == []


def test_pairs_of_any_kind_are_bounds() -> None:
    for bounds in ((0.0, 1.0), [0, 1], torch.tensor([0.0, 1.0]), (torch.zeros(2), torch.ones(2))):
        assert wrm(bounds=bounds).bounds is not None


def y_sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([Y], lr=0.1, **options)


FLAGS: dict[str, Callable[[Any], Any]] = {
    "rowwise": lambda flag: neada.TiAda([X], [Y], rowwise=flag),
    "amsgrad": lambda flag: neada.TiAdaAdam([X], [Y], amsgrad=flag),
    "deterministic": lambda flag: neada.NeAda(sgd(), y_sgd(maximize=True), deterministic=flag),
    "stochastic": lambda flag: neada.make_stepper("auto", neada.Players([X], [Y], stochastic=flag)),
    "per_sample": lambda flag: sets.L2Ball(1.0, per_sample=flag),
    "per_sample of an objective": lambda flag: wrm(per_sample=flag),
    "download": lambda flag: data.load("synthetic", download=flag),
    "progress": lambda flag: neada.minimize(lambda x: x @ x, [1.0], progress=flag),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str) -> None:
    with pytest.raises(ValueError, match=name.split(maxsplit=1)[0]):
        FLAGS[name]("no")
