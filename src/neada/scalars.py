"""Arithmetic on numbers that belong to a whole player, or to each of its rows.

A step rule is written once. For one problem its numbers are Python floats, which cost no kernel
launch; for a batch of problems (`rowwise=True`) they are float64 tensors with one entry per row.
`+ - * **`, comparisons, `&` and `|` already mean the same on both; these functions are the rest.
"""

import math

import torch
from torch import Tensor

__all__ = [
    "Flag",
    "Scalar",
    "all_finite",
    "all_true",
    "any_true",
    "divide",
    "expm1",
    "is_finite",
    "maximum",
    "minimum",
    "negate",
    "sqrt",
    "where",
]

Scalar = float | Tensor
Flag = bool | Tensor


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two numbers."""
    if not isinstance(a, Tensor):
        a, b = b, a
    if isinstance(a, Tensor):
        return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp_max(b)
    return min(a, b)


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two numbers."""
    if not isinstance(a, Tensor):
        a, b = b, a
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp_min(b)
    return max(a, b)


def where(condition: Flag, a: Scalar, b: Scalar) -> Scalar:
    """`a` where the condition holds, `b` elsewhere."""
    if not isinstance(condition, Tensor):
        return a if condition else b
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        # torch.where returns float32 for two Python numbers
        a = torch.as_tensor(a, dtype=torch.float64, device=condition.device)
    return torch.where(condition, a, b)


def sqrt(a: Scalar) -> Scalar:
    """The square root, with the root of a negative number 0 (rounding below zero)."""
    if isinstance(a, Tensor):
        return a.clamp_min(0.0).sqrt()
    return math.sqrt(a) if a > 0.0 else 0.0


def expm1(a: Scalar) -> Scalar:
    """`exp(a) - 1`, infinite where it overflows."""
    if isinstance(a, Tensor):
        return torch.expm1(a)
    try:
        return math.expm1(a)
    except OverflowError:
        return math.inf


def divide(a: Scalar, b: Scalar) -> Scalar:
    """`a / b` with 0/0 = 0 ("no step") and a/0 = infinity for a > 0."""
    if isinstance(b, Tensor):
        undefined = (b == 0.0) & (a == 0.0)
        return (a / b).masked_fill(undefined, 0.0)
    if isinstance(a, Tensor):
        return torch.where(a == 0.0, 0.0, a / b) if b == 0.0 else a / b
    if b == 0.0:
        return 0.0 if a == 0.0 else math.copysign(math.inf, a)
    return a / b


def is_finite(a: Scalar) -> Flag:
    """Whether a number is neither infinite nor undefined."""
    return a.isfinite() if isinstance(a, Tensor) else math.isfinite(a)


def all_finite(a: Scalar) -> bool:
    """Whether no number is infinite or undefined."""
    if not isinstance(a, Tensor):
        return math.isfinite(a)
    # A finite sum has finite terms only, and takes one kernel.
    return math.isfinite(a.sum().item()) or bool(a.isfinite().all())


def all_true(flag: Flag) -> bool:
    """Whether a condition holds for every row."""
    return bool(flag.all()) if isinstance(flag, Tensor) else flag


def any_true(flag: Flag) -> bool:
    """Whether a condition holds for some row."""
    return bool(flag.any()) if isinstance(flag, Tensor) else flag


def negate(a: Flag) -> Flag:
    """Logical not (Python's `~` is bitwise on a bool)."""
    return ~a if isinstance(a, Tensor) else not a
