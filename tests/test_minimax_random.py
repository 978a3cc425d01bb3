"""`minimax` on random strongly concave problems: found by hypothesis, judged by linear algebra."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neada import Status, minimax, problems, sets


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    dim_x=st.integers(1, 8),
    dim_y=st.integers(1, 8),
    kappa=st.floats(2.0, 60.0),
    seed=st.integers(0, 10_000),
)
def test_random_quadratics_are_solved_to_their_unique_solution(
    dim_x: int, dim_y: int, kappa: float, seed: int
) -> None:
    problem = problems.nc_sc_quadratic(dim_x=dim_x, dim_y=dim_y, kappa=kappa, seed=seed)
    result = minimax(problem.fun, problem.x0, problem.y0)
    assert result.success, result.message
    norms = problem.stationarity(result.x, result.y)
    assert max(float(n) for n in norms) <= 1e-6
    # Phi is strongly convex with modulus of about 1/kappa, so 1e-6 bounds the distance by kappa^2.
    distance = float((result.x - problem.solution[0]).norm())
    assert distance <= 1e-6 * 10.0 * kappa**2


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    dim=st.integers(1, 6),
    mu=st.floats(0.1, 3.0),
    radius=st.floats(0.2, 3.0),
    seed=st.integers(0, 10_000),
)
def test_random_nonquadratic_games_on_a_ball(dim: int, mu: float, radius: float, seed: int) -> None:
    """Bounded nonconvex in x, strongly concave in y, y in a ball that may bind."""
    generator = torch.Generator().manual_seed(seed)
    coupling = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    x0, y0 = (torch.randn(dim, generator=generator, dtype=torch.float64) for _ in range(2))

    def fun(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x**2 / (1 + x**2)).sum() + 0.5 * (x**2).sum() + y @ coupling @ x - mu / 2 * y @ y

    ball = sets.L2Ball(radius)
    result = minimax(fun, x0, y0, y_set=ball)
    assert result.success, result.message
    assert bool(ball.contains(result.y))
    x, y = (p.clone().requires_grad_() for p in (result.x, result.y))
    gx, gy = torch.autograd.grad(fun(x, y), (x, y))
    assert float(gx.norm()) <= 1e-6
    assert float(ball.gradient_mapping(y.detach(), gy).norm()) <= 1e-6


@settings(max_examples=10, deadline=None, derandomize=True)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_the_scale_of_the_objective_does_not_matter_much(scale: float, seed: int) -> None:
    problem = problems.nc_sc_quadratic(dim_x=4, dim_y=4, kappa=10.0, seed=seed)
    result = minimax(lambda x, y: scale * problem.fun(x, y), problem.x0, problem.y0)
    assert result.success, result.message


# Any set on either side, any units: judged by gradients taken here.

SETS: dict[str, Callable[[int, torch.Generator], sets.Set | None]] = {
    "none": lambda dim, generator: None,
    "box": lambda dim, generator: sets.Box(-1.0, 1.0),
    "orthant": lambda dim, generator: sets.NonNegative(),
    "l2": lambda dim, generator: sets.L2Ball(1.0),
    "linf": lambda dim, generator: sets.LinfBall(0.7),
    "l1": lambda dim, generator: sets.L1Ball(1.0),
    "simplex": lambda dim, generator: sets.Simplex(),
    "half-space": lambda dim, generator: sets.HalfSpace(
        torch.randn(dim, generator=generator, dtype=torch.float64), 0.5
    ),
}


def mapping_norm(home: sets.Set | None, point: torch.Tensor, ascent: torch.Tensor) -> float:
    if home is None:
        return float(ascent.norm())
    return float((point - home.project(point + ascent)).norm())


def solve_random_problem(seed: int, kappa: float | None = None, max_calls: int = 100_000) -> bool:
    """Draw a problem, solve it; whether it was solved. A false success is an error.

    The curvatures of y span a random ratio up to 1e4, or exactly kappa.
    """
    generator, draw = torch.Generator().manual_seed(seed), np.random.default_rng(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes = [1, 2, 3, 5, 10, 30, 100]
    n, m = (int(draw.choice(sizes, p=[0.1, 0.2, 0.2, 0.2, 0.15, 0.1, 0.05])) for _ in range(2))
    kinds = [str(draw.choice(list(SETS))) for _ in range(2)]
    if draw.uniform() < 0.4:
        kinds = ["none", "none"]
    home_x, home_y = (
        SETS["none" if kind == "simplex" and dim == 1 else kind](dim, generator)
        for kind, dim in zip(kinds, (n, m), strict=True)
    )
    decades = float(draw.uniform(0.0, 4.0)) if kappa is None else float(np.log10(kappa))
    curvatures = torch.logspace(0, -decades, m, dtype=torch.float64)
    basis = torch.linalg.qr(normal(m, m))[0]
    concave = basis @ torch.diag(curvatures) @ basis.T
    bounded = kinds[1] not in ("none", "orthant", "half-space")
    if kappa is None and bounded and draw.uniform() < 0.2:
        concave = torch.zeros_like(concave)  # linear in y
    basis = torch.linalg.qr(normal(n, n))[0]
    convex = basis @ torch.diag(torch.as_tensor(draw.uniform(0.1, 2.0, n))) @ basis.T
    coupling, a, b = normal(n, m) / max(n, m) ** 0.5, normal(n), normal(m)
    wave = draw.uniform(0.0, 1.0)
    scaled = kinds == ["none", "none"] and draw.uniform() < 0.7
    unit_x, unit_y, unit_f = (10.0 ** draw.uniform(-6, 6) if scaled else 1.0 for _ in range(3))

    def fun(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        u, v = x / unit_x, y / unit_y
        in_x = 0.5 * u @ convex @ u + wave * torch.sin(2.0 * u).sum() + a @ u
        return unit_f * (in_x + u @ coupling @ v - 0.5 * v @ concave @ v + b @ v)

    def norms(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float, float]:
        x, y = (p.detach().clone().requires_grad_() for p in (x, y))
        gx, gy = torch.autograd.grad(fun(x, y), (x, y))
        both = float(torch.cat([gx, gy]).norm())
        x, y = x.detach(), y.detach()
        return mapping_norm(home_x, x, -gx), mapping_norm(home_y, y, gy), both

    x0, y0 = normal(n) * unit_x, normal(m) * unit_y
    start = [p if home is None else home.project(p) for p, home in ((x0, home_x), (y0, home_y))]
    tol = 1e-6 * norms(*start)[2]
    result = minimax(fun, x0, y0, x_set=home_x, y_set=home_y, tol=tol, max_calls=max_calls)
    if result.success:
        assert max(norms(result.x, result.y)[:2]) <= 1.01 * tol, f"a false success, seed {seed}"
    return bool(result.success)


def test_random_problems_with_any_set_and_in_any_units() -> None:
    assert all(solve_random_problem(seed) for seed in range(12))


@pytest.mark.slow
def test_ninety_eight_of_a_hundred_random_problems_are_solved() -> None:
    unsolved = [seed for seed in range(200) if not solve_random_problem(seed)]
    assert len(unsolved) <= 4, unsolved


@pytest.mark.slow
def test_random_problems_with_kappa_1e5_are_counted(
    record_property: Callable[[str, object], None],
) -> None:
    """Beyond what is promised: no exception, no false success, and a share on record."""
    seeds = range(1000, 1020)
    solved = [seed for seed in seeds if solve_random_problem(seed, 1e5, max_calls=10_000)]
    record_property("solved of 20 with kappa 1e5", len(solved))
    assert solved


@pytest.mark.parametrize("seed", [0, 3])
def test_what_float32_cannot_reach_is_no_divergence(seed: int) -> None:
    """The solution is not at zero, where numbers of single precision are dense."""
    problem = problems.nc_sc_quadratic(kappa=10.0, seed=seed)
    start = problem.x0.float(), problem.y0.float()
    result = minimax(lambda x, y: problem.fun(x - 0.7, y + 0.3), *start, tol=1e-12)
    assert result.status is Status.TOLERANCE
