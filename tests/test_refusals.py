"""Wrong calls from Python: each is answered with one sentence, before anything is done."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neada
from neada import attacks, data, robust, sets, training
from neada.training import TrainConfig, train

CONFIG = TrainConfig(data="synthetic", max_calls=20, eval_eps=(0.5,))
MODEL, LOSS = nn.Linear(2, 2), nn.functional.cross_entropy
INPUTS, TARGETS = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(MODEL.parameters(), lr=0.1)


def wrm(**options: Any) -> robust.WRM:
    return robust.WRM(MODEL, LOSS, 1.0, **options)


def adversarial(**options: Any) -> robust.AdversarialTraining:
    return robust.AdversarialTraining(MODEL, LOSS, eps=0.1, **options)


NO_PAIR = "bounds must be a pair (low, high), got "
NO_SET = "constraint must be a set from neada.sets, not "
SECONDS = "checkpoint_seconds must be a number greater than 0, got "
NULL = "must be a path without null characters, got 'a\\x00b"
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "bounds as text": (lambda: wrm(bounds="x"), TypeError, NO_PAIR + "'x'"),
    "bounds as two letters": (lambda: adversarial(bounds="xy"), TypeError, NO_PAIR + "'xy'"),
    "bounds as a number": (lambda: wrm(bounds=1.0), TypeError, NO_PAIR + "1.0"),
    "three bounds": (lambda: adversarial(bounds=(0, 1, 2)), TypeError, NO_PAIR + "(0, 1, 2)"),
    "bounds of an attack": (
        lambda: attacks.fgsm(MODEL, INPUTS, TARGETS, 0.1, bounds="x"),
        TypeError,
        NO_PAIR + "'x'",
    ),
    "store": (lambda: wrm(store="x"), TypeError, "store must be a PerturbationStore, not str"),
    "loss without targets": (
        lambda: wrm().loss(INPUTS),
        TypeError,
        "loss takes what perturb returned, not Tensor: call loss(perturb(inputs, targets))",
    ),
    "a set by name": (lambda: neada.constrain(sgd(), "ball"), TypeError, NO_SET + "str"),
    "a set as a number": (lambda: neada.constrain(sgd(), 3), TypeError, NO_SET + "int"),
    "no optimizer": (
        lambda: neada.constrain(None, sets.Box(0.0, 1.0)),
        TypeError,
        "optimizer must be a torch optimizer, not NoneType",
    ),
    "config as text": (
        lambda: TrainConfig(gamma="a"),
        ValueError,
        "gamma must be a number greater than 0, got 'a'",
    ),
    "config beyond floats": (
        lambda: TrainConfig(gamma=10**400),
        ValueError,
        "gamma must be a number greater than 0 and at most 1e+30, got 1000",
    ),
    "threads": (
        lambda: TrainConfig(threads=10**9),
        ValueError,
        "threads must be a whole number at least 1 and at most 1024, got 1000000000",
    ),
    "no config": (lambda: train(None), TypeError, "config must be a TrainConfig, got None"),
    "seconds nan": (lambda: train(CONFIG, checkpoint_seconds=math.nan), ValueError, SECONDS),
    "seconds -1": (lambda: train(CONFIG, checkpoint_seconds=-1), ValueError, SECONDS + "-1"),
    "seconds as text": (lambda: train(CONFIG, checkpoint_seconds="x"), ValueError, SECONDS + "'x'"),
    "folder with a null": (lambda: train(CONFIG, "a\0b"), ValueError, f"folder {NULL}"),
    "folder without a name": (lambda: train(CONFIG, ""), ValueError, "folder is empty: give a"),
    "folder as a number": (lambda: train(CONFIG, 3), TypeError, "folder must be a path, got 3"),
    "run with a null": (lambda: training.open_run("a\0b"), ValueError, f"folder {NULL}"),
    "data with a null": (lambda: data.load("a\0b.npz"), ValueError, f"name {NULL}"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, words = CALLS[name]
    with pytest.raises(kind) as caught:
        call()
    said = str(caught.value)
    assert said.startswith(words)
    assert said.isprintable() and len(said) < 300
    assert os.listdir(tmp_path) == []


def test_pairs_of_any_kind_are_bounds() -> None:
    for bounds in ((0.0, 1.0), [0, 1], torch.tensor([0.0, 1.0]), (torch.zeros(2), torch.ones(2))):
        assert wrm(bounds=bounds).bounds is not None


X, Y = (torch.zeros(2, 2, requires_grad=True) for _ in range(2))


def y_sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([Y], lr=0.1, **options)


FLAGS: dict[str, Callable[[Any], Any]] = {
    "maximize": lambda flag: neada.Alternating(sgd(), y_sgd(maximize=flag)),
    "maximize of x": lambda flag: neada.Alternating(y_sgd(maximize=flag), y_sgd(maximize=True)),
    "maximize of a search": lambda flag: neada.optim.parameter_free_sgd(
        lambda: X.sum(), [X], 10, maximize=flag
    ),
    "safe": lambda flag: neada.optim.Backtracking([X], safe=flag),
    "rowwise": lambda flag: neada.TiAda([X], [Y], rowwise=flag),
    "amsgrad": lambda flag: neada.TiAdaAdam([X], [Y], amsgrad=flag),
    "deterministic": lambda flag: neada.NeAda(sgd(), y_sgd(maximize=True), deterministic=flag),
    "stochastic": lambda flag: neada.make_stepper(
        "neada", neada.Players([X], [Y], stochastic=flag)
    ),
    "per_sample": lambda flag: sets.L2Ball(1.0, per_sample=flag),
    "per_sample of a cube": lambda flag: sets.LinfBall(1.0, per_sample=flag),
    "per_sample of a simplex": lambda flag: sets.Simplex(per_sample=flag),
    "per_sample of an objective": lambda flag: wrm(per_sample=flag),
    "fold": lambda flag: neada.inner.InnerOptions(fold=flag),
    "reuse_last": lambda flag: neada.inner.InnerOptions(reuse_last=flag),
    "shuffle": lambda flag: data.Batches(INPUTS, TARGETS, 2, shuffle=flag),
    "drop_last": lambda flag: data.Batches(INPUTS, TARGETS, 2, drop_last=flag),
    "download": lambda flag: data.load("synthetic", download=flag),
    "resume": lambda flag: train(CONFIG, resume=flag),
    "overwrite": lambda flag: train(CONFIG, overwrite=flag),
    "tensorboard": lambda flag: train(CONFIG, tensorboard=flag),
    "progress": lambda flag: neada.minimize(lambda x: x @ x, [1.0], progress=flag),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str) -> None:
    with pytest.raises(ValueError, match=name.split(maxsplit=1)[0]):
        FLAGS[name]("no")


def test_a_mask_is_no_list_of_groups() -> None:
    objective = robust.GroupDRO(MODEL, LOSS, 2)
    with pytest.raises(ValueError, match="groups"):
        objective.step(sgd(), INPUTS, TARGETS, TARGETS == 1)


def test_a_strength_needs_a_regularizer() -> None:
    with pytest.raises(ValueError, match="strength"):
        robust.GroupDRO(MODEL, LOSS, 2, regularizer=None, strength=2.0)
