"""The spectral projected gradient: what is rejected, what is kept, and how the first step is found.

The steps themselves are judged by the reference in the batteries of all optimizers.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neada import sets, tensors
from neada.optim import SPG
from neada.robust import WRM, Adversary
from neada.robust.samples import cut_to_rows
from neada.stopping import FixedSteps
from optimizers import leaf, vector


def give(optimizer: SPG, w: Tensor, gradient: Any, value: Any) -> list[float]:
    """One step with a gradient and a value; where it leads."""
    w.grad = torch.as_tensor(gradient, dtype=w.dtype).reshape(w.shape)
    optimizer.step(
        value=torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
    )
    return w.detach().flatten().tolist()


def number(optimizer: SPG, name: str) -> Any:
    return optimizer.param_groups[0]["numbers"][name]


# The safeguard.


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("bad", [2.0, math.inf, math.nan])
def test_from_a_worse_point_it_goes_back_and_halves_the_step(maximize: bool, bad: float) -> None:
    sign = -1.0 if maximize else 1.0
    w = vector(1.0)
    optimizer = SPG([w], 0.4, maximize=maximize)
    assert give(optimizer, w, [1.0 * sign], 1.0 * sign) == pytest.approx([0.6])
    assert give(optimizer, w, [77.0], bad * sign) == pytest.approx([0.8])
    assert give(optimizer, w, [-55.0], 1.5 * sign) == pytest.approx([0.9])
    with optimizer.best():
        assert w.item() == 1.0
    assert w.item() == pytest.approx(0.9)


def test_rounding_is_not_worse_and_the_best_value_does_not_drift() -> None:
    w = vector(1.0)
    optimizer = SPG([w], 0.1)
    give(optimizer, w, [1.0], 1000.0)
    give(optimizer, w, [1.0], 1000.0 + 1e-12)
    with optimizer.best():
        assert w.item() == pytest.approx(0.9)
    assert number(optimizer, "best_value") == 1000.0
    give(optimizer, w, [1.0], 1000.0 + 1e-10)
    assert number(optimizer, "step") == pytest.approx(0.05)


def test_halvings_may_go_below_the_shortest_step_and_the_value_of_one_point_is_renewed() -> None:
    w = vector(1.0)
    optimizer = SPG([w], 1.0)
    give(optimizer, w, [1.0], 0.0)
    for _ in range(54):
        give(optimizer, w, [1.0], 1.0)
    assert number(optimizer, "step") == 2.0**-54
    assert w.item() == 1.0  # less than a rounding unit away
    give(optimizer, w, [1.0], 1.0)  # this is the value of the best point, whatever it was before
    assert number(optimizer, "best_value") == 1.0
    assert w.item() == 0.0


def test_the_value_of_a_start_outside_the_set_does_not_count() -> None:
    w = leaf([[3.0], [0.5]])
    optimizer = SPG([w], 0.1, constraint=sets.Box(0.0, 1.0), rowwise=True)
    # Minimizing -w: outside the set everything is better.
    give(optimizer, w, [-1.0, -1.0], [-3.0, -0.5])
    assert number(optimizer, "best_value").tolist() == [math.inf, -0.5]
    assert give(optimizer, w, [-1.0, -1.0], [-1.0, -0.6]) == pytest.approx([1.0, 0.7])
    assert number(optimizer, "best_value").tolist() == [-1.0, -0.6]


def test_a_worse_point_without_gradient_is_left_again() -> None:
    w = vector(1.0)
    optimizer = SPG([w], 8.0)
    give(optimizer, w, [1.0], 1.0)
    assert give(optimizer, w, [0.0], 5.0) == [-3.0]


def test_values_of_the_kept_points_never_rise_on_a_hard_function() -> None:
    generator = torch.Generator().manual_seed(0)
    w = (4.0 * torch.randn(50, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    optimizer = SPG([w], 10.0, rowwise=True)

    def value() -> Tensor:
        return (w**4 - 3.0 * w**2 + torch.sin(20.0 * w)).sum(1)

    before = torch.full((50,), math.inf, dtype=torch.float64)
    for _ in range(60):
        optimizer.zero_grad()
        values = value()
        values.sum().backward()
        optimizer.step(value=values.detach())
        with optimizer.best():
            after = value().detach()
        assert bool((after <= before + 1e-12).all())
        before = after


def test_the_present_point_takes_part_where_its_value_is_given() -> None:
    w = leaf([[1.0], [1.0], [1.0]])
    optimizer = SPG([w], 0.5, rowwise=True)
    with optimizer.best():  # nothing is known yet
        assert w.flatten().tolist() == [1.0, 1.0, 1.0]
    give(optimizer, w, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    values = torch.tensor([0.9, 1.1, math.nan])
    with pytest.raises(KeyError), optimizer.best(values):
        assert w.flatten().tolist() == [0.5, 1.0, 1.0]
        raise KeyError
    assert w.flatten().tolist() == [0.5, 0.5, 0.5]


def test_without_a_safeguard_no_value_is_needed_and_no_best_point_known() -> None:
    w = vector(1.0)
    optimizer = SPG([w], 0.4, safeguard=False)
    give(optimizer, w, [1.0], None)
    assert give(optimizer, w, [2.0], 1e9) == pytest.approx([0.6 - 0.4 * 2.0])
    with pytest.raises(RuntimeError, match="knows"), optimizer.best():
        pass


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_it_does_not_stall_where_values_are_equal_to_rounding(offset: float) -> None:
    w = vector(0.0, 0.0)
    optimizer = SPG([w], 0.1)
    for _ in range(400):
        optimizer.zero_grad()
        value = ((w - 1.0) ** 2 * torch.tensor([0.5, 5.0])).sum() + offset
        value.backward()
        optimizer.step(value=value.detach())
    assert float((w.detach() - 1.0).abs().max()) < 1e-12


@pytest.mark.parametrize("options", [{"lr": 3.0}, {}, {"lr": 0.1, "safeguard": False}])
@pytest.mark.parametrize("constraint", [None, sets.Box(-0.4, 1.5)])
def test_frozen_rows_are_not_evaluated(options: Any, constraint: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    resting = torch.rand(15, 4, generator=generator) < 0.4

    def values(w: Tensor) -> Tensor:
        return ((w - 1.0) ** 2 * torch.tensor([1.0, 4.0, 0.3])).sum(1) + torch.sin(3.0 * w).sum(1)

    def step(optimizer: SPG, w: Tensor) -> None:
        optimizer.zero_grad()
        found = values(w)
        found.sum().backward()
        optimizer.step(value=found.detach())

    w = start.clone().requires_grad_()
    together = SPG([w], **options, constraint=constraint, rowwise=True)
    if constraint is not None:
        constraint.project_(w)
    for rows in resting:
        before = w.detach().clone()
        with together.frozen_rows(rows):
            step(together, w)
        assert torch.equal(w.detach()[rows], before[rows])
    for i in range(4):
        one = start[i : i + 1].clone().requires_grad_()
        alone = SPG([one], **options, constraint=constraint, rowwise=True)
        if constraint is not None:
            constraint.project_(one)
        for _ in range(int((~resting[:, i]).sum())):
            step(alone, one)
        torch.testing.assert_close(w[i : i + 1], one, rtol=1e-9, atol=1e-11)


# The step.


def test_every_row_may_have_its_first_step_and_keeps_it_when_others_leave() -> None:
    rates = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    w = leaf(np.zeros((3, 1)))
    optimizer = SPG([w], rates, rowwise=True)
    assert give(optimizer, w, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == [-0.1, -0.2, -0.4]
    left = cut_to_rows(optimizer, w, torch.tensor([0, 2]))
    assert give(optimizer, left, [1.0, 1.0], [0.9, 9.0]) == pytest.approx([-0.2, -0.2])
    optimizer.reset()
    assert give(optimizer, left, [1.0, 1.0], [0.0, 0.0]) == pytest.approx([-0.3, -0.6])


def test_the_first_step_is_found_by_a_probe() -> None:
    w = vector(30.0, 40.0)
    optimizer = SPG([w])
    give(optimizer, w, [6.0, 8.0], 50.0)
    probe = torch.tensor([30.0, 40.0], dtype=torch.float64) - w.detach()
    assert probe.tolist() == pytest.approx([0.03, 0.04])
    give(optimizer, w, [6.0, 8.0 - 4.0 * 0.05], 49.0)
    assert number(optimizer, "first_step") == pytest.approx(0.25)


def test_where_the_probe_sees_nothing_the_next_is_ten_times_as_long() -> None:
    w = vector(0.0)
    optimizer = SPG([w])
    lengths = []
    for value in (0.0, -1.0, -2.0, -3.0):
        before = w.item()
        give(optimizer, w, [1.0], value)
        lengths.append(before - w.item())
    assert lengths == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])


def test_a_probe_at_the_corner_of_a_set_stays_finite() -> None:
    w = vector(1.0)
    optimizer = SPG([w], maximize=True, constraint=sets.Box(0.0, 1.0))
    for _ in range(1000):
        give(optimizer, w, [1.0], 1.0)
    assert w.item() == 1.0
    assert math.isfinite(number(optimizer, "step"))


def test_a_kept_step_is_the_next_first_move() -> None:
    w = vector(0.0)
    optimizer = SPG([w], 1.0)
    give(optimizer, w, [1.0], 1.0)
    give(optimizer, w, [0.5], 0.0)
    optimizer.reset(keep="step")
    w.data.zero_()
    assert give(optimizer, w, [1.0], 123.0) == [-2.0]


# What it is made of, and where it is used.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 2), (0, 4), (400, 300), (2, 70_000)])
def test_secants_are_products_of_differences(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    four = [torch.randn(2, *shape, generator=generator, dtype=dtype).unbind() for _ in range(4)]
    found = tensors.secant(*four, rowwise=True)
    whole = tensors.secant(*four)
    moved, changed = (
        np.concatenate([(a - b).double().reshape(shape[0], -1).numpy() for a, b in pairs], axis=1)
        if shape[0]
        else np.zeros((0, 8))
        for pairs in (zip(four[0], four[1], strict=True), zip(four[2], four[3], strict=True))
    )
    for got, total, expected in zip(
        found, whole, (moved * moved, moved * changed, changed * changed), strict=True
    ):
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.numpy(), expected.sum(1), rtol=1e-9, atol=1e-9)
        assert total == pytest.approx(expected.sum(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("num_steps", [1, 2, 5])
@pytest.mark.parametrize("per_sample", [False, True])
def test_an_adversary_never_ends_at_a_point_worse_than_it_has_seen(
    num_steps: int, per_sample: bool
) -> None:
    """With a first step far too long; the last move is judged by one value."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 3)).double()
    inputs = torch.randn(20, 4, dtype=torch.float64)
    targets = torch.arange(20) % 3
    gamma, seen = 0.5, []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    class Watched(WRM):
        def _values(self, *at: Any) -> Tensor:
            values = super()._values(*at)
            seen.append(values.detach())
            return values

    adversary = Adversary(
        optimizer=lambda p: SPG(p, 20.0, maximize=True, rowwise=True),
        stopping=FixedSteps(num_steps),
        per_sample=per_sample,
    )
    worst = Watched(model, loss, gamma, adversary=adversary).perturb(inputs, targets)
    ends = loss(model(worst.inputs), targets) - gamma * (worst.inputs - inputs).square().sum(1)
    assert len(seen) == num_steps + 1
    assert bool((ends >= torch.stack(seen).amax(0) - 1e-12).all())
    assert bool((seen[1] < seen[0]).any())  # there was something to go back from
    assert (worst.calls_y, worst.calls_value) == (num_steps, 1)
