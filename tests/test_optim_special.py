"""What is special to one optimizer: line searches, bettors, averages, variants, guards."""

import math

import numpy as np
import pytest
import torch

from neada import constrain, optim, sets
from neada.optim.constrain import constraints


def vector(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# Line searches.


def backtrack(
    optimizer: torch.optim.Optimizer, w: torch.Tensor, value, num_steps: int
) -> list[tuple[float, float, float]]:
    """(value before, value after, distance moved) of each step, and the steps taken."""
    rows = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        before = value()
        before.backward()
        point = w.detach().clone()
        optimizer.step(value, value=before.detach())
        rows.append((before.item(), value().item(), float((w.detach() - point).norm())))
    return rows


def test_every_armijo_step_keeps_its_promise() -> None:
    scale = torch.tensor([1.0, 30.0], dtype=torch.float64)
    w = vector(3.0, -1.0)
    optimizer = optim.Backtracking([w], test="armijo", c=0.5, safe=False)
    value = lambda: (scale * w**2).sum() + torch.cos(w).sum()  # noqa: E731
    for _ in range(20):
        ((before, after, moved),) = backtrack(optimizer, w, value, 1)
        step = optimizer.param_groups[0]["numbers"]["step"]
        assert after <= before - 0.5 / step * moved**2


def test_the_quadratic_test_contracts_at_the_proven_rate() -> None:
    """|w+ - w*|^2 <= (1 - mu s)|w - w*|^2 with the accepted step s, also on a ball."""
    a = torch.tensor([1.0, 10.0], dtype=torch.float64)
    solution = torch.tensor([0.09023700689951714, -0.9959203193959929], dtype=torch.float64)
    w = vector(0.0, 0.0)
    optimizer = optim.Backtracking([w], constraint=sets.L2Ball(1.0))
    value = lambda: 0.5 * (a * (w - torch.tensor([1.0, -2.0])) ** 2).sum()  # noqa: E731
    for _ in range(12):
        before = float(((w.detach() - solution) ** 2).sum())
        backtrack(optimizer, w, value, 1)
        step = optimizer.param_groups[0]["numbers"]["step"]
        assert step >= 0.5 / 10.0  # beta / l
        after = float(((w.detach() - solution) ** 2).sum())
        assert after <= (1.0 - step) * before + 1e-15


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_safe_rule_goes_on_below_the_rounding_of_values(offset: float) -> None:
    """An unsafe search stalls where the decrease drowns in the last digits of the value."""
    a = torch.tensor([1.0, 7.0, 10.0], dtype=torch.float64)

    def final_gradient(safe: bool) -> float:
        w = vector(3.0, -2.0, 1.0)
        optimizer = optim.Backtracking([w], safe=safe)
        backtrack(optimizer, w, lambda: 0.5 * (a * (w - 1.0) ** 2).sum() + offset, 400)
        return float((a * (w.detach() - 1.0)).norm())

    assert final_gradient(True) < 1e-13
    if offset:
        assert final_gradient(False) > 1e-9


def test_an_unvalidated_first_step_is_never_taken_untested() -> None:
    """At a start below rounding the safe rule must not trust the arbitrary s_0 = 1."""
    w = vector(1e-9)
    optimizer = optim.Backtracking([w])
    value = lambda: 1e6 * w.square().sum() + 1e3  # noqa: E731
    backtrack(optimizer, w, value, 1)
    assert abs(float(w.detach())) < 1e-5


def test_a_wall_of_nan_is_backed_away_from() -> None:
    w = vector(0.5)
    optimizer = optim.Backtracking([w], lr=100.0)
    value = lambda: -torch.log(w).sum() + w.sum()  # noqa: E731
    backtrack(optimizer, w, value, 60)
    assert float(w.detach()) == pytest.approx(1.0, abs=1e-6)


def test_nothing_is_left_at_a_trial_point_when_the_closure_raises() -> None:
    w = vector(1.0)
    optimizer = optim.Backtracking([w])
    w.grad = torch.ones_like(w)

    def broken() -> float:
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(broken, value=1.0)
    assert float(w.detach()) == 1.0
    with pytest.raises(FloatingPointError, match="not finite at any trial point"):
        optimizer.step(lambda: math.nan, value=1.0)
    assert float(w.detach()) == 1.0


def test_a_kept_step_goes_on_growing() -> None:
    w = vector(1.0)
    optimizer = optim.Backtracking([w], lr=1e-3)
    value = lambda: (0.5 * w**2).sum()  # noqa: E731
    for _ in range(8):
        backtrack(optimizer, w, value, 1)
        optimizer.reset(keep="step")
    assert optimizer.param_groups[0]["numbers"]["step"] == 1e-3 * 2**7


def test_the_trial_step_is_capped() -> None:
    w = vector(1.0)
    optimizer = optim.Backtracking([w], lr=0.1, max_step=0.15)
    backtrack(optimizer, w, lambda: (0.5 * w**2).sum(), 5)
    assert optimizer.param_groups[0]["numbers"]["step"] == 0.15


def test_after_too_many_trials_the_stochastic_search_takes_a_tiny_step() -> None:
    w = vector(0.0)
    optimizer = optim.StochasticLineSearch([w], max_trials=3, policy="keep")
    w.grad = torch.tensor([2.0], dtype=torch.float64)
    optimizer.step(lambda: 10.0, value=1.0)
    assert float(w.detach()) == pytest.approx(-2e-6)


# AdGD.


def test_the_variant_follows_from_the_set() -> None:
    w = vector(1.0)
    assert optim.AdGD([w])._variant() == "mm20lin"
    assert optim.AdGD([w], constraint=sets.Box(0.0, 1.0))._variant() == "adapg"
    with pytest.raises(ValueError, match='variant "mm20" has no version for sets'):
        optim.AdGD([w], variant="mm20", constraint=sets.Box(0.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_second_step_knows_the_curvature_in_either_precision(dtype: torch.dtype) -> None:
    """A first step so small that the gradients' difference is rounding would hide it."""
    w = vector(1.0, dtype=dtype)
    optimizer = optim.AdGD([w])
    for _ in range(2):
        optimizer.zero_grad()
        (0.5 * 1e-2 * w**2 + 100.0 * w).sum().backward()
        optimizer.step()
    # 1/(2L) = 50; float32 keeps two digits of it
    tolerance = 0.5 if dtype == torch.float32 else 1e-3
    assert optimizer.param_groups[0]["numbers"]["step"] == pytest.approx(50.0, rel=tolerance)


# Bounds that are functions.


def test_a_bound_may_be_a_function_and_is_not_saved() -> None:
    w = vector(3.0)
    optimum = [4.0]
    optimizer = optim.Polyak([w], f_bound=lambda: optimum[0])
    w.grad = torch.tensor([2.0], dtype=torch.float64)
    optimizer.step(value=6.0)
    assert float(w.detach()) == 3.0 - (6.0 - 4.0) / 4.0 * 2.0
    assert "f_bound" not in optimizer.state_dict()["param_groups"][0]
    optimizer.load_state_dict(optimizer.state_dict())
    optimum[0] = 6.0
    optimizer.step(value=6.0)
    assert float(w.detach()) == 2.0


def test_a_sample_at_its_bound_does_not_close_the_moving_cap() -> None:
    w = vector(1.0)
    optimizer = optim.SPS([w], growth=2.0, max_step=0.1)
    w.grad = torch.ones_like(w)
    optimizer.step(value=0.0)
    assert float(w.detach()) == 1.0
    optimizer.step(value=10.0)
    assert float(w.detach()) == pytest.approx(1.0 - 0.2)


def test_hazan_kakade_records_a_point_of_zero_gradient_as_best() -> None:
    w = vector(2.0)
    optimizer = optim.HazanKakade([w], f_bound=-1.0, epoch_steps=5)
    for value, gradient in ((3.0, 1.0), (0.0, 0.0)):
        w.grad = torch.tensor([gradient], dtype=torch.float64)
        point = float(w.detach())
        optimizer.step(value=value)
    with optimizer.best():
        assert float(w.detach()) == point
    assert float(w.detach()) == point


# Bettors.


def test_the_wealth_of_a_bettor_stays_positive() -> None:
    generator = np.random.default_rng(0)
    w = vector(0.0, 0.0)
    optimizers = [
        optim.KT([w], bound=1.0),
        optim.CoinBetting([w], bound=1.0, curvature=False),
    ]
    for optimizer in optimizers:
        for _ in range(300):
            g = generator.normal(size=2)
            w.grad = torch.as_tensor(g / max(1.0, np.linalg.norm(g)))
            optimizer.step()
            assert optimizer.param_groups[0]["numbers"]["wealth"] > 0.0
        w.data.zero_()


def test_rounding_of_a_projection_is_no_distance_from_the_set() -> None:
    """A simplex projection may move a feasible point by an ulp; the bettor must not see that."""
    w = torch.full((3,), 1.0 / 3.0, dtype=torch.float64, requires_grad=True)
    optimizer = optim.CoinBetting([w], constraint=sets.Simplex(), reduction="half")
    target = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for _ in range(3000):
        optimizer.zero_grad()
        ((w - target) ** 2).sum().backward()
        optimizer.step()
    assert float((w.detach() - target).norm()) < 1e-2


# Distances.


def test_dog_wakes_up_faster_with_the_kept_distance() -> None:
    def distance_after(keep: str) -> float:
        w = vector(0.0)
        optimizer = optim.DoG([w], r_eps=1e-6)
        for _ in range(2000):
            optimizer.zero_grad()
            (0.5 * (w - 1.0) ** 2).sum().backward()
            optimizer.step()
        optimizer.reset(keep=keep)
        for _ in range(20):
            optimizer.zero_grad()
            (0.5 * (w - 2.0) ** 2).sum().backward()
            optimizer.step()
        return abs(float(w.detach()) - 2.0)

    assert distance_after("nothing") > 0.99
    assert distance_after("step") < 0.01


# Averages.


def test_the_average_restarts_includes_the_last_iterate_and_is_shown_in_a_block() -> None:
    w = vector(0.0)
    optimizer = optim.GeneralizedAdaGrad([w], average=1.0)
    iterates: list[float] = []
    for k in range(9):
        if k == 4:
            optimizer.reset(keep="everything")
            iterates.clear()
        w.grad = torch.tensor([1.0 + k], dtype=torch.float64)
        optimizer.step()
        iterates.append(float(w.detach()))
    weights = np.arange(1, len(iterates) + 1)
    last = float(w.detach())
    with optimizer.averaged():
        assert float(w.detach()) == pytest.approx(np.average(iterates, weights=weights), rel=1e-14)
    assert float(w.detach()) == last


def test_the_average_is_not_lost_when_the_block_raises() -> None:
    w = vector(0.0)
    optimizer = optim.DoG([w], average=8.0)
    w.grad = torch.ones_like(w)
    optimizer.step()
    last = float(w.detach())
    with pytest.raises(KeyError), optimizer.averaged():
        raise KeyError
    assert float(w.detach()) == last


def test_without_an_average_the_block_says_how_to_get_one() -> None:
    optimizer = optim.GeneralizedAdaGrad([vector(0.0)])
    with pytest.raises(RuntimeError, match="construct it with average=1.0"), optimizer.averaged():
        pass


def test_the_scopes_of_adagrad() -> None:
    def after_one_step(scope: str) -> list[float]:
        a, b = vector(0.0, 0.0), vector(0.0)
        optimizer = optim.GeneralizedAdaGrad([a, b], lr=1.0, v0=1.0, scope=scope)
        a.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
        b.grad = torch.tensor([12.0], dtype=torch.float64)
        optimizer.step()
        return [*a.tolist(), *b.tolist()]

    assert after_one_step("player") == pytest.approx([-x / math.sqrt(170) for x in (3, 4, 12)])
    assert after_one_step("tensor") == pytest.approx(
        [-3 / math.sqrt(26), -4 / math.sqrt(26), -12 / math.sqrt(145)]
    )
    assert after_one_step("coordinate") == pytest.approx(
        [-3 / math.sqrt(10), -4 / math.sqrt(17), -12 / math.sqrt(145)]
    )


def test_the_scope_tensor_is_resumed() -> None:
    w = [vector(1.0, 2.0), vector(3.0)]
    optimizer = optim.GeneralizedAdaGrad(w, scope="tensor")
    for p in w:
        p.grad = torch.ones_like(p)
    optimizer.step()
    saved = optimizer.state_dict()
    twin = optim.GeneralizedAdaGrad(
        [p.detach().clone().requires_grad_() for p in w], scope="tensor"
    )
    twin.load_state_dict(saved)
    for p, q in zip(w, twin.param_groups[0]["params"], strict=True):
        q.grad = p.grad.clone()
    optimizer.step()
    twin.step()
    assert torch.equal(torch.cat(w), torch.cat(twin.param_groups[0]["params"]))


# Any torch optimizer on a set.


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
    assert repr(constraints(optimizer)) == repr([sets.L2Ball(0.1)])
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
    with pytest.raises(ValueError, match="has 2 parameter groups but 1 sets were given"):
        constrain(optimizer, [None])
    with pytest.raises(TypeError, match="must be a set from neada.sets, not str"):
        constrain(optimizer, [None, "ball"])


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
    with pytest.raises(ValueError, match="has no version for sets"):
        constrain(optim.AdGD([w], variant="accel"), sets.Box(0.0, 1.0))


def test_a_set_that_does_not_fit_is_refused_at_construction() -> None:
    with pytest.raises(ValueError):
        optim.KT([vector(0.0, 0.0)], bound=1.0, constraint=sets.Box(torch.zeros(3), torch.ones(3)))
    with pytest.raises(TypeError, match="must be a set from neada.sets"):
        optim.KT([vector(0.0)], bound=1.0, constraint=1.0)


def test_a_joint_set_moves_tensors_without_gradient_too() -> None:
    a, b = vector(0.0), vector(0.8)
    optimizer = optim.GeneralizedAdaGrad([a, b], lr=10.0, constraint=sets.L2Ball(1.0))
    a.grad = -torch.ones_like(a)
    optimizer.step()
    assert math.hypot(float(a.detach()), float(b.detach())) == pytest.approx(1.0)
    assert float(b.detach()) < 0.8
