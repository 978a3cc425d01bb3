"""The second part of the zoo: each stored solution against one that scipy or algebra finds.

The answers are computed from values and derivatives of `fun` alone, never from how a problem was
made.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize, nnls

from neada import problems
from neada.problems import Problem

SECOND = [name for name in problems.names() if name not in problems.names(hard=False)]
ZOO = {name: problems.make(name) for name in SECOND}
OF_QUADRATICS = ("nc_sc", "gaussian", "mixed", "bilinear", "product")
QUADRATIC = [name for name in SECOND if name.startswith(OF_QUADRATICS)]
GAMES = ["box_game", "matrix_game"]
LAGRANGIANS = ["fair_logistic", "lagrangian"]
DOMAINS = ["entropic", "half_circle", "log_barrier", "orthant_entropic"]


def double(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def units(dim: int) -> torch.Tensor:
    return torch.eye(dim, dtype=torch.float64)


def same(found: torch.Tensor, stored: torch.Tensor, tol: float) -> bool:
    return bool((found - stored).norm() <= tol * (1.0 + stored.norm()))


def value_and_slope(function):
    """For scipy: a differentiable function of a tensor as one of an array, with its gradient."""

    def both(point: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = double(point).requires_grad_()
        value = function(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        return value.item(), slope.numpy()

    return both


def least_under(objective, constraints, start: torch.Tensor) -> torch.Tensor:
    """SLSQP: the minimizer of the objective where every constraint is at most 0."""

    def at_least_zero(constraint) -> dict:
        both = value_and_slope(constraint)
        return {"type": "ineq", "fun": lambda p: -both(p)[0], "jac": lambda p: -both(p)[1]}

    found = minimize(
        value_and_slope(objective),
        start.numpy(),
        jac=True,
        method="SLSQP",
        constraints=[at_least_zero(constraint) for constraint in constraints],
        options={"ftol": 1e-16, "maxiter": 500},
    )
    assert max(float(constraint(double(found.x))) for constraint in constraints) <= 1e-9
    return double(found.x)


def multipliers(objective, constraints, at: torch.Tensor, active: float = 1e-6) -> torch.Tensor:
    """The nonnegative weights of the active constraints' gradients that cancel the objective's."""
    slope = value_and_slope(objective)(at)[1]
    values = [value_and_slope(constraint)(at) for constraint in constraints]
    columns = [gradient * (abs(value) <= active) for value, gradient in values]
    weights, residual = nnls(np.stack(columns, 1), -slope)
    assert residual <= 1e-6
    return double(weights)


def test_every_problem_of_the_second_part_has_an_answer_here():
    assert len(SECOND) >= 10
    checked = [*QUADRATIC, *GAMES, *LAGRANGIANS, *DOMAINS, "max_of_quadratics", "box_constrained"]
    assert sorted(checked) == sorted(SECOND)


@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratics_against_a_linear_solve(name):
    problem = ZOO[name]
    start = torch.cat([problem.x0, problem.y0])
    gradient = torch.cat(problem.gradients(problem.x0, problem.y0))
    hessian = torch.autograd.functional.hessian(
        lambda z: problem.fun(z[: problem.dim_x], z[problem.dim_x :]), start
    )
    found = start - torch.linalg.solve(hessian, gradient)
    assert same(found, torch.cat(problem.solution), 1e-9)


def bilinear_parts(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix and the two linear terms of x.Ay + b.x + c.y."""
    zero_x, zero_y = torch.zeros_like(problem.x0), torch.zeros_like(problem.y0)
    linear_x, linear_y = problem.gradients(zero_x, zero_y)
    rows = units(problem.dim_x)
    columns = problem.gradients(rows, zero_y.expand(problem.dim_x, -1))[1] - linear_y
    return columns.numpy(), linear_x.numpy(), linear_y.numpy()


def test_the_matrix_game_against_two_linear_programs():
    problem = ZOO["matrix_game"]
    matrix, *linear = bilinear_parts(problem)
    assert not any(np.any(term) for term in linear)

    def mixed(payoff: np.ndarray) -> tuple[torch.Tensor, float]:
        """The mixture of rows whose largest column is least, and that value."""
        num, columns = payoff.shape
        found = linprog(
            np.append(np.zeros(num), 1.0),
            A_ub=np.hstack([payoff.T, -np.ones((columns, 1))]),
            b_ub=np.zeros(columns),
            A_eq=[np.append(np.ones(num), 0.0)],
            b_eq=[1.0],
            bounds=[(0.0, 1.0)] * num + [(None, None)],
        )
        return double(found.x[:num]), found.fun

    (x, value), (y, minus) = mixed(matrix), mixed(-matrix.T)
    assert same(x, problem.solution[0], 1e-9) and same(y, problem.solution[1], 1e-9)
    assert value == pytest.approx(-minus, abs=1e-9)
    assert value == pytest.approx(float(problem.fun(*problem.solution)), abs=1e-9)


