"""Batteries of checks for one's own optimizer, stopping rule, set or stepper.

The library's own parts pass the same checks. Each takes seconds, needs no test framework, draws
from a generator of its own and raises an `AssertionError` that names the first promise that is
broken:

>>> import torch
>>> from neada.testing import check_optimizer
>>> check_optimizer(lambda params, **options: torch.optim.Adam(params, lr=0.05, **options))
"""

from neada.testing.optimizers import check_optimizer
from neada.testing.rules import check_rule
from neada.testing.sets import check_set
from neada.testing.steppers import check_stepper

__all__ = ["check_optimizer", "check_rule", "check_set", "check_stepper"]
