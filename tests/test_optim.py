"""Every optimizer through one battery; what is special to one has a file of its own."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from neada import sets
from neada.optim import NonFiniteGradient
from optimizers import CASES, NAMES, Case, Problem, take_step

every_case = pytest.mark.parametrize("case", CASES, ids=NAMES)
with_rows = pytest.mark.parametrize(
    "case", [c for c in CASES if c.rowwise], ids=[c.name for c in CASES if c.rowwise]
)
with_sets = pytest.mark.parametrize(
    "case", [c for c in CASES if c.takes_sets], ids=[c.name for c in CASES if c.takes_sets]
)


def leaf(values: object, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(np.array(values), dtype=dtype).requires_grad_()


def make(case: Case, params: object, **kwargs: object) -> torch.optim.Optimizer:
    return case.make(params, **{**case.kwargs, **kwargs})


def run(case: Case, optimizer: torch.optim.Optimizer, w: torch.Tensor, num_steps: int) -> None:
    problem = Problem(dimension=w.shape[-1])
    for _ in range(num_steps):
        take_step(optimizer, case, lambda: problem.torch_value(w))


def feed(optimizer: torch.optim.Optimizer, params: list[torch.Tensor], gradient: object) -> None:
    """Put a flat gradient into the parameters, in order."""
    flat = torch.as_tensor(gradient)
    for p in params:
        p.grad = flat[: p.numel()].reshape(p.shape).to(p.dtype).clone()
        flat = flat[p.numel() :]


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
def test_maximising_equals_minimising_the_negative(case: Case) -> None:
    problem = Problem()
    kwargs = dict(case.kwargs)
    if "f_bound" in kwargs:
        kwargs["f_bound"] = -kwargs["f_bound"]
    low, high = leaf(np.zeros(6)), leaf(np.zeros(6))
    minimise, maximise = make(case, [low]), case.make([high], **{**kwargs, "maximize": True})
    for _ in range(30):
        take_step(minimise, case, lambda: problem.torch_value(low))
        take_step(maximise, case, lambda: problem.torch_value(high), sign=-1.0)
    assert torch.equal(low, high)
    assert not torch.equal(low, torch.zeros_like(low))


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
    if case.name.startswith("adgd"):
        pytest.skip("lr is only the first step of AdGD")
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


# What is refused.


@pytest.mark.parametrize(
    ("case", "kwargs", "message"),
    [(case, kwargs, message) for case in CASES for kwargs, message in case.bad],
    ids=lambda entry: entry.name if isinstance(entry, Case) else None,
)
def test_bad_arguments_are_named(case: Case, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(case, [leaf(np.zeros(2))], **kwargs)
    name = next(iter(kwargs))
    if name not in case.make.shared:
        with pytest.raises(ValueError, match=message):
            make(case, [{"params": [leaf(np.zeros(2))], **kwargs}])


@every_case
def test_shared_arguments_cannot_differ_between_groups(case: Case) -> None:
    for name in case.make.shared:
        groups = [{"params": [leaf(np.zeros(2))]}, {"params": [leaf(np.zeros(2))], name: "other"}]
        with pytest.raises(ValueError, match=f"{name} is one number for the whole player"):
            make(case, groups)


@every_case
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_gradient_is_named_and_changes_nothing(case: Case, bad: float) -> None:
    first, second = leaf(np.zeros(6)), leaf(np.zeros((2, 3)))
    optimizer = make(case, [first, second])
    problem = Problem()
    value = lambda: problem.torch_value(first + second.flatten())  # noqa: E731
    for _ in range(3):
        take_step(optimizer, case, value)
    before = copy.deepcopy((first.detach(), second.detach(), optimizer.state_dict()))
    first.grad, second.grad = torch.zeros_like(first), torch.zeros_like(second)
    second.grad[1, 2] = bad
    with pytest.raises(NonFiniteGradient, match=r"parameter 1, shape \(2, 3\), has 1 non-finite"):
        optimizer.step(value, value=1.0)  # type: ignore[call-arg]
    after = (first.detach(), second.detach(), optimizer.state_dict())
    assert repr(after) == repr(before)


@every_case
def test_sparse_gradients_are_refused(case: Case) -> None:
    w = leaf(np.zeros(3))
    w.grad = torch.zeros(3, dtype=torch.float64).to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        make(case, [w]).step(value=0.0)  # type: ignore[call-arg]


@every_case
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([torch.zeros(2, dtype=torch.complex64)], "is complex"),
        ([torch.zeros(2), torch.zeros(2, dtype=torch.float64)], "convert them to one dtype"),
        ([torch.zeros(2, dtype=torch.int64)], "a floating dtype is needed"),
    ],
    ids=["complex", "mixed", "integer"],
)
def test_dtypes_that_cannot_be_a_player(
    case: Case, params: list[torch.Tensor], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make(case, params)


@every_case
def test_an_empty_player_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        make(case, [])


@pytest.mark.parametrize("case", [c for c in CASES if c.needs != "gradient"], ids=lambda c: c.name)
def test_a_missing_value_or_closure_is_asked_for(case: Case) -> None:
    w = leaf(np.zeros(2))
    w.grad = torch.ones_like(w)
    with pytest.raises(ValueError, match="needs the value of the objective"):
        make(case, [w]).step()
    if case.needs == "closure":
        with pytest.raises(ValueError, match="needs a closure"):
            make(case, [w]).step(value=1.0)  # type: ignore[call-arg]
    with pytest.raises(FloatingPointError, match="not finite at the current point"):
        make(case, [w]).step(lambda: 0.0, value=float("nan"))  # type: ignore[call-arg]
    assert torch.equal(w, torch.zeros(2, dtype=torch.float64))


# Rows.


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


# State.


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
    assert float((found - solution).norm()) <= case.accuracy
