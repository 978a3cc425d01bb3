"""One learning rate per row: a batch equals the separate runs, and misuse is told in a sentence."""

from typing import Any

import pytest
import torch
from torch import Tensor

import neada
from neada import optim, problems, steppers
from neada.solve.methods import Players, make_stepper

TAKES = {info.name: info.options for info in neada.methods()}
WITH_RATES = [name for name, options in TAKES.items() if "lr_x" in options]
LR_X = torch.tensor([0.01, 0.05, 0.2], dtype=torch.float64)
LR_Y = torch.tensor([0.3, 0.02, 0.1], dtype=torch.float64)


def matrix(rows: int = 3, columns: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    start = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return start.requires_grad_()


def end_points(problem_name: str, method: str, lr_x: Any, lr_y: Any) -> tuple[Tensor, Tensor]:
    """Where 6 steps from the problem's start lead, one row per rate."""
    problem = problems.make(problem_name)
    num_rows = len(lr_x) if isinstance(lr_x, Tensor) else 1
    x = problem.x0.repeat(num_rows, 1).requires_grad_()
    y = problem.y0.repeat(num_rows, 1).requires_grad_()
    players = Players([x], [y], *problem.row_sets(), True, False, 1e-6)
    options = {"lr_x": lr_x, "lr_y": lr_y} if "lr_y" in TAKES[method] else {"lr_x": lr_x}
    stepper = make_stepper(method, players, options)
    for _ in range(6):
        stepper.step(lambda: problem.fun(x, y))
    return x.detach(), y.detach()


@pytest.mark.parametrize("problem", ["mccormick", "ball_constrained"])
@pytest.mark.parametrize("method", WITH_RATES)
def test_a_batch_with_its_own_rates_equals_the_separate_runs(method: str, problem: str) -> None:
    x, y = end_points(problem, method, LR_X, LR_Y)
    for i in range(len(LR_X)):
        x_alone, y_alone = end_points(problem, method, LR_X[i].item(), LR_Y[i].item())
        torch.testing.assert_close(x[i], x_alone[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(y[i], y_alone[0], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(x[0], x[1])


def test_rows_are_first_dimensions_whatever_the_shape() -> None:
    w = torch.ones(3, 2, 2, dtype=torch.float64, requires_grad=True)
    w.grad = torch.ones_like(w)
    optim.AdaptiveSGD([w], LR_X, "none").step()
    expected = (1.0 - LR_X).reshape(3, 1, 1).expand(3, 2, 2)
    torch.testing.assert_close(w.detach(), expected)


def test_minimax_passes_rates_of_rows_on() -> None:
    """The solution is (1/2, 1/2) for every rate that is small enough."""
    start = torch.zeros(3, 1, dtype=torch.float64)
    result = neada.minimax(
        lambda x, y: ((x - 1) ** 2 + 2 * x * y - y**2).sum(-1),
        *(start, start),
        method="gda",
        rowwise=True,
        options={
            "lr_x": torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64),
            "lr_y": torch.tensor([0.2, 0.1, 0.05], dtype=torch.float64),
        },
    )
    assert all(result.success)
    torch.testing.assert_close(result.x, torch.full_like(start, 0.5), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("psi", ["none", "adam"])
def test_saved_rates_come_back(psi: Any) -> None:
    def stepped(optimizer: optim.AdaptiveSGD, w: Tensor, count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            (w**2).sum().backward()
            optimizer.step()

    whole, half, rest = matrix(), matrix(), matrix()
    stepped(optim.AdaptiveSGD([whole], LR_X, psi), whole, 6)
    first = optim.AdaptiveSGD([half], LR_X, psi)
    stepped(first, half, 3)
    rest.data.copy_(half.detach())
    second = optim.AdaptiveSGD([rest], 7.0, psi)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.param_groups[0]["lr"], LR_X)
    assert second.param_groups[0]["lr"] is not LR_X
    stepped(second, rest, 3)
    assert torch.equal(rest, whole)


def bad_rates() -> list[tuple[Any, str]]:
    return [
        (LR_X[:2], "row"),
        (LR_X.float(), "float64"),
        (torch.tensor([0.1, 0.0, 0.1], dtype=torch.float64), "greater"),
        (torch.tensor([0.1, float("nan"), 1.0], dtype=torch.float64), "finite"),
        (torch.tensor([0.1, float("inf"), 1.0], dtype=torch.float64), "finite"),
    ]


@pytest.mark.parametrize(("rate", "sentence"), bad_rates())
def test_bad_rates_are_refused(rate: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"lr must be .*{sentence}"):
        optim.AdaptiveSGD([matrix()], rate)
    with pytest.raises(ValueError, match=f"lr must be .*{sentence}"):
        optim.GeneralizedAdaGrad([matrix()], rate, rowwise=True)
    with pytest.raises(ValueError, match=f"lr_x must be .*{sentence}"):
        steppers.Extragradient([matrix()], [matrix()], rate, 0.1, rowwise=True)
    with pytest.raises(ValueError, match=f"lr_y must be .*{sentence}"):
        steppers.TiAda([matrix()], [matrix()], 0.1, rate, rowwise=True)


def test_a_player_without_rows_takes_one_number() -> None:
    scalar = torch.ones((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="tensor"):
        optim.GeneralizedAdaGrad([matrix()], LR_X)
    with pytest.raises(ValueError, match="tensor"):
        optim.AdaptiveSGD([scalar], LR_X)
    with pytest.raises(ValueError, match="tensor"):
        optim.AdaptiveSGD([matrix(3), matrix(4)], LR_X)
    for make in (steppers.OptimisticGDA, steppers.SmoothedAGDA, steppers.AdaGDA):
        with pytest.raises(ValueError, match="lr_x"):
            make([matrix()], [matrix()], LR_X, 0.1)
