"""Every set through one battery of properties, then what is special to each.

The judge of feasibility and optimality is `Case.inequalities`/`equalities`: the set written down in
numpy, sharing no code with `neada.sets`. The L1 ball, for one, is the intersection of 2^n
half-spaces there.
"""

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neada.sets import (
    Box,
    HalfSpace,
    L1Ball,
    L2Ball,
    LinfBall,
    NonNegative,
    Product,
    Set,
    Simplex,
    WholeSpace,
)
from neada.sets import simplex as simplex_module

INF = math.inf
PROPERTY = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def rows_of(arrays):
    return np.concatenate([a.reshape(len(a), -1) for a in arrays], axis=1)


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def none(arrays):
    return np.zeros(0)


def l1_faces(rows, radii):
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=rows.shape[1])))
    return (np.reshape(radii, (-1, 1)) - rows @ signs.T).ravel()


@dataclass(frozen=True)
class Case:
    """A set, the shapes of its points, and its definition in numpy (>= 0 and == 0)."""

    name: str
    set: Set
    shapes: list[tuple[int, ...]]
    inequalities: Callable[[list[np.ndarray]], np.ndarray] = none
    equalities: Callable[[list[np.ndarray]], np.ndarray] = none
    scale: float = field(default=1.0, kw_only=True)  # largest coordinate of a feasible point

    def __str__(self):
        return self.name


CENTER = vector(0.5, -1.0, 0.25, 2.0)
ROW_CENTER = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 8
RADII = vector(0.5, 1.0, 2.0, 3.0)
RADII_NUMPY = RADII.numpy()
NORMAL = vector(1.0, -2.0, 0.5, 3.0)

