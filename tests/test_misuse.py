"""Mistakes that users make with the building blocks raise one clear error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import neada
from neada import robust
from neada.stopping import RelativeAccuracy


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def sgd(params: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, **options)


def game() -> tuple[neada.Simultaneous, Callable[[], torch.Tensor]]:
    x, y = leaf(), leaf()
    return neada.Simultaneous(sgd([x]), sgd([y], maximize=True)), lambda: (x * y).sum()


def step_with_backward() -> None:
    stepper, closure = game()

    def evaluate() -> torch.Tensor:
        value = closure()
        value.backward()
        return value

    stepper.step(evaluate)


def step_with_two_closures() -> None:
    stepper, closure = game()
    stepper.step(closure, closure)


def wrm(**options: Any) -> robust.WRM:
    return robust.WRM(nn.Linear(2, 2), cross_entropy, 1.0, **options)


BATCH = (torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "tensors to NeAda": (lambda: neada.NeAda([leaf()], [leaf()]), TypeError, "optimizer"),
    "modules to NeAda": (
        lambda: neada.NeAda(nn.Linear(1, 1), nn.Linear(1, 1)),
        TypeError,
        "optimizer",
    ),
    "y tensor to NeAda": (lambda: neada.NeAda(sgd([leaf()]), [leaf()]), TypeError, "optimizer"),
    "y module to NeAda": (
        lambda: neada.NeAda(sgd([leaf()]), nn.Linear(1, 1)),
        TypeError,
        "optimizer",
    ),
    "module to TiAda": (
        lambda: neada.TiAda(nn.Sequential(nn.Linear(1, 1)), [leaf()]),
        TypeError,
        "parameters",
    ),
    "backward in the closure": (step_with_backward, ValueError, "backward"),
    "two closures": (step_with_two_closures, TypeError, "one closure"),
    "integer hidden": (lambda: neada.models.mlp((2,), 2, hidden=8), TypeError, "hidden"),
    "integer hidden by name": (
        lambda: neada.models.make("mlp", (2,), 2, hidden=8),
        TypeError,
        "hidden",
    ),
    "rule for an adversary": (lambda: robust.Adversary(stopping=7), TypeError, "stopping"),
    "rule with the x gradient": (
        lambda: robust.Adversary(stopping=RelativeAccuracy(0.5)),
        ValueError,
        "x gradient",
    ),
    "optimizer for an adversary": (
        lambda: robust.Adversary(optimizer=sgd([leaf()])),
        TypeError,
        "function",
    ),
    "batch gradient per sample": (
        lambda: robust.Adversary(per_sample=True, measure="batch"),
        ValueError,
        "sample",
    ),
    "start outside a ball": (
        lambda: wrm(adversary=robust.Adversary(start="random")),
        ValueError,
        "ball",
    ),
    "options as a dictionary": (lambda: wrm(adversary={"start": "clean"}), TypeError, "Adversary"),
    "ids that are not used": (
        lambda: wrm().perturb(*BATCH, ids=torch.tensor([0, 1])),
        ValueError,
        "kept",
    ),
    "ids that are missing": (
        lambda: wrm(adversary=robust.Adversary(start="kept")).perturb(*BATCH),
        TypeError,
        "ids",
    ),
    "ids that are a mask": (
        lambda: wrm(adversary=robust.Adversary(start="kept")).perturb(
            *BATCH, ids=torch.tensor([True, False])
        ),
        ValueError,
        "ids",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_raises_one_clear_error(name: str) -> None:
    call, error, keyword = MISTAKES[name]
    with pytest.raises(error, match=keyword):
        call()
