"""The steppers against the stored five-step trajectories of independent numpy references."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam

from neada import sets, steppers
from neada.inner import InnerOptions
from neada.optim import AdaptiveSGD, AdGD, Backtracking, GeneralizedAdaGrad
from neada.stopping import FixedAccuracy, FixedSteps, GradientMapping, InnerSteps
from reproduction.released import ascend

FIXTURES = Path(__file__).parents[1].parent / "shared" / "reference" / "fixtures"
RTOL = 1e-12  # what the fixtures promise for float64

pytestmark = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="no reference fixtures beside the checkout (../shared/reference)"
)

Hyper = dict[str, Any]
Make = Callable[[Tensor, Tensor, Hyper], steppers.Stepper]


def paper_quadratic(x: Tensor, y: Tensor) -> Tensor:
    return (-y * y / 2 + 2 * x * y - 2 * x * x).sum()


def mccormick(x: Tensor, y: Tensor) -> Tensor:
    a, b = x
    plain = torch.sin(a + b) + (a - b) ** 2 - 1.5 * a + 2.5 * b + 1
    return plain + x @ y - y @ y / 2


def pair(stepper: Any, x: Tensor, y: Tensor, h: Hyper, make: Any, **kwargs: Any) -> Any:
    return stepper(make([x], h["lx"], **kwargs), make([y], h["ly"], maximize=True, **kwargs))


def paper(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
    kwargs = {"psi": h["kind"], "v0": h["v0"]}
    kwargs |= {name: h[name] for name in ("beta", "gamma") if name in h}
    return pair(steppers.Simultaneous, x, y, h, AdaptiveSGD, **kwargs)


def torchs(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
    if h["kind"] == "adagrad":
        return pair(steppers.Simultaneous, x, y, h, Adagrad, eps=h["eps"])
    amsgrad = h["kind"] == "amsgrad"
    return pair(steppers.Simultaneous, x, y, h, Adam, eps=h["eps"], amsgrad=amsgrad)


def adagda(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
    make = steppers.VRAdaGDA if h.get("vr") else steppers.AdaGDA
    schedule = {"k": h["k"], "m": h["m"], "c_x": h["c1"], "c_y": h["c2"]}
    return make([x], [y], h["gam"], h["lam"], decay=h["tau"], rho=h["rho"], **schedule)


def tiada(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
    kwargs = {"alpha": h["alpha"], "beta": h["beta"]}
    if "v0x" in h:
        return steppers.TiAda([x], [y], h["lx"], h["ly"], v0_x=h["v0x"], v0_y=h["v0y"], **kwargs)
    return steppers.TiAda([x], [y], h["lx"], h["ly"], scope="coordinate", eps=h["eps"], **kwargs)


def tiada_adam(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
    return steppers.TiAdaAdam(
        [x],
        [y],
        h["lx"],
        h["ly"],
        alpha=h["alpha"],
        beta=h["beta"],
        betas=(0.9, h.get("b2", 0.999)),
        amsgrad=h.get("amsgrad", False),
        bias="sqrt" if h.get("quirk") else "power",
    )


def gdmax(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
    rule = FixedSteps(h["K"]) if "K" in h else FixedAccuracy(h["tol"])
    return steppers.NeAda(
        SGD([x], h["lx"]), SGD([y], h["ly"], maximize=True), rule, inner=InnerOptions(min_steps=0)
    )


MINIMAX: dict[str, Make] = {
    "ada_extragradient": lambda x, y, h: steppers.AdaptiveExtragradient([x], [y], h["scale"]),
    "adagda": adagda,
    "vr_adagda": adagda,
    "gda": lambda x, y, h: pair(steppers.Simultaneous, x, y, h, SGD),
    "alt_gda": lambda x, y, h: pair(steppers.Alternating, x, y, h, SGD),
    "extragradient": lambda x, y, h: steppers.Extragradient([x], [y], h["lx"], h["ly"]),
    "past_extragradient": lambda x, y, h: steppers.PastExtragradient([x], [y], h["lx"], h["ly"]),
    "optimistic_gda": lambda x, y, h: steppers.OptimisticGDA([x], [y], h["lx"], h["ly"]),
    "gdmax_k3": gdmax,
    "gdmax_tol": gdmax,
    "paper_adagrad_v0_0": paper,
    "paper_adagrad_v0_1": paper,
    "paper_adam_gamma05": paper,
    "paper_adam_v0_0": paper,
    "paper_adam_v0_1": paper,
    "paper_amsgrad_gamma05": paper,
    "paper_amsgrad_v0_0": paper,
    "paper_amsgrad_v0_1": paper,
    "smoothed_agda": lambda x, y, h: steppers.SmoothedAGDA(
        [x], [y], h["lx"], h["ly"], pull=h["p"], follow=h["beta"]
    ),
    "tiada_scalar": tiada,
    "tiada_coord": tiada,
    "tiada_adam": tiada_adam,
    "tiada_adam_b2_05": tiada_adam,
    "tiada_adam_publiccode": tiada_adam,
    "tiada_amsgrad_b2_05": tiada_adam,
    "tiada_amsgrad_publiccode": tiada_adam,
    "torch_adagrad": torchs,
    "torch_adam": torchs,
    "torch_adam_eps08": torchs,
    "torch_amsgrad": torchs,
    "universal_mirror_prox": lambda x, y, h: steppers.UniversalMirrorProx(
        [x], [y], h["D"], h["G0"]
    ),
}
NOT_OURS = {"nsgda_m"}


def algorithm_2(rule: Any, psi: str = "adagrad") -> Make:
    def make(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
        kwargs = {"psi": psi, "v0": float(h["v0"])}
        kwargs |= {name: h[name] for name in ("beta", "gamma") if name in h}
        return steppers.NeAda(
            AdaptiveSGD([x], h["lx"], **kwargs),
            AdaptiveSGD([y], h["ly"], maximize=True, **kwargs),
            rule,
            inner=InnerOptions(keep="everything" if h.get("carry", True) else "nothing"),
        )

    return make


def algorithm_3(rule: Any, inner: Callable[..., Any], **kwargs: Any) -> Make:
    def make(x: Tensor, y: Tensor, h: Hyper) -> steppers.Stepper:
        x_optimizer = GeneralizedAdaGrad([x], float(h["eta"]), v0=float(h["v0"]))
        minimum = {"min_steps": int(h["min_inner"])} if "min_inner" in h else {}
        ball = sets.L2Ball(0.5) if "Y" in h else None
        y_optimizer = inner([y], maximize=True, constraint=ball)
        return steppers.NeAda(
            x_optimizer,
            y_optimizer,
            rule,
            inner=InnerOptions(keep="nothing", **minimum),
            deterministic=True,
            **kwargs,
        )

    return make


NEADA: dict[str, Make] = {
    "alg2_adagrad_stopII": algorithm_2(InnerSteps()),
    "alg2_adagrad_stopII_fresh": algorithm_2(InnerSteps()),
    "alg2_adam_stopII_v0_1": algorithm_2(InnerSteps(), psi="adam"),
    "alg2_amsgrad_stopII_v0_1": algorithm_2(InnerSteps(), psi="amsgrad"),
    "alg3_II_adagradnorm": algorithm_3(InnerSteps(), GeneralizedAdaGrad),
    "alg3_log2_adagradnorm": algorithm_3(InnerSteps(("log", 2)), GeneralizedAdaGrad),
    "alg3_I_adgd_mm20": algorithm_3(
        GradientMapping(), lambda p, **k: AdGD(p, 1e-3, variant="mm20", **k)
    ),
    "alg3_I_backtracking": algorithm_3(GradientMapping(), Backtracking),
    "alg3_I_backtracking_min1": algorithm_3(GradientMapping(), Backtracking),
    "alg3_I_ball_backtracking": algorithm_3(GradientMapping(), Backtracking),
}
# The rule is evaluated on the gradient of the last step: optimizer, threshold and limit at t.
AFTER_THE_STEP: dict[str, tuple[Any, Callable[[int], float], Callable[[int], float]]] = {
    "alg2_adagrad_stopEXP": (AdaptiveSGD, lambda t: (t + 1) ** -2.0, lambda t: t + 1),
    "alg2_adagrad_stopI": (AdaptiveSGD, lambda t: 1 / (t + 1), lambda t: math.inf),
    "released_loop_adagrad_c1": (Adagrad, lambda t: 1 / (t + 1), lambda t: t),
    "released_loop_adam_c01": (Adam, lambda t: 1 / (t + 1), lambda t: 0.1 * t),
}
NOISY = {"alg3_II_noise_growingM"}


def stored(kind: str) -> set[str]:
    return {path.stem.removeprefix(f"{kind}_") for path in FIXTURES.glob(f"{kind}_*.json")}


def test_every_fixture_is_used() -> None:
    assert stored("minimax") == set(MINIMAX) | NOT_OURS
    assert stored("neada") == set(NEADA) | set(AFTER_THE_STEP) | NOISY


@pytest.mark.parametrize("problem", ["paper_quad_L2", "mccormick"])
@pytest.mark.parametrize(
    ("kind", "name"), [("minimax", name) for name in MINIMAX] + [("neada", name) for name in NEADA]
)
def test_five_steps(kind: str, name: str, problem: str) -> None:
    fixture = json.loads((FIXTURES / f"{kind}_{name}.json").read_text(encoding="utf-8"))
    (run,) = [r for r in fixture["runs"] if problem in json.dumps(r["problem"])]
    x, y = (torch.tensor(run[p], dtype=torch.float64, requires_grad=True) for p in ("x0", "y0"))
    fun = mccormick if problem == "mccormick" else paper_quadratic
    stepper = {**MINIMAX, **NEADA}[name](x, y, fixture["hyper"])
    for k, step in enumerate(run["steps"]):
        info = stepper.step(lambda: fun(x, y))
        for found, key in ((x, "x_next"), (y, "y_next")):
            np.testing.assert_allclose(found.detach(), step[key], rtol=RTOL, atol=1e-14)
        assert (stepper.calls_x, stepper.calls_y) == (step["n_gx"], step["n_gy"])
        if "inner_steps" in run:
            assert info.inner_steps == run["inner_steps"][k]


@pytest.mark.parametrize("problem", ["paper_quad_L2", "mccormick"])
@pytest.mark.parametrize("name", AFTER_THE_STEP)
def test_five_steps_of_the_released_inner_loop(name: str, problem: str) -> None:
    fixture = json.loads((FIXTURES / f"neada_{name}.json").read_text(encoding="utf-8"))
    (run,) = [r for r in fixture["runs"] if r["problem"] == problem]
    x, y = (torch.tensor(run[p], dtype=torch.float64, requires_grad=True) for p in ("x0", "y0"))
    fun = mccormick if problem == "mccormick" else paper_quadratic
    make, threshold, limit = AFTER_THE_STEP[name]
    v0 = {"v0": 0.0} if make is AdaptiveSGD else {}
    x_optimizer = make([x], fixture["hyper"]["lx"], **v0)
    y_optimizer = make([y], fixture["hyper"]["ly"], maximize=True, **v0)
    for t, step in enumerate(run["steps"]):
        count = ascend(y, y_optimizer, lambda: fun(x, y), threshold(t), limit(t))
        assert count == run["inner_steps"][t]
        (x.grad,) = torch.autograd.grad(fun(x, y), x)
        x_optimizer.step()
        for found, key in ((x, "x_next"), (y, "y_next")):
            np.testing.assert_allclose(found.detach(), step[key], rtol=RTOL, atol=1e-14)


def test_the_noisy_run_with_a_growing_batch() -> None:
    fixture = json.loads(
        (FIXTURES / "neada_alg3_II_noise_growingM.json").read_text(encoding="utf-8")
    )
    noise = {p: iter(fixture[f"noise_{p}"] * 20) for p in "xy"}
    (run,) = fixture["runs"]
    x, y = (torch.tensor(run[p], dtype=torch.float64, requires_grad=True) for p in ("x0", "y0"))
    stepper = steppers.NeAda(
        GeneralizedAdaGrad([x]),
        GeneralizedAdaGrad([y], maximize=True),
        InnerSteps(),
        inner=InnerOptions(keep="nothing"),
        x_samples=lambda t: t + 1,
    )

    def closure() -> Tensor:
        # Only the player whose gradient is taken next uses up its noise.
        turn = "y" if stepper.calls_y - before[1] < stepper.outer_steps + 1 else "x"
        xi = next(noise[turn])
        return paper_quadratic(x, y) + (xi * (x if turn == "x" else y)).sum()

    for step in run["steps"]:
        before = (stepper.calls_x, stepper.calls_y)
        stepper.step(closure)
        np.testing.assert_allclose(x.detach(), step["x_next"], rtol=RTOL)
        np.testing.assert_allclose(y.detach(), step["y_next"], rtol=RTOL)
        assert (stepper.calls_x, stepper.calls_y) == (step["n_gx"], step["n_gy"])
