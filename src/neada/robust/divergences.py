"""How far a distribution over groups is from another."""

from torch import Tensor, xlogy

__all__ = ["chi_square", "kullback_leibler"]

_SMALLEST_WEIGHT = 1e-30  # below it the divergence goes on in a straight line: its slope is finite


def kullback_leibler(weights: Tensor, frequencies: Tensor) -> Tensor:
    r""":math:`\sum_g y_g \log(y_g / p_g)`, with a finite gradient where a weight is 0."""
    return xlogy(weights, weights.clamp_min(_SMALLEST_WEIGHT) / frequencies).sum()


def chi_square(weights: Tensor, frequencies: Tensor) -> Tensor:
    r""":math:`\sum_g (y_g - p_g)^2 / p_g`."""
    return ((weights - frequencies).square() / frequencies).sum()
