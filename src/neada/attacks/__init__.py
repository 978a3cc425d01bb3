"""Attacks on trained models by small changes of their inputs, and accuracy under attack.

For evaluation only, and on purpose without arithmetic in common with training: a mistake there
cannot hide here. What is promised about a perturbed input z of an input v holds for the very
numbers that are returned: z is in the valid range, and z - v, computed exactly, is in the ball.
"""

from neada.attacks.accuracy import RobustAccuracy, robust_accuracy
from neada.attacks.auto_pgd import apgd
from neada.attacks.gradient import fgsm, pgd

__all__ = ["RobustAccuracy", "apgd", "fgsm", "pgd", "robust_accuracy"]
