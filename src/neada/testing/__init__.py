"""Batteries of checks for custom optimizers, stopping rules, sets and steppers.

The library's own classes pass the same checks. Each battery takes seconds, needs no test framework
and raises an `AssertionError` that names the first requirement that is not met:

>>> import torch
>>> from neada.testing import check_optimizer
>>> check_optimizer(lambda params, **options: torch.optim.Adam(params, lr=0.05, **options))
"""

from neada.testing.optimizers import check_optimizer
from neada.testing.rules import check_rule
from neada.testing.sets import check_set
from neada.testing.steppers import check_stepper

__all__ = ["check_optimizer", "check_rule", "check_set", "check_stepper"]
