"""What `reset` and a zero gradient do to the state; more in neada.testing."""

import numpy as np
import pytest
import torch

from optimizers import Case, every_case, leaf, make, run


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
    kept = set(optimizer.param_groups[0]["numbers"])
    assert set(case.make.step_numbers) <= kept
    if case.name != "lbfgs":  # which also keeps its pairs
        assert not optimizer.state
        assert kept == set(case.make.step_numbers)


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
