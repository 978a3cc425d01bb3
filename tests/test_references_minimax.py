"""The minimax references against the stored trajectories (spec E0), spec E2 and spec C6."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
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
    "nsgda_m": ref.NSGDAM,
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

# What the fixtures call `state`, by method; `a.b` is an attribute of an attribute.
STATES: dict[type[ref.Minimax], dict[str, str]] = {
    ref.AdaptiveExtragradient: {"gamma": "step_size", "S": "total"},  # S without the 1
    ref.UniversalMirrorProx: {"eta": "step_size", "S": "total"},  # S with G_0^2
    ref.AdaGDA: {"a": "a", "b": "b", "v": "v", "w": "w"},
    ref.VRAdaGDA: {"a": "a", "b": "b", "v": "v", "w": "w"},
    ref.NonNestedAdaptive: {"mx": "player_x.m"},
    ref.NSGDAM: {"m": "m"},
    ref.SmoothedAGDA: {"z": "z"},
    ref.TiAda: {"vx": "v_x", "vy": "v_y"},
    ref.TiAdaCoordinate: {"vx": "v_x", "vy": "v_y", "ratio": "ratio"},
    ref.TiAdaAdam: {"ratio": "ratio"},
}


def check(method: ref.Minimax, run: dict[str, Any]) -> None:
    """Five steps: the points, the counters and, where it has the same names, the state."""
    assert len(run["steps"]) == 5
    for k, step in enumerate(run["steps"]):
        close(method.x, step["x"], f"x {k}")
        close(method.y, step["y"], f"y {k}")
        method.step()
        close(method.x, step["x_next"], f"x_next {k}")
        close(method.y, step["y_next"], f"y_next {k}")
        assert (method.n_gx, method.n_gy) == (step["n_gx"], step["n_gy"])
        assert method.n_outer == k + 1
        for theirs, path in STATES.get(type(method), {}).items():
            ours: Any = method
            for name in path.split("."):
                ours = getattr(ours, name)
            close(ours, step["state"][theirs], f"{path} {k}")


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


def torch_rule(lr: float, kind: str) -> Callable[..., ref.Reference]:
    return lambda w, project: ref.TorchRule(w, project, lr=lr, kind=kind)


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
RELEASED = {"released_loop_adagrad_c1": ("adagrad", 1.0), "released_loop_adam_c01": ("adam", 0.1)}


def nested(name: str, problem: str, run: dict[str, Any], **noise: list[float]) -> ref.Minimax:
    p = PROBLEMS[problem]
    gx = Table(p.gx, noise["x"]) if noise else p.gx
    gy = Table(p.gy, noise["y"]) if noise else p.gy
    start = run["x0"], run["y0"], gx, gy
    if name in RELEASED:
        kind, c = RELEASED[name]
        inner, outer = torch_rule(0.2, kind), torch_rule(0.1, kind)
        return ref.ReleasedLoop(*start, inner=inner, outer=outer, c=c)
    project_y = half_ball if "_ball_" in name else None
    return ref.NeAda(*start, None, project_y, f=p.f, **NESTED[name])


@needs_fixtures
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", [*NESTED, *RELEASED])
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
        close(method.outer.state["v"], run["steps"][-1]["state"]["v"])
    if name.startswith("alg2"):
        close(method.outer.v, run["steps"][-1]["state"]["vx"])


@needs_fixtures
def test_every_fixture_has_its_case() -> None:
    stored = {path.stem for path in FIXTURES.glob("*.json")}
    stored = {name for name in stored if name.startswith(("minimax_", "neada_"))}
    cases = {f"minimax_{name}" for name in MINIMAX}
    cases |= {f"neada_{name}" for name in [*NESTED, *RELEASED]}
    assert cases == stored


# Spec E7, item 6: inner steps at t = 0, 1, ... on the paper quadratic.
INNER_STEPS = {
    "alg3_I_backtracking": [1, 0, 0, 0, 0],
    "alg3_I_backtracking_min1": [1, 1, 1, 1, 1],
    "alg3_II_adagradnorm": [1, 2, 3, 4, 5],
    "alg3_log2_adagradnorm": [1, 1, 2, 5, 9],
    "released_loop_adagrad_c1": [0, 1, 2, 3, 4],
    "released_loop_adam_c01": [0, 1, 1, 1, 1],
}
QUADRATIC_START = {"x0": [1.0], "y0": [0.01]}


@pytest.mark.parametrize("name", INNER_STEPS)
def test_inner_steps_per_outer_iteration(name: str) -> None:
    method = nested(name, "paper_quad_L2", QUADRATIC_START)
    for _ in range(5):
        method.step()
    assert method.inner_steps == INNER_STEPS[name]


def test_counts_of_the_stopping_rules() -> None:
    assert [ref.log_steps(t) for t in range(6)] == [1, 1, 2, 5, 9, 14]
    assert [ref.power_steps(t, 0.5) for t in range(4)] == [1, 4, 9, 16]
    assert [ref.criterion_two(t) for t in range(4)] == [1, 2, 3, 4]
    text = ref.ExperimentsText()
    assert [text.count(2, k) for k in range(5)] == [False, False, False, True, True]
    assert text.accuracy(0, 1, np.array([1e9])) and text.accuracy(4, 1, np.array([0.25]))
    assert not text.accuracy(4, 1, np.array([0.26]))


def quadratic(method: Callable[..., ref.Minimax], L: float = 2.0, **hyper: Any) -> ref.Minimax:
    p = PaperQuadratic(L)
    return method([1.0], [0.01], p.gx, p.gy, **hyper)


def gradient_after(method: ref.Minimax, steps: int) -> float:
    """g^x at (x, y) after `steps` iterations in all."""
    while method.n_outer < steps:
        method.step()
    return float(method.gradient_x(method.x, method.y)[0])


@pytest.mark.parametrize("L", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("quotient", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_lemma_gda_multiplies_the_gradient(L: float, quotient: float) -> None:
    """Spec E2: g_T = g_0 (1 + lr_x (L^2 - r))^T."""
    r = quotient * L**2
    lr_x = 0.1 / L**2
    method = quadratic(ref.SimultaneousGDA, L, lr_x=lr_x, lr_y=r * lr_x)
    g0 = L * (0.01 - L)
    rtol = 1e-5 if quotient == 2.0 else 1e-12  # the decayed gradient is a difference of numbers ~ 1
    close(gradient_after(method, 200), g0 * (1.0 + lr_x * (L**2 - r)) ** 200, rtol=rtol)


@pytest.mark.parametrize(("rate", "expected"), [(1.9, 2.7e-5), (2.0, 1.0), (2.1, 1.4e4)])
def test_lemma_gda_needs_a_small_step_too(rate: float, expected: float) -> None:
    lr_x = rate / (8.0 - 4.0)
    method = quadratic(ref.SimultaneousGDA, lr_x=lr_x, lr_y=8.0 * lr_x)
    close(abs(gradient_after(method, 100) / 3.98), expected, rtol=0.02)


@pytest.mark.parametrize("method", [ref.SimultaneousGDA, ref.OptimisticGDA, ref.Extragradient])
def test_lemma_linear_methods_are_constant_at_r_equal_l_squared(method: Any) -> None:
    close(gradient_after(quadratic(method, lr_x=0.05, lr_y=0.2), 1000), -3.98, rtol=1e-11)


# Spec E2: |g_T/g_0| at T = 100 and 1000 by r/L, L = 2, lr_y = 0.2, v_0 = 0.
LEMMA = {
    "adagrad": {0.5: (3.26, 9.20), 0.9: (1.22, 1.76), 1.1: (0.836, 0.502), 2.0: (0.273, 8.6e-5)},
    "adam": {0.5: (62.0, 283.0), 0.9: (7.5, 31.6), 1.1: (4e-3, 0.0), 2.0: (4e-3, 0.0)},
    "amsgrad": {0.5: (62.0, 283.0), 0.9: (7.5, 31.6), 1.1: (4e-3, 0.0), 2.0: (4e-3, 0.0)},
}


@pytest.mark.parametrize("psi", LEMMA)
def test_lemma_adaptive_methods(psi: str) -> None:
    for quotient, (early, late) in LEMMA[psi].items():
        lr_x = 0.2 / (2.0 * quotient)
        method = quadratic(ref.NonNestedAdaptive, lr_x=lr_x, lr_y=0.2, psi=psi)
        rtol = 0.15 if early == 4e-3 else 0.01  # one printed digit
        close(abs(gradient_after(method, 100)) / 3.98, early, rtol=rtol)
        np.testing.assert_allclose(
            abs(gradient_after(method, 1000)) / 3.98, late, rtol=0.01, atol=1e-13
        )


@pytest.mark.parametrize("psi", LEMMA)
def test_lemma_adaptive_methods_are_constant_at_r_equal_l(psi: str) -> None:
    method = quadratic(ref.NonNestedAdaptive, lr_x=0.1, lr_y=0.2, psi=psi)
    close(gradient_after(method, 1000), -3.98, rtol=1e-12)


# Spec C6, the regression table: (r, budget), by torch rule: last |g^x| without and with the nested
# loop (c = 0.1), and the outer steps of the latter. None: the run overflows.
RELEASED_RUNS = {
    (1.0, 8000): {
        "adam": (2.25e3, 3.2e-3, 3319),
        "amsgrad": (2.25e3, 2.7e-2, 2670),
        "adagrad": (72.0, 5.6e-2, 1278),
        "sgd": (None, 2.9e-2, 2196),
    },
    (4.0, 2000): {
        "adam": (0.0, 3.1e-7, 994),
        "amsgrad": (0.0, 1.2e-10, 994),
        "adagrad": (3.5e-4, 2.4e-4, 956),
        "sgd": (3.98, 3.2e-14, 997),
    },
}


@pytest.mark.parametrize(("r", "budget"), RELEASED_RUNS)
@pytest.mark.parametrize("kind", ["adam", "amsgrad", "adagrad", "sgd"])
def test_released_runs_on_the_quadratic(r: float, budget: int, kind: str) -> None:
    simple, nested_end, outer_steps = RELEASED_RUNS[r, budget][kind]
    method = quadratic(ref.NonNestedTorch, lr_x=0.2 / r, lr_y=0.2, kind=kind)
    if simple is None:
        with np.errstate(all="ignore"), pytest.raises(FloatingPointError):
            gradient_after(method, budget // 2)
    else:
        last = abs(gradient_after(method, budget // 2 - 1))
        np.testing.assert_allclose(last, simple, rtol=0.02, atol=1e-14)

    method = quadratic(
        ref.ReleasedLoop, inner=torch_rule(0.2, kind), outer=torch_rule(0.2 / r, kind), c=0.1
    )
    while method.n_gx + method.n_gy < budget:
        x = method.x
        method.step()
    assert method.n_outer == outer_steps  # the last one may go over the budget
    close(abs(method.gradient_x(x, method.y)[0]), nested_end, rtol=0.03)


class BoundedNC:
    """Spec E1: sum x_i^2/(1 + x_i^2) + y.Bx - mu/2 |y|^2."""

    start = [2.0, -1.0], [0.0, 0.0]
    B = np.array([[1.0, 0.5], [-0.3, 2.0]])

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def f(self, x: np.ndarray, y: np.ndarray) -> float:
        coupling = y @ self.B @ x
        return float(np.sum(x**2 / (1.0 + x**2)) + coupling - self.mu / 2.0 * np.sum(y**2))

    def gx(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 2.0 * x / (1.0 + x**2) ** 2 + self.B.T @ y

    def gy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.B @ x - self.mu * y

    def answer(self, x: np.ndarray) -> np.ndarray:
        return self.B @ x / self.mu


class McCormickFromAfar(McCormick):
    """The start of the tables in spec B12-B15."""

    start = [3.0, -3.0], [0.0, 0.0]

    def answer(self, x: np.ndarray) -> np.ndarray:
        return x


def calls_to(problem: Any, method: Callable[..., ref.Minimax], **hyper: Any) -> int | None:
    """Player gradients until |grad Phi| <= 1e-4."""
    run = method(*problem.start, problem.gx, problem.gy, **hyper)
    while run.n_gx + run.n_gy < 20_000:
        run.step()
        if np.linalg.norm(problem.gx(run.x, problem.answer(run.x))) <= 1e-4:
            return run.n_gx + run.n_gy
    return None


def neada(problem: Any, inner: Any, policy: str) -> Callable[..., ref.Minimax]:
    """NeAda-AdaGrad, criterion I, at least one inner step, v_0 = 1e-8."""

    def make(*args: Any, lr: float) -> ref.Minimax:
        return ref.NeAda(
            *args,
            inner=inner,
            outer=adagrad_norm(lr, 1e-8),
            stop=ONE,
            policy=policy,
            min_inner_steps=1,
            f=problem.f,
        )

    return make


def tuned_adgd(variant: str, lr: float) -> Callable[..., ref.Reference]:
    return lambda w, project: ref.AdGD(w, project, variant=variant, lr=lr)


LINE, PG, MM20 = backtracking, tuned_adgd("adapg", 1e-2), tuned_adgd("mm20", 1e-6)
ILL, NICE, FAR = BoundedNC(0.05), BoundedNC(0.5), McCormickFromAfar()


@pytest.mark.parametrize(
    ("problem", "inner", "policy", "expected"),
    [
        (ILL, LINE, "fresh", [940, 839, 740]),
        (ILL, LINE, "step", [160, 93, 140]),
        (ILL, PG, "fresh", [3960, 4082, 3644]),
        (ILL, PG, "step", [183, 123, 163]),
        (ILL, MM20, "step", [120, 119, 155]),
        (NICE, LINE, "step", [94, 55, 82]),
        (FAR, LINE, "step", [297, 36, 63]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_calls_of_neada_adagrad(problem: Any, inner: Any, policy: str, expected: Any) -> None:
    """Spec A0 (policies) and B12-B15: learning rates 1, 10, 100."""
    method = neada(problem, inner, policy)
    assert [calls_to(problem, method, lr=lr) for lr in (1.0, 10.0, 100.0)] == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            partial(ref.NonNestedAdaptive, psi="adagrad"),
            [[100, 36, 38], [126, 988, 1866], [404, None, None]],
        ),
        (ref.TiAda, [[538, 36, 90], [234, 158, 124], [1468, 3134, 1486]]),
        (ref.TiAdaCoordinate, [[284, 42, 96], [194, 170, 68], [954, 2424, 1798]]),
    ],
    ids=["adagrad", "tiada", "tiada_coordinate"],
)
def test_calls_of_single_loops(method: Any, expected: Any) -> None:
    """Spec B12-B15: equal learning rates 1, 10, 100."""
    for problem, row in zip((FAR, NICE, ILL), expected, strict=True):
        for lr, calls in zip((1.0, 10.0, 100.0), row, strict=True):
            if calls is not None:
                assert calls_to(problem, method, lr_x=lr, lr_y=lr) == calls


def test_calls_of_algorithm_two() -> None:
    """Spec B12-B15, "NeAda Alg. 2 AdaGrad (I or II)": carried state, test on the used gradient."""
    for problem, row in ((FAR, [102, 37, 46]), (NICE, [40, 1108]), (ILL, [133])):
        for lr, calls in zip((1.0, 10.0, 100.0), row, strict=False):
            rule = adaptive(lr, psi="adagrad", v0=0.0)
            stop = ref.Either(ONE, TWO)
            hyper = {"inner": rule, "outer": rule, "stop": stop, "policy": "full", "test": "last"}
            assert calls_to(problem, ref.NeAda, **hyper) == calls


def test_ends_of_adaptive_single_loops_on_the_quadratic() -> None:
    """Spec B8 and B10, after 1e4 calls at L = 2."""
    assert abs(gradient_after(quadratic(ref.TiAda, lr_x=0.2, lr_y=0.2), 5000)) < 1e-12
    for bias in ("power", "sqrt"):
        method = quadratic(ref.TiAdaAdam, lr_x=0.2, lr_y=0.2, bias=bias)
        assert 5.0 < abs(gradient_after(method, 5000)) < 12.0  # it oscillates around 8
    assert 1e5 < abs(gradient_after(quadratic(ref.AdaptiveExtragradient), 2500)) < 3e5
    method = quadratic(ref.UniversalMirrorProx, diameter=1.0, g0=1.0)
    assert 8e2 < abs(gradient_after(method, 2500)) < 1e3


def test_past_extragradient_is_optimistic_gda_shifted() -> None:
    """Spec B4, unconstrained: the half points of one are the iterates of the other."""
    p, points = McCormick(), []

    def gx(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        points.append((x, y))
        return p.gx(x, y)

    past = ref.PastExtragradient([0.5, -0.5], [0.1, 0.2], gx, p.gy, lr_x=0.05, lr_y=0.3)
    optimistic = ref.OptimisticGDA([0.5, -0.5], [0.1, 0.2], p.gx, p.gy, lr_x=0.05, lr_y=0.3)
    for k in range(10):
        past.step()
        optimistic.step()
        close(points[k + 1], (optimistic.x, optimistic.y))


def test_one_fixed_inner_step_is_alternating_gda() -> None:
    """Decisions: NeAda is y first."""
    p, start = McCormick(), ([0.5, -0.5], [0.1, 0.2])
    inner, outer = torch_rule(0.3, "sgd"), torch_rule(0.05, "sgd")
    one = ref.Count(lambda t: 1)
    loop = ref.NeAda(*start, p.gx, p.gy, inner=inner, outer=outer, stop=one, policy="full")
    alternating = ref.AlternatingGDA(*start, p.gx, p.gy, lr_x=0.05, lr_y=0.3, order="yx")
    gdmax = ref.GDmax(*start, p.gx, p.gy, lr_x=0.05, lr_y=0.3, inner_steps=1)
    for _ in range(10):
        for method in (loop, alternating, gdmax):
            method.step()
        for method in (loop, gdmax):
            close(method.x, alternating.x)
            close(method.y, alternating.y)
            assert (method.n_gx, method.n_gy) == (alternating.n_gx, alternating.n_gy)


class ReleasedRule(ref.Stop):
    """Spec C4, EXP-released, as a rule of NeAda."""

    def __init__(self, c: float, s: float) -> None:
        self.c = c
        self.s = s

    def count(self, t: int, k: int) -> bool:
        return k >= self.c * t

    def accuracy(self, t: int, k: int, mapping: np.ndarray) -> bool:
        return float(np.sum(mapping**2)) <= self.s / (t + 1)


def test_released_loop_is_neada_with_its_rule() -> None:
    """Unconstrained: carried, test on the gradient just used, no least number of inner steps."""
    p, start = McCormick(), ([0.5, -0.5], [0.1, 0.2])
    rules = {"inner": torch_rule(0.2, "adam"), "outer": torch_rule(0.1, "adam")}
    loop = ref.ReleasedLoop(*start, p.gx, p.gy, **rules, c=1.0, s=0.1)
    more = {"stop": ReleasedRule(1.0, 0.1), "policy": "full", "test": "last", "min_inner_steps": 0}
    same = ref.NeAda(*start, p.gx, p.gy, **rules, **more)
    for _ in range(30):
        loop.step()
        same.step()
    close(loop.x, same.x)
    assert loop.inner_steps == same.inner_steps and loop.n_gy == same.n_gy
    assert 1 in loop.inner_steps[5:] and loop.inner_steps[0] == 0  # both parts of the rule act


def test_tiada_flavours_agree_in_one_dimension() -> None:
    """Spec B8: coordinate-wise with eps = 0 is the scalar form with v_0 = 0."""
    scalar = quadratic(ref.TiAda, lr_x=0.5, lr_y=0.5, v0_x=0.0, v0_y=0.0)
    coordinate = quadratic(ref.TiAdaCoordinate, lr_x=0.5, lr_y=0.5, eps=0.0)
    close(gradient_after(scalar, 20), gradient_after(coordinate, 20), rtol=1e-11)


@pytest.mark.parametrize("policy", ["fresh", "full"])
def test_averages_restart_and_are_the_next_start(policy: str) -> None:
    p, starts = PaperQuadratic(2.0), []

    def inner(w: np.ndarray, project: Any) -> ref.Reference:
        return ref.GeneralizedAdaGrad(w, project, average=0.0)

    def gy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        starts.append(float(y[0]))
        return p.gy(x, y)

    hyper = {"inner": inner, "outer": adagrad_norm(1.0, 1.0), "stop": ref.Count(lambda t: 2)}
    run = ref.NeAda([1.0], [0.01], p.gx, gy, **hyper, policy=policy, averaged=True)
    for i in range(3):
        warm_start = float(run.y[0])
        run.step()
        first, middle, last = starts[2 * i], starts[2 * i + 1], float(run.inner.w[0])
        close(first, warm_start)
        close(run.y[0], (middle + last) / 2.0)
    assert run.n_gy == 6


def test_cap_and_errors() -> None:
    p = PaperQuadratic(2.0)
    never = ref.FixedAccuracy(0.0)
    hyper = {"inner": torch_rule(1e-3, "sgd"), "outer": torch_rule(1e-3, "sgd"), "stop": never}
    run = ref.NeAda([1.0], [0.01], p.gx, p.gy, **hyper, max_inner_steps=7)
    run.step()
    assert (run.n_inner, run.n_gy, run.n_capped) == (7, 7, 1)
    run.policy = "step"
    with pytest.raises(ValueError, match="step"):
        run.step()
    bad = ref.Extragradient([1.0], [0.0], p.gx, lambda x, y: y * math.nan, lr_x=1.0, lr_y=1.0)
    with pytest.raises(FloatingPointError):
        bad.step()
    assert bad.x == 1.0 and bad.y == 0.0


@pytest.mark.parametrize("name", [*MINIMAX])
def test_every_method_stays_feasible(name: str) -> None:
    p = McCormick()
    hyper = {"lr_x": 0.3, "lr_y": 0.3}
    more: dict[Any, dict[str, Any]] = {
        ref.AdaptiveExtragradient: {"scale": 1.0},
        ref.UniversalMirrorProx: {"diameter": 1.0, "g0": 1.0},
        ref.AdaGDA: {"gam": 0.3, "lam": 0.3},
        ref.VRAdaGDA: {"gam": 0.3, "lam": 0.3},
        ref.GDmax: hyper | {"inner_steps": 3},
        ref.NonNestedAdaptive: hyper | {"psi": "amsgrad"},
        ref.NonNestedTorch: hyper | {"kind": "amsgrad"},
        ref.SmoothedAGDA: hyper | {"p": 4.0, "beta": 0.1},
    }
    make = MINIMAX[name]
    run = make([0.3, 0.0], [0.1, 0.2], p.gx, p.gy, half_ball, half_ball, **more.get(make, hyper))
    for _ in range(20):
        run.step()
        assert np.linalg.norm(run.x) <= 0.5 + 1e-12
        assert np.linalg.norm(run.y) <= 0.5 + 1e-12
