"""Several tensors against the long vector, batches against their rows, products of sets."""

import pytest
import torch

from neada.sets import (
    Box,
    HalfSpace,
    L1Ball,
    L2Ball,
    LinfBall,
    Product,
    Simplex,
)
from set_cases import eps, same

JOINT = [L2Ball(1.0), L1Ball(1.0), LinfBall(0.3), Simplex(), HalfSpace(-1.0, -9.5), Box(0.0, 0.5)]


@pytest.mark.parametrize("joint", JOINT, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_list_of_tensors_equals_the_long_vector(joint, dtype):
    generator = torch.Generator().manual_seed(0)
    point = [torch.randn(s, generator=generator, dtype=dtype) for s in [(3,), (), (2, 2), (1, 4)]]
    long = torch.cat([tensor.reshape(-1) for tensor in point])
    together = torch.cat([tensor.reshape(-1) for tensor in joint.project(point)])
    # The float64 sums may be added in another order.
    torch.testing.assert_close(
        together, joint.project(long), rtol=2 * eps(dtype), atol=2 * eps(dtype)
    )
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
    contained = batch.contains(point)
    assert contained.shape == (ROWS,)
    assert 0 < int((projected == point).reshape(ROWS, -1).all(1).sum()) < ROWS  # both kinds
    for i in range(ROWS):
        own_center = center if not isinstance(center, torch.Tensor) else center.expand_as(point)[i]
        single = ball(float(torch.as_tensor(radius).expand(ROWS)[i]), center=own_center)
        # Same arithmetic, but the float64 sums may be added in another order.
        torch.testing.assert_close(projected[i], single.project(point[i]), rtol=1e-14, atol=1e-15)
        assert contained[i] == single.contains(point[i])


@pytest.mark.parametrize("total", [1.5, SIZES], ids=["one total", "totals"])
def test_per_sample_simplex_equals_a_loop_over_rows(total):
    point = torch.randn(ROWS, 2, 3, generator=torch.Generator().manual_seed(1)).double()
    batch = Simplex(total, per_sample=True)
    for i in range(ROWS):
        single = Simplex(float(torch.as_tensor(total).expand(ROWS)[i]))
        torch.testing.assert_close(  # sums in another order
            batch.project(point)[i], single.project(point[i]), rtol=1e-14, atol=1e-15
        )


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
        assert batch.project(empty).shape == (0, 3)
        assert batch.contains(empty).shape == (0,)


def test_product_projects_each_tensor_onto_its_own_set():
    members = [L2Ball(1.0), Simplex(), Box(0.0, 1.0)]
    point = [3 * torch.randn(4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    expected = [member.project(tensor) for member, tensor in zip(members, point, strict=True)]
    assert same(Product(members).project(point), expected)


def test_product_speaks_per_row_only_if_all_its_sets_do():
    point = [torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[0.5], [0.5]])]
    both = Product([L2Ball(1.0, per_sample=True), LinfBall(1.0, per_sample=True)])
    assert both.contains(point).tolist() == [False, True]
    mixed = Product([L2Ball(1.0, per_sample=True), Box(0.0, 1.0)])
    assert mixed.contains(point) is False and mixed.contains(mixed.project(point)) is True


@pytest.mark.parametrize("one", [HalfSpace(1.0, 1.0), L2Ball(1.0), Simplex()], ids=repr)
def test_rows_of_a_joint_set_interact(one):
    # check_set covers the sets that promise the opposite.
    point = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    changed = torch.cat([point[:1], 5 * point[1:] + 3])
    assert not one.separable_over_rows
    assert not torch.equal(one.project(point)[0], one.project(changed)[0])
    assert not Product([Box(0.0, 1.0), one]).separable_over_rows
    assert Product([Box(0.0, 1.0), L1Ball(1.0, per_sample=True)]).separable_over_rows
