"""The contract of a constraint set, and how sets read their arguments and points."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import TypeVar, overload

import torch
from torch import Tensor

from neada.checks import check_flags
from neada.scalars import Flag, Scalar
from neada.tensors import check_player, clone, negative

__all__ = [
    "NonFinitePoint",
    "Point",
    "Set",
    "Values",
    "as_doubles",
    "broadcast",
    "check_entries",
    "check_one_per_row",
    "check_values",
    "describe",
    "read_size",
    "read_values",
    "slack",
    "values_for",
]


class NonFinitePoint(ValueError, FloatingPointError):  # noqa: N818 (as NonFiniteGradient)
    """A point or a gradient that has no projection, because an entry is not finite."""


# A number for every coordinate: one for all, a tensor that broadcasts, or one tensor per tensor.
Values = float | Tensor | Sequence[Tensor]


def read_values(values: Values, name: str) -> float | Tensor | list[Tensor]:
    """The argument without autograd history; raises `ValueError` for NaN."""
    if isinstance(values, Real):
        values = float(values)
    parts = [torch.as_tensor(values)] if isinstance(values, float | Tensor) else list(values)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(
            f"{name} must be a float, a tensor or a list of tensors; make an array or a list of "
            "numbers a tensor with torch.as_tensor(...)"
        )
    if any(bool(part.isnan().any()) for part in parts):
        raise ValueError(f"{name} has a NaN; give numbers")
    if isinstance(values, float):
        return values
    return parts[0].detach() if isinstance(values, Tensor) else [part.detach() for part in parts]


def as_doubles(values: float | Tensor | list[Tensor]) -> list[Tensor]:
    """The tensors of an argument in float64, to check or scale it."""
    each = values if isinstance(values, list) else [values]
    return [torch.as_tensor(value, dtype=torch.float64) for value in each]


def values_for(
    values: float | Tensor | list[Tensor], tensors: Sequence[Tensor]
) -> list[float | Tensor]:
    """The argument for each tensor of a point, on its device and in its dtype."""
    if isinstance(values, float):
        return [values] * len(tensors)
    if isinstance(values, Tensor):
        return [values.to(tensor) for tensor in tensors]
    return [value.to(tensor) for value, tensor in zip(values, tensors, strict=True)]


def broadcast(
    values: float | Tensor | list[Tensor],
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """The argument expanded to the shape of each tensor, in its dtype unless one is given."""
    each = values if isinstance(values, list) else [values] * len(tensors)
    return [
        torch.as_tensor(value, dtype=dtype or tensor.dtype, device=tensor.device).expand_as(tensor)
        for value, tensor in zip(each, tensors, strict=True)
    ]


def check_values(
    values: float | Tensor | list[Tensor], name: str, tensors: Sequence[Tensor]
) -> None:
    """Raise a `ValueError` unless the argument broadcasts to each tensor of a point."""
    if isinstance(values, float):
        return
    if isinstance(values, Tensor):
        values = [values] * len(tensors)
    if len(values) != len(tensors):
        raise ValueError(
            f"{name} has {len(values)} tensors but the point has {len(tensors)}; give one each"
        )
    for i, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
        if value.shape != tensor.shape and not _broadcasts(value.shape, tensor.shape):
            raise ValueError(
                f"{name} of shape {tuple(value.shape)} does not broadcast to tensor {i} of shape "
                f"{tuple(tensor.shape)}; give it that shape, or a float"
            )


def read_size(size: Scalar, name: str, per_sample: bool, zero_allowed: bool) -> Scalar:
    """A radius or total: a finite float, or with `per_sample` also a float64 tensor [rows]."""
    check_flags(per_sample=per_sample)
    sizes = torch.as_tensor(size, dtype=torch.float64).detach()
    if sizes.dim() > per_sample:
        raise ValueError(
            f"{name} has shape {tuple(sizes.shape)}; give one number, or with per_sample=True one "
            "number per row, shape [rows]"
        )
    if not bool((sizes.isfinite() & ((sizes >= 0.0) if zero_allowed else (sizes > 0.0))).all()):
        at_least = "at least 0" if zero_allowed else "positive"
        raise ValueError(f"{name} must be finite and {at_least}, got {sizes.tolist()}")
    return sizes if sizes.dim() else sizes.item()


def check_one_per_row(size: Scalar, name: str, tensors: Sequence[Tensor]) -> None:
    """Raise a `ValueError` unless a radius or total per row fits the number of rows."""
    if isinstance(size, Tensor) and len(size) != len(tensors[0]):
        raise ValueError(
            f"{name} has {len(size)} entries but the point has {len(tensors[0])} rows; "
            "give one per row, or a float"
        )


def describe(values: float | Tensor | list[Tensor]) -> str:
    """A short text for `repr`: the number, or the shape of a tensor."""
    if isinstance(values, Tensor):
        return str(values.item()) if values.dim() == 0 else f"tensor{list(values.shape)}"
    if isinstance(values, list):
        return f"[{', '.join(describe(value) for value in values)}]"
    return str(values)


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(
        s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False)
    )


Point = Tensor | Sequence[Tensor]
_Point = TypeVar("_Point", bound=Point)


class Set(ABC):
    r"""A closed convex set with its Euclidean projection.

    .. math::
        P(v) = \arg\min_{w \in \text{set}} \|w - v\|

    A point is a tensor or a sequence of tensors, real, floating and of one dtype; results have the
    same form (a list for a sequence). Nothing here is recorded by autograd.

    A new set implements the methods that begin with an underscore and are abstract. They are
    given a list of detached tensors that has been checked.

    Attributes:
        elementwise: the projection treats each coordinate by itself.
        per_sample: every row (first dimension) is a separate point, and `contains` returns a
            tensor with one entry per row.
    """

    elementwise: bool = False
    per_sample: bool = False
    # Whether the projection of a point with infinite entries is defined.
    _accepts_infinite: bool = False

    @property
    def separable_over_rows(self) -> bool:
        """Whether each row is projected by itself, as optimizers with `rowwise=True` require."""
        return self.elementwise or self.per_sample

    @overload
    def project(self, point: Tensor) -> Tensor: ...
    @overload
    def project(self, point: Sequence[Tensor]) -> list[Tensor]: ...
    def project(self, point: Point) -> Tensor | list[Tensor]:
        """The nearest point of the set, as new tensors; a point inside is copied bit for bit.

        Raises:
            ValueError: the point has a NaN, or an infinite entry and the set is not a box.
        """
        tensors = self._read(point)
        check_entries(tensors, "point", self._accepts_infinite)
        copies = clone(tensors)
        self._project_(copies)
        return _in_form_of(point, copies)

    def project_(self, point: _Point) -> _Point:
        """Like `project`, in place; returns its argument, which is unchanged if it raises."""
        tensors = self._read(point)
        check_entries(tensors, "point", self._accepts_infinite)
        self._project_(tensors)
        return point

    def contains(self, point: Point, tol: float | None = None) -> Flag:
        """Whether the point is in the set: a bool, or one per row if `per_sample`.

        Args:
            point: the point.
            tol: how far outside still counts as inside, measured as the set measures (the norm
                of a ball, the sum and the entries of a simplex, the entries of a box). By
                default the rounding error of the dtype at the scale of the set.
        """
        tensors = self._read(point)
        check_entries(tensors, "point", infinite_allowed=True)
        return self._contains(tensors, tol)

    @overload
    def gradient_mapping(self, point: Tensor, gradient: Tensor) -> Tensor: ...
    @overload
    def gradient_mapping(
        self, point: Sequence[Tensor], gradient: Sequence[Tensor]
    ) -> list[Tensor]: ...
    def gradient_mapping(self, point: Point, gradient: Point) -> Tensor | list[Tensor]:
        """`point - P(point + gradient)`, zero exactly where the point is stationary.

        This is for the ascent direction: a maximizing player passes its gradient, a minimizing
        player passes the negative gradient. Where the projection does nothing the result is
        `-gradient` without rounding.
        """
        tensors, gradients = self._read_with_gradient(point, gradient)
        return _in_form_of(point, self._mapping(tensors, gradients))

    @overload
    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor: ...
    @overload
    def sample(
        self, like: Sequence[Tensor], generator: torch.Generator | None = None
    ) -> list[Tensor]: ...
    def sample(
        self, like: Point, generator: torch.Generator | None = None
    ) -> Tensor | list[Tensor]:
        """A random point of the set with the shapes, dtype and device of `like`.

        Uniform for `Box`, `LinfBall`, `L2Ball` and `L1Ball`; the projection of a standard normal
        point for other sets, and for coordinates of a box without two finite bounds.

        Args:
            like: gives shapes, dtype and device; its values are not used.
            generator: the source of randomness, on the device of `like`; torch's global one by
                default.
        """
        return _in_form_of(like, self._sample(self._read(like), generator))

    def linear_gap(self, point: Point, gradient: Point, rowwise: bool = False) -> Scalar:
        r"""How much a linear function can still gain in the set.

        .. math::
            \max_{w \in \text{set}} \langle w - \text{point},\ \text{gradient} \rangle

        This is the gap of Frank-Wolfe (for norm balls also FOSC, Wang et al. 2019): for a feasible
        point at least 0, and 0 exactly where it is stationary for an ascent along the gradient. It
        has the units of the objective and bounds what a concave one can gain.

        Args:
            point: the point.
            gradient: the direction of ascent, of the same shapes.
            rowwise: one number per row, for a set that keeps rows apart; with `per_sample` there
                is one in any case.

        Returns:
            A float, or a float64 tensor with one entry per row; infinite where nothing bounds it.

        Raises:
            ValueError: the set has no formula for it, or ties the rows together.
        """
        if rowwise and not self.separable_over_rows:
            raise ValueError(f"{self!r} ties the rows together: use per_sample=True on the set")
        tensors, gradients = self._read_with_gradient(point, gradient)
        if rowwise:
            check_player(tensors, rowwise, what="tensor")
        gaps = self._linear_gaps(tensors, gradients, rowwise or self.per_sample).clamp_min(0.0)
        return gaps if rowwise or self.per_sample else float(gaps)

    def validate(self, like: Point) -> None:
        """Raise a `ValueError` unless the set's arguments fit points shaped like `like`."""
        self._read(like)

    @abstractmethod
    def _project_(self, tensors: list[Tensor]) -> None:
        """Project in place; no entry is NaN, nor infinite unless the set accepts that."""

    @abstractmethod
    def _contains(self, tensors: list[Tensor], tol: float | None) -> Flag: ...

    def _sample(self, like: list[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        point = [
            torch.randn(t.shape, generator=generator, dtype=t.dtype, device=t.device) for t in like
        ]
        self._project_(point)
        return point

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        moved = list(torch._foreach_add(tensors, gradients))
        check_entries(moved, "point", self._accepts_infinite)
        projected = clone(moved)
        self._project_(projected)
        # point - (point + gradient) loses the digits of a small gradient; where the projection
        # changed nothing they need not be lost.
        return [
            torch.where(p == m, minus_g, t - p)
            for t, m, p, minus_g in zip(tensors, moved, projected, negative(gradients), strict=True)
        ]

    def _linear_gaps(self, tensors: list[Tensor], gradients: list[Tensor], by_row: bool) -> Tensor:
        """One gap per row, or one for the whole point; below 0 by rounding."""
        raise ValueError(f"there is no formula for the linear gap of {self!r}")

    def _check_fit(self, tensors: list[Tensor]) -> None:  # noqa: B027 (most sets fit any point)
        """Raise a `ValueError` if an argument of the set does not fit the shapes."""

    def _read(self, point: Point) -> list[Tensor]:
        tensors = _as_list(point)
        check_player(tensors, self.per_sample, what="tensor")
        self._check_fit(tensors)
        return tensors

    def _read_with_gradient(
        self, point: Point, gradient: Point
    ) -> tuple[list[Tensor], list[Tensor]]:
        tensors, gradients = self._read(point), _as_list(gradient)
        if [g.shape for g in gradients] != [t.shape for t in tensors]:
            raise ValueError(
                f"the gradient has shapes {[tuple(g.shape) for g in gradients]} but the point has "
                f"{[tuple(t.shape) for t in tensors]}; give one of the same shape per tensor"
            )
        check_player([*tensors, *gradients], what="point or gradient")
        check_entries(gradients, "gradient", infinite_allowed=True)
        check_entries(tensors, "point", infinite_allowed=False)
        return tensors, gradients


def slack(dtype: torch.dtype, num_entries: int) -> float:
    """The relative rounding error of a sum of `num_entries` numbers stored in `dtype`.

    Entries are rounded to the dtype, but sums are taken in float64.
    """
    return 4.0 * torch.finfo(dtype).eps + math.sqrt(num_entries) * sys.float_info.epsilon


def _as_list(point: Point) -> list[Tensor]:
    if isinstance(point, Tensor):
        return [point.detach()]
    if not isinstance(point, Sequence) or not all(isinstance(t, Tensor) for t in point):
        raise TypeError(f"a point is a tensor or a list of tensors, got {type(point).__name__}")
    if not point:
        raise ValueError("the point has no tensors; give at least one")
    return [tensor.detach() for tensor in point]


def _in_form_of(point: Point, tensors: list[Tensor]) -> Tensor | list[Tensor]:
    return tensors[0] if isinstance(point, Tensor) else tensors


def check_entries(tensors: Sequence[Tensor], what: str, infinite_allowed: bool) -> None:
    """Raise `NonFinitePoint` for NaN and, unless allowed, for infinite entries."""
    for i, tensor in enumerate(tensors):
        total = tensor.sum().item()
        if total - total == 0.0:  # a sum is finite only if every entry is
            continue
        bad = tensor.isnan() if infinite_allowed else ~tensor.isfinite()
        if bool(bad.any()):
            raise NonFinitePoint(
                f"tensor {i} of the {what}, shape {tuple(tensor.shape)}, has {int(bad.sum())} NaN "
                "or infinite entries; check the step that made it"
            )
