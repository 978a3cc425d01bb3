"""Every set of the table in `set_cases.py` through one battery of properties."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neada.testing import check_set
from set_cases import (
    INF,
    draw,
    eps,
    every_case,
    everywhere,
    feasible,
    joined,
    same,
    violation,
)

PROPERTY = settings(max_examples=20, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([1e-3, 0.3, 1.0, 10.0, 1e3])
dtypes = st.sampled_from([torch.float32, torch.float64])


@every_case
@given(seeds, scales, dtypes)
@PROPERTY
def test_projection_is_feasible(case, seed, scale, dtype):
    point = draw(case, seed, scale, dtype)
    projected = case.set.project(point)
    # An entry is rounded by eps times itself, a constraint adds at most a dozen of them; entries
    # of unbounded sets are as large as the point.
    size = max(case.scale, *(float(t.abs().max()) for t in projected))
    assert violation(case, projected) <= 20 * eps(dtype) * size
    assert everywhere(case.set.contains(projected))


@every_case
def test_projection_agrees_with_slsqp(case):
    for seed in range(5):
        point = draw(case, seed, 3.0)
        sizes = np.cumsum([tensor.numel() for tensor in point])[:-1]

        def arrays(w, sizes=sizes):
            return [p.reshape(s) for p, s in zip(np.split(w, sizes), case.shapes, strict=True)]

        v, start = joined(point).numpy(), joined(feasible(case, seed)).numpy()
        inequalities = {"type": "ineq", "fun": lambda w, f=arrays: case.inequalities(f(w))}
        equalities = {"type": "eq", "fun": lambda w, f=arrays: case.equalities(f(w))}
        result = scipy.optimize.minimize(
            lambda w, v=v: 0.5 * np.sum((w - v) ** 2),
            start,
            jac=lambda w, v=v: w - v,
            constraints=[c for c in (inequalities, equalities) if c["fun"](start).size],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        # Finite differences of the constraints limit SLSQP to about 1e-7.
        np.testing.assert_allclose(joined(case.set.project(point)).numpy(), result.x, atol=2e-6)


@every_case
def test_nan_raises_and_nothing_is_changed(case):
    for i in range(len(case.shapes)):
        point = draw(case, 3, 10.0)
        point[i].view(-1)[-1] = math.nan
        original = [tensor.clone() for tensor in point]
        for method in (case.set.project, case.set.project_, case.set.contains):
            with pytest.raises(ValueError, match=f"tensor {i}.* NaN"):
                method(point)
        with pytest.raises(ValueError, match="gradient"):
            case.set.gradient_mapping(draw(case, 3), point)
        with pytest.raises(ValueError, match="point"):
            case.set.gradient_mapping(point, draw(case, 3))
        assert all(map(torch.equal, map(torch.nan_to_num, point), map(torch.nan_to_num, original)))


@every_case
def test_infinite_entries_are_clamped_by_elementwise_sets_only(case):
    point = draw(case, 3)
    point[0].view(-1)[:2] = torch.tensor([INF, -INF])
    original = [tensor.clone() for tensor in point]
    if case.set.elementwise:
        projected = case.set.project(point)
        assert everywhere(case.set.contains(projected)) and not joined(projected).isnan().any()
    else:
        with pytest.raises(ValueError, match="infinite"):
            case.set.project_(point)
        assert same(point, original)
        assert not everywhere(case.set.contains(point))


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_feasible(case, dtype):
    projected = case.set.project(draw(case, 1, 10.0, dtype))
    size = max(case.scale, *(float(t.abs().max()) for t in projected))
    assert violation(case, projected) <= 20 * eps(dtype) * size  # as for float32
    assert same(case.set.project(projected), projected)
    assert all(tensor.dtype == dtype for tensor in projected)


@every_case
def test_the_promises_of_a_set_are_kept(case):
    check_set(case.set, case.shapes)
