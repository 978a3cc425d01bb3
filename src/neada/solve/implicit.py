"""Solutions that are differentiable with respect to the tensors that f closes over."""

import numpy as np
import torch
from torch import Tensor

from neada.sets import Set
from neada.solve.derivatives import grad, hessian_of
from neada.solve.geometry import Face, Side, solve_many

__all__ = ["attach_gradients"]


def attach_gradients(
    value: Tensor, x: list[Tensor], y: list[Tensor], x_set: Set | None, y_set: Set | None
) -> list[Tensor]:
    r"""The players, with implicit gradients.

    A solution is the fixed point :math:`z = P(z - t F(z))` of :math:`F = (f_x, -f_y)`. With the
    derivative J of the projection there, :math:`(1 - J + t J F_z)\, dz = -t J\, dF`.

    Args:
        value: f at the solution, with its graph.
        x: The tensors of x.
        y: The tensors of y.
        x_set: The constraint set of x.
        y_set: The constraint set of y.

    Returns:
        New tensors for x and then for y with the same values.

    Raises:
        RuntimeError: f has no second derivatives.
    """
    leaves, sides = x + y, (Side(x, x_set), Side(y, y_set))
    slopes = grad(value, leaves, create_graph=True)
    sign = np.repeat([1.0, -1.0], [side.size for side in sides])
    field = torch.cat([slope.reshape(-1) for slope in slopes]).double()
    field = field * torch.from_numpy(sign).to(field.device)
    matrix = sign[:, None] * hessian_of(value, leaves, 1)[0]
    length = 1.0 / max(float(np.linalg.norm(matrix)), 1e-300)
    steps = np.split(length * field.detach().cpu().numpy(), [sides[0].size])
    faces = [
        side.face(side.read() - step).matrix()[0] for side, step in zip(sides, steps, strict=True)
    ]
    derivative = np.zeros_like(matrix)
    n = sides[0].size
    derivative[:n, :n], derivative[n:, n:] = faces
    face = Face(np.ones((1, len(sign)), dtype=bool), derivative[None])
    system = face.system(matrix[None], np.full(1, length))[0]
    inverse = torch.from_numpy(solve_many(system, -length * derivative)).to(field.device)
    change = inverse @ (field - field.detach())
    parts = torch.split(change, [leaf.numel() for leaf in leaves])
    return [
        leaf.detach() + part.reshape(leaf.shape).to(leaf.dtype)
        for leaf, part in zip(leaves, parts, strict=True)
    ]
