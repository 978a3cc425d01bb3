"""`minimax(rowwise=True)`: every row has its own status, and a bad one does not lose the others."""

import numpy as np
import pytest
import torch
from torch import Tensor

import neada
from neada import minimax, sets
from neada.solve.result import Status

torch_float = torch.float64


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch_float).reshape(-1, 1)


# One function of (x, y) per row; each with its start and how it has to end.
ROWS = {
    "strongly concave": (lambda x, y: (x - 1) ** 2 + 2 * x * y - y**2, 0.0, 0.0, "CONVERGED"),
    "bilinear": (lambda x, y: x * y, 1.0, 1.0, "CONVERGED"),
    "square root": (lambda x, y: x**2 / 2 + x * y + (1 - y**2).sqrt(), 2.0, 0.0, "CONVERGED"),
    "convex in y": (lambda x, y: x**2 + x * y + y**2, 1.0, 1.0, "NOT_A_MAXIMUM"),
    "minimum in y": (lambda x, y: x**2 + y**2, 1.0, 0.0, "NOT_A_MAXIMUM"),
    "unbounded in y": (lambda x, y: x**2 + y, 1.0, 1.0, "DIVERGED"),
    "undefined start": (lambda x, y: x**2 + (y - 5).sqrt(), 1.0, 1.0, "NON_FINITE"),
    "finite gradient only": (lambda x, y: x**2 + (x - 5).log() - y**2, 1.0, 1.0, "NON_FINITE"),
}
X0 = column(*(row[1] for row in ROWS.values()))
Y0 = column(*(row[2] for row in ROWS.values()))


def all_rows(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([row[0](x[i], y[i]).sum() for i, row in enumerate(ROWS.values())])


def test_every_row_ends_in_its_own_way() -> None:
    result = minimax(all_rows, X0, Y0, rowwise=True)
    assert [status.name for status in result.status] == [row[3] for row in ROWS.values()]
    assert result.success.tolist() == [row[3] == "CONVERGED" for row in ROWS.values()]
    assert len(result.message) == len(ROWS)
    for status, message in zip(result.status, result.message, strict=True):
        assert message.startswith(status.value)
    np.testing.assert_allclose(result.x[:3, 0], [0.5, 0.0, 0.0], atol=1e-6)
    assert "3 of 8 rows" in repr(result)
    for fun, x0, y0, status in ROWS.values():  # a row ends as it would alone
        assert minimax(lambda x, y, f=fun: f(x, y).sum(), x0, y0).status.name == status


@pytest.mark.parametrize("method", [info.name for info in neada.methods()])
def test_bad_rows_do_not_disturb_a_good_one(method: str) -> None:
    """With any method: the first row moves as it does when it is the only one."""
    bad = minimax(all_rows, X0, Y0, rowwise=True, method=method, max_calls=400)
    good = minimax(
        lambda x, y: ROWS["strongly concave"][0](x, y)[:, 0],
        *(X0[:1], Y0[:1]),
        rowwise=True,
        method=method,
        max_calls=400,
    )
    assert len(bad.status) == len(ROWS)
    assert all(isinstance(status, Status) for status in bad.status)
    assert not bad.success[4:].any()
    # The inner loops of rows that run away use up the budget of a nested method.
    if good.success[0] and bad.status[0] is not Status.BUDGET:
        assert bad.success[0]
        assert bad.x[0].item() == pytest.approx(0.5, abs=1e-5)


def test_the_rows_share_the_budget() -> None:
    full = minimax(all_rows, X0, Y0, rowwise=True)
    few = minimax(all_rows, X0, Y0, rowwise=True, max_calls=40)
    assert few.total_calls <= 42 < full.total_calls  # the check of the result costs two more
    assert few.success[0]
    assert Status.BUDGET in list(few.status)


def test_an_interrupted_solve_keeps_the_rows_that_are_solved() -> None:
    seen = []
    result = minimax(
        *(all_rows, X0, Y0), rowwise=True, callback=lambda info: seen.append(info) or len(seen) == 4
    )
    assert result.success[0]
    assert Status.INTERRUPTED in list(result.status)


def test_bounds_of_rows_hold_for_rows_that_are_solved_by_themselves() -> None:
    """x y on boxes of different sizes; with the bounds away from zero the answer is a corner."""
    low, high = column(-1.0, 1.0, -1.0), column(1.0, 2.0, 3.0)
    box = sets.Box(low, high)
    start = column(1.0, 1.5, 1.0)
    result = minimax(lambda x, y: (x * y).sum(1), start, start, x_set=box, y_set=box, rowwise=True)
    assert result.success.all()
    np.testing.assert_allclose(result.x, [[0.0], [1.0], [0.0]], atol=1e-6)
    np.testing.assert_allclose(result.y[1], [2.0], atol=1e-6)


def test_a_minimum_in_y_inside_of_a_set_is_seen_in_every_row() -> None:
    """At the start both rows are stationary; the first is a minimum in y inside of the box."""
    sign = torch.tensor([1.0, -1.0], dtype=torch_float)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return (x**2).sum(1) + sign * (y**2).sum(1)

    start = torch.zeros(2, 2, dtype=torch_float)
    result = minimax(fun, start, start, y_set=sets.Box(-1.0, 1.0), rowwise=True)
    assert list(result.status) == [Status.NOT_A_MAXIMUM, Status.CONVERGED]
    assert result.success.tolist() == [False, True]


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(6, 11))
def test_bilinear_games_on_boxes_are_solved(seed: int, start: float) -> None:
    """The maximum over y is known at every x, but has kinks that x would creep along."""
    generator = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(n, generator=generator, dtype=torch_float) for n in ((3, 2), 3, 2))
    box = sets.Box(-0.5, 1.0)
    result = minimax(
        lambda x, y: x @ a @ y + b @ x + c @ y,
        *(torch.full((n,), start, dtype=torch_float) for n in (3, 2)),
        x_set=box,
        y_set=box,
    )
    assert result.success, result
    assert result.total_calls < 5000
    # The gap of the game, by the best answers at the corners.
    x, y = result.x, result.y
    best_y = torch.where(x @ a + c > 0, 1.0, -0.5).double()
    best_x = torch.where(a @ y + b > 0, -0.5, 1.0).double()
    gap = (x @ a @ best_y + b @ x + c @ best_y) - (best_x @ a @ y + b @ best_x + c @ y)
    assert gap.item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(
    ("fun", "start", "y_set"),
    [
        (lambda x, y: x**2 + y[0] + y[1] ** 2, [1.0, 0.0], sets.Box(-1.0, 1.0)),
        (lambda x, y: x**2 - y[0] + (y[1] - 1) ** 2, [0.0, 1.0], sets.NonNegative()),
        (lambda x, y: x**2 + y[0] + y[1] ** 2, (0.0, 0.0), [sets.Box(0.0, 1.0), None]),
    ],
)
def test_a_minimum_along_the_free_entries_of_a_box_is_seen(
    fun: object, start: object, y_set: object
) -> None:
    result = minimax(fun, 1.0, start, y_set=y_set)  # type: ignore[arg-type]
    assert result.status is Status.NOT_A_MAXIMUM


