"""Whether a point is a maximum in y: the curvature of f along the entries that are free."""

from collections.abc import Sequence

import torch
from torch import Tensor

from neada.sets import Set

__all__ = ["curves_upwards", "free_entries"]

_ITERATIONS = 12
_DIRECTIONS = 4


def curves_upwards(values: Tensor, params: list[Tensor], masks: list[Tensor]) -> Tensor:
    """Whether a function curves upwards along some direction; one flag per row.

    Power iterations with exact Hessian-vector products, shifted so that they converge to the
    largest eigenvalue, not to the largest in absolute value. A dozen find a clearly positive one; a
    small one may be missed.

    Args:
        values: The function with its graph, one value per row.
        params: The tensors it is a function of; with several rows, their first dimension.
        masks: 1 for the entries that are free to move, 0 for the others.
    """
    num_rows = len(values)
    found = torch.zeros_like(values, dtype=torch.bool)
    grads = torch.autograd.grad(values.sum(), params, create_graph=True, allow_unused=True)
    used = [i for i, grad in enumerate(grads) if grad is not None and grad.requires_grad]
    if not used:
        return found  # linear in y
    point = [params[i] for i in used]
    gradient = _as_rows([grads[i] for i in used], num_rows)
    free = _as_rows([masks[i] for i in used], num_rows)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in point]
    v = _as_rows(start, num_rows) * free
    shift = torch.zeros_like(v[:, :1])
    for _ in range(_ITERATIONS):
        v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        # As the gradient of a sum: torch imports sympy for a gradient of several numbers.
        along = (gradient * v).sum()
        products = torch.autograd.grad(
            along, point, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        image = _as_rows(products, num_rows) * free
        length = image.norm(dim=1, keepdim=True)
        found = found | ((v * image).sum(1) > 1e-6 * length[:, 0])
        if bool(found.all()):
            break
        shift = torch.maximum(shift, length)
        v = image + shift * v
        if not bool(v.any()):
            break
    return found


def free_entries(param: Tensor, home: Set | None, num_rows: int) -> Tensor:
    """Which entries of a tensor can move a little without leaving its set: 1 for those, 0 else.

    On a box each entry is free or at its bound. On other sets all entries are free inside, which is
    tested by a few random moves, and none on the border, where curvature alone proves nothing.

    Args:
        param: The tensor.
        home: Its set; None if it is unconstrained.
        num_rows: Every row is its own problem; 1 if the whole tensor is one.
    """
    point = param.detach()
    if home is None:
        return torch.ones_like(point)
    size = max(1e-6, 8.0 * torch.finfo(point.dtype).eps) * (1.0 + point.abs())
    if home.elementwise:
        up, down = point + size, point - size
        return ((home.project(up) == up) & (home.project(down) == down)).to(point.dtype)
    generator = torch.Generator().manual_seed(0)
    inside = torch.ones(num_rows, dtype=torch.bool, device=point.device)
    for _ in range(_DIRECTIONS):
        moved = point + size * torch.randn(point.shape, generator=generator).to(point)
        inside &= (_as_rows([moved], num_rows) == _as_rows([home.project(moved)], num_rows)).all(1)
    shape = (num_rows, *[1] * (point.dim() - 1)) if num_rows > 1 else ()
    return torch.ones_like(point) * inside.reshape(shape)


def _as_rows(tensors: Sequence[Tensor], num_rows: int) -> Tensor:
    """Tensors side by side as a float64 matrix with one row per problem."""
    return torch.cat([t.reshape(num_rows, t.numel() // num_rows) for t in tensors], 1).double()
