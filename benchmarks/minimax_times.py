"""Times of minimax: a call against scipy's, a step against one by hand.

`minimax_calls.py` puts them on its page. No time stands alone: what is reported is the median over
rounds of the ratio of two times taken one right after the other, in one thread.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from nested_scipy import nested_calls
from pages import progress
from torch import Tensor, nn

import neada
from neada import optim, problems, stopping
from neada.inner import InnerOptions

INNER_STEPS = 10
SMALL = 5  # dimensions of a player
MOST_PER_CALL, MOST_OVERHEAD = 1.5, 1.10
ADAM, WITH_NORMS = "torch.optim.Adam", "with norms"


def seconds(function: Callable[[], Any], repeats: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - begin) / repeats


def per_call(names: list[str], tol: float, rounds: int) -> dict[str, list[float]]:
    """Microseconds per call of the default and of nested scipy, and their ratio, by problem."""
    medians = {}
    for name in names:
        problem = problems.make(name)
        sets: dict[str, Any] = {"x_set": problem.x_set, "y_set": problem.y_set}
        own, other = [], []
        for round_ in range(rounds + 1):
            begin = time.perf_counter()
            found = neada.minimax(problem.fun, problem.x0, problem.y0, tol=tol, **sets)
            middle = time.perf_counter()
            calls = nested_calls(problem, tol, 20_000)
            assert calls is not None
            if round_ > 0:  # the first one warms up
                own.append((middle - begin) / found.total_calls * 1e6)
                other.append((time.perf_counter() - middle) / calls * 1e6)
        ratio = statistics.median(a / b for a, b in zip(own, other, strict=True))
        medians[name] = [statistics.median(own), statistics.median(other), ratio]
        progress(f"time per call: {name}")
    return medians


def per_call_section(found: dict[str, list[float]], rounds: int) -> list[str]:
    """Time per call on small problems that both solve."""
    ratios = {name: row[2] for name, row in found.items()}
    mean = statistics.geometric_mean(ratios.values()) if ratios else math.nan
    above = [name for name, ratio in ratios.items() if not ratio <= MOST_PER_CALL]
    return [
        "## Time per call",
        "",
        "A whole solve divided by its calls, against the same of nested scipy, on the problems "
        f"of at most {SMALL} dimensions per player that both solve; there the time is that of "
        f"Python and of autograd, not of arithmetic. Medians of {rounds} rounds.",
        "",
        "| problem | neada | nested scipy | ratio |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {own:.0f} us | {other:.0f} us | {ratio:.2f} |"
            for name, (own, other, ratio) in found.items()
        ),
        "",
        f"Geometric mean: {mean:.2f}. Above {MOST_PER_CALL:g}: {', '.join(above) or 'none'}. "
        f"Target (at most {MOST_PER_CALL:g} on each): {'**missed**' if above else 'met'}.",
        "",
    ]


def small_game(seed: int = 0) -> tuple[nn.Module, Tensor, Callable[[], Tensor]]:
    """A small MLP on inputs that the other player perturbs and pays for."""
    torch.manual_seed(seed)
    sizes = (nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model, y = nn.Sequential(*sizes), torch.zeros(64, 20, requires_grad=True)
    inputs, targets = torch.randn(64, 20), torch.randn(64, 1)

    def closure() -> Tensor:
        misfit: Tensor = (model(inputs + y) - targets).square().mean()
        return misfit - y.square().sum(1).mean()

    return model, y, closure


def by_hand(with_norms: bool) -> Callable[[], Any]:
    """The nested loop as one would write it with torch: ten steps of y, then one of x."""
    model, y, closure = small_game()
    xs: list[Tensor] = list(model.parameters())
    x_optimizer = torch.optim.Adam(xs, lr=1e-4)
    y_optimizer = torch.optim.Adam([y], lr=1e-4, maximize=True)

    def gradient(params: list[Tensor], optimizer: torch.optim.Optimizer) -> tuple[Tensor, float]:
        optimizer.zero_grad()
        value = closure()
        torch.autograd.backward(value, inputs=params)
        if not with_norms:
            return value.detach(), math.nan
        norm_sq = sum(p.grad.square().sum().item() for p in params if p.grad is not None)
        if not math.isfinite(norm_sq):
            raise FloatingPointError
        return value.detach(), norm_sq

    def step() -> tuple[Tensor, float, float]:
        for _ in range(INNER_STEPS):
            _, y_norm_sq = gradient([y], y_optimizer)
            y_optimizer.step()
        value, x_norm_sq = gradient(xs, x_optimizer)
        x_optimizer.step()
        return value, x_norm_sq, y_norm_sq

    return step


def by_neada(make_y: Callable[..., torch.optim.Optimizer]) -> Callable[[], Any]:
    model, y, closure = small_game()
    x_optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    y_optimizer = make_y([y], lr=1e-4, maximize=True)
    rule = stopping.FixedSteps(INNER_STEPS)
    stepper = neada.NeAda(x_optimizer, y_optimizer, rule, inner=InnerOptions(keep="everything"))
    return lambda: stepper.step(closure)


def adaptive(params: Any, **options: Any) -> optim.AdaptiveSGD:
    return optim.AdaptiveSGD(params, psi="adam", **options)


def overhead(rounds: int) -> dict[str, Any]:
    """Microseconds per gradient call of `NeAda.step` and of the loop by hand, and their ratios."""
    hands = {WITH_NORMS: by_hand(True), "without norms": by_hand(False)}
    ours = {ADAM: by_neada(torch.optim.Adam), "AdaptiveSGD": by_neada(adaptive)}
    for step in (*hands.values(), *ours.values()):
        seconds(step, 5)  # warm up
    ratios: dict[tuple[str, str], list[float]] = {(o, h): [] for o in ours for h in hands}
    spent: dict[str, list[float]] = {name: [] for name in (*ours, *hands)}
    for round_ in range(rounds):
        for name, hand_name in ratios:
            hand, own = seconds(hands[hand_name], 5), seconds(ours[name], 5)
            ratios[name, hand_name].append(own / hand)
            for key, total in ((name, own), (hand_name, hand)):
                spent[key].append(total / (INNER_STEPS + 1) * 1e6)
        progress(f"overhead: round {round_ + 1} of {rounds}")
    return {
        "rounds": rounds,
        "ratios": {
            name: {hand: statistics.median(ratios[name, hand]) for hand in hands} for name in ours
        },
        "microseconds": {name: statistics.median(times) for name, times in spent.items()},
    }


def overhead_section(found: dict[str, Any]) -> list[str]:
    """Time per gradient call of `NeAda.step` against the loop by hand."""
    spent = found["microseconds"]
    hands = list(found["ratios"][ADAM])
    lines = [
        "## Overhead of a step",
        "",
        f"Time per gradient call of `NeAda.step` with `FixedSteps({INNER_STEPS})`, Adam for x, on "
        "an MLP 20-64-64-1 whose 64 inputs are perturbed by y, against the same loop written by "
        "hand with torch's Adam for both players and as many gradient calls: once computing the "
        "squared norm of every gradient and checking that it is finite, as the stepper does, "
        f"once without. Medians of {found['rounds']} rounds.",
        "",
        "| y optimizer | time per call | by hand, with norms | by hand, without norms |",
        "|---|---:|---:|---:|",
    ]
    for name, ratios in found["ratios"].items():
        cells = " | ".join(f"{ratios[hand]:.2f}" for hand in hands)
        lines.append(f"| `{name}` | {spent[name]:.0f} us | {cells} |")
    own_times = " and ".join(f"{spent[hand]:.0f} us {hand}" for hand in hands)
    ratio = found["ratios"][ADAM][WITH_NORMS]
    return [
        *lines,
        "",
        f"A call by hand takes {own_times}. Target (at most {MOST_OVERHEAD:.2f} with the same "
        f"optimizers and the same norms): {ratio:.2f}, "
        f"{'met' if ratio <= MOST_OVERHEAD else '**missed**'}.",
        "",
    ]
