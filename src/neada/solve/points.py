"""Points in the user's own form: numbers, arrays, tensors, and lists or dicts of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neada.sets import Product, Set, WholeSpace

__all__ = [
    "Form",
    "Kind",
    "Sets",
    "check_rows",
    "common_kind",
    "is_numeric",
    "read_form",
    "read_set",
    "unbounded_part",
]

_LONG = 1e60  # far outside of any bounded set

# The set of a player as the user gives it: one, or a list or dict in the form of the start.
Sets = Set | Sequence[Any] | Mapping[Any, Any] | None


class Kind(NamedTuple):
    """What all tensors of a solve have in common."""

    dtype: torch.dtype
    device: torch.device


class Form(NamedTuple):
    """A point taken apart into tensors, with two ways to put it together again."""

    leaves: list[Tensor]
    """Copies of the point's tensors that take gradients."""
    names: list[str]
    """What the user calls each of them: ``x0['weight']``."""
    build: Callable[[list[Tensor]], Any]
    """Tensors in the user's structure, for the objective."""
    give_back: Callable[[list[Tensor]], Any]
    """Tensors in the user's structure and of the user's kind, for the answer."""

    def for_fun(self) -> Any:
        """The leaves in the user's structure, for the objective."""
        return self.build(self.leaves)


def common_kind(**points: Any) -> Kind:
    """The dtype and device of the tensors and arrays given, which numbers and lists take.

    Arrays of several dtypes are computed in the widest; without any floating one it is float64.

    Args:
        **points: The points by the user's names, such as ``x0=..., y0=...``.

    Raises:
        TypeError: A tensor has another dtype than the rest.

    Example:
        >>> common_kind(x0=torch.zeros(2), y0=[0.0, 1.0]).dtype
        torch.float32
    """
    given = [pair for name, point in points.items() for pair in _typed_parts(point, name)]
    tensors = [(name, part) for name, part in given if isinstance(part, Tensor)]
    device = tensors[0][1].device if tensors else torch.device("cpu")
    floating = [(name, part.dtype) for name, part in tensors if part.is_floating_point()]
    arrays = [
        (name, torch.from_numpy(np.empty(0, _array_dtype(part))).dtype)
        for name, part in given
        if isinstance(part, np.ndarray) and part.dtype.kind == "f"
    ]
    if not floating:
        dtypes = [dtype for _, dtype in arrays]
        return Kind(reduce(torch.promote_types, dtypes) if dtypes else torch.float64, device)
    first, dtype = floating[0]
    for name, other in floating + arrays:
        if other != dtype:
            raise TypeError(
                f"{first} is {dtype} but {name} is {other}: convert one of them, both players "
                "need one dtype"
            )
    return Kind(dtype, device)


def read_form(point: Any, name: str, kind: Kind | None = None) -> Form:
    """Take a point apart.

    A list of numbers, however nested, is one array; any other list, tuple or dict is a collection.
    Tensors and arrays come back in the dtype they had.

    Args:
        point: What the user gave.
        name: What the user calls it.
        kind: The dtype that is computed in, and the device; by default the point's own.

    Raises:
        TypeError: There is something in it that is no number.
        ValueError: It is empty or not finite.
    """
    parts = _Parts([], [], kind or common_kind(**{name: point}))
    build, give_back = _read(point, name, parts)
    if not any(leaf.numel() for leaf in parts.leaves):
        raise ValueError(f"{name} is empty: give it at least one number")
    for leaf in parts.leaves:
        if not bool(leaf.isfinite().all()):
            raise ValueError(f"{name} has entries that are not finite: start from finite numbers")
    return Form(parts.leaves, parts.names, build, give_back)


@torch.no_grad()
def unbounded_part(
    home: Set | None, point: Sequence[Tensor], step: Sequence[Tensor]
) -> list[Tensor]:
    """The part of a step along which a set has no bound; zero if the set is bounded.

    This is the projection of the step on the recession cone of the set.

    Args:
        home: The set; None for the whole space.
        point: A point of the set.
        step: A step from there.
    """
    if home is None:
        return list(step)
    starts = [tensor.double() for tensor in point]
    ends = [
        (p + _LONG * s.double()).nan_to_num(0.0).clamp(-(_LONG**2), _LONG**2)
        for p, s in zip(starts, step, strict=True)
    ]
    return [
        ((end - p) / _LONG).to(s.dtype)
        for end, p, s in zip(home.project(ends), starts, step, strict=True)
    ]


def check_rows(*forms: Form) -> None:
    """Raise ValueError unless all tensors have the same number of rows (the first dimension)."""
    tensors = [pair for form in forms for pair in zip(form.names, form.leaves, strict=True)]
    first, leaf = tensors[0]
    for name, other in tensors:
        if other.dim() == 0:
            raise ValueError(f"{name} is one number and has no rows, which rowwise=True needs")
        if len(other) != len(leaf):
            raise ValueError(
                f"{first} has {len(leaf)} rows but {name} has {len(other)}: with rowwise=True "
                "every row is its own problem, so all need the same number"
            )


def read_set(given: Sets, point: Any, form: Form, player: str) -> Set | None:
    """The set of a player: one, or a list or dict of sets in the form of its point.

    Args:
        given: What the user gave: a set over all tensors, None, or parts of these.
        point: The user's start.
        form: The start, taken apart.
        player: "x" or "y".

    Raises:
        TypeError: It is no set, or there is something in it that is none.
        ValueError: It has not the form of the point.
    """
    if given is None or isinstance(given, Set):
        return given
    each: list[Set | None] = []
    _read_sets(given, point, f"{player}_set", f"{player}0", each)
    if all(one is None for one in each):
        return None
    product = Product([WholeSpace() if one is None else one for one in each])
    for one, leaf, part in zip(product.sets, form.leaves, form.names, strict=True):
        try:
            one.validate(leaf)
        except ValueError as error:
            raise ValueError(f"the set of {part} does not fit: {error}") from error
    return product


