"""Objectives and stores show themselves in one line, with the parts that matter."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from neada.robust import TRADES, WRM, AdversarialTraining, GroupDRO, PerturbationStore
from neada.stopping import FixedSteps

MODEL = nn.Sequential(nn.Linear(2, 8), nn.ELU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            WRM(MODEL, cross_entropy, gamma=1.3, stopping=FixedSteps(15)),
            "WRM(Sequential, cross_entropy, gamma=1.3, stopping='15 inner steps')",
        ),
        (
            AdversarialTraining(
                nn.Linear(2, 2),
                nn.CrossEntropyLoss(),
                eps=0.1,
                bounds=(0.0, 1.0),
                stopping=FixedSteps(2),
            ),
            "AdversarialTraining(Linear, CrossEntropyLoss, eps=0.1, norm='linf', "
            "bounds=Box(lower=0.0, upper=1.0), stopping='2 inner steps')",
        ),
        (
            TRADES(MODEL, cross_entropy, eps=0.5, norm="l2", stopping=FixedSteps(3)),
            "TRADES(Sequential, cross_entropy, eps=0.5, norm='l2', beta=6.0, "
            "stopping='3 inner steps')",
        ),
        (
            GroupDRO(MODEL, cross_entropy, 4, strength=0.5),
            "GroupDRO(Sequential, cross_entropy, num_groups=4, regularizer='kl', strength=0.5, "
            "weights=[0.25, 0.25, 0.25, 0.25])",
        ),
        (
            GroupDRO(MODEL, cross_entropy, 100, regularizer=None),
            "GroupDRO(Sequential, cross_entropy, num_groups=100)",
        ),
        (
            PerturbationStore(1000, (1, 28, 28), torch.float16),
            "PerturbationStore(1000 samples of shape (1, 28, 28), float16, in memory)",
        ),
    ],
    ids=lambda part: type(part).__name__,
)
def test_an_object_shows_itself_in_one_line(shown: object, expected: str) -> None:
    assert repr(shown) == expected


def test_the_rule_and_the_store_are_shown(tmp_path: Path) -> None:
    store = PerturbationStore(3, (2,), path=tmp_path / "store.npy")
    line = repr(WRM(MODEL, partial(cross_entropy, label_smoothing=0.1), 2.0, store=store))
    assert f"store=PerturbationStore(3 samples of shape (2,), float32, in {store.path})" in line
    assert "WRM(Sequential, partial, gamma=2.0, " in line
    assert "1/(t+1)" in line and "\n" not in line
