"""Vector algebra over a list of tensors: the only place where norms, dots and updates are written.

A *player* is a list of tensors. Everything here treats that list as one long vector or, with
`rowwise=True`, as a batch of vectors: row `i` of every tensor belongs to problem `i`. A number
about the player is then a Python float in the first case and a float64 tensor with one entry per
row in the second; `neada.scalars` does arithmetic that means the same on both.

Inner products are computed in float64 whatever the dtype of the tensors, and sums of squares are
accumulated in it, so that a float32 player takes the same decisions as a float64 one. Lists go
through torch's foreach kernels; a list of one tensor takes the plain kernel, which has half the
overhead.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NoReturn

import torch
from torch import Tensor

from neada.scalars import Flag, Scalar

__all__ = [
    "NonFiniteGradient",
    "add_scaled_",
    "blend_",
    "check_player",
    "clone",
    "copy_",
    "difference",
    "dot",
    "drop_cached_casts",
    "interpolate_",
    "is_whole",
    "negative",
    "raise_non_finite",
    "row_sums",
    "scale_",
    "secant",
    "squared_distance",
    "squared_norm",
]

# Sums go over pieces of this many elements: a copy of a piece stays in the cache, and is small
# enough that the allocator does not ask the system for fresh pages every time.
_CHUNK = 1 << 18
_ROW_CHUNK = 1 << 16  # where a piece needs several copies


class NonFiniteGradient(FloatingPointError):  # noqa: N818 (the published name)
    """A gradient or a value is NaN or Inf.

    Both are checked before a player moves, so the parameters of an optimizer, the x of a stepper
    and the model of an objective in `neada.robust` are as they were before the step. The position
    of y and the state of its optimizer are unspecified but finite: training can continue.

    Buffers of the model (running statistics of batch norm) and random number generators are not
    restored. An update that overflows although its gradient is finite raises at the next step.

    Attributes:
        rows: A flag for every row, true where a number is NaN or Inf; None without rows.
    """

    def __init__(self, message: str, rows: Flag | None = None) -> None:
        super().__init__(message)
        self.rows = rows if isinstance(rows, Tensor) else None


def is_whole(tensor: Tensor) -> bool:
    """Whether the dtype is that of integers; bool is not: a mask is no list of indices."""
    is_real = not (tensor.is_floating_point() or tensor.is_complex())
    return is_real and tensor.dtype != torch.bool


def check_player(tensors: Sequence[Tensor], rowwise: bool = False, what: str = "parameter") -> None:
    """Raise unless the tensors can be one player: dense, real, of one floating dtype.

    With `rowwise`, they must also agree on the number of rows (the first dimension).
    """
    for i, tensor in enumerate(tensors):
        if tensor.layout != torch.strided or not tensor.is_floating_point():
            raise TypeError(
                f"{what} {i} has dtype {tensor.dtype} and layout {tensor.layout}; dense tensors "
                "with a real floating dtype are supported: use .to_dense() or torch.view_as_real"
            )
        if tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{what} {i} is {tensor.dtype} but {what} 0 is {tensors[0].dtype}; "
                "convert them to one dtype, or give each dtype its own optimizer"
            )
        if not rowwise:
            continue
        if tensor.dim() == 0:
            raise ValueError(f"{what} {i} is a scalar and has no rows; rowwise=True needs rows")
        if len(tensor) != len(tensors[0]):
            raise ValueError(
                f"{what} {i} has {len(tensor)} rows but {what} 0 has {len(tensors[0])}; "
                "rowwise=True needs the same number of rows in every tensor"
            )


def squared_norm(tensors: Sequence[Tensor], rowwise: bool = False) -> Scalar:
    """The squared Euclidean norm of the player, or of each of its rows."""
    if rowwise:
        return dot(tensors, tensors, rowwise)
    return _sum_over_pieces(_piece_norm, tensors, tensors)


def squared_distance(
    left: Sequence[Tensor], right: Sequence[Tensor], rowwise: bool = False
) -> Scalar:
    """The squared Euclidean distance of two players, or of each pair of rows."""
    if rowwise:
        return squared_norm(difference(left, right), rowwise)
    return _sum_over_pieces(_piece_distance, left, right)


def dot(left: Sequence[Tensor], right: Sequence[Tensor], rowwise: bool = False) -> Scalar:
    """The inner product of two players, or of each pair of rows, in float64."""
    if rowwise:
        rows = [_row_dot(a, b) for a, b in zip(left, right, strict=True)]
        return rows[0] if len(rows) == 1 else torch.stack(rows).sum(0)
    return _sum_over_pieces(_piece_dot, left, right)


def secant(
    points: Sequence[Tensor],
    old_points: Sequence[Tensor],
    grads: Sequence[Tensor],
    old_grads: Sequence[Tensor],
    rowwise: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `|dw|^2`, `<dw, dg>` and `|dg|^2` in float64, of shape () or one number per row."""
    total: Tensor | None = None
    for quadruple in zip(points, old_points, grads, old_grads, strict=True):
        num_rows = len(quadruple[0]) if rowwise else 1
        num_columns = quadruple[0].numel() // max(num_rows, 1)
        parts = [tensor.reshape(num_rows, num_columns) for tensor in quadruple]
        size, dim = (max(1, _ROW_CHUNK // max(num_columns, 1)), 0) if rowwise else (_ROW_CHUNK, 1)
        pieces = zip(*(torch.split(part, size, dim) for part in parts), strict=True)
        grams = [_pair_gram(*piece) for piece in pieces]
        gram = grams[0] if len(grams) == 1 else torch.cat(grams)
        gram = gram if rowwise else gram.sum(0, keepdim=True)
        total = gram if total is None else total + gram
    assert total is not None
    gram = total if rowwise else total[0]
    return gram[..., 0, 0], gram[..., 0, 1], gram[..., 1, 1]


def _pair_gram(point: Tensor, old_point: Tensor, grad: Tensor, old_grad: Tensor) -> Tensor:
    """The products of two differences with themselves and each other, for each row."""
    shape = (len(point), 2, point.shape[1])
    pair = torch.empty(shape, dtype=torch.float64, device=point.device)
    torch.sub(point, old_point, out=pair[:, 0])
    torch.sub(grad, old_grad, out=pair[:, 1])
    return torch.bmm(pair, pair.mT)


def _sum_over_pieces(
    function: Callable[[Tensor, Tensor], float], left: Sequence[Tensor], right: Sequence[Tensor]
) -> float:
    total = 0.0
    for a, b in zip(left, right, strict=True):
        if a.dim() != 1:
            a, b = a.reshape(-1), b.reshape(-1)
        if a.numel() <= _CHUNK:
            total += function(a, b)
        else:
            for i in range(0, a.numel(), _CHUNK):
                total += function(a[i : i + _CHUNK], b[i : i + _CHUNK])
    return total


def _piece_dot(a: Tensor, b: Tensor) -> float:
    if a.dtype == torch.float64:
        return torch.dot(a, b).item()
    return torch.dot(a.double(), b.double()).item()


def _piece_norm(a: Tensor, _: Tensor) -> float:
    if a.dtype == torch.float64:
        return torch.dot(a, a).item()
    if a.dtype == torch.float32:
        # Nothing cancels in a sum of squares, so one piece of it may be summed in float32, three
        # times as fast, by torch's pairwise sum (a dot product loses four digits on a piece of
        # equal entries); but not where the squares come near the ends of their range.
        norm_sq = a.square().sum().item()
        if 1e-25 < norm_sq < 1e35:
            return norm_sq
    wide = a.double()
    return torch.dot(wide, wide).item()


def _piece_distance(a: Tensor, b: Tensor) -> float:
    if a.dtype == torch.float32:
        distance_sq = (a - b).square_().sum().item()
        if 1e-25 < distance_sq < 1e35:  # as in `_piece_norm`
            return distance_sq
    apart = (a - b).double()
    return torch.dot(apart, apart).item()


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    shape = (len(a), math.prod(a.shape[1:]))  # -1 would not do for a batch of no rows
    left = a.reshape(shape).double()
    right = left if b is a else b.reshape(shape).double()
    # For many short rows a product with ones is several times as fast as vecdot, or as a sum.
    product = left * right if left.dtype == a.dtype else left.mul_(right)
    return product @ _ones(shape[1], a.device)


@lru_cache(maxsize=16)
def _ones(size: int, device: torch.device) -> Tensor:
    return torch.ones(size, dtype=torch.float64, device=device)


def row_sums(tensor: Tensor) -> Tensor:
    """The sum of each row, whatever its shape and memory format; with its graph."""
    return tensor if tensor.dim() == 1 else tensor.sum(dim=tuple(range(1, tensor.dim())))


def difference(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    """`left - right`, tensor by tensor, as new tensors."""
    if len(left) == 1:
        return [left[0] - right[0]]
    return list(torch._foreach_sub(list(left), list(right)))


def negative(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`-tensors` as new tensors."""
    if len(tensors) == 1:
        return [-tensors[0]]
    return list(torch._foreach_neg(list(tensors)))


def clone(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies with no autograd history that share no memory with the originals."""
    return [tensor.detach().clone() for tensor in tensors]


def copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Write `sources` into `targets`."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(list(targets), list(sources))


drop_cached_casts = torch.clear_autocast_cache
"""Clear the cache of `torch.autocast`; call it before an evaluation and after a move.

The cache maps each leaf that requires a gradient to its half-precision copy until the outermost
region ends. A leaf that is modified in place would be evaluated at its old content. The call takes
0.1 microseconds if the cache is empty.
"""


def add_scaled_(targets: Sequence[Tensor], tensors: Sequence[Tensor], scale: Scalar) -> None:
    """`targets += scale * tensors`, each row by its own scale if there is one per row."""
    if isinstance(scale, Tensor) and scale.dim() == 0:
        scale = scale.item()
    if _exceeds(scale, targets[0].dtype):
        for target, tensor in zip(targets, tensors, strict=True):
            target.add_(_product(tensor, scale))
    elif isinstance(scale, Tensor):
        for target, tensor in zip(targets, tensors, strict=True):
            target.addcmul_(tensor, _per_row(scale, target))
    elif len(targets) == 1:
        targets[0].add_(tensors[0], alpha=scale)
    else:
        torch._foreach_add_(list(targets), list(tensors), alpha=scale)


def scale_(tensors: Sequence[Tensor], scale: Scalar) -> None:
    """`tensors *= scale`, each row by its own scale if there is one per row."""
    for tensor in tensors:
        if _exceeds(scale, tensor.dtype):
            tensor.copy_(_product(tensor, scale))
        else:
            tensor.mul_(_per_row(scale, tensor) if isinstance(scale, Tensor) else scale)


def interpolate_(targets: Sequence[Tensor], tensors: Sequence[Tensor], weight: Scalar) -> None:
    """`targets += weight * (tensors - targets)`."""
    for target, tensor in zip(targets, tensors, strict=True):
        target.lerp_(tensor, _per_row(weight, target) if isinstance(weight, Tensor) else weight)


def blend_(targets: Sequence[Tensor], tensors: Sequence[Tensor], rows: Flag) -> None:
    """Write `tensors` into `targets` where the flag holds: everywhere, nowhere, or in some rows."""
    if isinstance(rows, Tensor) and rows.dim() > 0:
        for target, tensor in zip(targets, tensors, strict=True):
            chosen = rows.reshape(-1, *[1] * (target.dim() - 1))
            target.copy_(torch.where(chosen, tensor, target))
    elif rows:
        copy_(targets, tensors)


def _exceeds(scale: Scalar, dtype: torch.dtype) -> bool:
    """Whether a factor is too large for the dtype, though its product with a tensor may not be."""
    if dtype == torch.float64:
        return False
    largest = torch.finfo(dtype).max
    if isinstance(scale, Tensor):
        return bool((scale.abs() > largest).any())
    return not -largest <= scale <= largest


def _product(tensor: Tensor, scale: Scalar) -> Tensor:
    """`scale * tensor` by way of float64; an infinite factor times 0 is 0."""
    wide = tensor.double()
    factor = scale.reshape(-1, *[1] * (tensor.dim() - 1)) if isinstance(scale, Tensor) else scale
    return torch.where(wide == 0.0, 0.0, wide * factor).to(tensor.dtype)


def _per_row(scale: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per row so that it broadcasts over the rows of `like`."""
    return scale.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))


def raise_non_finite(
    gradients: Sequence[Tensor | None], value: Tensor | None = None, rows: Flag | None = None
) -> NoReturn:
    """Raise `NonFiniteGradient` for a gradient or value that is NaN or Inf.

    The squared norm that a method computes anyway is the test: it is finite only if every entry
    is. The tensors are searched only after it has failed.

    Args:
        gradients: One for every tensor; None where there is none.
        value: The value of the objective, if it was checked too.
        rows: Which rows failed, if there are rows.
    """
    advice = "lower the learning rate or check the objective"
    message = f"the squared norm of the gradient overflows its dtype: {advice}"
    if value is not None and not bool(value.isfinite().all()):
        message = f"the value of the objective is {value.detach().cpu().tolist()}: {advice}"
    for i, gradient in enumerate(gradients):
        num_bad = 0 if gradient is None else int((~gradient.isfinite()).sum())
        if gradient is not None and num_bad > 0:
            shape = tuple(gradient.shape)
            message = (
                f"the gradient of parameter {i}, shape {shape}, has {num_bad} NaN or Inf entries: "
                f"{advice}"
            )
            break
    raise NonFiniteGradient(message, rows)
