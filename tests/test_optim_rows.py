"""Rows of one tensor as players of their own: each equals its run alone."""

import numpy as np
import pytest
import torch

from neada import sets
from optimizers import Case, Problem, leaf, make, take_step, with_rows


@with_rows
def test_rows_must_agree_and_sets_must_not_tie_them(case: Case) -> None:
    with pytest.raises(ValueError, match="same"):
        make(case, [leaf(np.zeros((2, 3))), leaf(np.zeros((3, 3)))], rowwise=True)
    with pytest.raises(ValueError, match="rows"):
        make(case, [leaf(0.0)], rowwise=True)
    if case.takes_sets:
        with pytest.raises(ValueError, match="ties"):
            make(case, [leaf(np.zeros((2, 3)))], rowwise=True, constraint=sets.L2Ball(1.0))


@with_rows
def test_rows_in_their_own_balls_equal_runs_alone(case: Case) -> None:
    if not case.takes_sets:
        pytest.skip("this variant has no version for sets")
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
