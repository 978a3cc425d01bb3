"""The optimizers that method names speak of."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neada import stopping
from neada.training.config import Method, TrainConfig

__all__ = ["adversary", "model_optimizer", "rate_x", "rate_y", "rule"]

# Usual learning rates of x and of y, for inputs between 0 and 1.
_RATES = {
    "adam": (1e-3, 1e-2),
    "amsgrad": (1e-3, 1e-2),
    "sgd": (0.1, 0.1),
    "adagrad": (1e-2, 0.1),
    "tiada": (0.1, 0.1),
}


def rate_x(config: TrainConfig) -> float:
    """The model's learning rate."""
    usual = _RATES[Method.parse(config.method).optimizer][0]
    return usual if config.lr_x is None else config.lr_x


def rate_y(config: TrainConfig) -> float:
    """The adversary's learning rate."""
    usual = _RATES[Method.parse(config.method).optimizer][1]
    return usual if config.lr_y is None else config.lr_y


def model_optimizer(config: TrainConfig, params: Iterable[Tensor]) -> Optimizer:
    """The optimizer of x."""
    return _make(Method.parse(config.method).optimizer, list(params), rate_x(config), False)


def adversary(config: TrainConfig) -> Callable[[Sequence[Tensor]], Optimizer]:
    """A function that makes the optimizer of y."""
    name, rate = Method.parse(config.method).optimizer, rate_y(config)
    return lambda params: _make(name, list(params), rate, True)


def rule(config: TrainConfig) -> stopping.StoppingRule:
    """When the inner loop stops."""
    num_inner_steps = Method.parse(config.method).num_inner_steps
    if num_inner_steps is not None:
        return stopping.FixedSteps(num_inner_steps)
    count = stopping.InnerSteps(float) if config.stop == "released" else stopping.InnerSteps()
    return stopping.GradientMapping(config.stop_scale) | count


def _make(name: str, params: list[Tensor], lr: float, maximize: bool) -> Optimizer:
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr, maximize=maximize)
    if name == "adagrad":
        return torch.optim.Adagrad(params, lr=lr, maximize=maximize)
    return torch.optim.Adam(params, lr=lr, amsgrad=name == "amsgrad", maximize=maximize)
