"""`minimax` on random strongly concave problems: found by hypothesis, judged by linear algebra."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neada import minimax, problems, sets


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
