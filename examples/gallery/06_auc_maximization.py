"""
AUC on imbalanced data as a min-max problem
===========================================

For people with few positives who are judged by the area under the ROC curve and want to
train for it, batch by batch. The AUC is about pairs of samples; written as a min-max
problem it is about single ones. Here the inner maximum has a closed form, so that every
answer can be checked.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import neada
from neada.optim import GeneralizedAdaGrad
from neada.plots import label_axes, numbered_style, shared_legend

RESULTS = Path(sys.argv[0]).parent / "results" / "06_auc_maximization.json"

# %%
# The data
# --------
#
# Digits: is it an eight? 30 eights and 1304 others to learn from; the remaining eights
# are used for the test.

digits = neada.data.load("digits")
images, images_test = digits.inputs_train.flatten(1), digits.inputs_test.flatten(1)
is_eight, is_eight_test = digits.targets_train == 8, digits.targets_test == 8
positives, negatives = images[is_eight][:30], images[~is_eight]
positives_test = torch.cat([images[is_eight][30:], images_test[is_eight_test]])
negatives_test = images_test[~is_eight_test]
print(f"{len(positives)} against {len(negatives)} to learn from, ", end="")
print(f"{len(positives_test)} against {len(negatives_test)} for the test")


def area(positive: Tensor, negative: Tensor) -> float:
    """The AUC: how many pairs of scores are in the right order; ties count one half."""
    difference = positive[:, None] - negative
    return ((difference > 0).float() + (difference == 0).float() / 2).mean().item()


# %%
# The formulation
# ---------------
#
# Each pair costs the square of 1 - s + s', with the scores s of the positive and s' of
# the negative. Ying, Wen and Lyu (2016) found that the mean over all pairs is
#
# .. math::
#     1 + \min_{a, b} \max_\alpha \; E_+ (s - a)^2 + E_- (s' - b)^2
#     + 2 (1 + \alpha) (E_- s' - E_+ s) - \alpha^2
#
# (here divided by their :math:`p (1 - p)`). Every term is a mean over one class. At the
# optimum a and b are the means of the scores, and :math:`\alpha = E_- s' - E_+ s`.


def saddle(
    positive: Tensor, negative: Tensor, a: Tensor, b: Tensor, alpha: Tensor
) -> Tensor:
    spread = (positive - a).square().mean() + (negative - b).square().mean()
    return spread + 2 * (1 + alpha) * (negative.mean() - positive.mean()) - alpha**2


def pairwise(positive: Tensor, negative: Tensor) -> Tensor:
    return (1 - positive[:, None] + negative).square().mean()


# %%
# A linear score: all of it in closed form
# ----------------------------------------
#
# With s linear and a ridge, the minimum over the weights is a system of linear
# equations. ``minimax`` knows nothing of that, and finds it.

RIDGE = 0.05
plus, minus = positives.double(), negatives.double()


def objective(x: dict[str, Tensor], alpha: Tensor) -> Tensor:
    scores = plus @ x["weight"], minus @ x["weight"]
    ridge = RIDGE * x["weight"].square().sum()
    return saddle(*scores, x["a"], x["b"], alpha) + ridge


zero = torch.zeros((), dtype=torch.float64)
start = {"weight": torch.zeros(64, dtype=torch.float64), "a": zero, "b": zero}
result = neada.minimax(objective, start, zero)

shift = plus.mean(0) - minus.mean(0)
system = torch.outer(shift, shift) + RIDGE * torch.eye(64, dtype=torch.float64)
system += torch.cov(plus.T, correction=0) + torch.cov(minus.T, correction=0)
weight = torch.linalg.solve(system, shift)
exact = (pairwise(plus @ weight, minus @ weight) + RIDGE * weight @ weight).item()
print(f"{result.status.name} in {result.total_calls} calls")
print(f"minimum of the pairwise loss {exact:.10f}, of minimax {1 + result.fun:.10f}")
print(f"alpha: {-(shift @ weight).item():.7f}, of minimax {result.y.item():.7f}")
scores_test = positives_test @ weight.float(), negatives_test @ weight.float()
print(f"AUC on test data {area(*scores_test):.3f}")

# %%
# A network, on batches
# ---------------------
#
# 8 positives and 56 negatives per batch. The inner problem has one variable and is
# strongly concave, as the theory of NeAda wants it, so the rule is the default one.
#
# Three competitors. With both classes in the batch nobody needs :math:`\alpha`: the
# pairwise loss of the batch is the closed form, an unbiased estimate at the price of
# one gradient. A loop in the style of PESG, the optimizer of the library LibAUC (which
# itself was not run), takes gradient steps of both players, pulls the weights to a
# reference point, and after every third of its steps moves that point to the mean and
# divides the learning rate by three. And there is the usual loss, cross-entropy with
# both classes weighted equally.


class Setting:
    """A network and the three scalars of the formulation."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.network = nn.Sequential(
            *(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1), nn.Flatten(0))
        )
        self.a, self.b, self.alpha = (
            torch.zeros((), requires_grad=True) for _ in range(3)
        )
        self.x = [*self.network.parameters(), self.a, self.b]

    def draw(self) -> tuple[Tensor, Tensor]:
        some = positives[torch.randint(len(positives), (8,))]
        others = negatives[torch.randint(len(negatives), (56,))]
        scores = self.network(torch.cat([some, others]))
        return scores[:8], scores[8:]

    def objective(self) -> Tensor:
        return saddle(*self.draw(), self.a, self.b, self.alpha)

    def best_alpha(self) -> float:
        with torch.no_grad():
            best = self.network(negatives).mean() - self.network(positives).mean()
        return best.item()


def make_neada(setting: Setting, lr: float) -> neada.Stepper:
    return neada.NeAda(
        GeneralizedAdaGrad(setting.x, lr),
        GeneralizedAdaGrad([setting.alpha], lr, maximize=True),
    )


