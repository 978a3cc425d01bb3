"""Rows of one tensor as players of their own: each equals its run alone."""

import numpy as np
import pytest
import torch

from neada import optim, sets
from optimizers import Case, Problem, cases, leaf, make, take_step


def test_rows_must_agree_and_sets_must_not_tie_them() -> None:
    with pytest.raises(ValueError, match="same"):
        optim.AdGD([leaf(np.zeros((2, 3))), leaf(np.zeros((3, 3)))], rowwise=True)
    with pytest.raises(ValueError, match="rows"):
        optim.AdGD([leaf(0.0)], rowwise=True)
    with pytest.raises(ValueError, match="ties"):
        optim.AdGD([leaf(np.zeros((2, 3)))], rowwise=True, constraint=sets.L2Ball(1.0))


@cases(rowwise=True, takes_sets=True)
def test_rows_in_their_own_balls_equal_runs_alone(case: Case) -> None:
    problem = Problem()
    radii = torch.tensor([0.3, 0.6, 5.0], dtype=torch.float64)
    rows = leaf(np.zeros((3, 6)))
    alone = [leaf(np.zeros((1, 6))) for _ in radii]
    together = make(case, [rows], rowwise=True, constraint=sets.L2Ball(radii, per_sample=True))
    separate = [
        make(case, [w], constraint=sets.L2Ball(float(r))) for w, r in zip(alone, radii, strict=True)
    ]
    for _ in range(20):
        take_step(together, case, lambda: problem.torch_value(rows))
        for w, optimizer in zip(alone, separate, strict=True):
            take_step(optimizer, case, lambda w=w: problem.torch_value(w).sum())
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-7, atol=1e-9)


@cases(rowwise=True, takes_sets=True)
@pytest.mark.parametrize("start", [0.0, 5.0], ids=["inside", "outside"])
def test_rows_rest_in_their_sets_as_they_would_alone(case: Case, start: float) -> None:
    """Also from a start outside the set, and with the second row at rest in the first step."""
    moving = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], dtype=torch.float64)
    targets = torch.tensor([[2.0, 0.1], [-0.3, 0.4]], dtype=torch.float64)
    rows, alone = leaf(np.full((2, 2), start)), [leaf(np.full((1, 2), start)) for _ in range(2)]
    together = make(case, [rows], rowwise=True, constraint=sets.L2Ball(1.0, per_sample=True))
    separate = [make(case, [w], constraint=sets.L2Ball(1.0)) for w in alone]

    def value(w: torch.Tensor, target: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
        return (((w - target) ** 2).sum(-1) + 1.0) * moves + 1.0

    for moves in moving:
        take_step(together, case, lambda m=moves: value(rows, targets, m))
        for i, (w, optimizer) in enumerate(zip(alone, separate, strict=True)):
            take_step(optimizer, case, lambda i=i, w=w, m=moves: value(w, targets[i], m[i]).sum())
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-8, atol=1e-10)
    assert bool(sets.L2Ball(1.0, per_sample=True).contains(rows).all())
