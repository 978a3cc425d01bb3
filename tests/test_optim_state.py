"""The state of every optimizer: saved, resumed, copied, reset, and at rest."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from optimizers import Case, every_case, leaf, make, run


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_200_steps_equal_100_saved_loaded_and_100_more(case: Case, dtype: torch.dtype) -> None:
    whole, half = leaf(np.zeros(6), dtype), leaf(np.zeros(6), dtype)
    run(case, make(case, [whole]), whole, 200)
    first = make(case, [half])
    run(case, first, half, 100)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(case, [half])
    second.load_state_dict(torch.load(file, weights_only=True))
    run(case, second, half, 100)
    assert torch.equal(whole, half)


@every_case
def test_a_saved_state_does_not_change_with_further_steps(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    run(case, optimizer, w, 5)
    saved = optimizer.state_dict()["param_groups"]
    before = copy.deepcopy(saved)
    run(case, optimizer, w, 5)
    assert saved == before


@every_case
def test_deep_copies_and_pickles_go_on_alike(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    run(case, optimizer, w, 5)
    twin, twin_w = copy.deepcopy((optimizer, w))
    pickled, pickled_w = pickle.loads(pickle.dumps((optimizer, w)))
    for o, p in ((optimizer, w), (twin, twin_w), (pickled, pickled_w)):
        run(case, o, p, 5)
    assert torch.equal(w, twin_w)
    assert torch.equal(w, pickled_w)


@every_case
def test_reset_forgets_everything_but_the_point(case: Case) -> None:
    used, fresh = leaf(np.zeros(6)), leaf(np.zeros(6))
    optimizer = make(case, [used])
    run(case, optimizer, used, 7)
    fresh.data.copy_(used.data)
    optimizer.reset()
    run(case, optimizer, used, 7)
    run(case, make(case, [fresh]), fresh, 7)
    assert torch.equal(used, fresh)


@every_case
def test_reset_keeping_everything_changes_no_iterate(case: Case) -> None:
    used, kept = leaf(np.zeros(6)), leaf(np.zeros(6))
    plain, resetting = make(case, [used]), make(case, [kept])
    for _ in range(3):
        run(case, plain, used, 4)
        run(case, resetting, kept, 4)
        resetting.reset(keep="everything")
    assert torch.equal(used, kept)


@every_case
def test_keeping_the_step_needs_a_step(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    run(case, optimizer, w, 5)
    if not case.make.step_numbers:
        with pytest.raises(ValueError, match="has no step size to keep"):
            optimizer.reset(keep="step")
        return
    optimizer.reset(keep="step")
    assert set(case.make.step_numbers) <= set(optimizer.param_groups[0]["numbers"])
    assert "started" not in optimizer.param_groups[0]["numbers"]
    if case.name != "lbfgs":  # its pairs are what a step is made of
        assert not optimizer.state
        assert set(optimizer.param_groups[0]["numbers"]) == set(case.make.step_numbers)
    with pytest.raises(ValueError, match="keep must be one of"):
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
