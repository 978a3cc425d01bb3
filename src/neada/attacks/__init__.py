"""How a trained model stands up to small changes of its inputs: FGSM, PGD, accuracy under attack.

For evaluation only, and on purpose without arithmetic in common with training: a mistake there
cannot hide here. What is promised about a perturbed input z of an input v holds for the very
numbers that are returned: z is in the valid range, and z - v, computed exactly, is in the ball.
"""

from neada.attacks.accuracy import RobustAccuracy, robust_accuracy
from neada.attacks.gradient import fgsm, pgd

__all__ = ["RobustAccuracy", "fgsm", "pgd", "robust_accuracy"]
