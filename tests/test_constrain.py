"""Optimizers on sets: `constrain` for any of torch's, the argument `constraint` for ours."""

import io
import math

import pytest
import torch

from neada import constrain, optim, robust, sets, steppers
from neada.optim.constrain import installed_sets
from optimizers import vector


def test_constrain_projects_after_every_step_and_can_be_replaced() -> None:
    w = vector(0.0, 0.0)
    optimizer = torch.optim.Adam([w], lr=0.3)
    assert constrain(optimizer, sets.L2Ball(0.5)) is optimizer
    for radius in (0.5, 0.1):
        constrain(optimizer, sets.L2Ball(radius))
        for _ in range(5):
            optimizer.zero_grad()
            w.sum().backward()
            optimizer.step()
            assert float(w.detach().norm()) <= radius * (1 + 1e-12)
        assert float(w.detach().norm()) == pytest.approx(radius)
    assert repr(installed_sets(optimizer)) == repr([sets.L2Ball(0.1)])
    constrain(optimizer, None)
    for _ in range(5):
        optimizer.step()
    assert float(w.detach().norm()) > 0.5


def test_constrain_takes_one_set_per_group() -> None:
    a, b = vector(0.0), vector(0.0)
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=10.0)
    constrain(optimizer, [sets.Box(-1.0, 1.0), None])
    (a + b).sum().backward()
    optimizer.step()
    assert [float(a.detach()), float(b.detach())] == [-1.0, -10.0]
    with pytest.raises(ValueError, match="parameter"):
        constrain(optimizer, [None])
    with pytest.raises(TypeError, match="set"):
        constrain(optimizer, [None, "ball"])


def test_steppers_honor_sets_in_the_groups_of_torch_optimizers() -> None:
    x, y, z = vector(0.0), vector(0.0), vector(0.0)
    box, interval = sets.Box(-0.5, 0.5), sets.Box(0.0, 0.25)
    x_optimizer = torch.optim.SGD([{"params": [x], "constraint": box}], lr=1.0)
    y_optimizer = torch.optim.SGD([{"params": [y]}], lr=1.0, maximize=True)
    stepper = steppers.Simultaneous(x_optimizer, y_optimizer)
    y_optimizer.add_param_group({"params": [z], "constraint": interval})
    stepper = steppers.Simultaneous(x_optimizer, y_optimizer)
    info = stepper.step(lambda: (3.0 * x + 3.0 * y + 3.0 * z).sum())
    assert [p.item() for p in (x, y, z)] == [-0.5, 3.0, 0.25]
    assert info.grad_sq_x == 0.25  # of the gradient mapping
    saved = io.BytesIO()
    torch.save(stepper.state_dict(), saved)
    saved.seek(0)
    stepper.load_state_dict(torch.load(saved, weights_only=True))
    stepper.step(lambda: (3.0 * x + 3.0 * y + 3.0 * z).sum())
    assert [p.item() for p in (x, y, z)] == [-0.5, 6.0, 0.25]


def test_robust_objectives_honor_sets_in_the_groups_of_torch_optimizers() -> None:
    model = torch.nn.Linear(2, 2)
    groups = [{"params": list(model.parameters()), "constraint": sets.L2Ball(0.5)}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    inputs, targets = torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
    loss = torch.nn.functional.cross_entropy
    robust.WRM(model, loss, gamma=5.0).step(optimizer, inputs, targets)
    assert sets.L2Ball(0.5).contains(list(model.parameters()))


def test_an_explicit_set_replaces_that_of_the_group() -> None:
    w = vector(0.0)
    optimizer = torch.optim.SGD([{"params": [w], "constraint": sets.Box(-1.0, 1.0)}])
    constrain(optimizer, None)
    assert installed_sets(optimizer) == [None]


def test_constrain_on_one_of_ours_is_its_constraint_argument() -> None:
    w, v = vector(0.0), vector(0.0)
    late = constrain(optim.AdGD([w]), sets.Box(-1.0, 1.0))
    early = optim.AdGD([v], constraint=sets.Box(-1.0, 1.0))
    for optimizer, p in ((late, w), (early, v)):
        for _ in range(20):
            optimizer.zero_grad()
            ((p - 3.0) ** 2).sum().backward()
            optimizer.step()
    assert float(w.detach()) == float(v.detach()) == 1.0
    with pytest.raises(ValueError, match="version"):
        constrain(optim.AdGD([w], variant="mm20"), sets.Box(0.0, 1.0))


def test_a_set_that_does_not_fit_is_refused_at_construction() -> None:
    with pytest.raises(ValueError):
        optim.KT([vector(0.0, 0.0)], bound=1.0, constraint=sets.Box(torch.zeros(3), torch.ones(3)))
    with pytest.raises(TypeError, match="set"):
        optim.KT([vector(0.0)], bound=1.0, constraint=1.0)


def test_a_joint_set_moves_tensors_without_gradient_too() -> None:
    a, b = vector(0.0), vector(0.8)
    optimizer = optim.GeneralizedAdaGrad([a, b], lr=10.0, constraint=sets.L2Ball(1.0))
    a.grad = -torch.ones_like(a)
    optimizer.step()
    assert math.hypot(float(a.detach()), float(b.detach())) == pytest.approx(1.0)
    assert float(b.detach()) < 0.8


def test_one_set_for_every_group_covers_groups_added_later() -> None:
    a, b = vector(0.0), vector(0.0)
    optimizer = constrain(torch.optim.SGD([a], lr=10.0), sets.Box(-1.0, 1.0))
    optimizer.add_param_group({"params": [b]})
    (a + b).sum().backward()
    optimizer.step()
    assert [float(a.detach()), float(b.detach())] == [-1.0, -1.0]
