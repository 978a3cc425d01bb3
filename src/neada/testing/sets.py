"""What every constraint set promises."""

from collections.abc import Sequence

import torch
from torch import Tensor

from neada.sets import Set
from neada.testing.promises import Battery, clones, difference, flat, require

__all__ = ["BATTERY", "check_set"]

BATTERY = Battery()
Shapes = list[tuple[int, ...]]

_DTYPES = (torch.float32, torch.float64)
_SCALES = (1e-3, 0.3, 1.0, 10.0, 1e3)
_SEEDS = range(4)


def check_set(one: Set, shape: Sequence[int] | Sequence[Sequence[int]] = (4, 3)) -> None:
    """Check the promises of a constraint set.

    The projection is feasible, nearest, repeatable, and leaves points of the set alone;
    `contains`, `sample`, `gradient_mapping` and, where it has a formula, `linear_gap` agree with
    it; rows and entries do not interact where the set's attributes exclude it.

    Args:
        one: The set.
        shape: The shape of a point that fits the set, or one shape for each of its tensors.

    Raises:
        AssertionError: The first promise that is broken, in one sentence.

    Example:
        >>> import neada
        >>> check_set(neada.sets.L2Ball(2.0), shape=(5,))
    """
    shapes = [tuple(s) for s in shape if isinstance(s, Sequence)]
    if len(shapes) != len(shape):
        shapes = [tuple(s for s in shape if isinstance(s, int))]
    BATTERY.judge(type(one).__name__, one, shapes)


