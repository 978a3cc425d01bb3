r"""Losses of classifiers that attacks raise: positive where the model is fooled, one per sample.

With z the outputs, y the class and :math:`z_{\pi_1} \ge z_{\pi_2} \ge \dots` the outputs sorted:

.. math::
    \text{margin} = \max_{i \ne y} z_i - z_y, \qquad
    \text{DLR} = \frac{\max_{i \ne y} z_i - z_y}{z_{\pi_1} - z_{\pi_3}}, \qquad
    \text{targeted DLR}_t = \frac{z_t - z_y}{z_{\pi_1} - (z_{\pi_3} + z_{\pi_4})/2}

The difference of logits ratio (Croce & Hein 2020, arXiv:2003.01690) does not change when the
outputs are shifted or scaled, so that a confident model has no smaller gradients than another. DLR
needs three classes and its targeted form four; with fewer, the numerator alone is the loss.
"""

import torch
from torch import Tensor

__all__ = ["dlr", "likely_classes", "margin", "targeted_dlr"]

_TINY = 1e-12  # under quotients: all the largest outputs may be the same


def margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """The largest output of a wrong class minus that of the right one."""
    right = outputs.gather(1, targets[:, None])
    return (_without(outputs, targets).amax(1, keepdim=True) - right)[:, 0]


def dlr(outputs: Tensor, targets: Tensor) -> Tensor:
    """The margin relative to the distance of the first and the third largest output."""
    apart = margin(outputs, targets)
    if outputs.shape[1] < 3:
        return apart
    largest = outputs.topk(3, dim=1).values
    return apart / (largest[:, 0] - largest[:, 2] + _TINY)


def targeted_dlr(outputs: Tensor, targets: Tensor, wanted: Tensor) -> Tensor:
    """How far the output of the wanted class is above that of the right one, relatively."""
    apart = (outputs.gather(1, wanted[:, None]) - outputs.gather(1, targets[:, None]))[:, 0]
    if outputs.shape[1] < 4:
        return apart
    largest = outputs.topk(4, dim=1).values
    return apart / (largest[:, 0] - 0.5 * (largest[:, 2] + largest[:, 3]) + _TINY)


def likely_classes(outputs: Tensor, targets: Tensor, num: int) -> Tensor:
    """Per row the wrong classes with the largest outputs, the most likely one first."""
    return _without(outputs, targets).topk(num, dim=1).indices


def _without(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.scatter(1, targets[:, None], -torch.inf)
