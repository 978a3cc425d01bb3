"""Edge cases: missing gradients, infeasible starts, extreme numbers, loaded states."""

import copy
import math

import numpy as np
import pytest
import torch

from neada import constrain, optim, sets, tensors
from optimizers import Case, Problem, leaf, make, take_step, vector, with_sets


@with_sets
def test_a_tensor_without_gradient_rests_in_a_box(case: Case) -> None:
    """A missing gradient is no zero gradient: momentum and bets of that tensor pause."""
    problem = Problem()
    a, b = leaf(np.zeros(6)), leaf(np.full(2, 0.1))
    optimizer = make(case, [a, b], constraint=sets.Box(-3.0, 3.0))
    for _ in range(3):
        take_step(optimizer, case, lambda: problem.torch_value(a) + ((b - 1.0) ** 2).sum())
    resting = b.detach().clone()
    for _ in range(4):
        take_step(optimizer, case, lambda: problem.torch_value(a))
    assert torch.equal(b, resting)


def test_backtracking_is_not_frozen_by_a_large_first_value() -> None:
    w = torch.tensor([300.0, 200.0], requires_grad=True)
    optimizer = optim.Backtracking([w])
    for _ in range(300):
        optimizer.zero_grad()
        value = (w**4).sum()
        value.backward()
        optimizer.step(lambda: (w**4).sum(), value=value.detach())
    assert float((w.detach() ** 4).sum()) < 1e-8


@pytest.mark.parametrize(
    ("make_it", "gradient"),
    [
        (lambda w: optim.COCOB([w]), 1e18),
        (lambda w: optim.GeneralizedAdaGrad([w]), 1e18),
        (lambda w: optim.DoG([w]), 1e18),
        (lambda w: optim.AdGD([w]), 1e18),
        (lambda w: optim.COCOB([w]), 1e-25),
        (lambda w: optim.CoinBetting([w]), 1e-41),
    ],
)
def test_extreme_float32_gradients_give_finite_steps(make_it: object, gradient: float) -> None:
    w = vector(0.0, 0.0, dtype=torch.float32)
    optimizer = make_it(w)
    for _ in range(5):
        w.grad = torch.tensor([gradient, 0.0])
        optimizer.step()
    assert bool(w.isfinite().all())


def test_squares_beyond_float32_are_refused_not_remembered() -> None:
    w = vector(0.0, 0.0, dtype=torch.float32)
    optimizer = optim.AdaptiveSGD([w], psi="adagrad")
    w.grad = torch.tensor([1e20, 0.0])
    with pytest.raises(optim.NonFiniteGradient, match="overflows"):
        optimizer.step()
    w.grad = torch.tensor([1.0, 0.0])
    optimizer.step()
    assert float(w.detach()[0]) == pytest.approx(-0.01)


@pytest.mark.parametrize("rowwise", [False, True])
def test_a_step_beyond_float32_times_a_tiny_gradient_is_exact(rowwise: bool) -> None:
    w = torch.zeros(1, 2, requires_grad=True)
    optimizer = optim.Polyak([w], -1.0, rowwise=rowwise)
    w.grad = torch.tensor([[1e-22, 0.0]])
    optimizer.step(value=torch.tensor([1.0]))
    assert w.detach()[0].tolist() == pytest.approx([-2e22, 0.0], rel=1e-6)


@pytest.mark.parametrize("variant", ["mm20", "mm20lin", "mm23", "adapg"])
def test_equal_gradients_neither_stop_nor_break_adgd(variant: str) -> None:
    w = vector(3.0)
    optimizer = optim.AdGD([w], variant=variant)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.huber_loss(w, torch.zeros_like(w)).backward()
        optimizer.step()
    assert abs(float(w.detach())) < 1e-6


def test_a_kept_distance_can_be_copied_and_saved() -> None:
    w = leaf(np.ones((3, 2)))
    optimizer = optim.DoG([w], rowwise=True)
    w.grad = torch.ones_like(w)
    optimizer.step()
    optimizer.reset(keep="step")
    copy.deepcopy(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert not optimizer.param_groups[0]["numbers"]["distance"].requires_grad


def test_the_average_covers_steps_in_which_a_tensor_had_no_gradient() -> None:
    a, b = vector(0.0), vector(0.0)
    optimizer = optim.GeneralizedAdaGrad([a, b], average=0.0)
    seen = []
    for k in range(8):
        a.grad = torch.ones_like(a)
        b.grad = torch.ones_like(b) if k < 3 else None
        optimizer.step()
        seen.append(float(b.detach()))
    with optimizer.averaged():
        assert float(b.detach()) == pytest.approx(np.mean(seen), rel=1e-14)


def test_a_vanishing_gradient_does_not_spoil_the_weighted_average() -> None:
    w = vector(1.0)
    optimizer = optim.SCAdaNGD([w], strong_convexity=1.0)
    for gradient in (1.0, 1e-170, 0.5):
        w.grad = torch.full_like(w, gradient)
        optimizer.step()
    with optimizer.averaged():
        assert math.isfinite(float(w.detach()))


def test_a_bound_that_is_exceeded_does_not_ruin_the_bettor() -> None:
    w = vector(0.0)
    optimizer = optim.CoinBetting([w], bound=1.0, curvature=False)
    for gradient in (1.0, 1.0, 1.0, -8.0, -8.0):
        w.grad = torch.full_like(w, gradient)
        optimizer.step()
        assert optimizer.param_groups[0]["numbers"]["wealth"] > 0.0


def test_states_of_other_methods_are_refused() -> None:
    w = leaf(np.zeros((3, 2)))
    w.grad = torch.ones_like(w)
    saved_by_adam = torch.optim.Adam([w]).state_dict()
    with pytest.raises(ValueError, match="GeneralizedAdaGrad"):
        optim.GeneralizedAdaGrad([w]).load_state_dict(saved_by_adam)
    with pytest.raises(ValueError, match="AdGD"):
        optim.GeneralizedAdaGrad([w]).load_state_dict(optim.AdGD([w]).state_dict())


def test_schedulers_accept_an_adgd_without_a_learning_rate() -> None:
    optimizer = optim.AdGD([vector(1.0)])
    torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    late = constrain(optim.AdGD([vector(5.0)]), sets.Box(-1.0, 1.0))
    late.param_groups[0]["params"][0].grad = torch.ones(1, dtype=torch.float64)
    late.step()
    assert late.param_groups[0]["numbers"]["step"] == 1e-2  # adapg's, not mm20lin's


def test_a_batch_may_have_no_rows() -> None:
    w = torch.zeros(0, 5, requires_grad=True)
    optimizer = optim.GeneralizedAdaGrad([w], rowwise=True)
    w.grad = torch.zeros(0, 5)
    optimizer.step()


def test_float32_norms_lose_no_digits_on_equal_entries() -> None:
    for size in (1000, 131_072, 1_000_000):
        tensor = torch.full((size,), 1e-3)
        exact = float(tensor.double().square().sum())
        assert tensors.squared_norm([tensor]) == pytest.approx(exact, rel=3e-7)