def _draw(
    shapes: Shapes, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def _points(shapes: Shapes) -> list[list[Tensor]]:
    """Points near the origin and far away, in single and double precision."""
    return [
        _draw(shapes, seed, scale, dtype)
        for dtype in _DTYPES
        for scale in _SCALES
        for seed in _SEEDS
    ]


def _inside(
    one: Set, shapes: Shapes, seed: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    return one.sample(_draw(shapes, 0, dtype=dtype), torch.Generator().manual_seed(seed))


def _witnesses(one: Set, shapes: Shapes) -> list[list[Tensor]]:
    """Points of the set: from its interior, and from its border."""
    border = [one.project(_draw(shapes, seed, scale)) for scale in _SCALES for seed in _SEEDS]
    return [_inside(one, shapes, seed) for seed in range(20)] + border


def _everywhere(flag: bool | Tensor) -> bool:
    return bool(torch.as_tensor(flag).all())


def _size(*points: list[Tensor]) -> float:
    return 1.0 + max(float(flat(point).double().norm()) for point in points)


def _of(point: list[Tensor]) -> str:
    return f"for a point of {point[0].dtype} with norm {float(flat(point).double().norm()):.3g}"


@BATTERY.promise("a set is derived from neada.sets.Set and takes points of the shape it is given")
def _is_a_set(one: object, shapes: Shapes) -> None:
    require(isinstance(one, Set), f"this is a {type(one).__name__}; derive your class from Set")
    assert isinstance(one, Set)
    one.validate(_draw(shapes, 0))


@BATTERY.promise("the projection of a point is in the set")
def _projections_are_inside(one: Set, shapes: Shapes) -> None:
    for point in _points(shapes):
        inside = _everywhere(one.contains(one.project(point)))
        require(inside, f"contains(project(v)) is False {_of(point)}")


@BATTERY.promise("projecting twice is projecting once, bit for bit")
def _projection_is_idempotent(one: Set, shapes: Shapes) -> None:
    for point in _points(shapes):
        once = one.project(point)
        moved = difference(one.project(once), once)
        require(moved == 0.0, f"the second projection moves the point by {moved:.3g} {_of(point)}")


@BATTERY.promise("a point of the set is its own projection")
def _inside_is_untouched(one: Set, shapes: Shapes) -> None:
    for dtype in _DTYPES:
        for seed in range(20):
            point = _inside(one, shapes, seed, dtype)
            moved = difference(one.project(point), point)
            require(moved == 0.0, f"a sample moves by {moved:.3g}")


@BATTERY.promise("the projection is the nearest point of the set")
def _projection_is_nearest(one: Set, shapes: Shapes) -> None:
    witnesses = [flat(witness) for witness in _witnesses(one, shapes)]
    for point in _points(shapes):
        v = flat(point).double()
        p = flat(one.project(point)).double()
        eps = torch.finfo(point[0].dtype).eps
        for w in witnesses:
            # At most 0 exactly where p is nearest in a convex set; the products are rounded.
            excess = float(torch.dot(v - p, w - p))
            rounding = 50.0 * eps * (1.0 + float((v - p).norm())) * _size([v], [p], [w])
            if excess > rounding:
                distance = float((v - p).norm())
                towards = p + (w - p) * min(1.0, excess / float((w - p).square().sum()))
                better = float((v - towards).norm())
                raise AssertionError(
                    f"{_of(point)} the projection has distance {distance:.6g}, and a point between "
                    f"it and another point of the set has {better:.6g} (or the set is not convex)"
                )


@BATTERY.promise("project_ gives in place what project gives, for any strides")
def _in_place_is_the_same(one: Set, shapes: Shapes) -> None:
    for point in _points(shapes):
        wide = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in point]
        # torch's kernels for contiguous and for strided tensors may round differently: allow a few
        # units in the last place of the largest entry.
        rounding = 8.0 * torch.finfo(point[0].dtype).eps * float(flat(point).abs().max())
        for given in (clones(point), wide):
            apart = difference(one.project_(given), one.project(point))
            require(apart <= rounding, f"they differ by {apart:.3g} {_of(point)}")


@BATTERY.promise("a point that the projection moves is not in the set")
def _contains_sees_outside(one: Set, shapes: Shapes) -> None:
    for point in _points(shapes):
        moved = [a - b for a, b in zip(one.project(point), point, strict=True)]
        if one.per_sample:
            rows = torch.cat([tensor.double().reshape(len(tensor), -1) for tensor in moved], dim=1)
            distance = rows.norm(dim=1)
        else:
            distance = flat(moved).double().norm()
        outside = distance > 1e-3 * _size(point)
        wrong = outside & torch.as_tensor(one.contains(point))
        farthest = float(distance.max())
        require(not bool(wrong.any()), f"contains says it is, and it moved by {farthest:.3g}")


@BATTERY.promise("contains returns one answer, or one for each row if per_sample")
def _answers_have_the_right_form(one: Set, shapes: Shapes) -> None:
    point = _draw(shapes, 0)
    answer = one.contains(point)
    if one.per_sample:
        good = isinstance(answer, Tensor) and answer.shape == (len(point[0]),)
        require(good, f"it returns {answer!r} for {len(point[0])} rows")
    else:
        require(isinstance(answer, bool), f"it returns {answer!r}, not a bool")


@BATTERY.promise("sample gives points of the set with the shapes and dtype of its argument")
def _samples_are_inside(one: Set, shapes: Shapes) -> None:
    for dtype in _DTYPES:
        like = _draw(shapes, 0, dtype=dtype)
        for seed in range(20):
            point = _inside(one, shapes, seed, dtype)
            kinds = [[(t.shape, t.dtype) for t in tensors] for tensors in (like, point)]
            require(kinds[0] == kinds[1], f"like {kinds[0]} it gives {kinds[1]}")
            require(_everywhere(one.contains(point)), f"contains(sample) is False in {dtype}")


@BATTERY.promise("gradient_mapping is point - P(point + gradient)")
def _mapping_is_its_formula(one: Set, shapes: Shapes) -> None:
    for scale in _SCALES:
        for seed in _SEEDS:
            y, g = _inside(one, shapes, seed), _draw(shapes, seed + 100, scale)
            moved = one.project([a + b for a, b in zip(y, g, strict=True)])
            expected = [a - b for a, b in zip(y, moved, strict=True)]
            apart = difference(one.gradient_mapping(y, g), expected)
            require(apart <= 1e-14 * _size(y, g), f"it differs by {apart:.3g}")


@BATTERY.promise("linear_gap, if it has a formula, is the most that a linear function can gain")
def _gap_is_a_maximum(one: Set, shapes: Shapes) -> None:
    y, g = _inside(one, shapes, 0), _draw(shapes, 100)
    try:
        gaps = torch.as_tensor(one.linear_gap(y, g), dtype=torch.float64)
    except ValueError:
        return
    gap = float(gaps.sum())
    for w in _witnesses(one, shapes):
        gain = float(torch.dot(flat(w) - flat(y), flat(g)))
        require(
            gain <= gap + 1e-12 * _size(w, y, g) ** 2, f"it is {gap:.6g}, a point gains {gain:.6g}"
        )


@BATTERY.promise(
    "rows do not interact where separable_over_rows, entries where elementwise, says so"
)
def _separate_parts_are_separate(one: Set, shapes: Shapes) -> None:
    point = _draw(shapes, 0, 3.0)
    projected = one.project(point)
    if one.separable_over_rows and all(tensor.dim() > 0 for tensor in point):
        changed = [torch.cat([t[:1], 5.0 * t[1:] + 3.0]) for t in point]
        pairs = zip(one.project(changed), projected, strict=True)
        kept = all(torch.equal(a[:1], b[:1]) for a, b in pairs)
        require(kept, "other rows changed the projection of the first")
    if one.elementwise:
        changed = [5.0 * t + 3.0 for t in point]
        for t, c in zip(point, changed, strict=True):
            c.reshape(-1)[:1] = t.reshape(-1)[:1]
        for a, b in zip(one.project(changed), projected, strict=True):
            kept = torch.equal(a.reshape(-1)[:1], b.reshape(-1)[:1])
            require(kept, "other entries changed the projection of the first")
