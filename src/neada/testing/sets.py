"""Checks of constraint sets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from neada.sets import Set
from neada.testing.checks import assert_close, clones, difference, flat, run_checks

__all__ = ["check_set"]

Shapes = list[tuple[int, ...]]

_SCALES = (1e-3, 0.3, 1.0, 10.0, 1e3)


def check_set(one: Set, shape: Sequence[int] | Sequence[Sequence[int]] = (4, 3)) -> None:
    """Check a constraint set.

    The projection is feasible, nearest and idempotent; `contains` and `gradient_mapping` agree with
    it; rows and entries do not interact where the set's attributes exclude it.

    Args:
        one: The set.
        shape: The shape of a point that fits the set, or one shape for each of its tensors.

    Raises:
        AssertionError: The first requirement that is not met.

    Example:
        >>> import neada
        >>> check_set(neada.sets.L2Ball(2.0), shape=(5,))
    """
    shapes = [tuple(s) for s in shape if isinstance(s, Sequence)]
    if len(shapes) != len(shape):
        shapes = [tuple(s for s in shape if isinstance(s, int))]
    checks = [
        _check_type,
        _check_feasible,
        _check_idempotent,
        _check_points_inside,
        _check_nearest,
        _check_in_place,
        _check_points_outside,
        _check_form_of_contains,
        _check_gradient_mapping,
        _check_separability,
    ]
    run_checks(type(one).__name__, checks, one, shapes)


def _draw(
    shapes: Shapes, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def _points(shapes: Shapes) -> list[list[Tensor]]:
    """Points near the origin and far away, in single and double precision."""
    return [
        _draw(shapes, seed, scale, dtype)
        for dtype in (torch.float32, torch.float64)
        for scale in _SCALES
        for seed in range(4)
    ]


def _inside(
    one: Set, shapes: Shapes, seed: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """A point of the set: the mean of two projections."""
    scale = _SCALES[seed % len(_SCALES)]
    first, second = (one.project(_draw(shapes, 2 * seed + i, scale, dtype)) for i in (0, 1))
    return [(a + b) / 2 for a, b in zip(first, second, strict=True)]


def _all(flag: bool | Tensor) -> bool:
    return bool(torch.as_tensor(flag).all())


def _size(*points: list[Tensor]) -> float:
    return 1.0 + max(float(flat(point).double().norm()) for point in points)


def _of(point: list[Tensor]) -> str:
    return f"for a point of {point[0].dtype} with norm {float(flat(point).double().norm()):.3g}"


def _check_type(one: object, shapes: Shapes) -> None:
    """A set is derived from neada.sets.Set and accepts points of the given shape."""
    assert isinstance(one, Set), f"{type(one).__name__}"
    one.validate(_draw(shapes, 0))


def _check_feasible(one: Set, shapes: Shapes) -> None:
    """The projection of a point is in the set."""
    for point in _points(shapes):
        assert _all(one.contains(one.project(point))), f"not contained {_of(point)}"


def _check_idempotent(one: Set, shapes: Shapes) -> None:
    """Projecting twice is projecting once, bit for bit."""
    for point in _points(shapes):
        once = one.project(point)
        assert_close(one.project(once), once, _of(point))


def _check_points_inside(one: Set, shapes: Shapes) -> None:
    """A point of the set is its own projection."""
    for dtype in (torch.float32, torch.float64):
        for seed in range(20):
            point = _inside(one, shapes, seed, dtype)
            assert_close(one.project(point), point, "for a point between two projections")


def _check_nearest(one: Set, shapes: Shapes) -> None:
    """The projection is the nearest point of the set, which is convex."""
    border = [one.project(_draw(shapes, seed, scale)) for scale in _SCALES for seed in range(4)]
    witnesses = [_inside(one, shapes, seed) for seed in range(20)] + border
    for point in _points(shapes):
        v, p = flat(point).double(), flat(one.project(point)).double()
        eps = torch.finfo(point[0].dtype).eps
        for w in map(flat, witnesses):
            # At most 0 exactly where p is nearest in a convex set; the products are rounded.
            excess = float(torch.dot(v - p, w - p))
            rounding = 50.0 * eps * (1.0 + float((v - p).norm())) * _size([v], [p], [w])
            assert excess <= rounding, f"another point of the set is nearer {_of(point)}"


def _check_in_place(one: Set, shapes: Shapes) -> None:
    """project_ gives in place what project gives, for any strides."""
    for point in _points(shapes):
        wide = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in point]
        # torch's kernels for contiguous and for strided tensors may round differently: allow a few
        # units in the last place of the largest entry.
        rounding = 8.0 * torch.finfo(point[0].dtype).eps * float(flat(point).abs().max())
        for given in (clones(point), wide):
            assert_close(one.project_(given), one.project(point), _of(point), tol=rounding)


def _check_points_outside(one: Set, shapes: Shapes) -> None:
    """A point that the projection moves is not in the set."""
    for point in _points(shapes):
        moved = [(a - b).double() for a, b in zip(one.project(point), point, strict=True)]
        if one.per_sample:
            distance = torch.cat([t.reshape(len(t), -1) for t in moved], dim=1).norm(dim=1)
        else:
            distance = flat(moved).norm()
        wrong = (distance > 1e-3 * _size(point)) & torch.as_tensor(one.contains(point))
        assert not bool(wrong.any()), f"contained, but moved by {float(distance.max()):.3g}"


def _check_form_of_contains(one: Set, shapes: Shapes) -> None:
    """Contains returns one bool, or a tensor with one entry per row if per_sample."""
    point = _draw(shapes, 0)
    answer = one.contains(point)
    if one.per_sample:
        assert isinstance(answer, Tensor) and answer.shape == (len(point[0]),), repr(answer)
    else:
        assert isinstance(answer, bool), repr(answer)


def _check_gradient_mapping(one: Set, shapes: Shapes) -> None:
    """gradient_mapping is point - P(point + gradient)."""
    for scale in _SCALES:
        for seed in range(4):
            y, g = _inside(one, shapes, seed), _draw(shapes, seed + 100, scale)
            moved = one.project([a + b for a, b in zip(y, g, strict=True)])
            expected = [a - b for a, b in zip(y, moved, strict=True)]
            apart = difference(one.gradient_mapping(y, g), expected)
            assert apart <= 1e-14 * _size(y, g), f"it differs by {apart:.3g}"


def _check_separability(one: Set, shapes: Shapes) -> None:
    """Rows do not interact if separable_over_rows, nor entries if elementwise."""
    point = _draw(shapes, 0, 3.0)
    projected = one.project(point)
    if one.separable_over_rows and all(tensor.dim() > 0 for tensor in point):
        changed = [torch.cat([t[:1], 5.0 * t[1:] + 3.0]) for t in point]
        pairs = zip(one.project(changed), projected, strict=True)
        assert all(torch.equal(a[:1], b[:1]) for a, b in pairs), "rows interact"
    if one.elementwise:
        changed = [5.0 * t + 3.0 for t in point]
        for t, c in zip(point, changed, strict=True):
            c.reshape(-1)[:1] = t.reshape(-1)[:1]
        for a, b in zip(one.project(changed), projected, strict=True):
            assert torch.equal(a.reshape(-1)[:1], b.reshape(-1)[:1]), "entries interact"
