"""Corrections to the paper: one function for each, which measures and draws, and their table.

The docstring of a function states what the paper prints and what is right; the report shows it.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from neada import optim
from neada.inner import InnerOptions
from neada.steppers import NeAda, Simultaneous
from neada.stopping import FixedSteps, GradientMapping, InnerSteps, StoppingRule
from reproduction.experiment import Array, Relation
from reproduction.regret import Learners, play


@dataclass(frozen=True)
class Check:
    """A measured number and what it must be to confirm a correction.

    Attributes:
        name: A short name, unique within the correction.
        sentence: What the number is.
        measured: The number.
        relation: How it compares with `expected`.
        expected: The number to compare with; a pair for "between".
    """

    name: str
    sentence: str
    measured: float
    relation: Relation
    expected: float | tuple[float, float]


Found = tuple[list[Check], dict[str, tuple[Array, Array]]]
"""The checks of a correction, and the lines of its panel by name."""


@dataclass(frozen=True)
class Correction:
    """One correction.

    Attributes:
        kind: An error, a typo or notation, or a remark, which is no erratum.
        where: The place in the paper.
        compute: Measures; its docstring states the correction.
        panel: Title and labels of the axes of its panel, if there is one.
    """

    kind: Literal["error", "typo", "remark"]
    where: str
    compute: Callable[[], Found]
    panel: tuple[str, str, str] = ("", "", "")

    @property
    def id(self) -> str:
        """A short name."""
        return self.compute.__name__.replace("_", "-")


def _vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


# Theorems 1 and 2.

_ETA, _V0 = 1e-4, 1e6


def _reflecting_run(num_outer: int, rule: StoppingRule) -> tuple[Array, Array, Array]:
    """Run Algorithm 3 on f = -(y - x)^2 / 2, where every inner step takes y to 2x - y.

    Here l = mu = kappa = 1, Phi = 0 and sigma = 0. The inner method is gradient ascent with step
    2/l, which keeps |y - x| = 1.

    Returns:
        For T = 1, ..., num_outer: the sum Z of the squared x gradients, and A and E of Theorem 1.
        The polynomial in the logarithm of A is the one in the proof.
    """
    x, y = _vector(0.0), _vector(1.0)
    x_optimizer = optim.GeneralizedAdaGrad([x], lr=_ETA, v0=_V0)
    y_optimizer = optim.AdaptiveSGD([y], lr=2.0, psi="none", maximize=True)
    stepper = NeAda(x_optimizer, y_optimizer, rule, deterministic=True)
    squares = []
    for _ in range(num_outer):
        before = x.detach().clone()
        stepper.step(lambda: -0.5 * (y - x).square().sum())
        squares.append((y.detach() - before).square().item())  # of grad_x f and of y_t - y*(x_t)
    total = np.cumsum(squares)
    error = total / (2.0 * math.sqrt(_V0))
    loose = math.sqrt(_V0) / 3 + 432 * (1 + 32 / math.sqrt(_V0)) * _ETA**2 + 108 * error**2
    constant = 2.0 * _ETA * (1.0 + 2.0 * np.log(1.0 + loose / math.sqrt(_V0)))
    return total, constant, error


def theorem_1() -> Found:
    """Print: the bound contains A + E. Correct: A + 2E.

    In the proof Q <= E is added to half of C, so that C, which the bound is about, carries 2Q.
    Counterexample: f = -(y - x)^2 / 2, v_0 = 1e6, eta = 1e-4, T = 1000, and an inner method that
    returns |y_t - x_t| = 1. The rates of Theorems 2 and 3 remain.
    """

    def sides(num_outer: int, rule: StoppingRule) -> list[Array]:
        total, constant, error = _reflecting_run(num_outer, rule)
        rights = [
            2.0 * b + _V0**0.25 * np.sqrt(b) for b in (constant + error, constant + 2 * error)
        ]
        return [side / np.sqrt(np.arange(1, num_outer + 1)) for side in (np.sqrt(total), *rights)]

    left, printed, corrected = sides(1000, FixedSteps(1))
    left_2, printed_2, _ = sides(60, InnerSteps())
    share = left_2[-1] / printed_2[-1]
    outer = np.arange(1.0, 1001.0)
    return [
        Check("left", "left side at T = 1000", left[-1], "between", (1.0, 1.001)),
        Check("printed", "right side as printed, with A + E", printed[-1], "<", 1.0),
        Check("corrected", "right side with A + 2E", corrected[-1], ">=", 1.001),
        Check("criterion-2", "left / printed right side, criterion II, T = 60", share, ">", 1.0),
    ], {
        "measured": (outer, left),
        "as printed": (outer, printed),
        "corrected": (outer, corrected),
    }


def proof_steps() -> Found:
    """Print: two steps in the proofs of Theorems 1 and 2. Correct: both fail and can be repaired.

    Theorem 1 bounds the expectation of a maximum by the maximum of expectations. With the sum of
    both terms instead, the coefficient of sigma is 4, which is what the theorem prints. Theorem 2
    squares 2B + v_0^(1/4) sqrt(B) without the cross term. Its display holds nevertheless, with
    B = A + 2E: without noise the proof gives Z <= B sqrt(v_0 + Z), so Z <= B^2 + sqrt(v_0) B.
    """
    # A gradient of 100 with probability 1/100 and of -0.1 otherwise, v_t = 1.
    chance, gradient = np.array([0.01, 0.99]), np.array([100.0, -0.1])
    mean = chance @ gradient
    sigma = math.sqrt(chance @ (gradient - mean) ** 2)
    scale = math.sqrt(1.0 + mean**2 + sigma**2)
    slope = chance @ ((1.0 / scale - 1.0 / np.sqrt(1.0 + gradient**2)) * gradient)
    grad_phi = 2.0 * scale * slope
    single = grad_phi**2 / (4.0 * scale) + sigma * (chance @ (gradient**2 / (1.0 + gradient**2)))
    exchange = grad_phi * slope / single
    u = np.logspace(-2, 2, 401)  # sqrt(B) / v_0^(1/4)
    cross = ((2.0 * u + 1.0) ** 2 / (4.0 * u**2 + 1.0)).max()
    total, constant, error = _reflecting_run(300, FixedSteps(1))
    b = constant + 2.0 * error
    square = (total / (b**2 + math.sqrt(_V0) * b)).max()
    return [
        Check("exchange", "K / the larger expectation, as printed", exchange, ">", 1.0),
        Check("sum", "K / the sum of both expectations", exchange / 2.0, "<=", 1.0),
        Check("cross-term", "square of Theorem 1's bound / Theorem 2's display", cross, ">", 1.0),
        Check("square", "Z / (B^2 + sqrt(v_0) B) in the run of A, largest", square, "<=", 1.0),
    ], {}


# Theorem 4.


def _played(targets: Array, learners: Learners) -> tuple[Array, Array]:
    """Regret and v after every round on the losses (x / scale - z)^2 / 2 over [-scale, scale]."""
    return play(targets, learners, np.arange(1, len(targets) + 1))


def regret_rate() -> Found:
    """Print: Theorem 4 with alpha = 1 needs eta >= G^2/(2 mu). Correct: eta >= G^2/mu, as proved.

    Counterexample: losses (x - z_t)^2 / 2 on [-1, 1] with z_t 10 to the left and to the right of
    -1 by turns until half time and of 1 from then on. At G^2/(2 mu) the regret is linear in T.
    The logarithm in the proof lacks v_0: it is log(v_T / v_0), with v_T = v_0 + the sum. The sum in
    the statement starts at t = 1 instead of 0, which only changes the constant.
    """
    horizons = np.unique(np.geomspace(300, 10_000, 9).astype(int))
    rounds = np.arange(10_000)[:, None]
    centers = np.where(rounds < np.tile(horizons, 2) / 2, -1.0, 1.0)
    bound_sq, diameter_sq = 12.0**2, 4.0
    lr = np.repeat([0.5, 1.0], len(horizons)) * bound_sq
    targets = centers + np.where(rounds % 2, 10.0, -10.0)
    regrets, sums = _played(targets, Learners(1.0, lr, start=0.0))
    own = np.tile(horizons, 2) - 1, np.arange(len(lr))
    bounds = (1.0 + bound_sq) * diameter_sq / (2.0 * lr) + lr / 2.0 * np.log(sums[own])
    half, full = np.split(regrets[own], 2)
    half_share, full_share = np.split(regrets[own] / bounds, 2)
    half_slope, full_slope = ((r[8] - r[5]) / (horizons[8] - horizons[5]) for r in (half, full))
    # Losses whose minimizer is almost the start: G = 2, eta = 4, v_0 = 10.
    near, v = _played(np.full((100, 1), 1e-3), Learners(1.0, np.array([4.0]), 10.0, start=0.0))
    rest = 14.0 * diameter_sq / 8.0 - near[-1, 0]
    no_v0, with_v0 = (rest + 2.0 * math.log(r) for r in (v[-1, 0] / 10.0 - 1.0, v[-1, 0] / 10.0))
    return [
        Check("half-slope", "regret per added round at G^2/(2 mu)", half_slope, ">=", 0.05),
        Check("full-slope", "the same at G^2/mu", full_slope, "<=", 0.02),
        Check("half-worst", "regret / bound at G^2/(2 mu), largest", half_share.max(), ">", 1.0),
        Check("full-worst", "regret / bound at G^2/mu, largest", full_share.max(), "<=", 1.0),
        Check("no-v0", "bound with log(sum / v_0) - regret", no_v0, "<", 0.0),
        Check("with-v0", "bound with log(v_T / v_0) - regret", with_v0, ">=", 0.0),
    ], {"measured": (horizons, half), "as printed": (horizons, np.split(bounds, 2)[0])}


def regret_constant() -> Found:
    """Print: the middle term of the bound for alpha < 1 has no D. Correct: it has the factor D^2.

    In units in which x is s times as large (mu/s^2, D s, G/s, v_0/s^2, eta s^(2-2 alpha)) the game
    and its regret are the same, but the printed term falls like 1/s^2. The theorem, which names no
    constants, holds.
    """
    # alpha = 1/2, mu = v_0 = 1, G = D = 2 and losses (x + 1)^2 / 2 from x = 1.
    lr, targets, s = np.array([0.02]), np.full((1000, 1), -1.0), np.logspace(0, 7, 15)
    regret, v = (column[-1] for column in _played(targets, Learners(0.5, lr)))
    wide = Learners(0.5, lr * s[-1], s[-1] ** -2, s[-1], s[-1])
    stretched = _played(targets, wide)[0][-1]
    outer = math.sqrt(5.0) * 4.0 + 2.0 * lr**2 * np.sqrt(v)
    printed = (outer + 0.5 * (2.0 / lr) ** 3 / s**2) / (2.0 * lr)
    corrected = (outer + (1.0 + 2.0 / lr**3) * (2.0 - lr) * 4.0) / (2.0 * lr)
    spread, violated = abs(stretched / regret - 1.0)[0], regret[0] / printed[-1]
    return [
        Check("spread", "relative change of the regret from s = 1 to 1e7", spread, "<=", 1e-9),
        Check("violated", "regret / printed bound at s = 1e7", violated, ">", 1.0),
        Check("holds", "regret / corrected bound", (regret / corrected)[0], "<=", 1.0),
    ], {
        "measured": (s, regret + 0.0 * s),
        "as printed": (s, printed),
        "corrected": (s, corrected + 0.0 * s),
    }


# The appendix and Algorithm 2.


def log_proposition() -> Found:
    """Print: if x^2 <= (a_1 + a_2 x)(a_3 + a_4 log(...)), x has a bound with 3 a_2^2 a_3^2.

    Correct: 3 a_2 a_3. Counterexample: a_1 = a_4 = 0, a_2 = 1, a_3 = x = 0.1. The term is only used
    inside a logarithm of Theorem 1.
    """
    generator = np.random.default_rng(0)
    draws = 10.0 ** generator.uniform(-3.0, 3.0, (5, 1000, 1))
    draws[[0, 2, 3, 4]] *= generator.uniform(size=(4, 1000, 1)) > 0.1  # all but a_2 may vanish
    a1, a2, a3, a4, a5 = draws
    x = np.logspace(-12, 16, 2801)
    logarithm = np.log(np.maximum(a5 * (a1 + a2 * x), 1e-300))
    allowed = x * x <= (a1 + a2 * x) * (a3 + a4 * logarithm)
    bound = a1 / a2 + 16.0 * a2**3 * a4**2 * a5 + 3.0 * a2 * a3
    worst = (np.where(allowed, x, 0.0) / np.maximum(bound, 1e-300)).max()
    return [
        Check("printed", "x / printed bound in the counterexample", 0.1 / 0.03, ">", 1.0),
        Check("corrected", "x / corrected bound, 1000 random constants, largest", worst, "<=", 1.0),
    ], {}


def amsgrad_rebasing() -> Found:
    """Print: every inner loop restarts AMSGrad from the last maximum. Correct: carry both moments.

    Restarted, the maximum is multiplied by gamma in every outer loop once gradients vanish, so it
    is not monotone. `AdaptiveSGD` carries the moving average and the maximum.
    """
    loops, gamma = np.arange(301.0), 0.999
    printed = gamma**loops  # the maximum over k = 1, 2, 3 of gamma^k v
    y = _vector(0.0)
    optimizer = optim.AdaptiveSGD([y], lr=1e-3, psi="amsgrad", gamma=gamma, maximize=True)
    moments = []
    for loop in range(301):
        optimizer.reset(keep="everything")
        for step in range(3):
            y.grad = torch.full_like(y, float(loop == step == 0))
            optimizer.step()
        moments.append(optimizer.state[y]["largest_second_moment"].item())
    carried = np.array(moments) / moments[0]
    return [
        Check("printed", "second moment after 300 loops without gradient", printed[-1], "<", 0.9),
        Check("carried", "the same with both moments carried", carried[-1], ">=", 1.0),
    ], {"as printed": (loops + 1.0, printed), "corrected": (loops + 1.0, carried)}


# Lemma 1.

_L, _LR_Y = 2.0, 0.2
_FAMILIES = {"adam": 0.9, "amsgrad": 0.9, "adagrad": 0.0}  # with their momentum


def _lemma_game(ratios: Array, num_steps: int) -> tuple[Array, Array]:
    """Play the lemma's game from the paper's start (1, 0.01), without nesting.

    Returns:
        y - L x and v^x after every step, of shape (steps, families, ratios).
    """
    xs = [torch.ones(len(ratios), dtype=torch.float64, requires_grad=True) for _ in _FAMILIES]
    ys = [torch.full_like(x, 0.01, requires_grad=True) for x in xs]
    groups = [
        [{"params": [player], "psi": psi} for player, psi in zip(players, _FAMILIES, strict=True)]
        for players in (xs, ys)
    ]
    x_optimizer = optim.AdaptiveSGD(groups[0], torch.as_tensor(_LR_Y / ratios))
    stepper = Simultaneous(x_optimizer, optim.AdaptiveSGD(groups[1], _LR_Y, maximize=True))

    def gap() -> Tensor:
        return torch.stack(ys) - _L * torch.stack(xs)

    gaps, moments = [], []
    for _ in range(num_steps):
        stepper.step(lambda: -0.5 * gap().square().sum())
        gaps.append(gap().detach().numpy())
        states = [x_optimizer.state[x] for x in xs]
        used = [state.get("largest_second_moment", state["second_moment"]) for state in states]
        moments.append(torch.stack(used).numpy())
    return np.array(gaps), np.array(moments)


def lemma_sign() -> Found:
    """Print: grad_x >= its first value times a product over v_t. Correct: absolute values, v_{t+1}.

    At the paper's own start the first gradient is negative and the signed inequality is reversed.
    With v_0 = 0 the printed product is infinite. Without momentum it is an equality.
    """
    ratios = np.array([0.5, 0.9]) * _L
    gaps, v = _lemma_game(ratios, 300)
    gradient = _L * gaps
    kept = 1.0 - np.array(list(_FAMILIES.values()))[:, None]
    factors = 1.0 + _L * _LR_Y / ratios / np.sqrt(v) * kept * (_L - ratios)
    bound = _L * (0.01 - _L) * np.cumprod(factors, axis=0)
    share = gradient / bound
    signed = ((gradient - bound) / np.abs(bound))[-1, :2].max()
    equality = np.abs(share[:, 2] - 1.0).max()
    return [
        Check("signed", "(gradient - product) / |product|, largest", signed, "<", 0.0),
        Check("absolute", "|gradient| / |product|, smallest", share[:, :2].min(), ">=", 1.0 - 1e-9),
        Check("equality", "AdaGrad: | |gradient| / |product| - 1 |, largest", equality, "<=", 1e-9),
    ], {}


def lemma_average() -> Found:
    """Print: averages of adaptive methods do not converge for r <= L^2. Correct: for r <= L.

    Between L and L^2 the iterates of Adam cross the stationary line, and averages converge.
    """
    gaps, _ = _lemma_game(np.array([0.5, 1.0, 1.5, 2.0]) * _L, 2000)  # the last two in (L, L^2]
    steps = np.arange(1.0, 2001.0)
    level = np.abs(np.cumsum(gaps, axis=0)) / steps[:, None, None] / (_L - 0.01)
    adam = gaps[:, 0, 2:]
    crossings = float((adam[1:] * adam[:-1] < 0.0).sum(axis=0).max())
    above, below = level[-1, :, 2:].max(), level[-1, :, :2].min()
    return [
        Check("crossings", "L < r <= L^2: times that Adam crosses the line", crossings, ">=", 1.0),
        Check("above", "L < r <= L^2: gradient at the average, end / start", above, "<=", 0.1),
        Check("below", "r <= L: the same", below, ">=", 1.0 - 1e-9),
    ], {}


# Stopping rules.


def _inner_run(stopping: GradientMapping, unit: float = 1.0) -> tuple[Array, Array]:
    """Squared y error at each of 60 x steps, and the inner steps, when f is multiplied by `unit`.

    f = x^2/(1+x^2) + 2xy - y^2/2 in 40 coordinates. Both optimizers have learning rates that make
    up for the unit, so that only the stopping rule depends on it.
    """
    x, y = _vector(*np.linspace(0.5, 3.0, 40)), _vector(*np.zeros(40))
    x_optimizer = optim.GeneralizedAdaGrad([x], lr=1.0, v0=unit**2)
    y_optimizer = optim.AdaptiveSGD([y], lr=0.1 / unit, psi="none", maximize=True)
    stepper = NeAda(x_optimizer, y_optimizer, stopping, inner=InnerOptions(min_steps=0))
    errors, steps = [], []
    for _ in range(60):
        before = x.detach().clone()
        info = stepper.step(lambda: unit * (x * x / (1 + x * x) + 2 * x * y - 0.5 * y * y).sum())
        steps.append(float(info.inner_steps))
        errors.append((y.detach() - 2.0 * before).square().sum().item())
    return np.array(errors), np.array(steps)


_OUTER = np.arange(1.0, 61.0)


def inner_count() -> Found:
    """Print: in Theorem 2 an inner loop takes O(log(1/t) / a_2) steps. Correct: O(log(t) / a_2).

    log(1/t) is negative. With the constants of the proof the steps are at most
    log((2+l)^2 (2 (l+1)^2/mu^2 + 2 kappa^2 eta^2)(t+1)) / a_2, here with l = kappa = 4, mu = 1.
    """
    _, steps = _inner_run(GradientMapping())
    limit = np.log(6.0**2 * (2.0 * 5.0**2 + 2.0 * 4.0**2) * _OUTER) / (1.0 - 0.9**2)
    printed, corrected = steps.sum() / np.log(1.0 / _OUTER).sum(), (steps / limit)[1:].max()
    return [
        Check("printed", "inner steps / sum of log(1/t)", printed, "<", 0.0),
        Check("corrected", "inner steps / corrected limit, largest", corrected, "<=", 1.0),
    ], {}


def criterion_text() -> Found:
    """Print: the text stops when the y gradient is below 1/t. Algorithm 3: its square <= 1/(t+1).

    The text's rule is undefined at t = 0 and stricter: it requires a squared gradient of 1/t^2.
    """
    theory, theory_steps = _inner_run(GradientMapping())
    text, text_steps = _inner_run(GradientMapping(power=2.0))
    accuracy, steps = np.median((theory / text)[30:]), text_steps.sum() / theory_steps.sum()
    return [
        Check("accuracy", "squared y error, Algorithm 3's rule / text's", accuracy, ">", 10.0),
        Check("steps", "inner steps, text's rule / Algorithm 3's", steps, ">", 1.0),
    ], {}


def gda_step() -> Found:
    """Remark: r > L^2 is necessary for GDA, not sufficient. It also needs lr_x (r - L^2) < 2."""
    x, y, ratio = _vector(1.0, 1.0), _vector(0.01, 0.01), 8.0
    lr = torch.tensor([1.9, 2.1], dtype=torch.float64) / (ratio - _L**2)
    y_optimizer = optim.AdaptiveSGD([y], ratio * lr, "none", maximize=True)
    stepper = Simultaneous(optim.AdaptiveSGD([x], lr, "none"), y_optimizer)
    norms = []
    for _ in range(101):
        norms.append((y - _L * x).detach().abs().numpy())
        stepper.step(lambda: -0.5 * (y - _L * x).square().sum())
    below, above = np.array(norms).T / norms[0][:, None]
    return [
        Check("growth-1.9", "gradient, end / start, lr_x (r - L^2) = 1.9", below[-1], "<", 1e-2),
        Check("growth-2.1", "gradient, end / start, lr_x (r - L^2) = 2.1", above[-1], ">", 1e2),
    ], {}


def criterion_units() -> Found:
    """Remark: criterion I is not invariant under f -> s f; `GradientMapping(scale=s**2)` is."""
    plain, small = (_inner_run(GradientMapping(), unit)[0] for unit in (1.0, 0.1))
    scaled = [_inner_run(GradientMapping(scale=unit**2), unit)[0] for unit in (0.1, 10.0)]
    change = np.abs(np.array(scaled) / plain - 1.0).max()
    return [
        Check("change-0.1", "squared y error, 0.1 f / f", np.median(small / plain), ">", 10.0),
        Check("scaled", "relative change with scale = s^2, largest", change, "<=", 1e-6),
    ], {}


# Inner methods.


def _distances(
    make: Callable[..., optim.PlayerOptimizer], num_steps: int, num_rows: int = 1
) -> Array:
    """Distance to the minimizer of a quadratic with mu = 1, l = 10 and minimum 0 after every step.

    At the averaged or best point where the method is about that.
    """
    center, curvature = _vector(1.0, -2.0).detach(), _vector(1.0, 10.0).detach()
    w = torch.zeros(num_rows, 2, dtype=torch.float64, requires_grad=True)
    optimizer = make([w], rowwise=True)
    answer = (
        optimizer.averaged if optimizer.keeps_average else getattr(optimizer, "best", nullcontext)
    )

    def value() -> Tensor:
        return 0.5 * (curvature * (w - center) ** 2).sum(1)

    found = []
    for _ in range(num_steps):
        w.grad = (curvature * (w - center)).detach()
        optimizer.step(value, value=value().detach())
        with answer():
            found.append((w.detach() - center).norm(dim=1).numpy())
    return np.array(found)


def agnostic_solvers() -> Found:
    """Remark: which of the linearly convergent methods listed after Theorem 2 need no constants.

    SC-AdaNGD needs the modulus and Polyak's step the exact optimal value.
    Backtracking needs nothing, nor does AdGD, which is not listed. Hazan and Kakade's restarts work
    from any lower bound of the value if an epoch is long enough for the condition number.
    """
    bounds = torch.tensor([-0.1, -1.0, -100.0], dtype=torch.float64)
    restarts = partial(optim.HazanKakade, f_bound=lambda: bounds)
    modulus = _distances(partial(optim.SCAdaNGD, strong_convexity=10.0), 800)
    value = min(_distances(partial(optim.Polyak, f_bound=f), 800)[-80:].max() for f in (0.1, -0.1))
    adgd, search = (_distances(make, 200)[:, 0] for make in (optim.AdGD, optim.Backtracking))
    long = _distances(partial(restarts, epoch_steps=100), 5300, num_rows=3)
    steps = float(np.argmax(long <= 1e-8, axis=0).max() + 1)
    short = _distances(partial(restarts, epoch_steps=50), 2600, num_rows=3)[-1].min()
    return [
        Check("modulus", "SC-AdaNGD, 10 times the modulus: distance", modulus[-1, 0], ">=", 1e-2),
        Check("value", "Polyak, value wrong by 0.1: distance", value, ">=", 1e-2),
        Check("nothing", "AdGD and backtracking: distance", max(adgd[-1], search[-1]), "<=", 1e-8),
        Check("restarts", "Hazan-Kakade, epochs of 100: steps to 1e-8", steps, "<=", 5300.0),
        Check("short-epochs", "Hazan-Kakade, epochs of 50: distance", short, ">=", 1e-5),
    ], {}


_FOUND = (
    Correction(
        *("error", "Theorem 1", theorem_1), ("Theorem 1: A + 2E, not A + E", "T", "both sides")
    ),
    Correction("error", "Theorems 1 and 2, proofs", proof_steps),
    Correction(
        *("error", "Theorem 4, alpha = 1", regret_rate),
        ("Theorem 4: G²/(2 mu) is too small", "T", "regret"),
    ),
    Correction(
        *("error", "Theorem 4, proof, alpha < 1", regret_constant),
        ("Theorem 4: D² is missing", "unit of x", "regret"),
    ),
    Correction("error", "Appendix, Proposition 1", log_proposition),
    Correction(
        *("error", "Algorithm 2 with AMSGrad", amsgrad_rebasing),
        ("AMSGrad: carry both moments", "outer loop + 1", "v of y"),
    ),
    Correction("typo", "Lemma 1, part 2", lemma_sign),
    Correction("typo", "Lemma 1, proof, averaged iterate", lemma_average),
    Correction("typo", "Theorem 2, proof, inner steps", inner_count),
    Correction("typo", "Section 2, stopping rule", criterion_text),
    Correction("remark", "Lemma 1, part 1", gda_step),
    Correction("remark", "Algorithm 3, criterion I", criterion_units),
    Correction("remark", "Remark after Theorem 2", agnostic_solvers),
)
CORRECTIONS = dict(zip("ABCDEFGHIJKLM", _FOUND, strict=True))
"""By the letters of the documentation and of the figure."""
