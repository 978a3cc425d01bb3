"""Bad arguments of sets and points that do not fit are refused with a sentence."""

import math

import numpy as np
import pytest
import torch

from neada.sets import Box, HalfSpace, L1Ball, L2Ball, LinfBall, Product, Simplex
from set_cases import INF, draw, every_case, vector

POINT = torch.zeros(3, 2)
BAD = [
    (lambda: L2Ball(-1.0), "radius must be finite and at least 0, got -1.0"),
    (lambda: L1Ball(math.nan), "radius must be finite and at least 0, got nan"),
    (lambda: LinfBall(INF), "radius must be finite and at least 0, got inf"),
    (lambda: Simplex(0.0), "total must be finite and positive, got 0.0"),
    (lambda: Simplex(vector(1.0, 0.0), per_sample=True), "total must be finite and positive"),
    (lambda: L2Ball(vector(1.0, -1.0), per_sample=True), "radius must be finite"),
    (lambda: L2Ball(vector(1.0, 2.0)), "per_sample=True one number per row"),
    (lambda: L2Ball(torch.ones(2, 2), per_sample=True), r"one number per row, shape \[rows\]"),
    (lambda: L2Ball(1.0, center=math.nan), "center has a NaN"),
    (lambda: L1Ball(1.0, center=vector(0.0, INF)), "center has an infinite entry"),
    (lambda: Box(1.0, 0.0), "lower must not exceed upper"),
    (lambda: Box(vector(0.0, 2.0), 1.0), "lower must not exceed upper"),
    (lambda: Box([vector(0.0), vector(2.0)], 1.0), "lower must not exceed upper"),
    (lambda: Box([vector(0.0)] * 2, [vector(1.0)] * 3), "longer"),
    (lambda: Box(math.nan, 1.0), "lower has a NaN"),
    (lambda: Box(0.0, vector(math.nan)), "upper has a NaN"),
    (lambda: Box(INF, INF), "a number must fit"),
    (lambda: HalfSpace(vector(0.0, 0.0), 1.0), "normal must be finite and not zero"),
    (lambda: HalfSpace(INF, 1.0), "normal must be finite and not zero"),
    (lambda: HalfSpace(1.0, math.nan), "offset must be finite"),
    (lambda: HalfSpace(1e-300, 1e300), "offset must be finite, also divided by the normal"),
    (lambda: Product([]), "a product needs at least one set"),
    (lambda: L2Ball(1.0).validate([]), "the point has no tensors"),
    (lambda: Simplex().validate(torch.zeros(0)), "the point has no entries"),
    (lambda: L2Ball(vector(1.0, 2.0), per_sample=True).validate(POINT), "2 entries .* has 3 rows"),
    (lambda: LinfBall(vector(1.0), per_sample=True).validate(POINT), "1 entries .* has 3 rows"),
    (lambda: L2Ball(1.0, per_sample=True).validate(torch.tensor(1.0)), "scalar and has no rows"),
    (lambda: L1Ball(1.0, per_sample=True).validate([POINT, POINT[:2]]), "1 has 2 rows but"),
    (lambda: L2Ball(1.0, center=torch.zeros(3)).validate(POINT), r"center of shape \(3,\)"),
    (lambda: L2Ball(1.0, center=torch.zeros(1, 3, 2)).validate(POINT), "does not broadcast"),
    (lambda: LinfBall(1.0, center=[POINT]).validate([POINT, POINT]), "center has 1 tensors but"),
    (lambda: Box(torch.zeros(3), 1.0).validate(POINT), r"lower of shape \(3,\) does not broadcast"),
    (lambda: Box(0.0, [POINT]).validate([POINT, POINT]), "upper has 1 tensors but the point has 2"),
    (lambda: HalfSpace(torch.ones(5), 1.0).project(POINT), "normal of shape .* does not broadcast"),
    (lambda: Product([Box(0.0, 1.0)]).project([POINT, POINT]), "1 sets but the point has 2"),
    (lambda: Product([Simplex(vector(1.0), per_sample=True)]).validate(POINT), "1 entries"),
    (lambda: Box(0.0, 1.0).gradient_mapping(POINT, POINT[0]), "the gradient has shapes"),
    (lambda: Box(0.0, 1.0).gradient_mapping([POINT], [POINT, POINT]), "the gradient has shapes"),
]  # fmt: skip
WRONG_TYPES = [
    (lambda: Box([0.0, 0.0], 1.0), r"of numbers a tensor with torch.as_tensor"),
    (lambda: L2Ball(1.0).project([1.0, 2.0]), "a point is a tensor or a list of tensors"),
    (lambda: L2Ball(1.0).project(np.zeros(3)), "a point is a tensor or a list of tensors"),
    (lambda: L2Ball(1.0).project(torch.zeros(3, dtype=torch.int64)), "a floating dtype is needed"),
    (lambda: L2Ball(1.0).project(torch.zeros(3, dtype=torch.complex64)), "complex"),
    (lambda: L2Ball(1.0).project([POINT, POINT.double()]), "convert them to one dtype"),
    (lambda: L2Ball(1.0).gradient_mapping(POINT, POINT.double()), "convert them to one dtype"),
    (lambda: Product([L2Ball(1.0), None]), r"member 1 of the product is a NoneType"),
]


@pytest.mark.parametrize("call, message", BAD, ids=[message for _, message in BAD])
def test_bad_values_are_refused_with_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("call, message", WRONG_TYPES, ids=[message for _, message in WRONG_TYPES])
def test_wrong_types_are_refused_with_a_sentence(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@every_case
def test_validate_accepts_points_that_fit(case):
    case.set.validate(draw(case, 0))
