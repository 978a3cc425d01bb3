"""What is special to one optimizer: variants, bounds, coin betting, distances, averages."""

import numpy as np
import pytest
import torch

from neada import optim, sets
from optimizers import vector

# AdGD.


def test_the_variant_follows_from_the_set() -> None:
    w = vector(1.0)
    assert optim.AdGD([w])._variant() == "mm20lin"
    assert optim.AdGD([w], constraint=sets.Box(0.0, 1.0))._variant() == "adapg"
    with pytest.raises(ValueError, match="variant"):
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
    optimizer = optim.CoinBetting([w], constraint=sets.Simplex())
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


def test_one_over_k_steps_average_the_noise() -> None:
    """On mu w^2/2 the iterate after k steps is minus the mean of the noise over mu, exactly."""
    mu, noise = 0.5, np.random.default_rng(0).normal(size=50)
    w = vector(3.0)
    optimizer = optim.StronglyConvexSGD([w], strong_convexity=mu, average=1.0)
    iterates = []
    for draw in noise:
        w.grad = mu * w.detach() + float(draw)
        optimizer.step()
        iterates.append(w.item())
    expected = -np.cumsum(noise) / (mu * np.arange(1, 51))
    np.testing.assert_allclose(iterates, expected, rtol=1e-12)
    with optimizer.averaged():
        assert w.item() == pytest.approx(np.average(iterates, weights=np.arange(1, 51)))
