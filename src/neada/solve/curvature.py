"""Whether an answer is a maximum in y: the curvature of f along the tensors that are free."""

import torch
from torch import Tensor

from neada import tensors
from neada.scalars import Flag, Scalar, all_true, any_true, maximum, sqrt
from neada.sets import Set

__all__ = ["curves_upwards", "is_inside"]

_ITERATIONS = 12
_DIRECTIONS = 4


def curves_upwards(value: Tensor, params: list[Tensor], rowwise: bool = False) -> Flag:
    """Whether a function curves upwards along some direction; one answer per row, with rows.

    Power iterations with exact Hessian-vector products, shifted so that they look for the largest
    eigenvalue, not for the largest in absolute value. A handful finds a clearly positive one; a
    faint one may escape.

    Args:
        value: The function with its graph; one value per row, with rows.
        params: The tensors it is a function of.
        rowwise: Every row is its own problem.
    """
    nowhere: Flag = torch.zeros_like(value, dtype=torch.bool) if rowwise else False
    grads = torch.autograd.grad(value.sum(), params, create_graph=True, allow_unused=True)
    used = [(g, p) for g, p in zip(grads, params, strict=True) if g is not None and g.requires_grad]
    if not used:
        return nowhere  # linear in y
    gradient, point = [g for g, _ in used], [p for _, p in used]
    generator = torch.Generator().manual_seed(0)
    v = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in point]
    shift: Scalar = 0.0
    found = nowhere
    for _ in range(_ITERATIONS):
        length = sqrt(tensors.squared_norm(v, rowwise))
        tensors.scale_(v, 1.0 / maximum(length, torch.finfo(v[0].dtype).tiny))
        # As the gradient of a sum: torch imports sympy for a gradient of several numbers.
        along = torch.stack([(g * d).sum() for g, d in zip(gradient, v, strict=True)]).sum()
        products = torch.autograd.grad(along, point, retain_graph=True, allow_unused=True)
        image = [
            torch.zeros_like(p) if h is None else h for h, p in zip(products, point, strict=True)
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


def is_inside(params: list[Tensor], home: Set, rowwise: bool = False) -> Flag:
    """Whether small moves in a few random directions stay in a set; one answer per row, with rows.

    Args:
        params: The tensors that live there, jointly.
        home: The set.
        rowwise: Every row is its own problem.
    """
    generator = torch.Generator().manual_seed(0)
    point = [p.detach() for p in params]
    inside: Flag = True
    for _ in range(_DIRECTIONS):
        moved = [
            p + 1e-6 * (1.0 + p.abs()) * torch.randn(p.shape, generator=generator).to(p)
            for p in point
        ]
        apart = tensors.squared_distance(moved, home.project(moved), rowwise)
        inside = inside & (apart == 0.0)
    return inside
