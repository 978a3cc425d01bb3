"""What every optimizer refuses: bad arguments, gradients, dtypes and missing values."""

import math

import numpy as np
import pytest
import torch

from neada import optim
from optimizers import CASES, Case, every_case, leaf, make

BAD: dict[str, list[dict[str, object]]] = {
    "gd": [{"lr": 0.0}, {"beta": 1.0}, {"psi": "rmsprop"}, {"gamma": 1.0}, {"v0": -1.0}],
    "adagrad-norm": [{"lr": 0.0}, {"alpha": 1.5}, {"average": -1.0}, {"v0": 0.0}],
    "gen-adagrad-0.75": [{"v0": 1e-8}],
    "adagrad-mapping": [{"accumulate": "x"}],
    "backtracking-quad": [{"lr": 0.0}, {"test": "wolfe"}, {"grow": 0.5}, {"c": 1.0}],
    "sls": [{"shrink": 1.0}, {"num_batches": 0}, {"growth": 0.5}],
    "adgd-mm20": [{"lr": 0.0}, {"variant": "mm21"}],
    "polyak": [{"f_bound": math.nan}, {"c": 0.0}],
    "sps": [{"max_step": 0.0}, {"growth": 0.9}],
    "decsps": [{"c0": -1.0}],
    "hazan-kakade": [{"epoch_steps": 0}],
    "sc-adangd": [{"strong_convexity": 0.0}, {"power": 3}],
    "kt": [{"bound": math.inf}, {"wealth": 0}],
    "cocob": [{"alpha": 0.0}, {"scale0": 0.0}],
    "coin": [{"bound": -1.0}],
    "dog": [{"lr": 0.0}, {"r_eps": 0.0}],
    "strongly-convex-sgd": [{"lr": 0.0}, {"strong_convexity": 0.0}],
    "spg": [{"lr": 0.0}, {"first_move": 1.0, "lr": 1.0}],
    "lbfgs": [{"lr": 0.0}, {"history": 0}],
}


@every_case
def test_bad_arguments_are_named(case: Case) -> None:
    for kwargs in BAD.get(case.name, []):
        name = next(iter(kwargs))
        with pytest.raises(ValueError, match=name):
            make(case, [leaf(np.zeros((2, 2)))], **kwargs)
        if len(kwargs) == 1:
            with pytest.raises(ValueError, match=name):
                make(case, [{"params": [leaf(np.zeros((2, 2)))], **kwargs}])


@every_case
def test_only_some_arguments_may_differ_between_groups(case: Case) -> None:
    defaults = make(case, [leaf(np.zeros(2))]).defaults
    for name in set(defaults) - {"constraint", *case.make.per_group}:
        groups = [{"params": [leaf(np.zeros(2))]}, {"params": [leaf(np.zeros(2))], name: "other"}]
        with pytest.raises(ValueError, match=name):
            make(case, groups)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([torch.zeros(2, dtype=torch.complex64)], "complex"),
        ([torch.zeros(2), torch.zeros(2, dtype=torch.float64)], "convert"),
        ([torch.zeros(2, dtype=torch.int64)], "floating"),
    ],
    ids=["complex", "mixed", "integer"],
)
def test_dtypes_that_cannot_be_a_player(params: list[torch.Tensor], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        optim.AdGD(params)


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
