"""The promises of the line searches: decrease, rates, rounding, walls and caps."""

import math

import pytest
import torch

from neada import optim, sets
from optimizers import vector


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

    with pytest.raises(RuntimeError, match="data"):
        optimizer.step(broken, value=1.0)
    assert float(w.detach()) == 1.0
    with pytest.raises(FloatingPointError, match="trial"):
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


def test_after_too_many_trials_the_stochastic_search_takes_a_tiny_step() -> None:
    w = vector(0.0)
    optimizer = optim.StochasticLineSearch([w], growth=1.0)
    w.grad = torch.tensor([2.0], dtype=torch.float64)
    optimizer.step(lambda: 10.0, value=1.0)
    assert float(w.detach()) == pytest.approx(-2e-6)
