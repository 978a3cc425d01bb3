"""The numpy references against the stored five-step trajectories (spec E0, E1) and rates (E6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import references as ref

FIXTURES = Path(__file__).parents[1].parent / "shared" / "reference" / "fixtures"
RTOL = 1e-12  # spec E0
ATOL = 1e-15  # for coordinates that are zero up to rounding

needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="no reference fixtures beside the checkout (../shared/reference)"
)


def load(name: str) -> dict[str, Any]:
    path = FIXTURES / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no fixture {path.name} beside the checkout")
    with path.open(encoding="utf-8") as file:
        return json.load(file)


def close(actual: Any, expected: Any, what: str = "", rtol: float = RTOL) -> None:
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=ATOL, err_msg=what)


class Quadratic:
    """phi(w) = 1/2 sum a_i (w_i - c_i)^2."""

    def __init__(self, a: Any, c: Any) -> None:
        self.a = np.array(a, dtype=np.float64)
        self.c = np.array(c, dtype=np.float64)

    def value(self, w: np.ndarray) -> float:
        return 0.5 * float(np.sum(self.a * (w - self.c) ** 2))

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.a * (w - self.c)


Make = Callable[[dict[str, Any], np.ndarray, Any], ref.Reference]


def _adagrad(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    accumulate = "mapping" if h.get("accumulate") == "map" else "gradient"
    return ref.GeneralizedAdaGrad(
        w0, project, lr=h["eta"], alpha=h["alpha"], v0=h["v0"], accumulate=accumulate
    )


def _adgd(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    return ref.AdGD(w0, project, variant=h["variant"], lr=h["la0"])


def _backtracking(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    return ref.Backtracking(
        w0,
        project,
        lr=h["eta0"],
        test=h["test"],
        c=h["c"],
        shrink=h["beta"],
        grow=h["grow"],
        safe=h.get("safe", False),
    )


def _coin(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    return ref.CoinBetting(
        w0,
        project,
        bound=h["G"],
        wealth=h["eps"],
        curvature=h["curvature"],
    )


def _sls(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    return ref.StochasticLineSearch(
        w0,
        project,
        lr=h["eta0"],
        c=h["c"],
        shrink=h["beta"],
        growth=h["gamma"],
        num_batches=h["n_batches"],
    )


def _sps(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    return ref.SPS(w0, project, f_bound=h["f_low"], c=h["c"], max_step=h["eta_max"])


def _sps_smooth(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    growth = h["tau"] ** h["b_over_n"]
    return ref.SPS(w0, project, f_bound=h["f_low"], c=h["c"], max_step=h["eta0"], growth=growth)


def _dog(h: dict[str, Any], w0: np.ndarray, project: Any) -> ref.Reference:
    kind = ref.DoWG if h.get("weighted") else ref.DoG
    return kind(w0, project, r_eps=h["reps_rel"], eps=h["eps"])


CASES: dict[str, Make] = {
    **dict.fromkeys(
        [
            *("adagrad_norm", "adagrad_norm_ball", "adagrad_norm_ball_mapping"),
            *("adagrad_norm_noise", "gen_adagrad_025", "gen_adagrad_075", "gen_adagrad_100"),
        ],
        _adagrad,
    ),
    **dict.fromkeys(["adapg_ball", "adgd_mm20", "adgd_mm20_linear", "adgd_mm23"], _adgd),
    **dict.fromkeys(
        [
            *("backtracking_armijo", "backtracking_armijo_ball", "backtracking_quad"),
            *("backtracking_quad_ball", "backtracking_quad_safe"),
        ],
        _backtracking,
    ),
    "sls_armijo": _sls,
    "cocob": lambda h, w0, p: ref.COCOB(w0, p, alpha=h["alpha"], scale0=h["eps"]),
    "coin_ons": _coin,
    "coin_ons_curv_ball_cut": _coin,
    "decsps": lambda h, w0, p: ref.DecSPS(
        w0, p, f_bound=h["f_low"], c0=h["c0"], max_step=h["eta_b"]
    ),
    "dog": _dog,
    "dowg": _dog,
    "freerex": lambda h, w0, p: ref.FreeRex(w0, p),
    "freerex_momentum": lambda h, w0, p: ref.FreeRex(w0, p, momentum=True),
    "kt": lambda h, w0, p: ref.KT(w0, p, bound=h["scale"], wealth=h["wealth"]),
    "polyak_c1": lambda h, w0, p: ref.Polyak(w0, p, f_bound=h["f_low"], c=h["c"]),
    **dict.fromkeys(
        ["sc_adangd_k1", "sc_adangd_k2"],
        lambda h, w0, p: ref.SCAdaNGD(w0, p, strong_convexity=h["H"], k=h["k"]),
    ),
    "sps_max": _sps,
    "sps_smooth": _sps_smooth,
}


@needs_fixtures
@pytest.mark.parametrize("name", CASES)
def test_trajectory_equals_the_fixture(name: str) -> None:
    fixture = load(f"single_{name}")
    problem = Quadratic(fixture["problem"]["a"], fixture["problem"]["c"])
    project = ref.project_l2_ball if fixture["constraint"] == "ball1" else None
    steps = fixture["steps"]
    assert len(steps) == 5
    method = CASES[name](fixture["hyper"], np.array(steps[0]["w"]), project)
    for k, step in enumerate(steps):
        value, gradient = problem.value(method.w), problem.gradient(method.w)
        if fixture["noise"] is not None:
            gradient = gradient + np.array(fixture["noise"][k])
        method.step(gradient, value, problem.value)
        close(method.w, step["w_next"], f"w_next {k}")
        assert getattr(method, "num_values", 0) == step["n_fun"]
        assert k + 1 == step["n_grad"]


@needs_fixtures
def test_hazan_kakade_equals_the_fixture() -> None:
    """The fixture shows the discarded point at the end of an epoch, the reference goes to w_0."""
    fixture = load("single_hazan_kakade")
    problem = Quadratic(fixture["problem"]["a"], fixture["problem"]["c"])
    epoch_steps = fixture["hyper"]["T"]
    w0 = np.array(fixture["steps"][0]["w"])
    method = ref.HazanKakade(w0, f_bound=fixture["hyper"]["f_low"], epoch_steps=epoch_steps)
    for k, step in enumerate(fixture["steps"]):
        evaluated = method.w.copy()
        close(method.f_bound, step["state"]["f_low"], f"f_bound {k}")
        method.step(problem.gradient(evaluated), problem.value(evaluated))
        close(method.s, step["state"]["step"], f"step {k}")
        close(evaluated - method.s * problem.gradient(evaluated), step["w_next"], f"w_next {k}")
        if (k + 1) % epoch_steps == 0:
            close(method.w, w0)
        else:
            close(method.w, step["w_next"], f"w_next {k}")
        close(method.best, step["out"], f"best {k}")


@needs_fixtures
def test_parameter_free_sgd_equals_the_fixture() -> None:
    fixture = load("single_carmon_hinder")
    problem = Quadratic(fixture["problem"]["a"], fixture["problem"]["c"])
    h = fixture["hyper"]
    point, lr, calls = ref.parameter_free_sgd(
        problem.gradient, np.array(fixture["w0"]), h["B"], h["eta_eps"], h["alpha"], h["beta"]
    )
    close(point, fixture["returned"])
    close(lr, fixture["eta"])
    assert calls == fixture["grad_calls"]
