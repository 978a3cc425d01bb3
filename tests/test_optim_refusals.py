"""What every optimizer refuses: bad arguments, gradients, dtypes and missing values."""

import copy
import inspect

import numpy as np
import pytest
import torch

from neada.optim import NonFiniteGradient
from optimizers import CASES, Case, Problem, every_case, leaf, make, take_step


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
def test_flags_are_true_or_false(case: Case) -> None:
    for name in ("maximize", "rowwise"):
        if name in inspect.signature(case.make).parameters:
            with pytest.raises(ValueError, match=name):
                make(case, [leaf(np.zeros((2, 2)))], **{name: "no"})
    with pytest.raises(ValueError, match="maximize"):
        make(case, [{"params": [leaf(np.zeros((2, 2)))], "maximize": "no"}])


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
    with pytest.raises(NonFiniteGradient, match="parameter"):
        optimizer.step(value, value=1.0)  # type: ignore[call-arg]
    after = (first.detach(), second.detach(), optimizer.state_dict())
    assert repr(after) == repr(before)


@every_case
def test_sparse_gradients_are_refused(case: Case) -> None:
    w = leaf(np.zeros(3))
    w.grad = torch.zeros(3, dtype=torch.float64).to_sparse()
    with pytest.raises(RuntimeError, match="support"):
        make(case, [w]).step(value=0.0)  # type: ignore[call-arg]


@every_case
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([torch.zeros(2, dtype=torch.complex64)], "complex"),
        ([torch.zeros(2), torch.zeros(2, dtype=torch.float64)], "convert"),
        ([torch.zeros(2, dtype=torch.int64)], "floating"),
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
    with pytest.raises(ValueError, match="empty"):
        make(case, [])


@pytest.mark.parametrize("case", [c for c in CASES if c.needs != "gradient"], ids=lambda c: c.name)
def test_a_missing_value_or_closure_is_asked_for(case: Case) -> None:
    w = leaf(np.zeros(2))
    w.grad = torch.ones_like(w)
    with pytest.raises(ValueError, match="value"):
        make(case, [w]).step()
    if case.needs == "closure":
        with pytest.raises(ValueError, match="closure"):
            make(case, [w]).step(value=1.0)  # type: ignore[call-arg]
    with pytest.raises(FloatingPointError, match="current"):
        make(case, [w]).step(lambda: 0.0, value=float("nan"))  # type: ignore[call-arg]
    assert torch.equal(w, torch.zeros(2, dtype=torch.float64))
