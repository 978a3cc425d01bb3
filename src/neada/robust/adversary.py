"""The adversary: how the inputs of a batch are perturbed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.optimizer import Optimizer

from neada import parallel
from neada.checks import check_choice
from neada.folding import folded
from neada.inner import InnerLoop, InnerOptions
from neada.robust.losses import Network
from neada.stopping import StoppingRule

__all__ = ["Adversary", "MakeOptimizer", "inner_model"]

MakeOptimizer = Callable[[Sequence[Tensor]], Optimizer]

_DROPPING = (_DropoutNd, nn.MultiheadAttention)


@dataclass(frozen=True)
class Adversary:
    """How `WRM`, `AdversarialTraining` and `TRADES` perturb the inputs of a batch.

    The defaults have no learning rate and no number of steps to choose.

    Args:
        optimizer: A function that takes a list with the tensor y and returns a torch optimizer
            constructed with ``maximize=True``. By default `SPG` for each sample, with a first step
            that follows from the objective.
        stopping: The stopping rule of the inner loop; by default ``GradientMapping() |
            InnerSteps()``: a squared gradient mapping (for balls, a relative gap) of at most
            1/(t+1), or t+1 steps, where t is the number of steps of the model so far.
        start: y starts at the "clean" inputs, at a "random" point of the ball, or at the clean
            inputs plus the perturbations "kept" from the last time; `ids` must then be passed.
        per_sample: Stop each sample by its own gradient and remove it from the batch that is
            evaluated. Requires an optimizer that treats entries or rows independently. By default
            True with the default optimizer, unless samples depend on each other.
        min_steps: Steps before the rule is evaluated; 0 is the literal criterion I.
        max_steps: A cap, for rules that may never fire.
        batch_norm: "frozen" normalizes by the running statistics in the inner loop and does not
            update them; "batch" leaves the layers in their mode.
        dropout: "off" disables dropout layers in the inner loop; "on" leaves them in their mode.
        fold: Evaluate a frozen batch norm and the layer before it as one layer.

    Example:
        >>> from neada.stopping import FixedSteps
        >>> adversary = Adversary(stopping=FixedSteps(10), start="random")
    """

    optimizer: MakeOptimizer | None = None
    stopping: StoppingRule | None = None
    start: Literal["clean", "random", "kept"] = "clean"
    per_sample: bool | None = None
    min_steps: int = 1
    max_steps: int = 100
    batch_norm: Literal["frozen", "batch"] = "frozen"
    dropout: Literal["off", "on"] = "off"
    fold: bool = True

    def __post_init__(self) -> None:
        if self.optimizer is not None and not callable(self.optimizer):
            raise TypeError(
                "optimizer must be a function that takes [y] and returns a torch optimizer, not "
                f"{type(self.optimizer).__name__}: every batch has its own y"
            )
        check_choice("start", self.start, ("clean", "random", "kept"))
        check_choice("per_sample", self.per_sample, (None, True, False))
        check_choice("batch_norm", self.batch_norm, ("frozen", "batch"))
        check_choice("dropout", self.dropout, ("off", "on"))
        rule = self.inner_loop().stopping
        if rule.needs_x_gradient:
            raise ValueError(
                f"the rule '{rule}' needs the x gradient, which is not known while y moves: use "
                "GradientMapping, InnerSteps, FixedSteps or FixedAccuracy"
            )

    @cached_property
    def samples_are_independent(self) -> bool:
        """Whether the value of a sample depends on it alone and can be evaluated again."""
        return self.batch_norm == "frozen" and self.dropout == "off"

    @cached_property
    def stops_per_sample(self) -> bool:
        """Whether samples stop one by one."""
        if self.per_sample is not None:
            return self.per_sample
        return self.optimizer is None and self.samples_are_independent

    def inner_loop(self) -> InnerLoop:
        """Return the inner loop of this adversary."""
        options = InnerOptions(min_steps=self.min_steps, max_steps=self.max_steps)
        return InnerLoop(self.stopping, options, self.max_steps)


@contextmanager
def inner_model(
    model: nn.Module, adversary: Adversary, others: Sequence[nn.Module] = ()
) -> Iterator[Network]:
    """Yield the model as the inner loop evaluates it; afterwards it is as before.

    Batch norm and dropout are in the adversary's mode, and no parameter requires a gradient, so
    that none is computed.

    Args:
        model: The network.
        adversary: Its modes.
        others: More modules whose parameters need no gradient.
    """
    kinds: tuple[type[nn.Module], ...] = ()
    if adversary.batch_norm == "frozen":
        kinds += (_NormBase,)
    if adversary.dropout == "off":
        kinds += _DROPPING
    # By kind, not by `model.eval()`: some networks return something else then.
    switched = [m for m in model.modules() if isinstance(m, kinds) and m.training]
    # Recurrent layers need their training mode for the backward pass; only their rate is set.
    recurrent = [
        m for m in model.modules() if isinstance(m, nn.RNNBase) and adversary.dropout == "off"
    ]
    rates = [module.dropout for module in recurrent]
    params = [p for module in (model, *others) for p in module.parameters() if p.requires_grad]
    # `fully_shard` copies the flag of a shard to the gathered parameter, where it would remain.
    frozen = [] if parallel.any_shard(params) else params
    try:
        for module in switched:
            module.training = False
        for layer in recurrent:
            layer.dropout = 0.0
        for param in frozen:
            param.requires_grad_(False)
        yield folded(model) if adversary.batch_norm == "frozen" and adversary.fold else model
    finally:
        for module in switched:
            module.training = True
        for layer, rate in zip(recurrent, rates, strict=True):
            layer.dropout = rate
        for param in frozen:
            param.requires_grad_(True)
