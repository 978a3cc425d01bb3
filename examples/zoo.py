"""The zoo with the default method, then three small problems with every one-player optimizer.

    python examples/zoo.py [--max-calls N]

A call is one gradient or one value. A problem counts as solved when the norm of the gradient
mapping (of the gradient, without a set) is at most 1e-6 at the point the method answers with.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import neada

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Problem:
    """A smooth strongly convex function, and what only some methods ask to be told."""

    name: str
    value: Callable[[Tensor], Tensor]
    start: Tensor
    constraint: neada.sets.Set | None
    strong_convexity: float

    def stationarity(self, point: Tensor, gradient: Tensor) -> float:
        """The norm of the gradient mapping, zero exactly at the solution."""
        space = self.constraint or neada.sets.WholeSpace()
        mapping = space.gradient_mapping(point, -gradient)
        assert isinstance(mapping, Tensor)
        return float(mapping.norm())


def problems() -> list[Problem]:
    """An ill-conditioned quadratic, one with its solution on a box, a logistic regression."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(0.0, 2.0, 10, dtype=torch.float64)
    center = torch.linspace(-1.0, 2.0, 10, dtype=torch.float64)
    inputs = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    labels = torch.sign(inputs.sum(1) + noise)

    def quadratic(w: Tensor) -> Tensor:
        return 0.5 * (scale * (w - center) ** 2).sum()

    def logistic(w: Tensor) -> Tensor:
        losses = torch.nn.functional.softplus(-labels * (inputs @ w))
        return losses.mean() + 0.05 * w.square().sum()

    zeros = torch.zeros(10, dtype=torch.float64)
    return [
        Problem("quadratic, kappa 100", quadratic, zeros, None, 1.0),
        Problem("the same in a box", quadratic, zeros, neada.sets.Box(-0.5, 0.5), 1.0),
        Problem("logistic regression", logistic, torch.zeros(5, dtype=torch.float64), None, 0.1),
    ]


def optimal_value(problem: Problem) -> float:
    """Found with a method that needs to know nothing."""
    w = problem.start.clone().requires_grad_()
    optimizer = neada.optim.Backtracking([w], constraint=problem.constraint)
    for _ in range(3000):
        optimizer.zero_grad()
        value = problem.value(w)
        value.backward()
        optimizer.step(lambda: problem.value(w), value=value.detach())
    return problem.value(w.detach()).item()


def methods(problem: Problem) -> list[tuple[str, type[Any], dict[str, Any]]]:
    """Every optimizer with its defaults, and with a constant only where it asks for one."""
    optim = neada.optim
    optimum = optimal_value(problem)
    bound = 1.0 + 2.0 * float(torch.func.grad(problem.value)(problem.start).norm())
    return [
        ("Backtracking", optim.Backtracking, {}),
        *([("LBFGS", optim.LBFGS, {})] if problem.constraint is None else []),
        ("AdGD", optim.AdGD, {}),
        ("GeneralizedAdaGrad", optim.GeneralizedAdaGrad, {}),
        ("GeneralizedAdaGrad, lr=10", optim.GeneralizedAdaGrad, {"lr": 10.0}),
        ("AdaptiveSGD, adagrad", optim.AdaptiveSGD, {"lr": 0.5, "psi": "adagrad"}),
        ("AdaptiveSGD, adam", optim.AdaptiveSGD, {"lr": 0.01, "psi": "adam"}),
        ("AdaptiveSGD, amsgrad", optim.AdaptiveSGD, {"lr": 0.01, "psi": "amsgrad"}),
        ("StochasticLineSearch", optim.StochasticLineSearch, {"num_batches": 500}),
        ("DoG", optim.DoG, {}),
        ("DoWG", optim.DoWG, {}),
        ("COCOB", optim.COCOB, {}),
        ("CoinBetting", optim.CoinBetting, {}),
        ("FreeRex", optim.FreeRex, {}),
        ("KT", optim.KT, {"bound": bound}),
        ("Polyak", optim.Polyak, {"f_bound": optimum}),
        ("SPS", optim.SPS, {"f_bound": optimum}),
        ("DecSPS", optim.DecSPS, {"f_bound": optimum}),
        ("HazanKakade", optim.HazanKakade, {"f_bound": optimum - 1.0}),
        ("SCAdaNGD", optim.SCAdaNGD, {"strong_convexity": problem.strong_convexity}),
        (
            "StronglyConvexSGD",
            optim.StronglyConvexSGD,
            {"strong_convexity": problem.strong_convexity},
        ),
    ]


