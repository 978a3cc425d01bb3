"""Errata of the regret theorem, of a proposition, and about when the inner loop stops."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from neada.inner import InnerOptions
from neada.optim import AdaptiveSGD, GeneralizedAdaGrad
from neada.steppers import NeAda
from neada.stopping import GradientMapping
from reproduction.errata_lemma import Erratum, Rows, Statement, curve, measure
from reproduction.experiment import Array
from reproduction.regret import Learners, play, proven_bound

__all__ = ["REGRET", "STOPPING"]

_OFFSET = 10.0


def _signs(num_rows: int) -> Iterator[Array]:
    generator = np.random.default_rng(0)
    while True:
        for sign in 2.0 * generator.integers(0, 2, 1024) - 1.0:
            yield np.full(num_rows, sign)


def _printed_bound(learners: Learners, sums: Array, gradient_bound: float) -> Array:
    """The last display of the proof for alpha < 1, as printed."""
    alpha, lr, v0 = learners.alpha, learners.lr, learners.v0
    diameter, modulus = 2.0 * learners.scale, 1.0 / learners.scale**2
    bound_sq = (gradient_bound / learners.scale) ** 2
    power = (2.0 - alpha) / (1.0 - alpha)
    middle = alpha * (alpha * bound_sq / (lr * modulus)) ** power / v0 ** (2.0 - 2.0 * alpha)
    first = (v0 + bound_sq) ** alpha * diameter**2
    bound: Array = (first + middle + lr**2 / (1.0 - alpha) * sums ** (1.0 - alpha)) / (2.0 * lr)
    return bound


def _regret_constant(num_rounds: int) -> Rows:
    stretches = np.logspace(0, 7, 4)
    found = []
    for stretch in stretches.tolist():
        # The same problem in other units: every step and every loss is the same.
        learner = Learners(0.5, np.array([0.01 * stretch]), stretch**-2, stretch, stretch)
        regret, v = play(_signs(1), learner, np.array([num_rounds]))
        bounds = _printed_bound(learner, v, 2.0), proven_bound(learner, v, 2.0)
        found.append([float(number[0, 0]) for number in (regret, *bounds)])
    regrets, printed, corrected = np.array(found).T
    return [
        measure("violated", regrets[-1] / printed[-1]),
        measure("holds", (regrets / corrected).max()),
        measure("spread", np.ptp(regrets) / regrets.mean()),
        *curve("regret", stretches, regrets),
        *curve("printed bound", stretches, printed),
        *curve("corrected", stretches, corrected),
    ]


def _switching(half: Array) -> Iterator[Array]:
    """Losses centered at -1 until half time and at 1 from then on, far to either side by turns."""
    t = 0
    while True:
        yield np.where(t < half, -1.0, 1.0) + (_OFFSET if t % 2 else -_OFFSET)
        t += 1


def _regret_rate(num_rounds: int) -> Rows:
    horizons = np.unique(np.geomspace(num_rounds / 100, num_rounds, 9).astype(np.intp))
    bound = 2.0 + _OFFSET
    # One row per horizon, with half of the threshold and then with all of it.
    lr = np.repeat([0.5, 1.0], len(horizons)) * bound**2
    learners = Learners(1.0, lr, start=0.0)
    regrets, sums = play(_switching(np.tile(horizons, 2) / 2.0), learners, horizons)
    own = np.tile(np.arange(len(horizons)), 2), np.arange(len(lr))
    half, full = np.split(regrets[own], 2)
    half_bound, full_bound = np.split(proven_bound(learners, sums, bound)[own], 2)
    late = horizons >= num_rounds / 10
    return [
        measure("half-exponent", np.polyfit(np.log(horizons[late]), np.log(half[late]), 1)[0]),
        measure("half-worst", (half / half_bound).max()),
        measure("full-worst", (full / full_bound).max()),
        *curve("regret, G²/(2 mu)", horizons, half),
        *curve("bound, G²/(2 mu)", horizons, half_bound),
    ]


def _log_proposition(num_draws: int) -> Rows:
    generator = np.random.default_rng(0)
    draws = 10.0 ** generator.uniform(-3.0, 3.0, (num_draws, 5))
    draws[generator.uniform(size=draws.shape) < 0.1] = 0.0  # all but a_2 may vanish
    draws[:, 1] = np.maximum(draws[:, 1], 1e-3)
    draws[0] = (0.0, 1.0, 0.1, 0.0, 1.0)
    x = np.logspace(-12, 16, 2801)
    printed, corrected = [], []
    for a1, a2, a3, a4, a5 in draws:
        inside = a1 + a2 * x
        with np.errstate(divide="ignore", invalid="ignore"):
            tail = a4 * np.log(a5 * inside) if a4 > 0.0 else 0.0
            allowed = x * x <= inside * (a3 + tail)
        if allowed.any():
            common = a1 / a2 + 16.0 * a2**3 * a4**2 * a5
            largest = x[allowed][-1]
            printed.append(largest / max(common + 3.0 * (a2 * a3) ** 2, 1e-300))
            corrected.append(largest / max(common + 3.0 * a2 * a3, 1e-300))
    products = np.logspace(-3, 1, 30)
    return [
        measure("printed", max(printed)),
        measure("corrected", max(corrected)),
        *curve("largest x", products, products),
        *curve("printed bound", products, 3.0 * products**2),
        *curve("corrected", products, 3.0 * products),
    ]


REGRET = (
    Erratum(
        "regret-constant",
        "Theorem 4, proof, last display for alpha < 1",
        "twice lr times the regret is at most (v_0 + G^2)^alpha D^2 + a middle term without D + "
        "lr^2 v^(1-alpha) / (1-alpha)",
        "the middle term is |S| (alpha G^2 / v_0^(1-alpha) - lr mu) D^2, where |S| may be one more "
        "than printed, and v is v_T; the theorem, which does not name its constants, stands",
        _regret_constant,
        (
            Statement(
                "spread",
                "stretching x by s (mu/s^2, D s, v_0/s^2, lr s^(2-2alpha)) is the same game: "
                "relative spread of the regret over s = 1 to 1e7",
                "<=",
                1e-9,
            ),
            Statement(
                "violated",
                "the printed bound is violated at s = 1e7 for alpha = 0.5: regret / printed bound",
                ">",
                1.0,
            ),
            Statement(
                "holds",
                "the corrected bound holds at every s: largest regret / corrected bound",
                "<=",
                1.0,
            ),
        ),
        ("stretch s", "regret and bounds"),
    ),
    Erratum(
        "regret-rate",
        "Theorem 4, alpha = 1",
        "lr >= G^2/(2 mu) gives logarithmic regret; the proof uses lr >= G^2/mu",
        "lr >= G^2/mu. At G^2/(2 mu) the statement is false: with losses (x - z_t)^2/2 that are "
        "centered at -1 for the first half and at 1 for the second, z_t lying 10 to the left and "
        "to the right of the center by turns, the regret is linear in T",
        _regret_rate,
        (
            Statement(
                "half-exponent",
                "at lr = G^2/(2 mu) the regret is a power of T, not a logarithm: exponent over the "
                "last decade of T (1 in the limit)",
                ">=",
                0.8,
            ),
            Statement(
                "half-worst",
                "at lr = G^2/(2 mu) the bound is violated: largest regret / bound",
                ">",
                1.0,
            ),
            Statement(
                "full-worst",
                "at lr = G^2/mu it holds on the same losses: largest regret / bound",
                "<=",
                1.0,
            ),
        ),
        ("horizon T", "regret and bound"),
    ),
    Erratum(
        "log-proposition",
        "Appendix, the proposition about x^2 <= (a_1 + a_2 x)(a_3 + a_4 log(...))",
        "then x <= a_1/a_2 + 16 a_2^3 a_4^2 a_5 + 3 a_2^2 a_3^2",
        "the last term is 3 a_2 a_3, by the proof's own steps; it only stands inside a logarithm "
        "of Theorem 1, which is unharmed",
        _log_proposition,
        (
            Statement(
                "printed",
                "the printed bound is violated (a_1 = a_4 = 0, a_2 = 1, a_3 = x = 0.1 will do): "
                "largest x / bound over random constants",
                ">",
                1.0,
            ),
            Statement(
                "corrected",
                "the corrected one holds: largest x / bound over the same constants",
                "<=",
                1.0,
            ),
        ),
        ("a_2 a_3 (a_1 = a_4 = 0)", "x and bounds"),
    ),
)


def _inner_errors(num_outer: int, stopping: GradientMapping, unit: float) -> tuple[Array, Array]:
    """Squared y error at every x step, and the inner steps spent, when f is multiplied by `unit`.

    f = x^2/(1+x^2) + 2xy - y^2/2 in 40 coordinates from different starts. Both optimizers are
    told of the unit, so that only the stopping test can see it.
    """
    x = torch.linspace(0.5, 3.0, 40, dtype=torch.float64).requires_grad_()
    y = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    stepper = NeAda(
        GeneralizedAdaGrad([x], lr=1.0, v0=unit**2),
        AdaptiveSGD([y], lr=0.1 / unit, psi="none", maximize=True),
        stopping,
        inner=InnerOptions(min_steps=0),
    )

    def value() -> Tensor:
        return unit * (x * x / (1.0 + x * x) + 2.0 * x * y - 0.5 * y * y).sum()

    errors, spent = [], []
    for _ in range(num_outer):
        before = x.detach().clone()
        info = stepper.step(value)
        errors.append((y.detach() - 2.0 * before).square().sum().item())
        spent.append(float(info.inner_steps))
    return np.array(errors), np.array(spent)


def _criterion_units(num_outer: int) -> Rows:
    steps = np.arange(1, num_outer + 1)
    rows: Rows = []
    plain, _ = _inner_errors(num_outer, GradientMapping(), 1.0)
    rows += curve("f", steps, plain)
    worst = []
    for unit in (0.1, 10.0):
        errors, _ = _inner_errors(num_outer, GradientMapping(), unit)
        mended, _ = _inner_errors(num_outer, GradientMapping(scale=unit**2), unit)
        worst.append(np.abs(mended / plain - 1.0).max())
        rows.append(measure(f"change-{unit:g}", np.median(errors / plain)))
        rows += curve(f"{unit:g} f", steps, errors)
    return [measure("mended", max(worst)), *rows]


def _criterion_text(num_outer: int) -> Rows:
    steps = np.arange(1, num_outer + 1)
    theory, theory_spent = _inner_errors(num_outer, GradientMapping(), 1.0)
    text, text_spent = _inner_errors(num_outer, GradientMapping(power=2.0), 1.0)
    late = steps > num_outer / 2
    return [
        measure("accuracy", np.median((theory / text)[late])),
        measure("steps", text_spent.sum() / max(theory_spent.sum(), 1.0)),
        *curve("squared <= 1/(t+1)", steps, theory),
        *curve("norm <= 1/(t+1)", steps, text),
    ]


STOPPING = (
    Erratum(
        "criterion-units",
        "Algorithm 3, criterion I",
        "stop when the squared gradient mapping with step 1 is at most 1/(t+1)",
        "the theorem holds, with constants that depend on the unit of f; the test itself is not "
        "invariant to f -> s f, and c/(t+1) with c = s^2 (`scale`) makes up for it",
        _criterion_units,
        (
            Statement(
                "change-0.1",
                "0.1 f instead of f: the squared y error that the test accepts, relative (about "
                "100)",
                ">",
                10.0,
            ),
            Statement(
                "change-10",
                "10 f instead of f: the same (about 0.01)",
                "<",
                0.1,
            ),
            Statement(
                "mended",
                "with scale = s^2 the run is the same in every unit: largest relative change of "
                "the y error",
                "<=",
                1e-6,
            ),
        ),
        ("outer step t+1", "squared y error"),
    ),
    Erratum(
        "criterion-text",
        "Section 2, text, against Algorithm 3",
        "the experiments stop when the gradient of y is below 1/t, the theory when its square is "
        "below 1/(t+1)",
        "these are different tests (the scripts use the square): the text's asks for a squared "
        "gradient of 1/t^2, is undefined at t = 0, and implies the theory's from t = 2 on",
        _criterion_text,
        (
            Statement(
                "accuracy",
                "squared y error under the theory's test / under the text's, median over the last "
                "half (about t)",
                ">",
                10.0,
            ),
            Statement(
                "steps",
                "inner steps under the text's test / under the theory's",
                ">",
                1.0,
            ),
        ),
        ("outer step t+1", "squared y error"),
    ),
)
