"""Whether an answer is a maximum in y: the curvature of f along the entries that are free."""

import torch
from torch import Tensor

from neada import tensors
from neada.scalars import Flag, Scalar, all_true, any_true, maximum, sqrt
from neada.sets import Set

__all__ = ["curves_upwards", "free_entries"]

_ITERATIONS = 12
_DIRECTIONS = 4


def curves_upwards(
    value: Tensor, params: list[Tensor], masks: list[Tensor], rowwise: bool = False
) -> Flag:
    """Whether a function curves upwards along some direction; one answer per row, with rows.

    Power iterations with exact Hessian-vector products, shifted so that they look for the largest
    eigenvalue, not for the largest in absolute value. A handful finds a clearly positive one; a
    faint one may escape.

    Args:
        value: The function with its graph; one value per row, with rows.
        params: The tensors it is a function of.
        masks: Which of their entries are free to move; directions have zeros elsewhere.
        rowwise: Every row is its own problem.
    """
    nowhere: Flag = torch.zeros_like(value, dtype=torch.bool) if rowwise else False
    grads = torch.autograd.grad(value.sum(), params, create_graph=True, allow_unused=True)
    used = [
        (g, p, mask)
        for g, p, mask in zip(grads, params, masks, strict=True)
        if g is not None and g.requires_grad
    ]
    if not used:
        return nowhere  # linear in y
    gradient, point, free = ([entry[i] for entry in used] for i in range(3))
    generator = torch.Generator().manual_seed(0)
    v = [
        torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) * mask
        for p, mask in zip(point, free, strict=True)
    ]
    shift: Scalar = 0.0
    found = nowhere
    for _ in range(_ITERATIONS):
        length = sqrt(tensors.squared_norm(v, rowwise))
        tensors.scale_(v, 1.0 / maximum(length, torch.finfo(v[0].dtype).tiny))
        # As the gradient of a sum: torch imports sympy for a gradient of several numbers.
        along = torch.stack([(g * d).sum() for g, d in zip(gradient, v, strict=True)]).sum()
        products = torch.autograd.grad(along, point, retain_graph=True, allow_unused=True)
        image = [
            torch.zeros_like(p) if h is None else h * mask
            for h, p, mask in zip(products, point, free, strict=True)
        ]
        length = sqrt(tensors.squared_norm(image, rowwise))
        found = found | (tensors.dot(v, image, rowwise) > 1e-6 * length)
        if all_true(found):
            break
        shift = maximum(shift, length)
        tensors.add_scaled_(image, v, shift)
        if not any_true(tensors.squared_norm(image, rowwise) > 0.0):
            break
        v = image
    return found


def free_entries(param: Tensor, home: Set | None, rowwise: bool = False) -> Tensor:
    """Which entries of a tensor small moves leave in its set: 1 for those, 0 for the others.

    On a box each entry is free or at its bound. On other sets all are free inside, which is tried
    by a few random moves, and none on the border, where curvature alone proves nothing.

    Args:
        param: The tensor.
        home: Where it lives; None for everywhere.
        rowwise: Every row is its own problem.
    """
    point = param.detach()
    if home is None:
        return torch.ones_like(point)
    size = max(1e-6, 8.0 * torch.finfo(point.dtype).eps) * (1.0 + point.abs())
    if home.elementwise:
        moves = [point + size, point - size]
        stays = [home.project(moved) == moved for moved in moves]
        return (stays[0] & stays[1]).to(point.dtype)
    generator = torch.Generator().manual_seed(0)
    inside: Flag = True
    for _ in range(_DIRECTIONS):
        moved = point + size * torch.randn(point.shape, generator=generator).to(point)
        apart = tensors.squared_distance([moved], [home.project(moved)], rowwise)
        inside = inside & (apart == 0.0)
    if isinstance(inside, Tensor):
        return torch.ones_like(point) * inside.reshape(-1, *[1] * (point.dim() - 1))
    return torch.full_like(point, float(inside))
