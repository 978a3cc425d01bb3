"""Cut an optimizer to some of the rows it moves, with everything it remembers about them."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import constraints
from neada.steppers.base import check_ascends

__all__ = ["check_cuttable", "check_inner_optimizer", "cut_to_rows"]

_ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop),
    *(torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.Rprop, torch.optim.ASGD),
)


def check_inner_optimizer(optimizer: object, y: Tensor) -> None:
    """Raise unless the optimizer maximizes over y, over nothing else, and has no set of its own."""
    if not isinstance(optimizer, torch_optimizer.Optimizer):
        raise TypeError(
            "y_optimizer must be a function that takes [y] and returns a torch optimizer, but it "
            f"returned {type(optimizer).__name__}: use "
            "lambda params: torch.optim.Adam(params, lr=0.01, maximize=True), for example"
        )
    check_ascends(optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if len(params) != 1 or params[0] is not y:
        raise ValueError(
            "y_optimizer must return an optimizer of the tensors it is given and of no others"
        )
    if any(constraint is not None for constraint in constraints(optimizer)):
        raise ValueError(
            "the y optimizer has a set of its own: give the valid range as box=(low, high) to the "
            "objective instead, or use AdversarialTraining"
        )


def check_cuttable(optimizer: torch_optimizer.Optimizer) -> None:
    """Raise unless samples can leave the optimizer one by one."""
    name = type(optimizer).__name__
    if isinstance(optimizer, PlayerOptimizer):
        if optimizer.uses_gradient_norm and not optimizer.param_groups[0]["rowwise"]:
            raise ValueError(
                f"per_sample=True stops samples one by one, and this {name} ties them together: "
                "construct it with rowwise=True"
            )
    elif not isinstance(optimizer, _ELEMENTWISE):
        raise ValueError(
            f"per_sample=True takes finished samples out of the y optimizer, and {name} is not "
            "known to treat every entry by itself: use Adam, SGD or one of neada.optim with "
            "rowwise=True"
        )


def cut_to_rows(
    optimizer: torch_optimizer.Optimizer, y: Tensor, smaller: Tensor, rows: Tensor
) -> None:
    """Let an optimizer of `y` go on with `smaller`, which holds some rows of it."""
    group = optimizer.param_groups[0]
    group["params"] = [smaller]
    memory = optimizer.state.pop(y, None)
    if memory is not None:
        optimizer.state[smaller] = {
            name: _cut(entry, rows) if getattr(entry, "shape", None) == y.shape else entry
            for name, entry in memory.items()
        }
    if "numbers" in group:
        group["numbers"] = {name: _cut(number, rows) for name, number in group["numbers"].items()}


def _cut(entry: Any, rows: Tensor) -> Any:
    return entry[rows] if isinstance(entry, Tensor) and entry.dim() > 0 else entry
