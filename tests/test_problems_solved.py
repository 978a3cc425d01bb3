"""The promises of single problems, and that every problem of the zoo can be solved to 1e-6."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from neada import problems
from neada.problems import Problem

# Phi has a gradient everywhere, and x has no set.
SMOOTH = [
    *(name for name in problems.names(hard=False) if name != "wrm_logistic"),
    *("box_constrained", "entropic", "half_circle", "orthant_entropic"),
]
GAMES = ["box_game", "matrix_game", "max_of_quadratics"]
DOMAINS = ["entropic", "half_circle", "log_barrier", "orthant_entropic"]


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def hessian(function, at: torch.Tensor) -> torch.Tensor:
    return torch.autograd.functional.hessian(function, at)


def minimize_phi(problem: Problem, start: torch.Tensor) -> torch.Tensor:
    """L-BFGS of scipy on Phi, which knows nothing of this library."""

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(x, requires_grad=True)
        value = problem.phi(leaf)
        return value.item(), torch.autograd.grad(value, leaf)[0].numpy()

    options = {"gtol": 1e-9, "ftol": 0.0, "maxiter": 2000}
    result = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    return torch.tensor(result.x)


def nested_descent(problem: Problem, lr_x: float, lr_y: float, steps: int):
    """Gradient ascent on y to 1e-9, then one step of projected gradient descent on x."""
    x, y = problem.x0, problem.y0
    for _ in range(steps):
        for _ in range(5000):
            grad_x, grad_y = problem.gradients(x, y)
            if grad_y.norm() <= 1e-9:
                break
            y = y + lr_y * grad_y
        if max(problem.stationarity(x, y)) <= 1e-6:
            break
        x = x - lr_x * grad_x
        x = x if problem.x_set is None else problem.x_set.project(x)
    return x, y


def simultaneous(problem: Problem, lr: float, steps: int) -> torch.Tensor:
    """All points (x, y) of gradient descent-ascent with equal learning rates, as rows."""
    x, y = problem.x0, problem.y0
    points = [torch.cat([x, y])]
    for _ in range(steps):
        grad_x, grad_y = problem.gradients(x, y)
        x, y = x - lr * grad_x, y + lr * grad_y
        points.append(torch.cat([x, y]))
    return torch.stack(points)


# With one stationary point, or in the case of the paper's quadratic where Phi is constant.
UNIQUE = [
    *("quadratic", "mccormick", "bilinear", "robust_least_squares", "auc_maximization"),
    *("bounded_nonconvex", "bounded_nonconvex_mu0.05", "dirac_gan", "stackelberg"),
    *(f"nc_sc_quadratic_kappa{kappa}" for kappa in (10, 100, 1000)),
    *("box_constrained", "entropic", "half_circle", "orthant_entropic"),
]


@pytest.mark.parametrize("name", SMOOTH)
def test_descent_on_phi_solves_the_problem(name):
    problem = problems.make(name)
    x = minimize_phi(problem, problem.x0)
    assert x.norm() <= 20.0
    assert all(norm <= 1e-6 for norm in problem.stationarity(x, problem.best_response(x)))
    if name in UNIQUE:
        torch.testing.assert_close(x, problem.solution[0], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("name", ["ball_constrained", "simplex_constrained", "nonconvex_pl"])
def test_a_declared_solution_among_several_is_a_minimum_for_a_start_beside_it(name):
    problem = problems.make(name)
    x = minimize_phi(problem, problem.solution[0] + 1e-3)
    assert problem.phi(x) <= problem.phi(problem.solution[0]) + 1e-9
    assert all(norm <= 1e-6 for norm in problem.stationarity(x, problem.best_response(x)))


def test_on_the_stackelberg_game_equal_learning_rates_cycle_and_nesting_converges():
    problem = problems.stackelberg()
    for lr, largest in ((0.02, 4.0), (0.1, 4.0), (0.5, 1e6)):  # two cycles and a divergence
        points = simultaneous(problem, lr, steps=int(100 / lr))
        late = points[len(points) // 2 :]
        norms = torch.maximum(*problem.stationarity(late[:, :1], late[:, 1:]))
        assert norms.min() > 1.0 and largest / 10 < late.norm(dim=1).max() < largest
        turns = (late[1:, 0].sign() != late[:-1, 0].sign()).sum()
        assert turns >= 10, "it goes round the solution"
    x, y = nested_descent(problem, 0.2, 1.0, steps=400)
    assert abs(x) <= 1e-6 and abs(y) <= 1e-5


def test_the_papers_quadratic_has_its_numbers():
    problem = problems.quadratic()
    grad_x, grad_y = problem.gradients(problem.x0, problem.y0)
    assert float(grad_x) == pytest.approx(-3.98, abs=1e-15)
    assert float(grad_y) == pytest.approx(1.99, abs=1e-15)
    for lr, ratio in ((0.05, 1.0), (0.05, 4.0), (0.1, 10.0)):
        x, y = problem.x0, problem.y0
        for _ in range(20):
            at = problem.gradients(x, y)
            x, y = x - lr * at[0], y + ratio * lr * at[1]
        expected = -3.98 * (1 - lr * (ratio - 4.0)) ** 20
        assert float(problem.gradients(x, y)[0]) == pytest.approx(expected, rel=1e-10)
    steep = problems.make("quadratic", L=10.0)
    assert steep.smoothness == 101.0 and float(steep.best_response(steep.x0)) == 10.0


def test_mccormick_is_the_papers_function_with_the_known_minimum():
    problem = problems.mccormick()
    x, y = (0.3, -1.2), (0.7, 0.4)
    expected = np.sin(-0.9) + 1.5**2 - 0.45 - 3.0 + 1.0 + 0.21 - 0.48 - 0.5 * (0.49 + 0.16)
    value = problem.fun(torch.tensor(x).double(), torch.tensor(y).double())
    assert float(value) == pytest.approx(expected, abs=1e-6)  # x and y were float32
    known = torch.tensor([-0.28987881, -1.08987881], dtype=torch.float64)
    torch.testing.assert_close(problem.solution[0], known, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("dims", [(1, 1), (1, 6), (7, 3), (20, 20)])
@pytest.mark.parametrize("kappa", [2.0, 10.0, 1e5])
def test_random_quadratics_have_the_constants_asked_for(dims, kappa):
    dim_x, dim_y = dims
    problem = problems.nc_sc_quadratic(dim_x=dim_x, dim_y=dim_y, kappa=kappa, seed=3)
    zero = torch.zeros(dim_x + dim_y, dtype=torch.float64)
    matrix = hessian(lambda z: problem.fun(z[:dim_x], z[dim_x:]), zero)
    assert float(torch.linalg.matrix_norm(matrix, ord=2)) == pytest.approx(1.0, rel=1e-9)
    smallest = float(torch.linalg.eigvalsh(-matrix[dim_x:, dim_x:])[0])
    assert smallest == pytest.approx(1.0 / kappa, rel=1e-6)
    assert torch.linalg.eigvalsh(matrix[:dim_x, :dim_x])[0] < -0.05, "not convex in x"
    of_phi = torch.linalg.eigvalsh(hessian(problem.phi, problem.x0))
    assert of_phi[0] > 1e-3
    assert of_phi[0] < 0.5 or dims != (20, 20), "only slightly strongly convex"
    assert max(problem.stationarity(*problem.solution)) <= 1e-9


@pytest.mark.parametrize("start", ["declared", "reached"])
def test_the_constraints_are_active_at_the_solution(start):
    ball, simplex = problems.ball_constrained(), problems.simplex_constrained()
    for problem in (ball, simplex):
        x, y = problem.solution
        if start == "reached":
            x = minimize_phi(problem, problem.x0)
            y = problem.best_response(x)
        assert problem.gradients(x, y)[1].norm() > 0.1
        if problem is ball:
            assert float(y.norm()) == pytest.approx(1.0, abs=1e-12)
        else:
            assert (y == 0.0).sum() >= 4 and (y > 1e-3).sum() >= 2
    logistic = problems.robust_logistic()
    weights = logistic.best_response(minimize_phi(logistic, logistic.x0))
    assert 5 <= int((weights == 0.0).sum()) <= 35


def test_wrm_lives_in_its_ball_and_is_not_concave_far_outside():
    problem = problems.wrm_logistic()
    x, y = nested_descent(problem, 1.0, 8.0, steps=400)
    assert float(x.norm()) == pytest.approx(0.5, abs=1e-9)
    assert problem.gradients(x, y)[0].norm() > 0.05, "the set matters"
    direction = x / x.norm()
    for radius, concave in ((0.5, True), (1.9, True), (6.0, False)):
        at = radius * direction
        curvatures = torch.linalg.eigvalsh(
            hessian(lambda z, at=at: problem.fun(at, z), problem.best_response(x))
        )
        assert bool(curvatures[-1] < 0.0) == concave


def test_auc_is_the_mean_over_pairs_of_the_two_classes():
    problem = problems.auc_maximization(seed=4)
    generator = torch.Generator().manual_seed(4)
    mean = torch.randn(8, generator=generator, dtype=torch.float64)
    above = torch.randn(25, 8, generator=generator, dtype=torch.float64) + mean / mean.norm()
    below = torch.randn(75, 8, generator=generator, dtype=torch.float64)
    for w in normal(5, 4, 8):
        s, t = above @ w, below @ w
        pairs = [(1.0 - float(a - b)) ** 2 for a, b in itertools.product(s, t)]
        x = torch.cat([w, s.mean().view(1), t.mean().view(1)])
        expected = 0.25 * 0.75 * (np.mean(pairs) - 1.0) + 0.005 * float(w @ w)
        assert float(problem.phi(x)) == pytest.approx(expected, rel=1e-12)


def test_the_pl_inequality_holds_where_concavity_fails():
    problem = problems.nonconvex_pl(dim_x=2, dim_y=4)
    x, y = 3.0 * normal(0, 5000, 2), 6.0 * normal(1, 5000, 4)
    slope_sq = problem.gradients(x, y)[1].square().sum(-1)
    gap = problem.phi(x) - problem.fun(x, y)
    assert (0.5 * slope_sq >= problem.pl_modulus * gap).all()
    assert problem.strong_concavity is None
    line = torch.linspace(-20.0, 20.0, 40001, dtype=torch.float64)[:, None]
    single = problems.nonconvex_pl(dim_x=1, dim_y=1)
    zero = torch.zeros_like(line)
    slope = single.gradients(zero, line)[1].abs().squeeze(1)
    assert ((slope < 1e-2) == (line.abs().squeeze(1) < 2e-3)).all(), "one stationary point"


@pytest.mark.parametrize("name", GAMES)
def test_phi_is_the_largest_value_at_a_vertex(name):
    problem = problems.make(name)
    vertices = torch.eye(problem.dim_y, dtype=torch.float64)
    if name == "box_game":
        corners = itertools.product([-1.0, 1.0], repeat=problem.dim_y)
        vertices = torch.tensor(list(corners), dtype=torch.float64)
    for x in normal(0, 5, problem.dim_x):
        values = problem.fun(x.expand(len(vertices), -1), vertices)
        torch.testing.assert_close(problem.phi(x), values.max(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DOMAINS)
def test_beyond_the_border_there_is_no_finite_number(name):
    problem = problems.make(name)
    x, y = problem.solution
    beyond = y.clone()
    beyond[0] = 0.0 if name == "entropic" else -2.0
    # The derivative of the logarithm stays finite beyond the border: only the value tells.
    numbers = torch.cat([problem.fun(x, beyond).view(1), *problem.gradients(x, beyond)])
    assert not numbers.isfinite().all()
    if name == "log_barrier":
        assert problem.fun(-x, y).isnan()
