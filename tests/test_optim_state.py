"""The state of every optimizer: pickled, kept by a reset, and at rest; more in neada.testing."""

import pickle

import numpy as np
import pytest
import torch

from optimizers import Case, every_case, leaf, make, run


@every_case
def test_pickles_go_on_alike(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    run(case, optimizer, w, 5)
    pickled, pickled_w = pickle.loads(pickle.dumps((optimizer, w)))
    for o, p in ((optimizer, w), (pickled, pickled_w)):
        run(case, o, p, 5)
    assert torch.equal(w, pickled_w)


@every_case
def test_keeping_the_step_needs_a_step(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    run(case, optimizer, w, 5)
    if not case.make.step_numbers:
        with pytest.raises(ValueError, match="step"):
            optimizer.reset(keep="step")
        return
    optimizer.reset(keep="step")
    assert set(case.make.step_numbers) <= set(optimizer.param_groups[0]["numbers"])
    assert "started" not in optimizer.param_groups[0]["numbers"]
    if case.name != "lbfgs":  # its pairs are what a step is made of
        assert not optimizer.state
        assert set(optimizer.param_groups[0]["numbers"]) == set(case.make.step_numbers)
    with pytest.raises(ValueError, match="keep"):
        optimizer.reset(keep="all")


@every_case
def test_a_zero_gradient_changes_no_state(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    if not optimizer._rests_at_zero_gradient():
        pytest.skip("follows its formula, or records the point as the best")
    run(case, optimizer, w, 4)
    before = repr((w.detach(), optimizer.state_dict()))
    w.grad = torch.zeros_like(w)
    optimizer.step(lambda: 1.0, value=1.0)  # type: ignore[call-arg]
    assert repr((w.detach(), optimizer.state_dict())) == before
