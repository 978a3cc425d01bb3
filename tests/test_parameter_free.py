"""Carmon & Hinder's restarted bisection."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import references as ref
from neada import sets
from neada.optim import NonFiniteGradient, parameter_free_sgd

FIXTURE = Path(__file__).parents[1].parent / "shared/reference/fixtures/single_carmon_hinder.json"
A = torch.tensor([1.0, 10.0], dtype=torch.float64)
C = torch.tensor([1.0, -2.0], dtype=torch.float64)


def player(num_tensors: int = 1) -> list[torch.Tensor]:
    return [
        torch.zeros(2 // num_tensors, dtype=torch.float64, requires_grad=True)
        for _ in range(num_tensors)
    ]


def closure_of(params: list[torch.Tensor], sign: float = 1.0):
    def closure() -> torch.Tensor:
        loss = sign * 0.5 * (A * (torch.cat(params) - C) ** 2).sum()
        loss.backward()
        return loss

    return closure


@pytest.mark.skipif(not FIXTURE.is_file(), reason="no reference fixtures beside the checkout")
@pytest.mark.parametrize("num_tensors", [1, 2])
def test_the_stored_run(num_tensors: int) -> None:
    stored = json.loads(FIXTURE.read_text(encoding="utf-8"))
    params = player(num_tensors)
    hyper = stored["hyper"]
    result = parameter_free_sgd(
        closure_of(params), params, hyper["B"], lr_eps=hyper["eta_eps"], alpha=3.0, beta=0.0
    )
    np.testing.assert_allclose(torch.cat(params).detach(), stored["returned"], rtol=1e-12)
    assert result.lr == pytest.approx(stored["eta"], rel=1e-12)
    assert result.num_calls == stored["grad_calls"]


@pytest.mark.parametrize("max_calls", [100, 333, 2000])
@pytest.mark.parametrize("lr_eps", [1e-8, 1e-3, 0.3])
def test_follows_the_reference(max_calls: int, lr_eps: float) -> None:
    params = player()
    result = parameter_free_sgd(closure_of(params), params, max_calls, lr_eps=lr_eps)
    point, lr, calls = ref.parameter_free_sgd(
        lambda w: A.numpy() * (w - C.numpy()), np.zeros(2), max_calls, lr_eps
    )
    np.testing.assert_allclose(params[0].detach(), point, rtol=1e-9, atol=1e-12)
    assert result.lr == pytest.approx(lr)
    assert result.num_calls <= calls <= max_calls  # ours does not go on with a run that overflowed


def test_maximizing_and_sets() -> None:
    low, high = player(), player()
    box = sets.Box(-0.5, 0.5)
    parameter_free_sgd(closure_of(low), low, 1000, constraint=box)
    parameter_free_sgd(closure_of(high, -1.0), high, 1000, constraint=box, maximize=True)
    assert torch.equal(low[0], high[0])
    point, _, _ = ref.parameter_free_sgd(
        lambda w: A.numpy() * (w - C.numpy()),
        np.zeros(2),
        1000,
        1e-6,
        project=lambda w: np.clip(w, -0.5, 0.5),
    )
    np.testing.assert_allclose(low[0].detach(), point, rtol=1e-9)
    assert bool(box.contains(low[0]))


def test_bad_input_and_failures_leave_the_start() -> None:
    params = player()
    with pytest.raises(ValueError, match="max_calls"):
        parameter_free_sgd(closure_of(params), params, 3)
    with pytest.raises(ValueError, match="lr_eps must be a number greater than 0"):
        parameter_free_sgd(closure_of(params), params, 100, lr_eps=0.0)

    def undefined() -> torch.Tensor:
        loss = torch.log(params[0] - 1.0).sum()
        loss.backward()
        params[0].grad.fill_(float("nan"))
        return loss

    with pytest.raises(NonFiniteGradient, match="parameter 0"):
        parameter_free_sgd(undefined, params, 100)
    assert torch.equal(params[0], torch.zeros(2, dtype=torch.float64))
