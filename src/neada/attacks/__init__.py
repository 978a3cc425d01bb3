"""Attacks on trained models by small changes of their inputs, and accuracy under attack.

For evaluation only. This package shares no arithmetic with training, so that an error there cannot
hide here. Every perturbed input lies in the valid range, and its difference to the input lies in
the ball, in exact arithmetic and not only up to rounding.
"""

from neada.attacks.accuracy import RobustAccuracy, robust_accuracy
from neada.attacks.auto_pgd import apgd
from neada.attacks.gradient import fgsm, pgd
from neada.attacks.square import square

__all__ = ["RobustAccuracy", "apgd", "fgsm", "pgd", "robust_accuracy", "square"]
