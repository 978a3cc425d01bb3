"""Rows of one tensor as players of their own: each equals its run alone."""

import numpy as np
import pytest
import torch

from neada import sets
from optimizers import Case, Problem, leaf, make, run, take_step, with_rows


@with_rows
def test_a_row_equals_the_same_problem_alone(case: Case) -> None:
    problem = Problem()
    start = np.random.default_rng(3).normal(size=(4, 6))
    rows = leaf(start)
    alone = [leaf(row[None]) for row in start]
    together = make(case, [rows], rowwise=True)
    separate = [make(case, [w]) for w in alone]
    for _ in range(12):
        take_step(together, case, lambda: problem.torch_value(rows))
        for w, optimizer in zip(alone, separate, strict=True):
            take_step(optimizer, case, lambda w=w: problem.torch_value(w).sum())
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-8, atol=1e-10)


@with_rows
def test_a_row_with_zero_gradient_rests_as_it_would_alone(case: Case) -> None:
    """Rows start and stop moving at different times; each must equal its own run."""
    generator = np.random.default_rng(4)
    pauses = np.array([[1, 1, 0, 1, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0, 1, 1], [1] * 8]).T
    rows, alone = leaf(np.zeros((3, 2))), [leaf(np.zeros((1, 2))) for _ in range(3)]
    together = make(case, [rows], rowwise=True)
    separate = [make(case, [w]) for w in alone]
    targets = torch.as_tensor(generator.normal(size=(3, 2)))

    def value(w: torch.Tensor, target: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
        return (((w - target) ** 2).sum(-1) + 1.0) * moving + 1.0

    for moving in torch.as_tensor(pauses, dtype=torch.float64):
        take_step(together, case, lambda m=moving: value(rows, targets, m))
        for i, (w, optimizer) in enumerate(zip(alone, separate, strict=True)):
            take_step(optimizer, case, lambda i=i, w=w, m=moving: value(w, targets[i], m[i]).sum())
    torch.testing.assert_close(rows, torch.cat(alone), rtol=1e-9, atol=1e-12)


@with_rows
def test_rows_must_agree_and_sets_must_not_tie_them(case: Case) -> None:
    with pytest.raises(ValueError, match="the same number of rows"):
        make(case, [leaf(np.zeros((2, 3))), leaf(np.zeros((3, 3)))], rowwise=True)
    with pytest.raises(ValueError, match="has no rows"):
        make(case, [leaf(0.0)], rowwise=True)
    if case.takes_sets:
        with pytest.raises(ValueError, match="ties the rows together"):
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


@with_rows
def test_rows_are_resumed_exactly(case: Case) -> None:
    start = np.random.default_rng(2).normal(size=(3, 6))
    whole, half = leaf(start, torch.float32), leaf(start, torch.float32)
    run(case, make(case, [whole], rowwise=True), whole, 40)
    first = make(case, [half], rowwise=True)
    run(case, first, half, 20)
    saved = first.state_dict()
    run(case, first, half.detach().clone().requires_grad_(), 0)
    second = make(case, [half], rowwise=True)
    second.load_state_dict(saved)
    run(case, second, half, 20)
    assert torch.equal(whole, half)