CASES = [
    Case("whole space", WholeSpace(), [(5,), (2, 2)]),
    Case("box", Box(-0.5, 0.75), [(4,)], lambda a: np.r_[flat(a) + 0.5, 0.75 - flat(a)]),
    Case(
        "box, tensors",
        Box(vector(-1.0, -INF, 0.5, 0.0), vector(1.0, 2.0, INF, 0.0)),
        [(2, 4)],
        lambda a: np.r_[a[0][:, 0] + 1, 1 - a[0][:, 0], 2 - a[0][:, 1], a[0][:, 2] - 0.5],
        lambda a: a[0][:, 3],
        scale=2.0,
    ),
    Case(
        "box, list",
        Box([vector(0.0, 0.0), vector(-2.0)], 1.0),
        [(2,), (3,)],
        lambda a: np.r_[a[0], 1 - a[0], a[1] + 2, 1 - a[1]],
        scale=2.0,
    ),
    Case("nonnegative", NonNegative(), [(3,), (2, 2)], flat),
    Case(
        "half-space",
        HalfSpace(NORMAL, 1.5),
        [(4,)],
        lambda a: np.array([1.5 - NORMAL.numpy() @ a[0]]),
    ),
    Case(
        "half-space, list",
        HalfSpace([NORMAL[:2], NORMAL[2:].reshape(2, 1)], -0.5),
        [(2,), (2, 1)],
        lambda a: np.array([-0.5 - NORMAL.numpy() @ flat(a)]),
    ),
    Case(
        "half-space, float", HalfSpace(-2.0, 1.0), [(3,)], lambda a: np.array([1 + 2 * a[0].sum()])
    ),
    Case("L2", L2Ball(1.5), [(2,), (2, 1)], lambda a: np.array([1.5 - np.linalg.norm(flat(a))])),
    Case(
        "L2, center",
        L2Ball(0.75, center=CENTER),
        [(4,)],
        lambda a: np.array([0.75 - np.linalg.norm(a[0] - CENTER.numpy())]),
        scale=3.0,
    ),
    Case(
        "L2, per sample",
        L2Ball(RADII, center=[ROW_CENTER, ROW_CENTER[:, :1]], per_sample=True),
        [(4, 3), (4, 1)],
        lambda a: (
            RADII_NUMPY
            - np.linalg.norm(
                rows_of(a) - rows_of([ROW_CENTER.numpy(), ROW_CENTER[:, :1].numpy()]), axis=1
            )
        ),
        scale=5.0,
    ),
    Case(
        "Linf",
        LinfBall(0.75, center=1.0),
        [(2,), (1, 2)],
        lambda a: np.r_[flat(a) - 0.25, 1.75 - flat(a)],
        scale=2.0,
    ),
    Case(
        "Linf, per sample",
        LinfBall(RADII, center=ROW_CENTER, per_sample=True),
        [(4, 3)],
        lambda a: (RADII_NUMPY[:, None] - abs(a[0] - ROW_CENTER.numpy())).ravel(),
        scale=5.0,
    ),
    Case("L1", L1Ball(1.25), [(2,), (2,)], lambda a: l1_faces(flat(a)[None], 1.25)),
    Case(
        "L1, center",
        L1Ball(1.0, center=CENTER),
        [(4,)],
        lambda a: l1_faces((a[0] - CENTER.numpy())[None], 1.0),
        scale=3.0,
    ),
    Case(
        "L1, per sample",
        L1Ball(RADII, center=0.5, per_sample=True),
        [(4, 1, 2), (4,)],
        lambda a: l1_faces(rows_of(a) - 0.5, RADII_NUMPY),
        scale=4.0,
    ),
    Case("simplex", Simplex(), [(2,), (1, 3)], flat, lambda a: np.array([flat(a).sum() - 1.0])),
    Case(
        "simplex, per sample",
        Simplex(RADII, per_sample=True),
        [(4, 2), (4, 1)],
        flat,
        lambda a: rows_of(a).sum(axis=1) - RADII_NUMPY,
        scale=3.0,
    ),
    Case(
        "product",
        Product([L2Ball(1.0), Simplex(2.0), WholeSpace(), L1Ball(1.0, per_sample=True)]),
        [(3,), (3,), (2,), (2, 2)],
        lambda a: np.r_[1 - np.linalg.norm(a[0]), a[1], l1_faces(a[3], np.ones(2))],
        lambda a: np.array([a[1].sum() - 2.0]),
        scale=2.0,
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
seeds = st.integers(0, 2**31)
scales = st.sampled_from([1e-3, 0.3, 1.0, 10.0, 1e3])
dtypes = st.sampled_from([torch.float32, torch.float64])


def draw(case, seed, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in case.shapes]


def feasible(case, seed, dtype=torch.float64):
    return case.set.sample(draw(case, 0, dtype=dtype), torch.Generator().manual_seed(seed))


def joined(tensors):
    return torch.cat([tensor.reshape(-1).double() for tensor in tensors])


def violation(case, tensors):
    arrays = [tensor.double().numpy() for tensor in tensors]
    return max(
        float(np.max(-case.inequalities(arrays), initial=0.0)),
        float(np.max(np.abs(case.equalities(arrays)), initial=0.0)),
    )


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def everywhere(flag):
    return bool(torch.as_tensor(flag).all())


def eps(dtype):
    return torch.finfo(dtype).eps


# ---------------------------------------------------------------------------- the battery


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
@given(seeds, scales, dtypes)
@PROPERTY
def test_projection_is_idempotent_bit_for_bit(case, seed, scale, dtype):
    once = case.set.project(draw(case, seed, scale, dtype))
    assert same(case.set.project(once), once)


@every_case
@given(seeds, dtypes)
@PROPERTY
def test_point_inside_is_untouched_and_copied(case, seed, dtype):
    point = feasible(case, seed, dtype)
    projected = case.set.project(point)
    assert same(projected, point)
    assert all(p.data_ptr() != t.data_ptr() for p, t in zip(projected, point, strict=True))


@every_case
@given(seeds, seeds, scales)
@PROPERTY
def test_projection_is_nonexpansive(case, seed, other, scale):
    v, w = draw(case, seed, scale), draw(case, other)
    before = (joined(v) - joined(w)).norm()
    after = (joined(case.set.project(v)) - joined(case.set.project(w))).norm()
    # Rounding of two projections of points as large as these.
    assert after <= before + 1e-14 * (scale + case.scale + 10)


@every_case
@given(seeds, seeds, scales)
@PROPERTY
def test_projection_satisfies_the_variational_inequality(case, seed, other, scale):
    v, w = draw(case, seed, scale), feasible(case, other)
    p = joined(case.set.project(v))
    gap, towards = joined(v) - p, joined(w) - p
    # Zero in exact arithmetic at the worst; products of numbers of these sizes are rounded.
    assert torch.dot(gap, towards) <= 1e-14 * (1 + gap.norm()) * (case.scale + joined(v).norm())


@every_case
@given(seeds, scales, dtypes)
@PROPERTY
def test_in_place_equals_out_of_place(case, seed, scale, dtype):
    point = draw(case, seed, scale, dtype)
    original = [tensor.clone() for tensor in point]
    projected = case.set.project(point)
    assert same(point, original)
    tensors = list(point)
    assert case.set.project_(point) is point
    assert all(a is b for a, b in zip(point, tensors, strict=True))
    assert same(point, projected)


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
@given(seeds, dtypes)
@PROPERTY
def test_sample_is_feasible_and_shaped_like_its_argument(case, seed, dtype):
    like = draw(case, 0, dtype=dtype)
    point = case.set.sample(like, torch.Generator().manual_seed(seed))
    assert [(t.shape, t.dtype) for t in point] == [(t.shape, t.dtype) for t in like]
    assert violation(case, point) <= 20 * eps(dtype) * case.scale  # as for projections
    assert everywhere(case.set.contains(point))


@every_case
def test_sample_follows_the_generator_and_leaves_the_global_one(case):
    before = torch.get_rng_state()
    assert same(feasible(case, 7), feasible(case, 7))
    assert not same(feasible(case, 7), feasible(case, 8))
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        like = draw(case, 0)
        assert not same(case.set.sample(like), case.set.sample(like))


@every_case
@given(seeds, seeds)
@PROPERTY
def test_no_two_points_are_farther_apart_than_the_diameter(case, seed, other):
    v, w = draw(case, seed, 100.0), draw(case, other, 100.0)
    v, w = case.set.project(v), case.set.project(w)
    diameter = case.set.diameter(v)
    if case.set.per_sample:
        distance = np.linalg.norm(
            rows_of([a.numpy() - b.numpy() for a, b in zip(v, w, strict=True)]), axis=1
        )
        assert (distance <= diameter.numpy() * (1 + 1e-14)).all()  # rounding
    else:
        assert (joined(v) - joined(w)).norm() <= diameter * (1 + 1e-14)


@every_case
@given(seeds, seeds, scales)
@PROPERTY
def test_gradient_mapping_is_its_formula(case, seed, other, scale):
    y, g = feasible(case, seed), draw(case, other, scale)
    expected = joined(y) - joined(case.set.project([a + b for a, b in zip(y, g, strict=True)]))
    mapping = joined(case.set.gradient_mapping(y, g))
    # The two differ by the rounding of y + g only.
    torch.testing.assert_close(
        mapping, expected, rtol=0, atol=1e-15 * (10 * scale + case.scale + 10)
    )


@every_case
def test_tensor_gives_a_tensor_and_sequence_a_list(case):
    point = draw(case, 0)
    if len(point) == 1:
        assert torch.equal(case.set.project(point[0]), case.set.project(point)[0])
        assert isinstance(case.set.sample(point[0]), torch.Tensor)
        assert isinstance(case.set.gradient_mapping(point[0], point[0]), torch.Tensor)
        assert case.set.project_(point[0]) is point[0]
    assert isinstance(case.set.project(tuple(point)), list)
    assert isinstance(case.set.gradient_mapping(tuple(point), point), list)


@every_case
def test_nan_is_refused_and_nothing_is_changed(case):
    for i in range(len(case.shapes)):
        point = draw(case, 3, 10.0)
        point[i].view(-1)[-1] = math.nan
        original = [tensor.clone() for tensor in point]
        for method in (case.set.project, case.set.project_, case.set.contains):
            with pytest.raises(ValueError, match=rf"cannot project a point with NaN: tensor {i}"):
                method(point)
        with pytest.raises(ValueError, match="cannot project a gradient with NaN"):
            case.set.gradient_mapping(draw(case, 3), point)
        with pytest.raises(ValueError, match="the gradient mapping needs a finite point"):
            case.set.gradient_mapping(point, draw(case, 3))
        assert all(map(torch.equal, map(torch.nan_to_num, point), map(torch.nan_to_num, original)))


@every_case
def test_infinite_entries_are_clamped_by_elementwise_sets_and_refused_by_others(case):
    point = draw(case, 3)
    point[0].view(-1)[:2] = torch.tensor([INF, -INF])
    original = [tensor.clone() for tensor in point]
    if case.set.elementwise:
        projected = case.set.project(point)
        assert everywhere(case.set.contains(projected)) and not joined(projected).isnan().any()
    else:
        with pytest.raises(ValueError, match="cannot project a point with infinite entries"):
            case.set.project_(point)
        assert same(point, original)
        assert not everywhere(case.set.contains(point))


@every_case
def test_parameters_stay_leaves_and_results_have_no_graph(case):
    point = [tensor.requires_grad_() for tensor in draw(case, 1, 10.0)]
    case.set.project_(point)
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in point)
    results = [*case.set.project(point), *case.set.gradient_mapping(point, point)]
    assert not any(tensor.requires_grad for tensor in results)


@every_case
def test_strides_do_not_matter(case):
    point = draw(case, 1, 10.0)
    wide = [tensor.repeat_interleave(2, dim=-1)[..., ::2] for tensor in point]
    assert not all(tensor.is_contiguous() for tensor in wide)
    assert same(case.set.project_(wide), case.set.project(point))


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_feasible(case, dtype):
    projected = case.set.project(draw(case, 1, 10.0, dtype))
    size = max(case.scale, *(float(t.abs().max()) for t in projected))
    assert violation(case, projected) <= 20 * eps(dtype) * size  # as for float32
    assert same(case.set.project(projected), projected)
    assert all(tensor.dtype == dtype for tensor in projected)


@every_case
def test_repr_names_the_class_and_copies_behave_alike(case):
    assert repr(case.set).startswith(type(case.set).__name__ + "(")
    assert "\n" not in repr(case.set)
    point = draw(case, 1, 10.0)
    for twin in (copy.deepcopy(case.set), pickle.loads(pickle.dumps(case.set))):
        assert repr(twin) == repr(case.set)
        assert same(twin.project(point), case.set.project(point))


# ------------------------------------------------------- several tensors, rows, products

JOINT = [L2Ball(1.0), L1Ball(1.0), LinfBall(0.3), Simplex(), HalfSpace(-1.0, -9.5), Box(0.0, 0.5)]


@pytest.mark.parametrize("joint", JOINT, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_list_of_tensors_equals_the_long_vector(joint, dtype):
    generator = torch.Generator().manual_seed(0)
    point = [torch.randn(s, generator=generator, dtype=dtype) for s in [(3,), (), (2, 2), (1, 4)]]
    long = torch.cat([tensor.reshape(-1) for tensor in point])
    together = torch.cat([tensor.reshape(-1) for tensor in joint.project(point)])
    # The float64 sums may be added in another order.
    torch.testing.assert_close(together, joint.project(long), rtol=2 * eps(dtype), atol=0)
    assert joint.diameter(point) == pytest.approx(joint.diameter(long), rel=1e-15)
    assert joint.contains(point) == joint.contains(long)


ROWS = 7
SIZES = torch.linspace(0.5, 3.5, ROWS, dtype=torch.float64)


@pytest.mark.parametrize("ball", [L2Ball, L1Ball, LinfBall])
@pytest.mark.parametrize("center", [None, 0.25, "row", "full"])
@pytest.mark.parametrize("radius", [1.5, SIZES], ids=["one radius", "radii"])
def test_per_sample_ball_equals_a_loop_over_rows(ball, center, radius):
    point = torch.randn(ROWS, 2, 3, generator=torch.Generator().manual_seed(1)).double()
    point[::2] *= 0.05  # near the centers
    if isinstance(center, str):
        center = 0.1 * point.roll(1, 0)[: 1 if center == "row" else ROWS]
    batch = ball(radius, center=center, per_sample=True)
    projected = batch.project(point)
    contained, diameters = batch.contains(point), batch.diameter(point)
    assert contained.shape == diameters.shape == (ROWS,)
    assert 0 < int((projected == point).reshape(ROWS, -1).all(1).sum()) < ROWS  # both kinds
    for i in range(ROWS):
        own_center = center if not isinstance(center, torch.Tensor) else center.expand_as(point)[i]
        single = ball(float(torch.as_tensor(radius).expand(ROWS)[i]), center=own_center)
        # Same arithmetic, but the float64 sums may be added in another order.
        torch.testing.assert_close(projected[i], single.project(point[i]), rtol=1e-14, atol=1e-15)
        assert contained[i] == single.contains(point[i])
        assert diameters[i] == pytest.approx(single.diameter(point[i]), rel=1e-15)


@pytest.mark.parametrize("total", [1.5, SIZES], ids=["one total", "totals"])
def test_per_sample_simplex_equals_a_loop_over_rows(total):
    point = torch.randn(ROWS, 2, 3, generator=torch.Generator().manual_seed(1)).double()
    batch = Simplex(total, per_sample=True)
    for i in range(ROWS):
        single = Simplex(float(torch.as_tensor(total).expand(ROWS)[i]))
        torch.testing.assert_close(  # sums in another order
            batch.project(point)[i], single.project(point[i]), rtol=1e-14, atol=1e-15
        )
        assert batch.diameter(point)[i] == single.diameter(point[i])


@pytest.mark.parametrize("make", [L2Ball, L1Ball, Simplex])
def test_blocks_of_a_large_batch_fit_together(make):
    # More rows than one block holds, inside and outside mixed, against the same in small pieces.
    point = torch.randn(3000, 200, generator=torch.Generator().manual_seed(2))
    point[::3] *= 1e-3
    sizes = torch.linspace(0.5, 50.0, 3000)
    whole = make(sizes, per_sample=True).project(point)
    pieces = [
        make(sizes[i : i + 100], per_sample=True).project(point[i : i + 100])
        for i in range(0, 3000, 100)
    ]
    torch.testing.assert_close(whole, torch.cat(pieces), rtol=4 * eps(torch.float32), atol=0)
    assert make(sizes, per_sample=True).contains(whole).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("one", JOINT, ids=repr)
def test_a_million_entries_stay_feasible_and_at_rest(one, dtype):
    point = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    projected = one.project(point)
    assert not torch.equal(projected, point)
    assert one.contains(projected)
    assert torch.equal(one.project(projected), projected)


def test_empty_batch_is_allowed():
    empty = torch.zeros(0, 3)
    for make in (L2Ball, L1Ball, LinfBall, Simplex):
        batch = make(1.0, per_sample=True)
        assert batch.project(empty).shape == batch.sample(empty).shape == (0, 3)
        assert batch.contains(empty).shape == batch.diameter(empty).shape == (0,)


def test_product_projects_each_tensor_onto_its_own_set():
    members = [L2Ball(1.0), Simplex(), Box(0.0, 1.0)]
    point = [3 * torch.randn(4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    expected = [member.project(tensor) for member, tensor in zip(members, point, strict=True)]
    assert same(Product(members).project(point), expected)
    assert Product(members).diameter(point) == pytest.approx(math.sqrt(4 + 2 + 4), rel=1e-15)


def test_product_speaks_per_row_only_if_all_its_sets_do():
    point = [torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[0.5], [0.5]])]
    both = Product([L2Ball(1.0, per_sample=True), LinfBall(1.0, per_sample=True)])
    assert both.contains(point).tolist() == [False, True]
    assert both.diameter(point).tolist() == pytest.approx([math.sqrt(8)] * 2)
    mixed = Product([L2Ball(1.0, per_sample=True), Box(0.0, 1.0)])
    assert mixed.contains(point) is False and mixed.contains(mixed.project(point)) is True
    assert mixed.diameter(point) == pytest.approx(math.sqrt(4 + 4 + 1 + 1))
    assert Product([L2Ball(1.0, per_sample=True), WholeSpace()]).diameter(point) == INF


SEPARABLE = [
    (WholeSpace(), True),
    (Box(0.0, 1.0), True),
    (NonNegative(), True),
    (LinfBall(1.0), True),
    (HalfSpace(1.0, 1.0), False),
    (L2Ball(1.0), False),
    (L2Ball(1.0, per_sample=True), True),
    (Simplex(), False),
    (Simplex(per_sample=True), True),
    (Product([Box(0.0, 1.0), L1Ball(1.0, per_sample=True)]), True),
    (Product([Box(0.0, 1.0), L2Ball(1.0)]), False),
]


@pytest.mark.parametrize("one, expected", SEPARABLE, ids=lambda value: repr(value))
def test_separable_over_rows_means_rows_do_not_interact(one, expected):
    assert one.separable_over_rows is expected
    num_tensors = len(one.sets) if isinstance(one, Product) else 1
    point = [
        torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(num_tensors)
    ]
    changed = [torch.cat([tensor[:1], 5 * tensor[1:] + 3]) for tensor in point]
    pairs = zip(one.project(point), one.project(changed), strict=True)
    assert all(torch.equal(a[0], b[0]) for a, b in pairs) is expected


# -------------------------------------------------------------------- extreme numbers


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(
    "dtype, size, radius",
    [
        (torch.float32, 1e30, 1.0),
        (torch.float32, 3e38, 1e-3),
        (torch.float32, 1e-30, 1e-31),
        (torch.float64, 1e200, 1.0),
        (torch.float64, 1e200, 1e-200),
        (torch.float64, 1e-200, 1e-201),
    ],
)
def test_l2_ball_neither_overflows_nor_underflows(dtype, size, radius, per_sample):
    point = torch.tensor([[3.0, -4.0, 0.0]], dtype=torch.float64).div(4).to(dtype) * size
    projected = L2Ball(radius, per_sample=per_sample).project(point) / radius
    expected = torch.tensor([[0.6, -0.8, 0.0]], dtype=dtype)
    # A few roundings; the smallest quotient above is still a normal float32.
    torch.testing.assert_close(projected, expected, rtol=4 * eps(dtype), atol=0)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_l2_ball_leaves_extreme_points_inside(size):
    point = vector(3.0, 4.0) * size
    assert torch.equal(L2Ball(5.5 * size).project(point), point)
    assert L2Ball(5.5 * size).contains(point) and not L2Ball(4.5 * size).contains(point)


@pytest.mark.parametrize("dtype, size", [(torch.float32, 1e30), (torch.float64, 1e200)])
def test_other_sets_survive_huge_points(dtype, size):
    point = torch.tensor([3.0, -4.0, 1.0], dtype=dtype) * size
    assert Simplex().project(point).tolist() == [1.0, 0.0, 0.0]
    assert L1Ball(1.0).project(point).tolist() == [0.0, -1.0, 0.0]
    assert LinfBall(1.0).project(point).tolist() == [1.0, -1.0, 1.0]
    projected = HalfSpace(torch.tensor([1.0, 0.0, 1.0]), 0.0).project(point) / size
    torch.testing.assert_close(  # one rounding each
        projected, torch.tensor([1.0, -4.0, -1.0], dtype=dtype), rtol=4 * eps(dtype), atol=0
    )
    for one in (Simplex(), L1Ball(1.0), L2Ball(1.0), HalfSpace(1.0, 0.0)):
        assert one.contains(one.project(point))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_half_space_does_not_depend_on_the_scale_of_its_normal(scale):
    point = torch.tensor([2.0, 1.0])
    half = HalfSpace(vector(1.0, 1.0) * scale, 1.0 * scale)
    # One division by the largest entry.
    torch.testing.assert_close(half.project(point), torch.tensor([1.0, 0.0]), rtol=1e-6, atol=1e-7)
    assert not half.contains(point)


def test_half_space_is_feasible_after_a_step_from_afar():
    half = HalfSpace(NORMAL, 1.0)
    for length in (1e10 / 3, 1e12 / 7, 1e14 / 11):
        projected = half.project(length * NORMAL)
        # One step leaves length * eps, 1e-6 and more; the second leaves the rounding of the result.
        size = float(NORMAL.abs() @ projected.abs()) + 1.0
        assert abs(float(NORMAL @ projected) - 1.0) <= 1e-14 * size


def test_half_space_survives_a_sum_that_overflows():
    point = torch.full((4,), 1.5e308, dtype=torch.float64)
    assert HalfSpace(1.0, 0.0).project(point).abs().max() <= 1e-15 * 1.5e308  # rounding
    assert not HalfSpace(1.0, 0.0).contains(point) and HalfSpace(-1.0, 0.0).contains(point)


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_large_center_costs_only_its_own_rounding(size):
    center = torch.full((50,), size)
    point = center + torch.linspace(-5, 5, 50)
    for ball in (L2Ball(1.0, center), L1Ball(1.0, center), LinfBall(1.0, center)):
        projected = ball.project(point)
        assert ball.contains(projected)
        assert torch.equal(ball.project(projected), projected)
        order = {L2Ball: 2, L1Ball: 1, LinfBall: INF}[type(ball)]
        distance = float(torch.linalg.vector_norm((projected - center).double(), order))
        # float32 places a coordinate to eps * size, and the norm adds up to 50 of these.
        assert distance == pytest.approx(1.0, abs=50 * eps(torch.float32) * size)


def test_zero_radius_is_the_center():
    point = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    for ball in (L2Ball, L1Ball, LinfBall):
        assert torch.equal(ball(0.0).project(point), torch.zeros(2, 2))
        assert torch.equal(ball(0.0, 1.0, per_sample=True).project(point), torch.ones(2, 2))
        assert ball(0.0).diameter(point) == 0.0


# --------------------------------------------------------- the simplex and the L1 ball


def threshold_by_brent(v, total):
    top = v.max()
    return top + scipy.optimize.brentq(
        lambda theta: np.maximum(v - top - theta, 0).sum() - total, -total, 0.0, xtol=1e-15
    )


@pytest.mark.parametrize("num_entries", [7, 300, 20_000])
@pytest.mark.parametrize("total", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_simplex_threshold_agrees_with_root_finding(num_entries, total, scale):
    v = scale * np.random.default_rng(num_entries).standard_normal(num_entries)
    expected = np.maximum(v - threshold_by_brent(v, total), 0.0)
    projected = Simplex(total).project(torch.from_numpy(v))
    # Brent's root is good to 1e-15 and to a few ulp of the entries.
    np.testing.assert_allclose(projected.numpy(), expected, atol=1e-14 * (total + scale) * 10)
    assert float(projected.sum()) == pytest.approx(total, rel=1e-14)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_threshold_by_newton_falls_back_to_sorting(monkeypatch, rounds):
    rows = torch.randn(5, 2000, generator=torch.Generator().manual_seed(0)).double()
    expected = Simplex(2.0, per_sample=True).project(rows)
    monkeypatch.setattr(simplex_module, "_MAX_ROUNDS", rounds)
    projected = Simplex(2.0, per_sample=True).project(rows)
    torch.testing.assert_close(projected, expected, rtol=1e-13, atol=1e-15)  # rounding of theta


@pytest.mark.parametrize("num_entries", [1_000, 100_000])
def test_simplex_sum_is_right_when_many_small_entries_are_active(num_entries):
    # theta is near -1, its rounding error eps counts once per entry: 1e5 * eps without care.
    v = torch.full((num_entries,), -1.0 + 2.0 / num_entries, dtype=torch.float64)
    v[0] = 0.0
    projected = Simplex().project(v)
    assert abs(math.fsum(projected.tolist()) - 1.0) <= 4 * eps(torch.float64)


@pytest.mark.parametrize("offset", [100.0, 1e4])
def test_simplex_ignores_a_constant_in_float32(offset):
    v = torch.randn(1000, generator=torch.Generator().manual_seed(0)).mul(512).round().div(512)
    shifted = v + offset  # exact: multiples of 1/512 below 2^14 have 23 bits
    projected = Simplex().project(shifted)
    assert torch.equal(projected, Simplex().project(v))
    # Without the shift by the maximum: 2e-2 for 100 and 2.8 for 1e4.
    assert abs(float(projected.double().sum()) - 1.0) <= 4 * eps(torch.float32)


def test_simplex_lets_no_negative_entry_through():
    projected = Simplex().project(torch.tensor([1.0, -1e-9]))  # the sum is right to eps
    assert projected.tolist() == [1.0, 0.0]


def test_simplex_survives_a_sum_that_overflows():
    assert Simplex().project(vector(0.0, -1.7e308, -1.7e308, 0.0)).tolist() == [0.5, 0.0, 0.0, 0.5]


def test_ties_share_alike():
    assert Simplex().project(torch.full((4,), 9.0)).tolist() == [0.25] * 4
    assert L1Ball(1.0).project(torch.tensor([2.0, -2.0])).tolist() == [0.5, -0.5]


# ------------------------------------------------------------- contains and the mapping


def test_contains_takes_an_absolute_tolerance():
    point = torch.tensor([1.0, 0.0])
    outside = [
        (L2Ball(0.9), 0.1), (L1Ball(0.9), 0.1), (LinfBall(0.9), 0.1), (Simplex(0.9), 0.1),
        (Box(0.0, 0.9), 0.1), (HalfSpace(torch.tensor([2.0, 0.0]), 1.8), 0.1),
    ]  # fmt: skip
    for one, distance in outside:
        assert not one.contains(point)
        assert not one.contains(point, tol=distance - 1e-3)
        assert one.contains(point, tol=distance + 1e-3)
    assert not NonNegative().contains(-point)
    assert not NonNegative().contains(-point, tol=0.99) and NonNegative().contains(-point, tol=1.01)
    assert not Simplex().contains(torch.tensor([1.5, -0.5]), tol=0.4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contains_forgives_rounding_and_nothing_more(dtype):
    point = torch.tensor([3.0, 4.0], dtype=dtype)
    for one, size in [(L2Ball, 5.0), (L1Ball, 7.0), (LinfBall, 4.0), (Simplex, 7.0)]:
        assert one(size * (1 - 2 * eps(dtype))).contains(point)
        assert not one(size * (1 - 20 * eps(dtype))).contains(point)


@pytest.mark.parametrize(
    "one", [WholeSpace(), Box(-2.0, 2.0), L2Ball(9.0), L1Ball(9.0), LinfBall(9.0)]
)
def test_mapping_inside_is_the_negative_gradient_exactly(one):
    y, g = torch.tensor([1.0, -1.0]), torch.tensor([1e-12, 3e-9])
    assert torch.equal(one.gradient_mapping(y, g), -g)


@pytest.mark.parametrize("one", [Box(0.0, 1.0), LinfBall(0.5, 0.5), Box(vector(0.0, 0.0), 1.0)])
def test_mapping_at_an_active_bound_is_zero_exactly(one):
    y, outward = torch.tensor([1.0, 0.0]), torch.tensor([1e-12, -3.0])
    assert one.gradient_mapping(y, outward).tolist() == [0.0, 0.0]
    assert torch.equal(
        NonNegative().gradient_mapping(y, outward), -outward * torch.tensor([1.0, 0])
    )


def test_mapping_vanishes_at_the_maximum_of_a_linear_function():
    g = vector(0.3, -2.0, 1.0)
    maxima = [
        (L2Ball(2.0), 2.0 * g / g.norm()),
        (L1Ball(2.0), vector(0.0, -2.0, 0.0)),
        (LinfBall(2.0), 2.0 * g.sign()),
        (Simplex(2.0), vector(0.0, 0.0, 2.0)),
    ]
    for one, maximum in maxima:
        assert one.gradient_mapping(maximum, g).abs().max() <= 1e-15  # an ulp of 2
        assert one.gradient_mapping(maximum, -g).norm() > 0.1


# ------------------------------------------------------------------ samples and diameter


def assert_uniform(values):
    # A fixed seed; a wrong law at 20,000 values has p below 1e-10.
    assert scipy.stats.kstest(values.numpy(), "uniform").pvalue > 1e-3


def test_samples_are_uniform():
    generator, n = torch.Generator().manual_seed(0), 3
    like = torch.zeros(20_000, n, dtype=torch.float64)
    # In a ball the share of the volume within a radius is the n-th power of its share.
    for ball, order in [(L2Ball, 2), (L1Ball, 1), (LinfBall, INF)]:
        points = ball(2.0, per_sample=True).sample(like, generator) / 2.0
        assert_uniform(torch.linalg.vector_norm(points, order, dim=1) ** n)
        # Each octant is equally likely: 8 cells of 2500.
        octant = (points > 0).double() @ vector(1.0, 2.0, 4.0)
        assert scipy.stats.chisquare(octant.long().bincount(minlength=8).numpy()).pvalue > 1e-3
    # Each coordinate of the unit ball in three dimensions has density 3/4 (1 - x^2).
    x = L2Ball(1.0, per_sample=True).sample(like, generator)[:, 0]
    assert_uniform((2 + 3 * x - x**3) / 4)
    # A coordinate of the simplex has distribution function 1 - (1 - w)^(n-1).
    weights = Simplex(per_sample=True).sample(like, generator)
    for i in range(n):
        assert_uniform(1 - (1 - weights[:, i]) ** (n - 1))
    assert_uniform((Box(-1.0, 3.0).sample(like, generator).reshape(-1)[:20_000] + 1) / 4)


def test_samples_without_bounds_are_projected_normals():
    like, generator = torch.zeros(20_000, dtype=torch.float64), torch.Generator().manual_seed(0)
    assert scipy.stats.kstest(WholeSpace().sample(like, generator).numpy(), "norm").pvalue > 1e-3
    halves = NonNegative().sample(like, generator)
    positive = halves[halves > 0]
    assert len(positive) == pytest.approx(10_000, abs=400)  # within 5 standard deviations
    assert scipy.stats.kstest(positive.numpy(), "halfnorm").pvalue > 1e-3


FARTHEST = [
    (L2Ball(2.0), [2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]),
    (L1Ball(2.0), [0.0, 2.0, 0.0], [0.0, -2.0, 0.0]),
    (LinfBall(2.0), [2.0, -2.0, 2.0], [-2.0, 2.0, -2.0]),
    (Simplex(2.0), [2.0, 0.0, 0.0], [0.0, 0.0, 2.0]),
    (Box(vector(0.0, -1.0, 5.0), vector(1.0, 1.0, 5.0)), [0.0, -1.0, 5.0], [1.0, 1.0, 5.0]),
]


@pytest.mark.parametrize("one, a, b", FARTHEST, ids=lambda value: repr(value))
def test_diameter_is_attained(one, a, b):
    a, b = vector(*a), vector(*b)
    assert one.contains(a, tol=0.0) and one.contains(b, tol=0.0)
    assert one.diameter(a) == pytest.approx(float((a - b).norm()), rel=1e-15)


def test_unbounded_sets_have_infinite_diameter():
    like = torch.zeros(2)
    for one in (WholeSpace(), NonNegative(), HalfSpace(1.0, 0.0), Box(0.0, vector(1.0, INF))):
        assert one.diameter(like) == INF
    assert Simplex().diameter(torch.zeros(1)) == 0.0


# --------------------------------------------------------------------------- bad arguments

POINT = torch.zeros(3, 2)
BAD = [
    (lambda: L2Ball(-1.0), "radius must be finite and at least 0, got -1.0"),
    (lambda: L1Ball(math.nan), "radius must be finite and at least 0, got nan"),
    (lambda: LinfBall(INF), "radius must be finite and at least 0, got inf"),
    (lambda: Simplex(0.0), "total must be finite and positive, got 0.0"),
    (lambda: Simplex(vector(1.0, 0.0), per_sample=True), "every total must be finite and positive"),
    (lambda: L2Ball(vector(1.0, -1.0), per_sample=True), "every radius must be finite"),
    (lambda: L2Ball(vector(1.0, 2.0)), "per_sample=True for one number per row"),
    (lambda: L2Ball(torch.ones(2, 2), per_sample=True), r"one number per row, shape \[rows\]"),
    (lambda: L2Ball(1.0, center=math.nan), "center has a NaN"),
    (lambda: L1Ball(1.0, center=vector(0.0, INF)), "center has an infinite entry"),
    (lambda: Box(1.0, 0.0), r"lower must not exceed upper, got Box\(lower=1.0, upper=0.0\)"),
    (lambda: Box(vector(0.0, 2.0), 1.0), "lower must not exceed upper"),
    (lambda: Box([vector(0.0), vector(2.0)], 1.0), "lower must not exceed upper"),
    (lambda: Box([vector(0.0)] * 2, [vector(1.0)] * 3), "lower has 2 tensors but upper has 3"),
    (lambda: Box(math.nan, 1.0), "lower has a NaN"),
    (lambda: Box(0.0, vector(math.nan)), "upper has a NaN"),
    (lambda: Box(INF, INF), "lower must be below inf"),
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
    (lambda: Box([0.0, 0.0], 1.0), r"make a list of numbers a tensor with torch.tensor"),
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
