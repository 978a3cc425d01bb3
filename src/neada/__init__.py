"""neada: minimax optimisation that asks nobody for the problem's constants."""

from neada import optim, sets
from neada.optim.constrain import constrain

__all__ = ["__version__", "constrain", "optim", "sets"]

__version__ = "0.1.0"
