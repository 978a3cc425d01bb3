"""The optimizers against the stored five-step trajectories of independent numpy references."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neada import optim, sets

FIXTURES = Path(__file__).parents[1].parent / "shared" / "reference" / "fixtures"
RTOL = 1e-12  # what the fixtures promise for float64

pytestmark = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="no reference fixtures beside the checkout (../shared/reference)"
)

Hyper = dict[str, Any]
Make = Callable[[list[torch.Tensor], Hyper, sets.Set | None], torch.optim.Optimizer]


def _adagrad(params: list[torch.Tensor], h: Hyper, constraint: Any) -> torch.optim.Optimizer:
    accumulate = "mapping" if h.get("accumulate") == "map" else "gradient"
    return optim.GeneralizedAdaGrad(
        params,
        h["eta"],
        alpha=h["alpha"],
        v0=h["v0"],
        accumulate=accumulate,
        constraint=constraint,
    )


def _adgd(params: list[torch.Tensor], h: Hyper, constraint: Any) -> torch.optim.Optimizer:
    return optim.AdGD(params, h["la0"], variant=h["variant"], constraint=constraint)


def _backtracking(params: list[torch.Tensor], h: Hyper, constraint: Any) -> torch.optim.Optimizer:
    return optim.Backtracking(
        params,
        h["eta0"],
        test=h["test"],
        c=h["c"],
        shrink=h["beta"],
        grow=h["grow"],
        safe=h.get("safe", False),
        constraint=constraint,
    )


def _coin(params: list[torch.Tensor], h: Hyper, constraint: Any) -> torch.optim.Optimizer:
    return optim.CoinBetting(
        params,
        bound=h["G"],
        wealth=h["eps"],
        curvature=h["curvature"],
        constraint=constraint,
    )


MAKE: dict[str, Make] = {
    "adagrad_norm": _adagrad,
    "adagrad_norm_ball": _adagrad,
    "adagrad_norm_ball_mapping": _adagrad,
    "adagrad_norm_noise": _adagrad,
    "gen_adagrad_025": _adagrad,
    "gen_adagrad_075": _adagrad,
    "gen_adagrad_100": _adagrad,
    "adapg_ball": _adgd,
    "adgd_mm20": _adgd,
    "adgd_mm20_linear": _adgd,
    "adgd_mm23": _adgd,
    "backtracking_armijo": _backtracking,
    "backtracking_armijo_ball": _backtracking,
    "backtracking_quad": _backtracking,
    "backtracking_quad_ball": _backtracking,
    "backtracking_quad_safe": _backtracking,
    "cocob": lambda p, h, c: optim.COCOB(p, alpha=h["alpha"], scale0=h["eps"]),
    "coin_ons": _coin,
    "coin_ons_curv_ball_cut": _coin,
    "decsps": lambda p, h, c: optim.DecSPS(p, h["f_low"], c0=h["c0"], max_step=h["eta_b"]),
    "dog": lambda p, h, c: optim.DoG(p, r_eps=h["reps_rel"]),
    "dowg": lambda p, h, c: optim.DoWG(p, r_eps=h["reps_rel"]),
    "freerex": lambda p, h, c: optim.FreeRex(p),
    "freerex_momentum": lambda p, h, c: optim.FreeRex(p, momentum=True),
    "hazan_kakade": lambda p, h, c: optim.HazanKakade(p, h["f_low"], epoch_steps=h["T"]),
    "kt": lambda p, h, c: optim.KT(p, h["scale"], wealth=h["wealth"]),
    "polyak_c1": lambda p, h, c: optim.Polyak(p, h["f_low"], c=h["c"]),
    "sc_adangd_k1": lambda p, h, c: optim.SCAdaNGD(p, h["H"], power=1),
    "sc_adangd_k2": lambda p, h, c: optim.SCAdaNGD(p, h["H"], power=2),
    "sls_armijo": lambda p, h, c: optim.StochasticLineSearch(
        p, h["eta0"], c=h["c"], shrink=h["beta"], growth=h["gamma"], num_batches=h["n_batches"]
    ),
    "sps_max": lambda p, h, c: optim.SPS(p, h["f_low"], c=h["c"], max_step=h["eta_max"]),
    "sps_smooth": lambda p, h, c: optim.SPS(
        p, h["f_low"], c=h["c"], max_step=h["eta0"], growth=h["tau"] ** h["b_over_n"]
    ),
}
NOT_OURS = {"adgd_accel", "dadapt_sgd", "prodigy", "carmon_hinder"}  # a function, tested elsewhere


def test_every_fixture_is_used() -> None:
    stored = {path.stem.removeprefix("single_") for path in FIXTURES.glob("single_*.json")}
    assert stored == set(MAKE) | NOT_OURS


@pytest.mark.parametrize("split", [False, True], ids=["one tensor", "two tensors"])
@pytest.mark.parametrize("name", MAKE)
def test_five_steps(name: str, split: bool) -> None:
    fixture = json.loads((FIXTURES / f"single_{name}.json").read_text(encoding="utf-8"))
    a, c = (torch.tensor(fixture["problem"][key], dtype=torch.float64) for key in "ac")
    constraint = sets.L2Ball(1.0) if fixture["constraint"] == "ball1" else None
    sizes = [1, 1] if split else [2]
    params = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in sizes]
    optimizer = MAKE[name](params, fixture["hyper"], constraint)
    num_values = 0

    def value() -> torch.Tensor:
        nonlocal num_values
        num_values += 1
        return 0.5 * (a * (torch.cat(params) - c) ** 2).sum()

    noise = fixture["noise"] or [[0.0, 0.0]] * 5
    for k, step in enumerate(fixture["steps"]):
        optimizer.zero_grad()
        start = value()
        start.backward()
        added = torch.tensor(noise[k], dtype=torch.float64).split(sizes)
        for p, extra in zip(params, added, strict=True):
            p.grad += extra
        num_values -= 1  # the value that comes with a gradient is not counted by the fixtures
        optimizer.step(value, value=start.detach())
        found = torch.cat(params).detach().numpy()
        expected = step["w_next"]
        if name == "hazan_kakade" and k % fixture["hyper"]["T"] == fixture["hyper"]["T"] - 1:
            expected = [0.0, 0.0]  # ours is back at the start already, before the next gradient
        np.testing.assert_allclose(found, expected, rtol=RTOL, atol=1e-15)
        assert num_values == step["n_fun"]
