"""Times of minimax: many starts against one, a call against scipy's, a step against one by hand.

`minimax_calls.py` puts them on its page. No time stands alone: what is reported is the median over
rounds of the ratio of two times taken one right after the other, in one thread.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from nested_scipy import nested_calls
from torch import Tensor, nn

import neada
from neada import optim, problems, stopping
from neada.inner import InnerOptions

INNER_STEPS = 10
SMALL = 5  # dimensions of a player


def progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{words:<70}", end="", file=sys.stderr)


def seconds(function: Callable[[], Any], repeats: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - begin) / repeats


def rows_section(num_rows: int, rounds: int) -> list[str]:
    """Many starts of McCormick at once against one start."""
    fun = problems.make("mccormick").fun
    generator = torch.Generator().manual_seed(0)
    xs, ys = torch.randn(2, num_rows, 2, generator=generator, dtype=torch.float64)
    together = neada.minimax(fun, xs, ys, rowwise=True)  # warms up, too
    neada.minimax(fun, xs[0], ys[0])
    ratios, singles, batches, single_calls = [], [], [], []
    for round_ in range(rounds):
        some = torch.arange(5) + 5 * round_  # five single starts: they differ in length
        one = 0.0
        for i in (some % num_rows).tolist():
            begin = time.perf_counter()
            single_calls.append(neada.minimax(fun, xs[i], ys[i]).total_calls)
            one += (time.perf_counter() - begin) / len(some)
        batches.append(seconds(lambda: neada.minimax(fun, xs, ys, rowwise=True)))
        singles.append(one)
        ratios.append(batches[-1] / one)
        progress(f"rows: round {round_ + 1} of {rounds}")
    ratio = statistics.median(ratios)
    return [
        "## Many starts at once",
        "",
        f"`minimax(..., rowwise=True)` from {num_rows:,} random starts (standard normal) of "
        f"mccormick against `minimax` from one of them (the mean of five), median of "
        f"{rounds} rounds: **{ratio:.1f} times** the time of one start "
        f"({statistics.median(batches) * 1e3:.0f} ms and {statistics.median(singles) * 1e3:.0f} "
        f"ms). The batch goes on until its slowest row is done: {together.total_calls} calls, "
        f"against {statistics.mean(single_calls):.0f} of a single start on average. Rows solved: "
        f"{int(together.success.sum())} of {num_rows}. Target (at most 5 times): "
        f"{'met' if ratio <= 5.0 else '**missed**'}.",
        "",
    ]


def scipy_section(names: list[str], tol: float, rounds: int) -> list[str]:
    """Time per call of the default against nested scipy on small problems that both solve."""
    lines = [
        "## Time per call",
        "",
        "A whole solve divided by its calls, against the same of nested scipy, on the problems "
        f"of at most {SMALL} dimensions per player that both solve; there the time is that of "
        f"Python and of autograd, not of arithmetic. Medians of {rounds} rounds.",
        "",
        "| problem | neada | nested scipy | ratio |",
        "|---|---:|---:|---:|",
    ]
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
        medians[name] = statistics.median(a / b for a, b in zip(own, other, strict=True))
        times = f"{statistics.median(own):.0f} us | {statistics.median(other):.0f} us"
        lines.append(f"| {name} | {times} | {medians[name]:.2f} |")
        progress(f"time per call: {name}")
    mean = statistics.geometric_mean(medians.values()) if medians else math.nan
    above = [name for name, ratio in medians.items() if not ratio <= 1.5]
    return [
        *lines,
        "",
        f"Geometric mean: {mean:.2f}. Above 1.5: {', '.join(above) or 'none'}. "
        f"Target (at most 1.5 on each): {'**missed**' if above else 'met'}.",
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


def overhead_section(rounds: int) -> list[str]:
    """Time per gradient call of `NeAda.step` against the loop by hand."""
    hands = {"with norms": by_hand(True), "without norms": by_hand(False)}
    ours = {"`torch.optim.Adam`": by_neada(torch.optim.Adam), "`AdaptiveSGD`": by_neada(adaptive)}
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
    lines = [
        "## Overhead of a step",
        "",
        f"Time per gradient call of `NeAda.step` with `FixedSteps({INNER_STEPS})`, Adam for x, on "
        "an MLP 20-64-64-1 whose 64 inputs are perturbed by y, against the same loop written by "
        "hand with torch's Adam for both players and as many gradient calls: once computing the "
        "squared norm of every gradient and checking that it is finite, as the stepper does, "
        f"once without. Medians of {rounds} rounds.",
        "",
        "| y optimizer | time per call | by hand, with norms | by hand, without norms |",
        "|---|---:|---:|---:|",
    ]
    medians = {key: statistics.median(values) for key, values in ratios.items()}
    for name in ours:
        cells = " | ".join(f"{medians[name, hand]:.2f}" for hand in hands)
        lines.append(f"| {name} | {statistics.median(spent[name]):.0f} us | {cells} |")
    own_times = " and ".join(f"{statistics.median(spent[h]):.0f} us {h}" for h in hands)
    ratio = medians["`torch.optim.Adam`", "with norms"]
    return [
        *lines,
        "",
        f"A call by hand takes {own_times}. Target (at most 1.10 with the same optimizers and the "
        f"same norms): {ratio:.2f}, {'met' if ratio <= 1.10 else '**missed**'}.",
        "",
    ]
