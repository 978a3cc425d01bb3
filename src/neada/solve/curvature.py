"""Whether a stationary point of y is a maximum at all."""

import math

import torch
from torch import Tensor

from neada import tensors

__all__ = ["curves_upwards"]

_ITERATIONS = 12


def curves_upwards(value: Tensor, params: list[Tensor]) -> bool:
    """Whether a function curves upwards along some direction.

    Power iterations with exact Hessian-vector products, shifted so that they look for the largest
    eigenvalue, not for the largest in absolute value. A handful finds a clearly positive one; a
    faint one may escape.

    Args:
        value: The function with its graph.
        params: The tensors it is a function of.
    """
    grads = torch.autograd.grad(value, params, create_graph=True, allow_unused=True)
    used = [(g, p) for g, p in zip(grads, params, strict=True) if g is not None and g.requires_grad]
    if not used:
        return False  # linear in y
    gradient, point = [g for g, _ in used], [p for _, p in used]
    generator = torch.Generator().manual_seed(0)
    v = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in point]
    shift = 0.0
    for _ in range(_ITERATIONS):
        tensors.scale_(v, 1.0 / math.sqrt(float(tensors.squared_norm(v))))
        products = torch.autograd.grad(
            gradient, point, grad_outputs=v, retain_graph=True, allow_unused=True
        )
        image = [
            torch.zeros_like(p) if h is None else h for h, p in zip(products, point, strict=True)
        ]
        curvature = float(tensors.dot(v, image))
        length = math.sqrt(float(tensors.squared_norm(image)))
        if curvature > 1e-6 * length:
            return True
        shift = max(shift, length)
        tensors.add_scaled_(image, v, shift)
        if float(tensors.squared_norm(image)) == 0.0:
            return False
        v = image
    return False