def test_the_box_game_against_two_linear_programs():
    problem = ZOO["box_game"]
    matrix, linear_x, linear_y = bilinear_parts(problem)

    def bounded(payoff: np.ndarray, own: np.ndarray, other: np.ndarray) -> torch.Tensor:
        """The point of the box with least own.p + |payoff.T p + other|_1."""
        num, columns = payoff.shape
        eye = np.eye(columns)
        found = linprog(
            np.append(own, np.ones(columns)),
            A_ub=np.block([[payoff.T, -eye], [-payoff.T, -eye]]),
            b_ub=np.append(-other, other),
            bounds=[(-1.0, 1.0)] * num + [(None, None)] * columns,
        )
        return double(found.x[:num])

    x = bounded(matrix, linear_x, linear_y)
    y = bounded(-matrix.T, -linear_y, -linear_x)
    assert same(x, problem.solution[0], 1e-9) and same(y, problem.solution[1], 1e-9)


@pytest.mark.parametrize("name", [*GAMES, "max_of_quadratics"])
def test_phi_is_the_largest_value_at_a_vertex(name):
    problem = ZOO[name]
    vertices = units(problem.dim_y)
    if name == "box_game":
        vertices = double(list(itertools.product([-1.0, 1.0], repeat=problem.dim_y)))
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(problem.dim_x, generator=generator, dtype=torch.float64)
        values = problem.fun(x.expand(len(vertices), -1), vertices)
        torch.testing.assert_close(problem.phi(x), values.max(), rtol=1e-12, atol=1e-12)


def test_the_max_of_quadratics_against_slsqp():
    problem = ZOO["max_of_quadratics"]
    # The last coordinate is the bound on all of them.
    constraints = [lambda z, e=e: problem.fun(z[:-1], e) - z[-1] for e in units(3)]
    found = least_under(lambda z: z[-1], constraints, torch.cat([problem.x0, double([50.0])]))
    assert same(found[:-1], problem.solution[0], 1e-7)
    weights = multipliers(lambda z: z[-1], constraints, found)
    assert same(weights, problem.solution[1], 1e-6)


def test_the_box_constrained_problem_against_scipy_inside_scipy():
    problem = ZOO["box_constrained"]
    tight = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 500}

    def best(x: torch.Tensor) -> torch.Tensor:
        """The best y in the box, by scipy."""
        found = minimize(
            value_and_slope(lambda y: -problem.fun(x.detach(), y)),
            np.zeros(problem.dim_y),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-1.0, 1.0)] * problem.dim_y,
            options=tight,
        )
        return double(found.x)

    found = minimize(
        value_and_slope(lambda x: problem.fun(x, best(x))),
        problem.x0.numpy(),
        jac=True,
        method="L-BFGS-B",
        options=tight,
    )
    x = double(found.x)
    assert same(x, problem.solution[0], 1e-6)
    assert same(best(x), problem.solution[1], 1e-6)
    assert 0 < int((best(x).abs() == 1.0).sum()) < problem.dim_y


@pytest.mark.parametrize("name", LAGRANGIANS)
def test_lagrangians_against_slsqp(name):
    problem = ZOO[name]
    zero = torch.zeros_like(problem.y0)

    def objective(x: torch.Tensor) -> torch.Tensor:
        return problem.fun(x, zero)

    constraints = [lambda x, e=e: problem.fun(x, e) - objective(x) for e in units(2)]
    x = least_under(objective, constraints, problem.x0)
    assert same(x, problem.solution[0], 1e-7)
    assert same(multipliers(objective, constraints, x), problem.solution[1], 1e-6)


@pytest.mark.parametrize("name", DOMAINS)
def test_problems_with_a_domain_against_scipy_on_the_maximum(name):
    problem = ZOO[name]
    inside = (1e-6, None) if name == "log_barrier" else (None, None)
    found = minimize(
        value_and_slope(problem.phi),
        problem.x0.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[inside] * problem.dim_x,
        options={"ftol": 1e-16, "gtol": 1e-10, "maxiter": 500},
    )
    x = double(found.x)
    assert same(x, problem.solution[0], 1e-7)
    assert same(problem.best_response(x), problem.solution[1], 1e-6)


@pytest.mark.parametrize("name", DOMAINS)
def test_beyond_the_border_there_is_no_finite_number(name):
    problem = ZOO[name]
    x, y = problem.solution
    beyond = y.clone()
    beyond[0] = 0.0 if name == "entropic" else -2.0
    # The derivative of the logarithm stays finite beyond the border: only the value tells.
    numbers = torch.cat([problem.fun(x, beyond).view(1), *problem.gradients(x, beyond)])
    assert not numbers.isfinite().all()
    if name == "log_barrier":
        assert problem.fun(-x, y).isnan()