def _read_sets(given: Any, point: Any, name: str, point_name: str, each: list[Set | None]) -> None:
    """Append the set of every tensor of a part of the point."""
    parts = _parts(point, point_name)
    if given is None:
        each.extend([None] * _num_leaves(point, point_name))
    elif isinstance(given, Set):
        num_leaves = _num_leaves(point, point_name)
        if num_leaves > 1:
            raise ValueError(
                f"{name} is one set, but {point_name} has {num_leaves} tensors: give a set or "
                f"None for each, in the form of {point_name}"
            )
        each.append(given)
    elif not isinstance(given, list | tuple | dict):
        what = f"the class {given.__name__} itself" if isinstance(given, type) else repr(given)
        raise TypeError(
            f"{name} must be a set from neada.sets such as Box(0.0, 1.0), None, or a list or dict "
            f"of them in the form of {point_name}, got {what}"
        )
    elif (
        parts is None
        or isinstance(given, dict) != isinstance(point, dict)
        or set(given if isinstance(given, dict) else range(len(given))) != set(parts)
    ):
        raise ValueError(
            f"{name} must have the form of {point_name}: a set or None for each of its tensors"
        )
    else:
        for key, (part_name, part) in parts.items():
            _read_sets(given[key], part, f"{name}[{key!r}]", part_name, each)


def _parts(point: Any, name: str) -> dict[Any, tuple[str, Any]] | None:
    """The parts of a collection with their names; None for what becomes one tensor."""
    if isinstance(point, dict):
        items: Any = point.items()
    elif isinstance(point, tuple) or (isinstance(point, list) and not is_numeric(point)):
        items = enumerate(point)
    else:
        return None
    return {key: (f"{name}[{key!r}]", part) for key, part in items}


def _num_leaves(point: Any, name: str) -> int:
    parts = _parts(point, name)
    return 1 if parts is None else sum(_num_leaves(p, n) for n, p in parts.values())


def _typed_parts(point: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors and arrays in a point, with their names."""
    parts = _parts(point, name)
    if parts is not None:
        for part_name, part in parts.values():
            yield from _typed_parts(part, part_name)
    elif isinstance(point, Tensor | np.ndarray):
        yield name, point


_Build = Callable[[list[Tensor]], Any]


class _Parts(NamedTuple):
    """What has been read so far."""

    leaves: list[Tensor]
    names: list[str]
    kind: Kind


def _read(point: Any, name: str, parts: _Parts) -> tuple[_Build, _Build]:
    collection = _parts(point, name)
    if collection is not None:
        read = {key: _read(part, label, parts) for key, (label, part) in collection.items()}
        return (
            lambda tensors: _like(point, {key: build(tensors) for key, (build, _) in read.items()}),
            lambda tensors: _like(point, {key: give(tensors) for key, (_, give) in read.items()}),
        )
    if isinstance(point, Tensor):
        return _leaf(point.detach().clone(), parts, lambda t: t, name)
    device = parts.kind.device
    if isinstance(point, np.ndarray):
        if point.dtype.kind not in "biufc":
            raise TypeError(f"{name} is an array of {point.dtype}: give it numbers")
        array = torch.tensor(point.astype(_array_dtype(point)), device=device)
        return _leaf(array, parts, lambda t: t.cpu().numpy(), name)
    if isinstance(point, Real):
        number = torch.tensor(float(point), dtype=torch.float64, device=device)
        return _leaf(number, parts, Tensor.item, name)
    if isinstance(point, list):
        try:
            array = torch.tensor(point, dtype=torch.float64, device=device)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is a list of lists of unequal lengths") from error
        return _leaf(array, parts, Tensor.tolist, name)
    raise TypeError(
        f"{name} is a {type(point).__name__}: give numbers, arrays, tensors, or lists or dicts of "
        "them"
    )


def _leaf(
    tensor: Tensor, parts: _Parts, give: Callable[[Tensor], Any], name: str
) -> tuple[_Build, _Build]:
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} is sparse: give a dense tensor, {name}.to_dense()")
    if tensor.is_complex():
        raise TypeError(f"{name} is complex: optimize its real view, torch.view_as_real")
    own = tensor.dtype if tensor.is_floating_point() else torch.float64
    place = len(parts.leaves)
    parts.leaves.append(tensor.to(parts.kind.dtype).requires_grad_())
    parts.names.append(name)
    return (
        lambda tensors: tensors[place],
        lambda tensors: give(tensors[place].detach().clone().to(own)),
    )


def _like(point: Any, parts: dict[Any, Any]) -> Any:
    """Parts as a collection of the kind of the point."""
    if isinstance(point, dict):
        return parts
    kind = type(point)
    return kind(*parts.values()) if hasattr(kind, "_fields") else kind(parts.values())


def _array_dtype(array: "np.ndarray[Any, Any]") -> "np.dtype[Any]":
    """The dtype of an array as torch has it: integers and long floats become float64."""
    known = array.dtype.kind == "c" or array.dtype in (np.float16, np.float32, np.float64)
    return array.dtype.newbyteorder("=") if known else np.dtype(np.float64)


def is_numeric(entries: list[Any]) -> bool:
    """Whether a list, however nested, holds numbers only, and at least one."""
    return bool(entries) and all(
        isinstance(entry, Real) or (isinstance(entry, list) and is_numeric(entry))
        for entry in entries
    )