def test_a_row_that_overflows_does_not_lose_its_neighbor() -> None:
    """Their line searches and gradients fail at once, but for one row's sake."""

    def fun(x: Tensor, y: Tensor) -> Tensor:
        first = x[0] ** 2 + x[0] * y[0] + torch.log(1 - y[0] ** 2)
        return torch.stack([first, x[1] ** 2 + x[1] * y[1] + y[1] ** 2]).sum(1)

    start = torch.full((2, 2), 0.5, dtype=torch_float)
    for method in ("neada", "neada-adgd"):
        result = minimax(fun, start, start, rowwise=True, method=method, max_calls=2000)
        assert result.success[0], method
        assert result.status[1] is Status.DIVERGED


def test_single_precision_on_the_orthant() -> None:
    """A Lagrangian: the entries of y that are free must be told from those at zero."""
    result = minimax(
        lambda x, y: (x - 3).square().sum() + y * (x.sum() - 1),
        *(torch.zeros(2), torch.tensor(0.0)),
        y_set=sets.NonNegative(),
        tol=1e-3,
    )
    assert result.success
    torch.testing.assert_close(result.x, torch.full((2,), 0.5), atol=1e-3, rtol=0.0)


def test_single_precision_without_a_maximum_runs_away() -> None:
    result = minimax(lambda x, y: x @ x + y.sum(), torch.tensor([2.0]), torch.tensor([0.0]))
    assert result.status is Status.DIVERGED


def test_a_budget_far_from_the_tolerance_is_a_budget() -> None:
    def rosenbrock(x: Tensor, y: Tensor) -> Tensor:
        return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2 + x @ y - y @ y

    start = torch.tensor([-1.2, 1.0])
    result = minimax(rosenbrock, start, start, tol=1e-9, max_calls=20)
    assert max(result.grad_norm_x, result.grad_norm_y) > 0.1
    assert result.status is Status.BUDGET


def test_overflow_on_a_set_is_a_status() -> None:
    """The iterates pass the largest float between two looks at how far out they are."""
    result = minimax(
        lambda x, y: -(x**4) + x * y - y**2,
        *(3.0, 1.0),
        y_set=sets.NonNegative(),
        method="gda",
        options={"lr_x": 1e3},
    )
    assert result.status in (Status.DIVERGED, Status.NON_FINITE)


def test_many_rows_of_many_coordinates_need_no_matrices() -> None:
    """Hessians of 1,000 rows with 400 coordinates would have 1.3 GB."""
    x0 = torch.zeros(1000, 200, dtype=torch_float)
    y0 = torch.ones(1000, 200, dtype=torch_float)

    def fun(x: Tensor, y: Tensor) -> Tensor:
        return (0.5 * (x - 1) ** 2 + 0.3 * x * y - 0.5 * y**2).sum(1)

    result = minimax(fun, x0, y0, rowwise=True)
    assert result.success.all() and set(result.kind) == {"unknown"}
