"""Every optimizer against its reference, and as a torch optimizer."""

import pickle

import numpy as np
import pytest
import torch

from neada import sets
from neada.testing import check_optimizer
from optimizers import (
    CASES,
    Case,
    Problem,
    cases,
    every_case,
    feed,
    leaf,
    make,
    run,
    take_step,
    with_sets,
)


@every_case
def test_follows_the_reference_for_50_steps(case: Case) -> None:
    problem = Problem()
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    judge = case.reference(np.zeros(6), **case.judged_kwargs)
    for _ in range(50):
        point = judge.w.copy()
        gradient, value = problem.gradient(point), problem.value(point)
        judge.step(gradient, value, problem.value)
        # Both get the judge's gradient: in closed loop some methods amplify rounding.
        feed(optimizer, [w], gradient)
        optimizer.step(lambda: problem.torch_value(w), value=value)  # type: ignore[call-arg]
        np.testing.assert_allclose(w.detach().numpy(), judge.w, rtol=1e-9, atol=1e-12)


@cases(needs="gradient")
def test_follows_the_reference_for_100_random_gradients(case: Case) -> None:
    generator = np.random.default_rng(1)
    w = leaf(np.zeros(4))
    optimizer = make(case, [w])
    judge = case.reference(np.zeros(4), **case.judged_kwargs)
    for k in range(100):
        g = generator.normal(size=4) * 10.0 ** generator.uniform(-3, 1) * (k % 7 != 3)
        judge.step(g)
        feed(optimizer, [w], g)
        optimizer.step()
        np.testing.assert_allclose(w.detach().numpy(), judge.w, rtol=1e-9, atol=1e-12)


@with_sets
@pytest.mark.parametrize("shape", ["box", "ball"])
def test_follows_the_reference_with_a_set(case: Case, shape: str) -> None:
    problem = Problem()
    if shape == "box":
        constraint, project = sets.Box(-0.3, 0.4), lambda v: np.clip(v, -0.3, 0.4)
    else:
        constraint = sets.L2Ball(0.7)
        project = lambda v: v * min(1.0, 0.7 / max(np.linalg.norm(v), 1e-300))  # noqa: E731
    w = leaf(np.zeros(6))
    optimizer = make(case, [w], constraint=constraint)
    judge = case.reference(np.zeros(6), project, **case.judged_kwargs)
    for _ in range(30):
        point = judge.w.copy()
        judge.step(problem.gradient(point), problem.value(point), problem.value)
        take_step(optimizer, case, lambda: problem.torch_value(w))
        np.testing.assert_allclose(w.detach().numpy(), judge.w, rtol=1e-8, atol=1e-10)


@every_case
def test_hooks_and_pickles(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    run(case, optimizer, w, 3)
    pickled, pickled_w = pickle.loads(pickle.dumps((optimizer, w)))
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(case, optimizer, w, 2)
    run(case, pickled, pickled_w, 2)
    assert calls == ["before", "after"] * 2
    assert torch.equal(w, pickled_w)


@pytest.mark.parametrize("case", [c for c in CASES if "lr" in c.make.per_group], ids=str)
def test_learning_rate_schedulers_work(case: Case) -> None:
    slow, fast = leaf(np.zeros(6)), leaf(np.zeros(6))
    scheduled, plain = make(case, [slow]), make(case, [fast])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(scheduled, gamma=0.1)
    run(case, scheduled, slow, 1)
    run(case, plain, fast, 1)
    scheduler.step()
    before = slow.detach().clone()
    run(case, scheduled, slow, 1)
    run(case, plain, fast, 1)
    torch.testing.assert_close(10.0 * (slow - before), fast - before, rtol=1e-12, atol=0.0)


@every_case
def test_passes_the_battery(case: Case) -> None:
    def make_one(params: object, maximize: bool = False, **kwargs: object) -> object:
        if maximize and "f_bound" in case.kwargs:
            kwargs["f_bound"] = -case.kwargs["f_bound"]
        return make(case, params, maximize=maximize, **kwargs)

    check_optimizer(make_one, rowwise=case.rowwise)
