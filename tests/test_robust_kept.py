"""`Adversary(start="kept")`: perturbations are kept by sample id."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from neada.robust import WRM, Adversary
from neada.stopping import FixedSteps

INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(8) % 2
IDS = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5])


def objective(num_steps: int = 3, start: Any = "kept", **options: Any) -> WRM:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    adversary = Adversary(
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
        stopping=FixedSteps(num_steps),
        min_steps=0,
        start=start,
    )
    return WRM(model, functional.cross_entropy, 1.0, adversary=adversary, **options)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, list])
def test_y_continues_from_the_perturbations_of_its_ids(kind: Any) -> None:
    def given(ids: torch.Tensor) -> Any:
        return ids.tolist() if kind is list else ids.to(kind)

    robust = objective()
    robust.perturb(INPUTS, TARGETS, given(IDS))
    robust.perturb(INPUTS.flip(0), TARGETS.flip(0), given(IDS.flip(0)))
    for half in (slice(0, 4), slice(4, 8)):
        worst = robust.perturb(INPUTS[half], TARGETS[half], given(IDS[half]))
        cold = objective(9, "clean").perturb(INPUTS[half], TARGETS[half])
        torch.testing.assert_close(worst.inputs, cold.inputs)
        kept = robust.state_dict()["kept"][IDS[half]]
        torch.testing.assert_close(kept, worst.inputs - INPUTS[half])


def test_larger_ids_are_appended() -> None:
    robust = objective()
    assert robust.state_dict()["kept"] is None
    robust.perturb(INPUTS, TARGETS, torch.arange(8))
    before = robust.state_dict()["kept"]
    worst = robust.perturb(INPUTS, TARGETS, torch.arange(20, 28))
    after = robust.state_dict()["kept"]
    assert (len(before), len(after)) == (8, 28)
    assert torch.equal(after[:8], before)
    assert torch.equal(after[8:20], torch.zeros(12, 6))
    assert torch.equal(after[20:], worst.inputs - INPUTS)


def test_the_start_is_projected_on_the_bounds() -> None:
    robust = objective(0, bounds=(0.0, 1.0))
    robust.load_state_dict({**robust.state_dict(), "kept": torch.full((2, 6), 5.0)})
    worst = robust.perturb(torch.rand(2, 6), TARGETS[:2], torch.arange(2))
    assert torch.equal(worst.inputs, torch.ones(2, 6))


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (None, TypeError),
        (IDS[:5], ValueError),
        (IDS.float(), ValueError),
        (IDS - 2, ValueError),
        (IDS > 3, ValueError),
    ],
)
def test_wrong_ids_raise(ids: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ids"):
        objective().perturb(INPUTS, TARGETS, ids)


def test_ids_and_shapes_that_do_not_fit_raise() -> None:
    with pytest.raises(ValueError, match="kept"):
        objective(start="clean").perturb(INPUTS, TARGETS, IDS)
    robust = objective()
    robust.load_state_dict({**robust.state_dict(), "kept": torch.zeros(16, 3)})
    with pytest.raises(ValueError, match="shape"):
        robust.perturb(INPUTS, TARGETS, IDS)