def make_tiada(setting: Setting, lr: float) -> neada.Stepper:
    return neada.TiAda(setting.x, [setting.alpha], lr, lr)


def run_stepper(
    setting: Setting, lr: float, max_calls: int, make: Callable[..., neada.Stepper]
) -> None:
    stepper = make(setting, lr)
    while stepper.total_calls < max_calls:
        stepper.step(setting.objective)


def run_pesg_style(setting: Setting, lr: float, max_calls: int) -> None:
    length = max_calls // 6  # of a stage; a step is two gradients
    reference = [tensor.detach().clone() for tensor in setting.x]
    for stage in range(3):
        rate = lr / 3**stage
        totals = [torch.zeros_like(tensor) for tensor in setting.x]
        for _ in range(length):
            *gradients, ascent = torch.autograd.grad(
                setting.objective(), [*setting.x, setting.alpha]
            )
            with torch.no_grad():
                for tensor, gradient, center, total in zip(
                    setting.x, gradients, reference, totals, strict=True
                ):
                    tensor -= rate * (gradient + 0.002 * (tensor - center))
                    total += tensor
                setting.alpha += rate * ascent
        reference = [total / length for total in totals]


def run_loss(
    setting: Setting, lr: float, max_calls: int, loss: Callable[..., Tensor]
) -> None:
    optimizer = GeneralizedAdaGrad(setting.network.parameters(), lr)
    for _ in range(max_calls):
        optimizer.zero_grad()
        loss(*setting.draw()).backward()
        optimizer.step()


def cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    return softplus(-positive).mean() + softplus(negative).mean()


METHODS: dict[str, Callable[..., None]] = {
    "NeAda": lambda *run: run_stepper(*run, make_neada),
    "TiAda": lambda *run: run_stepper(*run, make_tiada),
    "PESG-style": run_pesg_style,
    "closed form": lambda *run: run_loss(*run, pairwise),
    "cross-entropy": lambda *run: run_loss(*run, cross_entropy),
}

setting = Setting(seed=0)
stepper = make_neada(setting, lr=1.0)
history = []
while stepper.total_calls < 1500:
    stepper.step(setting.objective)
    if stepper.outer_steps % 10 == 0:
        row = stepper.total_calls, setting.alpha.item(), setting.best_alpha()
        history.append(row)


def test_area(setting: Setting) -> float:
    with torch.no_grad():
        return area(setting.network(positives_test), setting.network(negatives_test))


print(f"{stepper.calls_x} gradients of x, {stepper.calls_y} of alpha: ", end="")
print(f"AUC on test data {test_area(setting):.3f}")

# %%
# A range of learning rates
# -------------------------
#
# ``python examples/gallery/06_auc_maximization.py --full`` repeats this: 3000 gradients
# for everybody, three seeds, the same learning rate for both players. No rate was
# chosen on data of its own, so a curve says more than its highest point.
#
# At its best rate no min-max method is ahead of the linear score or of cross-entropy.
# They differ in the rates that work: NeAda needs 0.1 to 1, TiAda 0.1 to 10; the
# PESG-style loop works with 0.001 and 0.01, where those two are too slow, loses one of
# three runs at 0.1 and all above. The closed form is ahead at rate 1, with all 3000
# gradients spent on the weights, where the others spend half of them or fewer. Whoever
# has both classes in every batch should take it. The min-max form is for the case that
# it was made for, a stream of single samples in which positives are rare.

RATES = (0.001, 0.01, 0.1, 1.0, 10.0)


def judge(method: str, lr: float, seed: int) -> dict[str, Any]:
    setting = Setting(seed)
    started = time.process_time()
    try:
        METHODS[method](setting, lr, 3000)
        finite = all(tensor.isfinite().all() for tensor in setting.x)
    except neada.NonFiniteGradient:
        finite = False
    seconds = time.process_time() - started
    found = test_area(setting) if finite else None
    return {"lr": lr, "seed": seed, "seconds": seconds, "area": found}


if "--full" in sys.argv:
    stored = {
        method: [judge(method, lr, seed) for lr in RATES for seed in range(3)]
        for method in METHODS
    }
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
stored = json.loads(RESULTS.read_text(encoding="utf-8"))

figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4.0), layout="constrained")
calls, alphas, best = zip(*history, strict=True)
left.plot(calls, best, color="black", linestyle=":", label="closed form for all data")
left.plot(calls, alphas, color=numbered_style(0)["color"], label="NeAda's alpha")
left.legend(frameon=False, fontsize=9)
label_axes(left, "The inner maximum, seed 0, rate 1", "gradient calls", "alpha")
print(
    "mean AUC of three seeds on test data for each rate (-: a run diverged); CPU time"
)
print(" " * 14 + "".join(f"{rate:8g}" for rate in RATES))
for number, (method, runs) in enumerate(stored.items()):
    areas = np.array([run["area"] for run in runs], dtype=float)
    areas = areas.reshape(len(RATES), -1)
    style = numbered_style(number)
    right.plot(RATES, areas.mean(1), label=method, **style)
    low, high = areas.min(1), areas.max(1)
    right.fill_between(RATES, low, high, color=style["color"], alpha=0.15, linewidth=0)
    words = ["-" if np.isnan(mean) else f"{mean:.3f}" for mean in areas.mean(1)]
    seconds = np.mean([run["seconds"] for run in runs])
    print(
        f"{method:14}" + "".join(f"{word:>8}" for word in words), f"  {seconds:.1f} s"
    )
right.set_xscale("log")
label_axes(right, "Mean and range of three seeds", "learning rate", "AUC on test data")
shared_legend(figure, [right], num_columns=5)
plt.show()
