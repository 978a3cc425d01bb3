"""Points in the user's own form: numbers, arrays, tensors, and lists or dicts of them."""

from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Form", "read_form"]


class Form(NamedTuple):
    """A point taken apart into tensors, with two ways to put it together again."""

    leaves: list[Tensor]
    """Copies of the point's tensors that take gradients."""
    for_fun: Callable[[], Any]
    """The leaves in the user's structure, as tensors, for the objective."""
    give_back: Callable[[list[Tensor]], Any]
    """Tensors in the user's structure and of the user's kind, for the answer."""


def read_form(point: Any, name: str) -> Form:
    """Take a point apart.

    A tensor keeps its dtype and device, an array its dtype, numbers become float64. A list of
    numbers, however nested, is one array; any other list, tuple or dict is a collection.

    Raises:
        TypeError: There is something in it that is no number.
        ValueError: It is empty or not finite.
    """
    leaves: list[Tensor] = []
    build, give_back = _read(point, name, leaves)
    if not leaves:
        raise ValueError(f"{name} is empty: give it at least one number")
    for leaf in leaves:
        if not bool(leaf.isfinite().all()):
            raise ValueError(f"{name} has entries that are not finite: start from finite numbers")
    return Form(leaves, lambda: build(leaves), give_back)


_Build = Callable[[list[Tensor]], Any]


def _read(point: Any, name: str, leaves: list[Tensor]) -> tuple[_Build, _Build]:
    if isinstance(point, Tensor):
        return _leaf(point.detach().clone(), leaves, lambda t: t, name)
    if isinstance(point, np.ndarray):
        array = torch.tensor(point if point.dtype.kind == "f" else point.astype(np.float64))
        return _leaf(array, leaves, lambda t: t.cpu().numpy(), name)
    if isinstance(point, Real):
        number = torch.tensor(float(point), dtype=torch.float64)
        return _leaf(number, leaves, lambda t: t.item(), name)
    if isinstance(point, list) and _is_numeric(point):
        try:
            array = torch.tensor(point, dtype=torch.float64)
        except ValueError as error:
            raise ValueError(f"{name} is a list of lists of unequal lengths") from error
        return _leaf(array, leaves, lambda t: t.tolist(), name)
    if isinstance(point, list | tuple):
        parts = [_read(part, f"{name}[{i}]", leaves) for i, part in enumerate(point)]
        kind = type(point)
        return (
            lambda tensors: kind(build(tensors) for build, _ in parts),
            lambda tensors: kind(give(tensors) for _, give in parts),
        )
    if isinstance(point, dict):
        entries = {key: _read(part, f"{name}[{key!r}]", leaves) for key, part in point.items()}
        return (
            lambda tensors: {key: build(tensors) for key, (build, _) in entries.items()},
            lambda tensors: {key: give(tensors) for key, (_, give) in entries.items()},
        )
    raise TypeError(
        f"{name} is a {type(point).__name__}: give numbers, arrays, tensors, or lists or dicts of "
        "them"
    )


def _leaf(
    tensor: Tensor, leaves: list[Tensor], give: Callable[[Tensor], Any], name: str
) -> tuple[_Build, _Build]:
    if tensor.is_complex():
        raise TypeError(f"{name} is complex: optimize its real view, torch.view_as_real")
    if not tensor.is_floating_point():
        tensor = tensor.double()
    place = len(leaves)
    leaves.append(tensor.requires_grad_())
    return (
        lambda tensors: tensors[place],
        lambda tensors: give(tensors[place].detach().clone()),
    )


def _is_numeric(entries: list[Any]) -> bool:
    """Whether a list, however nested, holds numbers only, and at least one."""
    return bool(entries) and all(
        isinstance(entry, Real) or (isinstance(entry, list) and _is_numeric(entry))
        for entry in entries
    )
