"""Points in the user's own form: numbers, arrays, tensors, and lists or dicts of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

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
    """The dtype and device of all tensors of a solve."""

    dtype: torch.dtype
    device: torch.device


class Form(NamedTuple):
    """A point flattened into tensors.

    Attributes:
        leaves: Copies of the point's tensors that require gradients.
        names: The user's name of each of them: ``x0['weight']``.
        spec: The structure of the point, for `tree_unflatten`.
        converters: For each leaf, a function that returns a tensor in the type the user gave.
    """

    leaves: list[Tensor]
    names: list[str]
    spec: TreeSpec
    converters: list[Callable[[Tensor], Any]]

    def for_fun(self) -> Any:
        """The leaves in the user's structure, for the objective."""
        return tree_unflatten(self.leaves, self.spec)

    def give_back(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors in the user's structure and types, for the result."""
        pairs = zip(self.converters, tensors, strict=True)
        return tree_unflatten([convert(tensor) for convert, tensor in pairs], self.spec)


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
    given = [pair for name, point in points.items() for pair in _flatten(point, name)[0]]
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
    """Flatten a point into tensors.

    A list of numbers, however nested, is one array; any other list, tuple or dict is a collection.
    Tensors and arrays are returned in their own dtype.

    Args:
        point: What the user gave.
        name: What the user calls it.
        kind: The dtype of the computation, and the device; by default the point's own.

    Raises:
        TypeError: Part of the point is not numeric.
        ValueError: The point is empty, or has NaN or Inf entries.
    """
    kind = kind or common_kind(**{name: point})
    parts, spec = _flatten(point, name)
    read = [_read_leaf(part, label, kind) for label, part in parts]
    leaves = [leaf for leaf, _ in read]
    if not any(leaf.numel() for leaf in leaves):
        raise ValueError(f"{name} is empty: give it at least one number")
    if not all(bool(leaf.isfinite().all()) for leaf in leaves):
        raise ValueError(f"{name} has NaN or Inf entries: start from finite numbers")
    return Form(leaves, [label for label, _ in parts], spec, [convert for _, convert in read])


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
        given: What the user gave: a set over all tensors, None, or a set or None for each tensor.
        point: The user's start.
        form: The start, flattened.
        player: "x" or "y".

    Raises:
        TypeError: Something in it is not a set.
        ValueError: It does not have the form of the point, or a set does not fit its tensor.
    """
    if given is None or isinstance(given, Set):
        return given
    each = _set_of_each(given, point, f"{player}_set")
    if all(one is None for one in each):
        return None
    product = Product([WholeSpace() if one is None else one for one in each])
    for one, leaf, part in zip(product.sets, form.leaves, form.names, strict=True):
        try:
            one.validate(leaf)
        except ValueError as error:
            raise ValueError(f"the set of {part} does not fit: {error}") from error
    return product


def _set_of_each(given: Any, point: Any, name: str) -> list[Set | None]:
    """The set of every tensor of a part of the point; None stands for no set on all of them."""
    num_leaves = len(tree_leaves(point, is_leaf=is_numeric))
    if given is None:
        return [None] * num_leaves
    if isinstance(given, Set) and num_leaves == 1:
        return [given]
    if not isinstance(given, Set | list | tuple | dict):
        raise TypeError(
            f"{name} must be a set from neada.sets such as Box(0.0, 1.0), None, or a list or dict "
            f"of them in the form of the start, got {given!r}"
        )
    sets, parts = _items(given), _items(point)
    if isinstance(given, dict) != isinstance(point, dict) or sets.keys() != parts.keys():
        raise ValueError(
            f"{name} must have the form of the start, with a set or None for each of its tensors"
        )
    found = [_set_of_each(sets[key], part, f"{name}[{key!r}]") for key, part in parts.items()]
    return [one for part in found for one in part]


def _items(collection: Any) -> dict[Any, Any]:
    """The parts of a collection by key or position; empty for a tensor, a number or a set."""
    if isinstance(collection, dict):
        return collection
    is_collection = isinstance(collection, list | tuple) and not is_numeric(collection)
    return dict(enumerate(collection)) if is_collection else {}


def is_numeric(entries: Any) -> bool:
    """Whether a list, however nested, contains numbers only, and at least one."""
    return (
        isinstance(entries, list)
        and bool(entries)
        and all(isinstance(entry, Real) or is_numeric(entry) for entry in entries)
    )


def _flatten(point: Any, name: str) -> tuple[list[tuple[str, Any]], TreeSpec]:
    """The parts of a point with their names, and its structure."""
    parts, spec = tree_flatten_with_path(point, is_leaf=is_numeric)
    return [(name + keystr(path), part) for path, part in parts], spec


def _read_leaf(part: Any, name: str, kind: Kind) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """A part as a tensor that requires gradients, and the way back."""
    convert: Callable[[Tensor], Any]
    if isinstance(part, Tensor):
        tensor, convert = part.detach().clone(), lambda t: t
    elif isinstance(part, np.ndarray):
        if part.dtype.kind not in "biufc":
            raise TypeError(f"{name} is an array of {part.dtype}: give it numbers")
        tensor, convert = torch.tensor(part.astype(_array_dtype(part))), lambda t: t.cpu().numpy()
    elif isinstance(part, Real):
        tensor, convert = torch.tensor(float(part), dtype=torch.float64), Tensor.item
    elif is_numeric(part):
        try:
            tensor, convert = torch.tensor(part, dtype=torch.float64), Tensor.tolist
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is a list of lists of unequal lengths") from error
    else:
        raise TypeError(
            f"{name} is a {type(part).__name__}: give numbers, arrays, tensors, or lists or dicts "
            "of them"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} is sparse: give a dense tensor, {name}.to_dense()")
    if tensor.is_complex():
        raise TypeError(f"{name} is complex: optimize its real view, torch.view_as_real")
    own = tensor.dtype if tensor.is_floating_point() else torch.float64
    leaf = tensor.to(part.device if isinstance(part, Tensor) else kind.device, kind.dtype)
    return leaf.requires_grad_(), lambda t: convert(t.detach().clone().to(own))


def _array_dtype(array: "np.ndarray[Any, Any]") -> "np.dtype[Any]":
    """The dtype of an array as torch has it: integers and long floats become float64."""
    known = array.dtype.kind == "c" or array.dtype in (np.float16, np.float32, np.float64)
    return array.dtype.newbyteorder("=") if known else np.dtype(np.float64)
