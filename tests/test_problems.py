"""Every problem of the zoo is what it says: derivatives, constants, best responses, solutions."""

import math

import pytest
import torch

from neada import problems
from neada.problems import Problem
from neada.sets import Box, HalfSpace, L1Ball, L2Ball, Simplex

SECOND = [name for name in problems.names() if name not in problems.names(hard=False)]
ZOO = {name: problems.make(name) for name in problems.names()}
FACTORIES = [name for name in problems.__all__ if name not in {"Problem", "make", "names"}]
all_problems = pytest.mark.parametrize("problem", ZOO.values(), ids=ZOO)
RESPONSIVE = {name: problem for name, problem in ZOO.items() if problem.best_response is not None}
problems_with_a_best_response = pytest.mark.parametrize(
    "problem", RESPONSIVE.values(), ids=RESPONSIVE
)
# Points that are in the sets, moved to where the function is finite.
INTO_DOMAIN = {
    "entropic": lambda x, y: (x, 0.9 * y + 0.1 / 6),
    "orthant_entropic": lambda x, y: (x, y.abs() + 0.05),
    "half_circle": lambda x, y: (x, 0.9 * y.tanh()),
    "log_barrier": lambda x, y: (x.abs() + 0.05, 0.9 * y.tanh()),
}


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def points(problem: Problem, num: int, seed: int = 0, spread: float = 1.0):
    """Random feasible rows round the start."""
    x_rows, y_rows = problem.row_sets()
    x = problem.x0 + spread * normal(seed, num, problem.dim_x)
    y = problem.y0 + spread * normal(seed + 1, num, problem.dim_y)
    x = x if x_rows is None else x_rows.project(x)
    y = y if y_rows is None else y_rows.project(y)
    return INTO_DOMAIN[problem.name](x, y) if problem.name in INTO_DOMAIN else (x, y)


