"""Constraint sets for any torch optimizer."""

from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer

from neada.optim.base import PlayerOptimizer, check_set
from neada.sets import Set

__all__ = ["constrain", "installed_sets"]

_OptimizerT = TypeVar("_OptimizerT", bound=Optimizer)

# The sets of other optimizers; those of a PlayerOptimizer are in its groups.
_sets: "WeakKeyDictionary[Optimizer, Set | list[Set | None] | None]" = WeakKeyDictionary()


def constrain(
    optimizer: _OptimizerT, constraint: Set | list[Set | None] | tuple[Set | None, ...] | None
) -> _OptimizerT:
    """Project the parameters of any torch optimizer on a set after every step.

    For a diagonally scaled method such as Adam the Euclidean projection is exact on boxes and a
    heuristic elsewhere. Call it again to replace the set; copies and pickles of the optimizer do
    not carry it. Steppers and robust objectives apply it to torch optimizers with a set in a
    parameter group, under the key "constraint".

    Args:
        optimizer: Any `torch.optim.Optimizer`.
        constraint: One set for every group, or one per group; joint over a group's tensors.

    Returns:
        The same optimizer.

    Example:
        >>> from neada.sets import Box
        >>> w = torch.zeros(2, requires_grad=True)
        >>> optimizer = constrain(torch.optim.SGD([w], lr=1.0), Box(-0.5, 0.5))
        >>> (w.sum() * 3.0).backward()
        >>> optimizer.step()
        >>> w.detach()
        tensor([-0.5000, -0.5000])
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch optimizer, not {type(optimizer).__name__}")
    groups = optimizer.param_groups
    stored = list(constraint) if isinstance(constraint, list | tuple) else constraint
    given = stored if isinstance(stored, list) else [stored] * len(groups)
    if len(given) != len(groups):
        raise ValueError(
            f"the optimizer has {len(groups)} parameter groups but {len(given)} sets were given: "
            "pass one set for all, or one per group"
        )
    for group, member in zip(groups, given, strict=True):
        if isinstance(optimizer, PlayerOptimizer):
            optimizer._check_constraint(group, member)
        elif member is not None:
            check_set(member, group["params"])
    if isinstance(optimizer, PlayerOptimizer):
        for group, member in zip(groups, given, strict=True):
            group["constraint"] = member
        return optimizer
    if optimizer not in _sets:
        optimizer.register_step_post_hook(_project)
    _sets[optimizer] = stored
    return optimizer


def installed_sets(optimizer: Optimizer) -> list[Set | None]:
    """Return the set of each parameter group, None where there is none, after installing them.

    torch's optimizers ignore the key "constraint" of a group, so `constrain` is called with the
    sets of the groups unless it was called before.
    """
    in_groups = [group.get("constraint") for group in optimizer.param_groups]
    if isinstance(optimizer, PlayerOptimizer):
        return in_groups
    if optimizer not in _sets and any(member is not None for member in in_groups):
        constrain(optimizer, in_groups)
    known = _sets.get(optimizer)
    if not isinstance(known, list):  # one set for every group, also for groups added later
        return [known] * len(in_groups)
    return known + in_groups[len(known) :]


@torch.no_grad()
def _project(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for group, constraint in zip(optimizer.param_groups, installed_sets(optimizer), strict=True):
        if constraint is not None:
            constraint.project_(group["params"])