def calls_to_tolerance(
    problem: Problem, make: type[Any], kwargs: dict[str, Any], max_calls: int
) -> int | None:
    """Gradients and values until the answer is good enough; None if the calls end first."""
    w = problem.start.clone().requires_grad_()
    optimizer = make([w], constraint=problem.constraint, **kwargs)
    calls = 0

    def value() -> Tensor:
        nonlocal calls
        calls += 1
        return problem.value(w)

    while calls < max_calls:
        optimizer.zero_grad()
        loss = value()
        loss.backward()
        assert w.grad is not None
        if problem.stationarity(w.detach(), w.grad) <= TOLERANCE:
            return calls
        if isinstance(optimizer, neada.optim.HazanKakade) and calls % 50 == 0:
            with optimizer.best():
                best = w.detach().clone()
            gradient = torch.func.grad(problem.value)(best)
            if problem.stationarity(best, gradient) <= TOLERANCE:
                return calls
        optimizer.step(value, value=loss.detach())
    return None


def solve_the_zoo() -> None:
    """Every min-max problem with `minimax` and no argument but the sets."""
    print("min_x max_y f(x, y) with the default method, nothing tuned, to 1e-6:\n")
    print(f"{'problem':<27}{'dims':>9}{'kappa':>9}{'calls':>8}{'|x grad|':>11}{'|y map|':>11}")
    for name in neada.problems.names():
        problem = neada.problems.make(name)
        result = neada.minimax(
            problem.fun, problem.x0, problem.y0, x_set=problem.x_set, y_set=problem.y_set
        )
        kappa = problem.condition_number
        print(
            f"{name:<27}{f'{problem.dim_x}+{problem.dim_y}':>9}"
            f"{'-' if kappa is None else f'{kappa:.4g}':>9}{result.total_calls:>8}"
            f"{result.grad_norm_x:>11.1e}{result.grad_norm_y:>11.1e}"
            f"{'' if result.success else '  ' + result.message}",
            flush=True,
        )


def compare_the_optimizers(max_calls: int) -> None:
    """The table of calls of every one-player optimizer, with what it had to be told."""
    tasks = problems()
    columns = []
    for problem in tasks:
        column: dict[str, int | None] = {}
        rows = methods(problem)
        for i, (name, make, kwargs) in enumerate(rows, start=1):
            progress = f"{problem.name}: {name} ({i} of {len(rows)})"
            if sys.stderr.isatty():
                print(f"\r{progress:<70}", end="", file=sys.stderr, flush=True)
            column[name] = calls_to_tolerance(problem, make, kwargs, max_calls)
        if sys.stderr.isatty():
            print(f"\r{'':<70}\r", end="", file=sys.stderr)
        num_solved = sum(calls is not None for calls in column.values())
        print(f"{problem.name}: {num_solved} of {len(rows)} solved it")
        columns.append(column)

    print(f"\nCalls (gradients and values) to a gradient mapping of 1e-6; - is not in {max_calls},")
    print("n/a has no version for sets\n")
    heads = [problem.name for problem in tasks]
    print(f"{'optimizer':<27}" + "".join(f"{head:>22}" for head in heads))
    for name, _, _ in rows:
        cells = [str(column.get(name, "n/a") or "-") for column in columns]
        print(f"{name:<27}" + "".join(f"{c:>22}" for c in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-calls", type=int, default=5000, help="calls before giving up")
    max_calls = parser.parse_args().max_calls
    if max_calls < 1:
        parser.error("--max-calls must be at least 1")
    torch.set_num_threads(1)  # the problems are tiny
    begin = time.perf_counter()
    solve_the_zoo()
    print("\nOne player alone, every optimizer:")
    compare_the_optimizers(max_calls)
    print(f"\n{time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    main()
