"""Bad arguments of sets and points that do not fit raise."""

import math

import pytest
import torch

from neada.sets import Box, HalfSpace, L1Ball, L2Ball, Product, Set, Simplex
from neada.testing import check_set
from set_cases import vector

POINT = torch.zeros(3, 2)
BAD = [
    (lambda: L2Ball(-1.0), "radius"),
    (lambda: Simplex(0.0), "total"),
    (lambda: Simplex(vector(1.0, 0.0), per_sample=True), "total"),
    (lambda: L2Ball(vector(1.0, 2.0)), "per_sample"),
    (lambda: L2Ball(torch.ones(2, 2), per_sample=True), "radius"),
    (lambda: L2Ball(1.0, center=math.nan), "center"),
    (lambda: Box(1.0, 0.0), "lower"),
    (lambda: Box(0.0, vector(math.nan)), "upper"),
    (lambda: HalfSpace(vector(0.0, 0.0), 1.0), "normal"),
    (lambda: HalfSpace(1.0, math.nan), "offset"),
    (lambda: Product([]), "product"),
    (lambda: L2Ball(1.0).validate([]), "point"),
    (lambda: L2Ball(vector(1.0, 2.0), per_sample=True).validate(POINT), "entries"),
    (lambda: L2Ball(1.0, per_sample=True).validate(torch.tensor(1.0)), "scalar"),
    (lambda: L1Ball(1.0, per_sample=True).validate([POINT, POINT[:2]]), "rows"),
    (lambda: L2Ball(1.0, center=torch.zeros(1, 3, 2)).validate(POINT), "broadcast"),
    (lambda: Product([Box(0.0, 1.0)]).project([POINT, POINT]), "sets"),
    (lambda: Box(0.0, 1.0).gradient_mapping(POINT, POINT[0]), "gradient"),
]  # fmt: skip
WRONG_TYPES = [
    (lambda: Box([0.0, 0.0], 1.0), "as_tensor"),
    (lambda: L2Ball(1.0).project([1.0, 2.0]), "point"),
    (lambda: L2Ball(1.0).project(torch.zeros(3, dtype=torch.int64)), "floating"),
    (lambda: L2Ball(1.0).project(torch.zeros(3, dtype=torch.complex64)), "complex"),
    (lambda: L2Ball(1.0).project([POINT, POINT.double()]), "convert"),
    (lambda: Product([L2Ball(1.0), None]), "member"),
]


@pytest.mark.parametrize("call, message", BAD, ids=[message for _, message in BAD])
def test_bad_values_are_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("call, message", WRONG_TYPES, ids=[message for _, message in WRONG_TYPES])
def test_wrong_types_are_raise(call, message):
    with pytest.raises(TypeError, match=message):
        call()


class HalfLine(Set):
    """A set that implements nothing but its projection."""

    def _project_(self, tensors):
        for tensor in tensors:
            tensor.clamp_(min=1.0)


def test_a_projection_is_enough():
    check_set(HalfLine(), (3, 2))
    assert HalfLine().contains(vector(1.0, 2.0)) and not HalfLine().contains(vector(0.9, 2.0))
