"""Every optimizer against its reference, as a torch optimizer, and to the solution in a box."""

import numpy as np
import pytest
import torch

from neada import sets
from optimizers import (
    CASES,
    Case,
    Problem,
    every_case,
    feed,
    leaf,
    make,
    run,
    take_step,
    with_sets,
)

# Against the references.


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


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.needs == "gradient"],
    ids=[c.name for c in CASES if c.needs == "gradient"],
)
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


# What every torch optimizer does.


@every_case
def test_maximizing_equals_minimizing_the_negative(case: Case) -> None:
    problem = Problem()
    kwargs = dict(case.kwargs)
    if "f_bound" in kwargs:
        kwargs["f_bound"] = -kwargs["f_bound"]
    low, high = leaf(np.zeros(6)), leaf(np.zeros(6))
    minimize, maximize = make(case, [low]), case.make([high], **{**kwargs, "maximize": True})
    for _ in range(30):
        take_step(minimize, case, lambda: problem.torch_value(low))
        take_step(maximize, case, lambda: problem.torch_value(high), sign=-1.0)
    assert torch.equal(low, high)
    assert not torch.equal(low, torch.zeros_like(low))


@every_case
def test_two_groups_and_three_tensors_are_one_player(case: Case) -> None:
    problem = Problem()
    joint = leaf(np.zeros(6))
    parts = [leaf(np.zeros(1)), leaf(np.zeros((2, 1))), leaf(np.zeros(3))]
    one = make(case, [joint])
    split = make(case, [{"params": parts[:2]}, {"params": parts[2:]}])
    for _ in range(12):
        take_step(one, case, lambda: problem.torch_value(joint))
        take_step(split, case, lambda: problem.torch_value(torch.cat([p.flatten() for p in parts])))
    together = torch.cat([p.flatten() for p in parts])
    torch.testing.assert_close(together, joint, rtol=1e-9, atol=1e-11)


@every_case
def test_a_tensor_without_gradient_is_left_alone(case: Case) -> None:
    used, unused = leaf(np.zeros(6)), leaf(np.ones(3))
    run(case, make(case, [unused, used]), used, 5)
    assert torch.equal(unused, torch.ones(3, dtype=torch.float64))
    assert not torch.equal(used, torch.zeros(6, dtype=torch.float64))


@every_case
def test_no_gradient_at_all_is_no_step(case: Case) -> None:
    w = leaf(np.ones(3))
    make(case, [w]).step()
    assert torch.equal(w, torch.ones(3, dtype=torch.float64))


@every_case
def test_float32_follows_float64(case: Case) -> None:
    single, double = leaf(np.zeros(6), torch.float32), leaf(np.zeros(6))
    run(case, make(case, [single]), single, 10)
    run(case, make(case, [double]), double, 10)
    # A step whose acceptance is decided by rounding may differ, but not in the first ten.
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-4)
    assert single.dtype == torch.float32


@every_case
def test_groups_may_be_added_later(case: Case) -> None:
    problem = Problem()
    first, second = leaf(np.zeros(3)), leaf(np.zeros(3))
    optimizer = make(case, [first])
    for _ in range(3):
        take_step(optimizer, case, lambda: problem.torch_value(torch.cat([first, second])))
    assert torch.equal(second, torch.zeros(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [second]})
    for _ in range(3):
        take_step(optimizer, case, lambda: problem.torch_value(torch.cat([first, second])))
    assert second.isfinite().all()
    assert not torch.equal(second, torch.zeros(3, dtype=torch.float64))


@every_case
def test_hooks_run_before_and_after_each_step(case: Case) -> None:
    w = leaf(np.zeros(6))
    optimizer = make(case, [w])
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(case, optimizer, w, 2)
    assert calls == ["before", "after"] * 2


@every_case
def test_torchs_usual_closure_gives_the_same_steps(case: Case) -> None:
    problem = Problem()
    ours, usual = leaf(np.zeros(6)), leaf(np.zeros(6))
    stepper_style, torch_style = make(case, [ours]), make(case, [usual])

    def closure() -> torch.Tensor:
        torch_style.zero_grad(set_to_none=False)
        loss = problem.torch_value(usual)
        loss.backward()
        return loss

    for _ in range(10):
        take_step(stepper_style, case, lambda: problem.torch_value(ours))
        before = usual.detach().clone()
        loss = torch_style.step(closure)
        assert loss == problem.torch_value(before)
    assert torch.equal(ours, usual)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if "lr" in c.kwargs and c.needs == "gradient"],
    ids=[c.name for c in CASES if "lr" in c.kwargs and c.needs == "gradient"],
)
def test_learning_rate_schedulers_work(case: Case) -> None:
    if case.name.startswith(("adgd", "spg")):
        pytest.skip("lr is only the first step")
    slow, fast = leaf(np.zeros(6)), leaf(np.zeros(6))
    scheduled = make(case, [slow])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(scheduled, gamma=0.1)
    plain = make(case, [fast])
    run(case, scheduled, slow, 1)
    run(case, plain, fast, 1)
    scheduler.step()
    before = slow.detach().clone()
    run(case, scheduled, slow, 1)
    run(case, plain, fast, 1)
    torch.testing.assert_close(10.0 * (slow - before), fast - before, rtol=1e-12, atol=0.0)


# Convergence.


@with_sets
def test_reaches_the_solution_of_a_quadratic_in_a_box(case: Case) -> None:
    """The solution has active bounds; `accuracy` in the table says what each method promises."""
    problem = Problem(dimension=4, kappa=10.0, seed=5)
    box = sets.Box(-0.5, 0.5)
    solution = torch.zeros(4, dtype=torch.float64)
    matrix = torch.as_tensor(problem.matrix)
    for _ in range(5000):  # plain projected gradient descent as the judge
        gradient = matrix @ (solution - torch.as_tensor(problem.center))
        solution = (solution - gradient / 10.0).clamp(-0.5, 0.5)
    assert bool((solution.abs() == 0.5).any())
    w = leaf(np.zeros(4))
    optimizer = make(case, [w], constraint=box)
    for _ in range(2000):
        take_step(optimizer, case, lambda: problem.torch_value(w))
        assert bool(box.contains(w))
    if case.answer == "point":
        found = w.detach().clone()
    else:
        with getattr(optimizer, case.answer)():
            found = w.detach().clone()
    assert bool(box.contains(found))
    if case.accuracy is None:
        pytest.skip("a moving cap with a loose bound promises no convergence")
    assert float((found - solution).norm()) <= case.accuracy
