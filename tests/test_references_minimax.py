"""The minimax references against the stored trajectories (spec E0), spec E2 and spec C6."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import references as ref
from test_references import FIXTURES, close, load, needs_fixtures


class PaperQuadratic:
    """Spec B, E1: f = -y^2/2 + L x y - L^2 x^2/2."""

    def __init__(self, L: float = 2.0) -> None:
        self.L = L

    def f(self, x: np.ndarray, y: np.ndarray) -> float:
        L = self.L
        return float(np.sum(-(y**2) / 2.0 + L * x * y - L**2 * x**2 / 2.0))

    def gx(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.L * (y - self.L * x)

    def gy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.L * x - y


class McCormick:
    """Spec E1: McCormick's function of x, plus x.y - |y|^2/2."""

    def f(self, x: np.ndarray, y: np.ndarray) -> float:
        a, b = x
        mccormick = math.sin(a + b) + (a - b) ** 2 - 1.5 * a + 2.5 * b + 1.0
        return float(mccormick + np.sum(x * y) - np.sum(y * y) / 2.0)

    def gx(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = x
        wave = math.cos(a + b)
        return np.array([wave + 2.0 * (a - b) - 1.5, wave - 2.0 * (a - b) + 2.5]) + y

    def gy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x - y


class Table:
    """The i-th call adds noise[i mod len]; everything else is as before."""

    def __init__(self, gradient: Callable[..., np.ndarray], noise: list[float]) -> None:
        self.gradient = gradient
        self.noise = noise
        self.calls = 0

    def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        i = self.calls
        self.calls += 1
        return self.gradient(x, y) + self.noise[i % len(self.noise)]


PROBLEMS = {"paper_quad_L2": PaperQuadratic(2.0), "mccormick": McCormick()}

# How the fixtures call the hyper-parameters that have another name here.
NAMES = {
    "lx": "lr_x",
    "ly": "lr_y",
    "kind": "psi",
    "v0x": "v0_x",
    "v0y": "v0_y",
    "b2": "beta2",
    "D": "diameter",
    "G0": "g0",
    "K": "inner_steps",
}
DROPPED = ("alternating", "quirk", "vr")

public_tiada = partial(ref.TiAdaAdam, bias="sqrt")

MINIMAX: dict[str, Callable[..., ref.Minimax]] = {
    "ada_extragradient": ref.AdaptiveExtragradient,
    "adagda": ref.AdaGDA,
    "alt_gda": ref.AlternatingGDA,
    "extragradient": ref.Extragradient,
    "gda": ref.SimultaneousGDA,
    "gdmax_k3": ref.GDmax,
    "gdmax_tol": ref.GDmax,
    "optimistic_gda": ref.OptimisticGDA,
    **{f"paper_adagrad_v0_{v0}": ref.NonNestedAdaptive for v0 in (0, 1)},
    **{
        f"paper_{psi}_{tail}": ref.NonNestedAdaptive
        for psi in ("adam", "amsgrad")
        for tail in ("gamma05", "v0_0", "v0_1")
    },
    "past_extragradient": ref.PastExtragradient,
    "smoothed_agda": ref.SmoothedAGDA,
    "tiada_adam": ref.TiAdaAdam,
    "tiada_adam_b2_05": ref.TiAdaAdam,
    "tiada_adam_publiccode": public_tiada,
    "tiada_amsgrad_b2_05": ref.TiAdaAdam,
    "tiada_amsgrad_publiccode": public_tiada,
    "tiada_coord": ref.TiAdaCoordinate,
    "tiada_scalar": ref.TiAda,
    "torch_adagrad": ref.NonNestedTorch,
    "torch_adam": ref.NonNestedTorch,
    "torch_adam_eps08": ref.NonNestedTorch,
    "torch_amsgrad": ref.NonNestedTorch,
    "universal_mirror_prox": ref.UniversalMirrorProx,
    "vr_adagda": ref.VRAdaGDA,
}


def check(method: ref.Minimax, run: dict[str, Any]) -> None:
    """Five steps: the points and the counters."""
    assert len(run["steps"]) == 5
    for k, step in enumerate(run["steps"]):
        close(method.x, step["x"], f"x {k}")
        close(method.y, step["y"], f"y {k}")
        method.step()
        close(method.x, step["x_next"], f"x_next {k}")
        close(method.y, step["y_next"], f"y_next {k}")
        assert (method.n_gx, method.n_gy) == (step["n_gx"], step["n_gy"])
        assert method.n_outer == k + 1


@needs_fixtures
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", MINIMAX)
def test_minimax_fixture(name: str, problem: str) -> None:
    fixture = load(f"minimax_{name}")
    names = dict(NAMES)
    if name.startswith("torch_"):
        del names["kind"]
    hyper = {names.get(k, k): v for k, v in fixture["hyper"].items() if k not in DROPPED}
    p = PROBLEMS[problem]
    (run,) = [r for r in fixture["runs"] if r["problem"] == problem]
    close(p.gx(np.array(run["x0"]), np.array(run["y0"])), run["steps"][0]["gx"])
    close(p.gy(np.array(run["x0"]), np.array(run["y0"])), run["steps"][0]["gy"])
    check(MINIMAX[name](run["x0"], run["y0"], p.gx, p.gy, **hyper), run)


def adaptive(lr: float, **hyper: Any) -> Callable[..., ref.Reference]:
    return lambda w, project: ref.AdaptiveSGD(w, project, lr=lr, **hyper)


def adagrad_norm(lr: float, v0: float) -> Callable[..., ref.Reference]:
    return lambda w, project: ref.GeneralizedAdaGrad(w, project, lr=lr, v0=v0)


def backtracking(w: np.ndarray, project: Any) -> ref.Reference:
    return ref.Backtracking(w, project, lr=1.0, test="quad", shrink=0.5, grow=2.0, safe=True)


def adgd(w: np.ndarray, project: Any) -> ref.Reference:
    return ref.AdGD(w, project, variant="mm20", lr=1e-3)


def half_ball(v: np.ndarray) -> np.ndarray:
    return ref.project_l2_ball(v, 0.5)


TWO = ref.Count(ref.criterion_two)


def algorithm2(stop: ref.Stop, policy: str = "full", **psi: Any) -> dict[str, Any]:
    """Spec C2 with lr_x = 0.1 and lr_y = 0.2; every test is on the gradient the step used."""
    return {
        "inner": adaptive(0.2, **psi),
        "outer": adaptive(0.1, **psi),
        "stop": stop,
        "policy": policy,
        "test": "last",
    }


def algorithm3(inner: Callable[..., ref.Reference], stop: ref.Stop, **more: Any) -> dict[str, Any]:
    """Spec C3 with eta = v_0 = 1 and a new inner solver for every outer iteration."""
    return {"inner": inner, "outer": adagrad_norm(1.0, 1.0), "stop": stop, "policy": "fresh"} | more


EXP = ref.Either(ref.MappingNorm(1.0), TWO)
ONE = ref.SquaredMapping(1.0)

NESTED: dict[str, dict[str, Any]] = {
    "alg2_adagrad_stopEXP": algorithm2(EXP, psi="adagrad", v0=0.0),
    "alg2_adagrad_stopI": algorithm2(ONE, psi="adagrad", v0=0.0),
    "alg2_adagrad_stopII": algorithm2(TWO, psi="adagrad", v0=0.0),
    "alg2_adagrad_stopII_fresh": algorithm2(TWO, "fresh", psi="adagrad", v0=0.25),
    "alg2_adam_stopII_v0_1": algorithm2(TWO, psi="adam", v0=1.0),
    "alg2_amsgrad_stopII_v0_1": algorithm2(TWO, psi="amsgrad", v0=1.0),
    "alg3_II_adagradnorm": algorithm3(adagrad_norm(1.0, 1.0), TWO),
    "alg3_II_noise_growingM": algorithm3(adagrad_norm(1.0, 1.0), TWO, batch=lambda t: t + 1),
    "alg3_I_adgd_mm20": algorithm3(adgd, ONE, min_inner_steps=0),
    "alg3_I_backtracking": algorithm3(backtracking, ONE, min_inner_steps=0),
    "alg3_I_backtracking_min1": algorithm3(backtracking, ONE, min_inner_steps=1),
    "alg3_I_ball_backtracking": algorithm3(backtracking, ONE, min_inner_steps=0),
    "alg3_log2_adagradnorm": algorithm3(adagrad_norm(1.0, 1.0), ref.Count(ref.log_steps)),
}
NOT_OURS = {"minimax_nsgda_m", "neada_released_loop_adagrad_c1", "neada_released_loop_adam_c01"}


def nested(name: str, problem: str, run: dict[str, Any], **noise: list[float]) -> ref.Minimax:
    p = PROBLEMS[problem]
    gx = Table(p.gx, noise["x"]) if noise else p.gx
    gy = Table(p.gy, noise["y"]) if noise else p.gy
    start = run["x0"], run["y0"], gx, gy
    project_y = half_ball if "_ball_" in name else None
    return ref.NeAda(*start, None, project_y, f=p.f, **NESTED[name])


@needs_fixtures
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NESTED)
def test_neada_fixture(name: str, problem: str) -> None:
    fixture = load(f"neada_{name}")
    runs = [r for r in fixture["runs"] if r["problem"] == problem]
    if not runs:
        assert name == "alg3_II_noise_growingM" and problem == "mccormick"
        return
    (run,) = runs
    noisy = "noise_x" in fixture
    noise = {"x": fixture["noise_x"], "y": fixture["noise_y"]} if noisy else {}
    method = nested(name, problem, run, **noise)
    check(method, run)
    expected = [step["state"]["inner"] for step in run["steps"]]
    assert method.inner_steps == expected == run.get("inner_steps", expected)
    assert method.n_inner == sum(expected)
    if "backtracking" not in name:
        assert method.n_f == 0
    if name.startswith("alg3"):
        close(method.outer.v, run["steps"][-1]["state"]["v"])
    if name.startswith("alg2"):
        close(method.outer.v, run["steps"][-1]["state"]["vx"])


@needs_fixtures
def test_every_fixture_has_its_case() -> None:
    stored = {path.stem for path in FIXTURES.glob("*.json")}
    stored = {name for name in stored if name.startswith(("minimax_", "neada_"))}
    cases = {f"minimax_{name}" for name in MINIMAX}
    cases |= {f"neada_{name}" for name in NESTED}
    assert cases | NOT_OURS == stored
