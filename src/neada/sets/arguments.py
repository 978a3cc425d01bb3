"""Arguments of sets: numbers per coordinate (bounds, centers) and per row (radii)."""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from neada.scalars import Scalar

__all__ = [
    "Values",
    "as_doubles",
    "broadcast",
    "check_one_per_row",
    "check_values",
    "describe",
    "read_size",
    "read_values",
    "values_for",
]

# A number for every coordinate: one for all, a tensor that broadcasts, or one tensor per tensor.
Values = float | Tensor | Sequence[Tensor]


def read_values(values: Values, name: str) -> float | Tensor | list[Tensor]:
    """The argument without autograd history; NaN is refused."""
    if isinstance(values, Tensor):
        _refuse_nan(bool(values.isnan().any()), name)
        return values.detach()
    if isinstance(values, Real):
        _refuse_nan(math.isnan(values), name)
        return float(values)
    each = list(values) if isinstance(values, Sequence) else []
    if not each or not all(isinstance(value, Tensor) for value in each):
        raise TypeError(
            f"{name} must be a float, a tensor or a list of tensors; make an array or a list of "
            "numbers a tensor with torch.as_tensor(...)"
        )
    _refuse_nan(any(bool(value.isnan().any()) for value in each), name)
    return [value.detach() for value in each]


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
    at_least = "at least 0" if zero_allowed else "positive"
    if isinstance(size, Tensor) and size.dim() > 0:
        if not per_sample:
            raise ValueError(
                f"{name} is a tensor of shape {tuple(size.shape)}; give one number, or "
                "per_sample=True for one number per row"
            )
        if size.dim() > 1:
            raise ValueError(
                f"{name} has shape {tuple(size.shape)}; per_sample=True needs a float or one "
                "number per row, shape [rows]"
            )
        sizes = size.detach().double()
        if not bool((sizes.isfinite() & ((sizes >= 0.0) if zero_allowed else (sizes > 0.0))).all()):
            raise ValueError(f"every {name} must be finite and {at_least}, got {size.tolist()}")
        return sizes
    size = float(size)
    if not math.isfinite(size) or size < 0.0 or (size == 0.0 and not zero_allowed):
        raise ValueError(f"{name} must be finite and {at_least}, got {size}")
    return size


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


def _refuse_nan(has_nan: bool, name: str) -> None:
    if has_nan:
        raise ValueError(f"{name} has a NaN; give numbers")


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(
        s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False)
    )
