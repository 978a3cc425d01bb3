"""Robustness to the mixture of groups: y is a weight for every group."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn, xlogy
from torch.optim.optimizer import Optimizer

from neada import parallel, tensors
from neada.checks import check_choice, check_number, check_origin
from neada.inner import Counted, Counters, InnerLoop, InnerOptions
from neada.optim import AdGD
from neada.optim.base import PlayerOptimizer
from neada.optim.constrain import installed_sets
from neada.optim.mirror import ExponentiatedGradient
from neada.robust.losses import (
    Loss,
    check_model,
    check_x_optimizer,
    checked_ids,
    sample_losses,
    unreduced,
)
from neada.robust.records import RobustInfo
from neada.sets import Simplex
from neada.steppers import NeAda, Simultaneous
from neada.steppers.base import Closure
from neada.stopping import StoppingRule

__all__ = ["GroupDRO", "chi_square", "kullback_leibler"]


_SMALLEST_WEIGHT = 1e-30  # below it the divergence goes on in a straight line: its slope is finite


def kullback_leibler(weights: Tensor, frequencies: Tensor) -> Tensor:
    r""":math:`\sum_g y_g \log(y_g / p_g)`, with a finite gradient where a weight is 0."""
    return xlogy(weights, weights.clamp_min(_SMALLEST_WEIGHT) / frequencies).sum()


def chi_square(weights: Tensor, frequencies: Tensor) -> Tensor:
    r""":math:`\sum_g (y_g - p_g)^2 / p_g`."""
    return ((weights - frequencies).square() / frequencies).sum()


class GroupDRO(Counted):
    r"""Train for the worst mixture of groups, not too far from the real one.

    .. math::
        \min_x\ \max_{y \in \Delta}\ \sum_g y_g \Bigl(\ell_g(x) + \frac{C}{\sqrt{n_g}}\Bigr)
        - \lambda\,D(y\,\|\,p), \qquad
        D_{\mathrm{KL}} = \sum_g y_g \log\frac{y_g}{p_g}, \quad
        D_{\chi^2} = \sum_g \frac{(y_g - p_g)^2}{p_g}

    with :math:`\ell_g` the mean loss of group g. Without the regularizer the maximum is a single
    group, and y is moved by one step of exponentiated gradient per batch, at the same time as x
    (Sagawa, Koh, Hashimoto & Liang 2020).

    `step` evaluates the model once per batch: moving y for given losses costs next to nothing
    (but is counted). With any stepper of neada::

        stepper = neada.TiAda(model.parameters(), [objective.weights], y_set=neada.sets.Simplex())
        stepper.step(objective.closure(inputs, targets, groups))

    A batch may lack groups. The loss of a missing group is the last one
    seen (before that, the mean of those present), so that its weight neither rises nor falls for
    being absent.

    Args:
        model: Any network.
        loss: As for `WRM`.
        num_groups: How many groups there are; group ids are from 0 to one less.
        regularizer: "kl", "chi2", or None.
        strength: The factor :math:`\lambda` of the regularizer.
        sizes: How many samples the groups have, for their shares :math:`p` of the data and for the
            adjustment; by default, the shares are equal.
        adjustment: The constant :math:`C` of the size adjustment.
        y_optimizer: A function that takes a list with the weights and returns a torch optimizer
            with ``maximize=True`` and a simplex as its set. By default none has a learning rate to
            choose: exponentiated gradient, for "kl" with 1/strength, whose single step is the
            maximum, for None with a step that adapts; and for "chi2" `AdGD`.
        stopping: When y is good enough for a batch; by default a squared gradient mapping of at
            most 1/(t+1), or t+1 steps.
        inner: Options of the inner loop over the weights.

    Attributes:
        weights: The tensor y.
        y_optimizer: Its optimizer.
        outer_steps: The outer index t of `step`.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> objective = GroupDRO(model, nn.functional.cross_entropy, 3, strength=0.5)
        >>> x_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> inputs, targets = torch.randn(12, 2), torch.randint(2, (12,))
        >>> info = objective.step(x_optimizer, inputs, targets, torch.arange(12) % 3)
        >>> round(objective.weights.sum().item(), 6)
        1.0
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        num_groups: int,
        *,
        regularizer: Literal["kl", "chi2"] | None = "kl",
        strength: float = 1.0,
        sizes: Tensor | Sequence[int] | None = None,
        adjustment: float = 0.0,
        y_optimizer: Callable[[Sequence[Tensor]], Optimizer] | None = None,
        stopping: StoppingRule | None = None,
        inner: InnerOptions = InnerOptions(),  # noqa: B008 (frozen)
    ) -> None:
        check_model(model)
        check_number("num_groups", num_groups, above=1, strict=False, whole=True)
        check_choice("regularizer", regularizer, ("kl", "chi2", None))
        check_number("strength", strength)
        check_number("adjustment", adjustment, strict=False)
        if regularizer is None and strength != 1.0:
            raise ValueError(
                f"strength={strength:g} is the factor of a regularizer, and regularizer=None has "
                "none: leave it out"
            )
        if adjustment > 0.0 and sizes is None:
            raise ValueError("the size adjustment needs the sizes of the groups: pass sizes=")
        like = next(iter(model.parameters()), torch.zeros(1))
        self.counters = Counters()
        self.model = model
        self.loss_function = loss
        self.num_groups = num_groups
        self.regularizer = regularizer
        self.strength = strength
        self._sample_loss = unreduced(loss)
        dtype = torch.promote_types(like.dtype, torch.float32)
        given = [1.0] * num_groups if sizes is None else sizes
        counts = torch.as_tensor(given, dtype=dtype, device=like.device)
        if counts.shape != (num_groups,) or not bool((counts.isfinite() & (counts > 0.0)).all()):
            raise ValueError(
                f"sizes must be {num_groups} positive numbers, one per group, got {counts.tolist()}"
            )
        self.frequencies = counts / counts.sum()
        self._bonus = adjustment / counts.sqrt()
        self.weights = self.frequencies.clone().requires_grad_()
        self._last_losses = torch.full_like(counts, torch.nan)
        make = self._default_optimizer if y_optimizer is None else y_optimizer
        self.y_optimizer = make([self.weights])
        if not all(isinstance(member, Simplex) for member in installed_sets(self.y_optimizer)):
            raise ValueError(
                "the weights live on the simplex: give the y optimizer constraint=Simplex(), or "
                "neada.constrain it"
            )
        self.inner = InnerLoop(stopping, inner, max_steps=100)
        self._stepper: NeAda | Simultaneous | None = None

    def group_losses(self, inputs: Tensor, targets: Any, groups: Tensor) -> Tensor:
        """The groups' losses in a batch, with the graph of the model.

        Args:
            inputs: A batch, samples first.
            targets: What the loss compares with.
            groups: The id of each sample's group.
        """
        tensors.drop_cached_casts()
        places = checked_ids("groups", groups, len(inputs), self.num_groups).to(inputs.device)
        losses = sample_losses(self._sample_loss(self.model(inputs), targets), len(inputs))
        sums = torch.zeros_like(self.frequencies).index_add(0, places, losses.to(self.weights))
        counts = torch.bincount(places, minlength=self.num_groups)
        if parallel.is_active():
            sums, counts = _of_all_ranks(sums, counts)
        present = counts > 0
        means = sums / counts.clamp_min(1)
        with torch.no_grad():
            known = torch.where(present & means.isfinite(), means, self._last_losses)
            self._last_losses.copy_(known)
            known = torch.where(known.isnan(), means[present].mean(), known)
        return torch.where(present, means, known)

    def value(self, group_losses: Tensor) -> Tensor:
        """The objective for given losses of the groups."""
        total = torch.dot(self.weights, group_losses + self._bonus)
        if self.regularizer is None:
            return total
        divergence = chi_square if self.regularizer == "chi2" else kullback_leibler
        return total - self.strength * divergence(self.weights, self.frequencies)

    def closure(self, inputs: Tensor, targets: Any, groups: Tensor) -> Closure:
        """The objective on a batch as a function of no arguments, for any stepper."""
        return lambda: self.value(self.group_losses(inputs, targets, groups))

    def step(
        self, x_optimizer: Optimizer, inputs: Tensor, targets: Any, groups: Tensor
    ) -> RobustInfo:
        """Move the weights, then take one step of the model's optimizer.

        Args:
            x_optimizer: Any torch optimizer of the model's parameters; the same one every time.
            inputs: A batch, samples first.
            targets: What the loss compares with.
            groups: The id of each sample's group.

        Returns:
            Loss, norms and counts of this step.

        Raises:
            NonFiniteGradient: The loss or a gradient is NaN or Inf; the parameters are unchanged.
        """
        stepper = self._stepper_for(x_optimizer)
        losses = self.group_losses(inputs, targets, groups)
        if not bool(losses.isfinite().all()):
            raise tensors.NonFiniteGradient(
                f"the losses of the groups are {losses.tolist()}: lower the learning rate or check "
                "the data"
            )
        closure = self.closure(inputs, targets, groups)
        tries_points = isinstance(x_optimizer, PlayerOptimizer) and x_optimizer.tries_points
        if not tries_points and not self.inner.stopping.needs_x_gradient:
            closure = partial(self.value, losses)  # the model does not move while y does
        info = stepper.step(closure, batch_size=len(inputs))
        with torch.no_grad():
            loss, value = torch.dot(self.weights, losses), self.value(losses)
        moved = torch.dist(self.weights.detach(), self.frequencies)
        return RobustInfo.of_step(
            info, len(inputs), loss=loss.item(), value=value.item(), perturbation=moved.item()
        )

    def state_dict(self) -> dict[str, Any]:
        """The weights, their optimizer, counters, and what is known of the groups."""
        return {
            "class": type(self).__name__,
            "counters": self.counters.state_dict(),
            "weights": self.weights.detach().clone(),
            "last_losses": self._last_losses.clone(),
            "y_optimizer": self.y_optimizer.state_dict(),
            "inner": self.inner.state_dict(),  # the model's optimizer is saved by its owner
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, bit for bit."""
        check_origin(self, state_dict)
        if state_dict["weights"].shape != self.weights.shape:
            raise ValueError(
                f"the state has {len(state_dict['weights'])} groups, this objective has "
                f"{self.num_groups}"
            )
        self.counters.load_state_dict(state_dict["counters"])
        with torch.no_grad():
            self.weights.copy_(state_dict["weights"])
        self._last_losses.copy_(state_dict["last_losses"])
        self.y_optimizer.load_state_dict(state_dict["y_optimizer"])
        self.inner.load_state_dict(state_dict["inner"])

    def _default_optimizer(self, weights: Sequence[Tensor]) -> Optimizer:
        if self.regularizer == "chi2":
            return AdGD(weights, maximize=True, constraint=Simplex())
        return ExponentiatedGradient(weights, 1.0 / self.strength if self.regularizer else None)

    def _stepper_for(self, x_optimizer: Optimizer) -> NeAda | Simultaneous:
        if self._stepper is None or self._stepper.x_optimizer is not x_optimizer:
            check_x_optimizer(x_optimizer, [self.model, self.loss_function])
            if self.regularizer is None:
                self._stepper = Simultaneous(x_optimizer, self.y_optimizer)
            else:
                self._stepper = NeAda(x_optimizer, self.y_optimizer, inner=self.inner.options)
                self._stepper.inner = self.inner
            self._stepper.counters = self.counters
        return self._stepper


def _of_all_ranks(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The groups' sums of losses and sizes in the batches of all ranks.

    The mean over the ranks of what flows back to their models is the gradient of the joint sums.
    """
    joint = torch.cat([sums.detach(), counts.to(sums)])
    parallel.average_([joint])
    totals, all_counts = (parallel.num_ranks() * joint).chunk(2)
    return totals + parallel.num_ranks() * (sums - sums.detach()), all_counts.round().long()
