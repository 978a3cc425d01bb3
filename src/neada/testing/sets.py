"""What every constraint set promises."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from neada.sets import Set
from neada.testing.promises import Battery, clones, difference, flat, require, same

__all__ = ["BATTERY", "check_set"]

BATTERY = Battery()
Shapes = list[tuple[int, ...]]

_DTYPES = (torch.float32, torch.float64)
_SCALES = (1e-3, 0.3, 1.0, 10.0, 1e3)
_SEEDS = range(4)


def check_set(one: Set, shape: Sequence[int] | Sequence[Sequence[int]] = (4, 3)) -> None:
    """Check the promises of a constraint set.

    The projection is feasible, nearest, repeatable, and leaves points of the set alone;
    `contains`, `sample`, `diameter`, `gradient_mapping` and, where it has a formula, `linear_gap`
    agree with it; rows and entries that are said to be separate are.

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


@BATTERY.promise("project gives new tensors of the same shapes and dtype and leaves its argument")
def _projects_copies(one: Set, shapes: Shapes) -> None:
    for point in _points(shapes):
        before = clones(point)
        projected = one.project(point)
        require(same(point, before), "the point was changed; only project_ may do that")
        kinds = [[(t.shape, t.dtype) for t in tensors] for tensors in (point, projected)]
        require(kinds[0] == kinds[1], f"{kinds[0]} became {kinds[1]}")


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


@BATTERY.promise(
    "project_ does in place what project does, for any strides, and returns its argument"
)
def _in_place_is_the_same(one: Set, shapes: Shapes) -> None:
    for point in _points(shapes):
        wide = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in point]
        for given in (clones(point), wide):
            require(one.project_(given) is given, "it returns something else")
            apart = difference(given, one.project(point))
            require(apart == 0.0, f"they differ by {apart:.3g} {_of(point)}")


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


@BATTERY.promise("contains and diameter give one answer, or one for each row if per_sample")
def _answers_have_the_right_form(one: Set, shapes: Shapes) -> None:
    point = _draw(shapes, 0)
    for name, answer, kind in (
        ("contains", one.contains(point), bool),
        ("diameter", one.diameter(point), float),
    ):
        if one.per_sample:
            good = isinstance(answer, Tensor) and answer.shape == (len(point[0]),)
            require(good, f"{name} returns {answer!r} for {len(point[0])} rows")
        else:
            require(isinstance(answer, kind), f"{name} returns {answer!r}, not a {kind.__name__}")


@BATTERY.promise("sample gives points of the set with the shapes and dtype of its argument")
def _samples_are_inside(one: Set, shapes: Shapes) -> None:
    for dtype in _DTYPES:
        like = _draw(shapes, 0, dtype=dtype)
        for seed in range(20):
            point = _inside(one, shapes, seed, dtype)
            kinds = [[(t.shape, t.dtype) for t in tensors] for tensors in (like, point)]
            require(kinds[0] == kinds[1], f"like {kinds[0]} it gives {kinds[1]}")
            require(_everywhere(one.contains(point)), f"contains(sample) is False in {dtype}")


@BATTERY.promise("sample draws from the generator it is given, and from no other")
def _samples_follow_the_generator(one: Set, shapes: Shapes) -> None:
    before = torch.get_rng_state()
    first, again, other = (_inside(one, shapes, seed) for seed in (7, 7, 8))
    require(torch.equal(torch.get_rng_state(), before), "torch's global generator was used")
    require(same(first, again), "the same seed gave another point")
    if bool((torch.as_tensor(one.diameter(first)) > 0.0).any()):
        require(not same(first, other), "another seed gave the same point")


@BATTERY.promise("no two points of the set are farther apart than its diameter")
def _diameter_is_a_bound(one: Set, shapes: Shapes) -> None:
    points = [one.project(_draw(shapes, seed, 1e3)) for seed in range(10)]
    diameter = torch.as_tensor(one.diameter(points[0]), dtype=torch.float64)
    for v in points:
        for w in points:
            apart = [a - b for a, b in zip(v, w, strict=True)]
            if one.per_sample:
                distance = torch.cat([t.reshape(len(t), -1) for t in apart], dim=1).norm(dim=1)
            else:
                distance = flat(apart).norm()
            far = distance > diameter * (1.0 + 1e-13)
            worst = float((distance - diameter).max())
            require(not bool(far.any()), f"two projections are {worst:.3g} farther apart")


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
    diameter_sq = float(torch.as_tensor(one.diameter(y)).square().sum())
    if math.isfinite(diameter_sq):
        # Far out along the gradient, the projection misses the maximum by at most this.
        far = one.project([a + 1e4 * b for a, b in zip(y, g, strict=True)])
        missed = gap - float(torch.dot(flat(far) - flat(y), flat(g)))
        allowed = diameter_sq / 1e4 + 1e-9 * _size(y, g) ** 2
        require(missed <= allowed, f"it is {gap:.6g}, {missed:.3g} more than any point gains")


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


@BATTERY.promise("a tensor gives a tensor, a sequence a list; nothing is recorded by autograd")
def _results_have_the_form_of_the_point(one: Set, shapes: Shapes) -> None:
    point = [tensor.requires_grad_() for tensor in _draw(shapes, 1, 10.0)]
    results = [one.project(tuple(point)), one.gradient_mapping(tuple(point), point)]
    require(all(isinstance(r, list) for r in results), "a tuple of tensors does not give a list")
    graph = any(tensor.requires_grad for result in results for tensor in result)
    require(not graph, "a result requires a gradient")
    if len(point) == 1:
        alone = one.project(point[0])
        require(isinstance(alone, Tensor), f"a tensor gives a {type(alone).__name__}")
        require(torch.equal(alone, results[0][0]), "a tensor and a list of it differ")
    one.project_(point)
    require(all(t.is_leaf and t.requires_grad for t in point), "project_ makes leaves no leaves")


@BATTERY.promise("a point with NaN is refused with a ValueError and left as it was")
def _nan_is_refused(one: Set, shapes: Shapes) -> None:
    for i in range(len(shapes)):
        point = _draw(shapes, 3, 10.0)
        point[i].reshape(-1)[-1] = math.nan
        before = clones(point)
        for name in ("project", "project_", "contains"):
            try:
                getattr(one, name)(point)
            except ValueError:
                pass
            else:
                raise AssertionError(f"{name} accepts a NaN in tensor {i}")
        kept = all(
            torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(point, before, strict=True)
        )
        require(kept, "project_ changed the point that it refused")


@BATTERY.promise("a deep copy projects alike, and repr names the class on one line")
def _copies_are_alike(one: Set, shapes: Shapes) -> None:
    point = _draw(shapes, 1, 10.0)
    apart = difference(copy.deepcopy(one).project(point), one.project(point))
    require(apart == 0.0, f"they differ by {apart:.3g}")
    words = repr(one)
    require(type(one).__name__ in words and "\n" not in words, f"repr is {words!r}")