def central_difference(function, at: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    moves = step * torch.eye(len(at), dtype=at.dtype)
    return (function(at + moves) - function(at - moves)) / (2.0 * step)


def hessian(problem: Problem, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def joint(z: torch.Tensor) -> torch.Tensor:
        return problem.fun(z[: problem.dim_x], z[problem.dim_x :])

    return torch.autograd.functional.hessian(joint, torch.cat([x, y]))


def test_the_zoo_has_its_problems_and_each_is_also_a_function():
    assert len(ZOO) >= 14 and len(FACTORIES) >= 14
    for name in FACTORIES:
        problem = getattr(problems, name)()
        assert any(entry.startswith(name) for entry in ZOO)
        assert problem.name == name
    assert all(problem.name == name for name, problem in ZOO.items())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="mcormick"):
        problems.make("mcormick")
    with pytest.raises(TypeError, match="unexpected"):
        problems.make("mccormick", kappa=3.0)


@all_problems
def test_a_problem_is_complete(problem):
    for point, one in ((problem.x0, problem.x_set), (problem.y0, problem.y_set)):
        assert point.dtype == torch.float64 and point.dim() == 1
        assert point.abs().max() <= 10.0
        assert one is None or one.contains(point)
    assert problem.description
    second = problem.name in SECOND
    assert max(problem.dim_x, problem.dim_y) <= (100 if second else 50)
    assert problem.pl_modulus is None or problem.strong_concavity is None
    assert second or problem.strong_concavity is not None or problem.pl_modulus is not None
    norms = problem.stationarity(problem.x0, problem.y0)
    # In the second part of the zoo one player may start where the other lets it rest.
    assert (any if second else all)(norm > 1e-2 for norm in norms), "the start is a solution"


@all_problems
def test_building_twice_gives_the_same_and_touches_no_global_state(problem):
    before = torch.get_rng_state()
    again = problems.make(problem.name)
    assert torch.equal(before, torch.get_rng_state())
    x, y = points(problem, 3)
    assert torch.equal(problem.fun(x, y), again.fun(x, y))
    assert torch.equal(problem.x0, again.x0) and torch.equal(problem.y0, again.y0)
    assert again.x0.data_ptr() != problem.x0.data_ptr()


@all_problems
def test_gradients_are_those_of_finite_differences(problem):
    for x, y in zip(*points(problem, 3), strict=True):
        grad_x, grad_y = problem.gradients(x, y)
        scale = 1.0 + max(float(grad_x.norm()), float(grad_y.norm()))
        by_x = central_difference(lambda at, y=y: problem.fun(at, y.expand(len(at), -1)), x)
        by_y = central_difference(lambda at, x=x: problem.fun(x.expand(len(at), -1), at), y)
        assert (grad_x - by_x).norm() <= 1e-7 * scale
        assert (grad_y - by_y).norm() <= 1e-7 * scale


@all_problems
def test_rows_equal_single_evaluations_and_float32_follows(problem):
    x, y = points(problem, 6)
    values = problem.fun(x, y)
    assert values.shape == (6,)
    single = torch.stack([problem.fun(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(values, single, rtol=1e-12, atol=1e-12)
    stacked = problem.fun(x.reshape(2, 3, -1), y.reshape(2, 3, -1))
    torch.testing.assert_close(stacked, values.reshape(2, 3), rtol=1e-12, atol=1e-12)
    narrow = problem.fun(x.float(), y.float())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), values, rtol=1e-4, atol=1e-4)

    norms = torch.stack(problem.stationarity(x.reshape(2, 3, -1), y.reshape(2, 3, -1)))
    alone = [torch.stack(problem.stationarity(a, b)) for a, b in zip(x, y, strict=True)]
    torch.testing.assert_close(norms.reshape(2, 6), torch.stack(alone, 1), rtol=1e-9, atol=1e-12)


@all_problems
def test_the_declared_constants_hold_at_sampled_hessians(problem):
    largest, smallest = 0.0, math.inf
    for spread in (0.3, 1.0, 3.0):
        for x, y in zip(*points(problem, 5, seed=7, spread=spread), strict=True):
            matrix = hessian(problem, x, y)
            in_y = matrix[problem.dim_x :, problem.dim_x :]
            largest = max(largest, float(torch.linalg.matrix_norm(matrix, ord=2)))
            smallest = min(smallest, float(torch.linalg.eigvalsh(-in_y)[0]))
    if problem.strong_concavity is not None:
        assert smallest >= problem.strong_concavity * (1 - 1e-9)
        # The moduli are tight: the y-block is constant, or nearly so at some point.
        assert smallest <= problem.strong_concavity * 1.1
    elif problem.pl_modulus is None:
        assert smallest >= 0.0, "the second part of the zoo is concave in y"
    else:
        assert smallest < 0.0, "a PL problem that is strongly concave should say so"
    if problem.smoothness is not None:
        assert largest <= problem.smoothness * (1 + 1e-9)
        assert largest >= problem.smoothness / 4, "the declared constant says little"
    if problem.condition_number is not None:
        assert problem.condition_number == problem.smoothness / problem.strong_concavity


@pytest.mark.parametrize(("name", "player"), [("wrm_logistic", "y"), ("dirac_gan", "x")])
def test_without_a_smoothness_constant_the_curvature_is_unbounded(name, player):
    problem = ZOO[name]
    assert problem.smoothness is None and problem.condition_number is None
    x, y = problem.x0, torch.zeros_like(problem.y0)
    sideways = torch.tensor([100.0, -100.0], dtype=torch.float64)  # margins do not change
    far = (100.0 * x, y) if player == "x" else (x, sideways.repeat(problem.dim_y // 2))
    near, distant = (torch.linalg.matrix_norm(hessian(problem, *at), 2) for at in ((x, y), far))
    assert distant > 1000.0 * near


@problems_with_a_best_response
def test_the_best_response_maximizes_and_phi_is_the_maximum(problem):
    x, y = points(problem, 40, seed=3)
    best = problem.best_response(x)
    torch.testing.assert_close(best[4], problem.best_response(x[4]), rtol=1e-9, atol=1e-12)
    assert problem.best_response(x.float()).dtype == problem.phi(x.float()).dtype == torch.float32
    y_rows = problem.row_sets()[1]
    assert y_rows is None or torch.as_tensor(y_rows.contains(best)).all()
    scale = 1.0 + problem.gradients(x, best)[1].norm(dim=-1)
    rounding = 1e-15 * best.norm(dim=-1)  # 1e4 and more where kappa is 1e5
    assert (problem.stationarity(x, best)[1] <= 1e-12 * scale + rounding).all()
    phi = problem.phi(x)
    torch.testing.assert_close(phi, problem.fun(x, best), rtol=1e-11, atol=1e-11)
    assert (phi >= problem.fun(x, y)).all()
    if problem.strong_concavity is not None:
        gap = 0.5 * problem.strong_concavity * (y - best).square().sum(-1)
        assert (phi - problem.fun(x, y) >= gap * (1 - 1e-9) - 1e-12).all()


@problems_with_a_best_response
def test_the_gradient_of_phi_is_danskins(problem):
    for x in points(problem, 4, seed=5)[0]:
        leaf = x.clone().requires_grad_()
        (by_autograd,) = torch.autograd.grad(problem.phi(leaf), leaf)
        by_difference = central_difference(problem.phi, x)
        scale = 1.0 + by_difference.norm()
        by_danskin, _ = problem.gradients(x, problem.best_response(x))
        assert (by_danskin - by_difference).norm() <= 2e-6 * scale
        torch.testing.assert_close(by_danskin, by_autograd, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name", [name for name in ZOO if name not in ("robust_logistic", "wrm_logistic")]
)
def test_the_declared_solution_is_stationary_and_a_point_beside_it_is_not(name):
    problem = ZOO[name]
    x, y = problem.solution
    assert all(norm <= 1e-9 for norm in problem.stationarity(x, y))
    if name in RESPONSIVE:
        assert (problem.best_response(x) - y).norm() <= 1e-9
    beside = y + 0.1 * normal(11, problem.dim_y)
    beside = beside if problem.y_set is None else problem.y_set.project(beside)
    if name in INTO_DOMAIN:
        beside = INTO_DOMAIN[name](x, beside)[1]
    norms = problem.stationarity(x, beside)
    # Where f is linear in y, it is x that a wrong y sets in motion.
    assert (norms[1] if name in RESPONSIVE else max(norms)) > 1e-5


@pytest.mark.parametrize(
    "one", [L2Ball(0.5, torch.ones(3).double()), L1Ball(0.5), Simplex(2.0), Box(-0.5, 0.2), None]
)
def test_row_sets_hold_every_row_in_the_set_of_one(one):
    problem = Problem("", lambda x, y: x.sum(-1), normal(0, 3), normal(0, 3), one, one)
    rows = problem.row_sets()[1]
    batch = 2.0 * normal(1, 5, 3)
    if one is None:
        assert rows is None
        return
    torch.testing.assert_close(
        rows.project(batch), torch.stack([one.project(row) for row in batch])
    )


def test_a_set_without_a_version_per_row_raises():
    half = HalfSpace(torch.ones(2).double(), 1.0)
    flat = Problem("flat", lambda x, y: x.sum(-1), normal(0, 2), normal(0, 2), y_set=half)
    with pytest.raises(ValueError, match="version"):
        flat.row_sets()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("quadratic", {"L": 0.0}),
        ("nc_sc_quadratic", {"kappa": 1.5}),
        ("gaussian_quadratic", {"kappa": 0.5}),
        ("bounded_nonconvex", {"mu": -0.1}),
        ("bilinear_game", {"regularization": -1e-4}),
    ],
)
def test_options_without_meaning_raise(name, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        getattr(problems, name)(**options)
