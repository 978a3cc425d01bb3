"""The interface of a constraint set, and how sets read their arguments and points."""

import inspect
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
from neada.tensors import check_player, clone, difference, negative, squared_norm

__all__ = [
    "NonFinitePoint",
    "Point",
    "Set",
    "Values",
    "as_tensors",
    "broadcast",
    "read_size",
    "read_values",
    "slack",
]


class NonFinitePoint(ValueError, FloatingPointError):  # noqa: N818 (as NonFiniteGradient)
    """A point has no projection because an entry is NaN or Inf."""


Point = Tensor | Sequence[Tensor]
_Point = TypeVar("_Point", bound=Point)


class Set(ABC):
    r"""A closed convex set with its Euclidean projection.

    .. math::
        P(v) = \arg\min_{w \in \text{set}} \|w - v\|

    A point is a tensor or a sequence of tensors, real, floating and of one dtype; results have the
    same form (a list for a sequence). Nothing here is recorded by autograd.

    A new set implements `_project_`, which projects a list of checked tensors in place.

    Attributes:
        elementwise: the projection treats each coordinate separately.
        per_sample: every row (first dimension) is a separate point, and `contains` returns a
            tensor with one entry per row.
    """

    elementwise: bool = False
    per_sample: bool = False

    @property
    def separable_over_rows(self) -> bool:
        """Whether rows are projected separately, as optimizers with `rowwise=True` require."""
        return self.elementwise or self.per_sample

    def __repr__(self) -> str:
        arguments = [
            f"{name}={_describe(vars(self)[name])}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if name in vars(self) and vars(self)[name] is not parameter.default
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    @overload
    def project(self, point: Tensor) -> Tensor: ...
    @overload
    def project(self, point: Sequence[Tensor]) -> list[Tensor]: ...
    def project(self, point: Point) -> Tensor | list[Tensor]:
        """The nearest point of the set, as new tensors; a point inside is copied bit for bit.

        Raises:
            ValueError: the point has a NaN, or an infinite entry and the set is not elementwise.
        """
        copies = clone(self._read(point))
        self.project_(copies)
        return _in_form_of(point, copies)

    def project_(self, point: _Point) -> _Point:
        """Like `project`, in place; returns its argument, which is unchanged if it raises."""
        tensors = self._read(point)
        _check_entries(tensors, "point", self.elementwise)
        self._project_(tensors)
        return point

    def contains(self, point: Point) -> Flag:
        """Whether the point is in the set up to rounding: a bool, or one per row if `per_sample`.

        The tolerance is the rounding error of the dtype at the scale of the set.
        """
        tensors = self._read(point)
        _check_entries(tensors, "point", infinite_allowed=True)
        return self._contains(tensors)

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
        tensors, gradients = self._read(point), _as_list(gradient)
        if [g.shape for g in gradients] != [t.shape for t in tensors]:
            raise ValueError(
                f"the gradient has shapes {[tuple(g.shape) for g in gradients]} but the point has "
                f"{[tuple(t.shape) for t in tensors]}"
            )
        check_player([*tensors, *gradients], what="point or gradient")
        _check_entries(gradients, "gradient", infinite_allowed=True)
        _check_entries(tensors, "point", infinite_allowed=False)
        return _in_form_of(point, self._mapping(tensors, gradients))

    def validate(self, like: Point) -> None:
        """Raise a `ValueError` unless the set's arguments fit points shaped like `like`."""
        self._read(like)

    @abstractmethod
    def _project_(self, tensors: list[Tensor]) -> None:
        """Project in place; all entries are finite unless the set is elementwise."""

    def _contains(self, tensors: list[Tensor]) -> Flag:
        projected = clone(tensors)
        self._project_(projected)
        distance_sq = squared_norm(difference(tensors, projected), self.per_sample)
        size_sq = 1.0 + squared_norm(projected, self.per_sample)
        num_entries = sum(tensor.numel() for tensor in tensors)
        return distance_sq <= size_sq * slack(tensors[0].dtype, num_entries) ** 2

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        moved = list(torch._foreach_add(tensors, gradients))
        projected = self.project(moved)
        # point - (point + gradient) loses the digits of a small gradient; where the projection
        # changed nothing they need not be lost.
        return [
            torch.where(p == m, minus_g, t - p)
            for t, m, p, minus_g in zip(tensors, moved, projected, negative(gradients), strict=True)
        ]

    def _check_fit(self, tensors: list[Tensor]) -> None:  # noqa: B027 (most sets fit any point)
        """Raise a `ValueError` if an argument of the set does not fit the shapes."""

    def _read(self, point: Point) -> list[Tensor]:
        tensors = _as_list(point)
        check_player(tensors, self.per_sample, what="tensor")
        self._check_fit(tensors)
        return tensors


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


def _check_entries(tensors: Sequence[Tensor], what: str, infinite_allowed: bool) -> None:
    for i, tensor in enumerate(tensors):
        total = tensor.sum().item()
        if total - total == 0.0:  # a sum is finite only if every entry is
            continue
        bad = tensor.isnan() if infinite_allowed else ~tensor.isfinite()
        if bool(bad.any()):
            raise NonFinitePoint(
                f"tensor {i} of the {what}, shape {tuple(tensor.shape)}, has {int(bad.sum())} NaN "
                "or infinite entries"
            )


def slack(dtype: torch.dtype, num_entries: int) -> float:
    """The relative rounding error of a sum of `num_entries` numbers stored in `dtype`.

    Entries are rounded to the dtype, but sums are taken in float64.
    """
    return 4.0 * torch.finfo(dtype).eps + math.sqrt(num_entries) * sys.float_info.epsilon


# A number for every coordinate: one for all, a tensor that broadcasts, or one tensor per tensor.
Values = float | Tensor | Sequence[Tensor]
_Read = float | Tensor | list[Tensor]


def read_values(values: Values, name: str) -> _Read:
    """The argument without autograd history; raises `ValueError` for NaN."""
    read: _Read
    if isinstance(values, Real):
        read = float(values)
    elif isinstance(values, Tensor):
        read = values.detach()
    elif isinstance(values, Sequence) and all(isinstance(part, Tensor) for part in values):
        read = [part.detach() for part in values]
    else:
        raise TypeError(
            f"{name} must be a float, a tensor or a list of tensors; convert an array or a list of "
            "numbers with torch.as_tensor(...)"
        )
    if any(bool(part.isnan().any()) for part in as_tensors(read)):
        raise ValueError(f"{name} has a NaN")
    return read


def as_tensors(values: _Read) -> list[Tensor]:
    """The tensors of an argument, in float64."""
    each = values if isinstance(values, list) else [values]
    return [torch.as_tensor(value, dtype=torch.float64) for value in each]


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


def broadcast(
    values: _Read, name: str, tensors: Sequence[Tensor], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """The argument expanded to the shape of each tensor, in its dtype unless one is given."""
    each = values if isinstance(values, list) else [values] * len(tensors)
    if len(each) != len(tensors):
        raise ValueError(f"{name} has {len(each)} tensors but the point has {len(tensors)}")
    try:
        return [
            torch.as_tensor(value, dtype=dtype or t.dtype, device=t.device).expand_as(t)
            for value, t in zip(each, tensors, strict=True)
        ]
    except RuntimeError as error:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise ValueError(f"{name} does not broadcast to shapes {shapes} ({error})") from error


def _describe(argument: object) -> str:
    """A short text for `repr`: the shape of a tensor, and other arguments in full."""
    if isinstance(argument, Tensor):
        return f"tensor{list(argument.shape)}"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_describe, argument))}]"
    return repr(argument)
