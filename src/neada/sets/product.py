"""One set for each tensor of a point."""

from collections.abc import Sequence

import torch
from torch import Tensor

from neada.scalars import Flag, all_true
from neada.sets.base import Set

__all__ = ["Product"]


class Product(Set):
    r"""The product of sets: tensor i of the point is in set i.

    .. math::
        P(v_1, \dots, v_m) = (P_1(v_1), \dots, P_m(v_m))

    It is `per_sample` if all its sets are: `contains` then refers to row i of all tensors
    together. If only some are, it returns one answer for the whole point.

    Args:
        sets: one set per tensor, in order.

    Example:
        >>> from neada.sets import L2Ball, Simplex
        >>> product = Product([L2Ball(1.0), Simplex()])
        >>> product.project([torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0])])
        [tensor([0.6000, 0.8000]), tensor([1., 0.])]
    """

    def __init__(self, sets: Sequence[Set]) -> None:
        self.sets = tuple(sets)
        if not self.sets:
            raise ValueError("a product needs at least one set")
        for i, member in enumerate(self.sets):
            if not isinstance(member, Set):
                raise TypeError(
                    f"member {i} of the product is a {type(member).__name__}, not a Set; "
                    "use WholeSpace() for a tensor without a constraint"
                )
        self.elementwise = all(member.elementwise for member in self.sets)
        self.per_sample = all(member.per_sample for member in self.sets)

    @property
    def separable_over_rows(self) -> bool:
        """Whether every set of the product projects each row by itself."""
        return all(member.separable_over_rows for member in self.sets)

    def _project_(self, tensors: list[Tensor]) -> None:
        for member, tensor in zip(self.sets, tensors, strict=True):
            member._project_([tensor])

    def _contains(self, tensors: list[Tensor]) -> Flag:
        flags = [
            member._contains([tensor]) for member, tensor in zip(self.sets, tensors, strict=True)
        ]
        if self.per_sample:
            return torch.stack([torch.as_tensor(flag) for flag in flags]).all(dim=0)
        return all(all_true(flag) for flag in flags)

    def _mapping(self, tensors: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return [
            member._mapping([tensor], [gradient])[0]
            for member, tensor, gradient in zip(self.sets, tensors, gradients, strict=True)
        ]

    def _check_fit(self, tensors: list[Tensor]) -> None:
        if len(tensors) != len(self.sets):
            raise ValueError(
                f"the product has {len(self.sets)} sets but the point has {len(tensors)} tensors"
            )
        for member, tensor in zip(self.sets, tensors, strict=True):
            member._read([tensor])
