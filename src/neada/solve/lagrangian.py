"""The Lagrangian of a loss and its multipliers, for one's own loop."""

from typing import Any

import torch
from torch import Tensor, nn

from neada.checks import check_number
from neada.sets import NonNegative, Product, Set, WholeSpace

__all__ = ["Lagrangian"]


class Lagrangian(nn.Module):
    r"""The Lagrangian of a loss, with the multipliers as parameters that are maximized over.

    .. math::
        L = \text{loss} + y_g \cdot g + y_h \cdot h, \qquad y_g \ge 0

    The multipliers are the parameters `inequality` and `equality`; `state_dict` has them.

    Args:
        inequality: How many constraints :math:`g \le 0` there are; their values may have any shape.
        equality: How many constraints :math:`h = 0`.
        dtype: Of the multipliers.
        device: Where they are.

    Raises:
        ValueError: A number is negative, or both are zero.

    Example:
        >>> from neada import NeAda, optim
        >>> weight = torch.zeros(2, requires_grad=True)
        >>> lagrangian = Lagrangian(inequality=1)
        >>> y_optimizer = optim.AdGD(lagrangian.groups(), maximize=True)
        >>> stepper = NeAda(optim.GeneralizedAdaGrad([weight]), y_optimizer)
        >>> loss = (weight - 1).square().sum()
        >>> lagrangian(loss, inequality=weight.sum() - 1).item()
        2.0
    """

    inequality: nn.Parameter | None
    equality: nn.Parameter | None

    def __init__(
        self,
        inequality: int = 0,
        equality: int = 0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        numbers = {"inequality": inequality, "equality": equality}
        for name, number in numbers.items():
            check_number(name, number, strict=False, whole=True)
        if not inequality + equality:
            raise ValueError("a Lagrangian needs at least one constraint: say how many there are")
        for name, number in numbers.items():
            zeros = torch.zeros(number, dtype=dtype, device=device)
            self.register_parameter(name, nn.Parameter(zeros) if number else None)

    @property
    def y_set(self) -> Product:
        """Where the multipliers live, for steppers that take `parameters()` and a set."""
        return Product([group["constraint"] or WholeSpace() for group in self.groups()])

    def groups(self) -> list[dict[str, Any]]:
        """The multipliers as parameter groups with their sets, for the optimizer of y."""
        homes: dict[str, Set | None] = {"inequality": NonNegative(), "equality": None}
        return [{"params": [p], "constraint": homes[name]} for name, p in self.named_parameters()]

    def forward(
        self, loss: Tensor, inequality: Tensor | None = None, equality: Tensor | None = None
    ) -> Tensor:
        """The loss plus multipliers times the values of the constraints.

        Args:
            loss: One number, with its graph.
            inequality: The values of g, as many as there are multipliers.
            equality: The values of h.

        Raises:
            ValueError: The values are not as many as the multipliers, or a multiplier of an
                inequality is negative.
            TypeError: They are no tensor.
        """
        for name, values in (("inequality", inequality), ("equality", equality)):
            multipliers = getattr(self, name)
            expected = 0 if multipliers is None else multipliers.numel()
            given = 0 if values is None else values.numel()
            if given != expected:
                raise ValueError(
                    f"this Lagrangian has {expected} multipliers for {name}, but {given} values "
                    "were given"
                )
            if name == "inequality" and expected and bool((multipliers < 0.0).any()):
                raise ValueError(
                    f"a multiplier of an inequality is negative: {multipliers.min().item():g}. "
                    "Project after every step with neada.constrain(optimizer, NonNegative()), or "
                    "use a stepper, which does so for the sets in groups()"
                )
            if values is not None:
                loss = loss + (multipliers * values.reshape(-1)).sum()
        return loss
