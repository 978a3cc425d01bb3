r"""APGD: gradient ascent in a ball with step sizes that depend on its progress.

Croce & Hein 2020 (arXiv:2003.01690), with the published schedule in integers; the
authors' released code rounds the checkpoints differently when there are fewer than 100 steps.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neada.attacks.ball import Ball, Norm, per_row
from neada.attacks.gradient import (
    Loss,
    Model,
    Outcome,
    differentiate,
    evaluate,
    evaluating,
)
from neada.attacks.losses import dlr, likely_classes, targeted_dlr
from neada.checks import check_choice, check_number
from neada.folding import folded

__all__ = ["LossName", "apgd", "checkpoints", "group_size"]

LossName = Literal["ce", "dlr", "targeted-dlr"]

_MOMENTUM = 0.75
_ENOUGH_RISES = 0.75


def apgd(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    eps: float,
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    loss: LossName | Loss | None = None,
    num_steps: int = 100,
    num_restarts: int = 0,
    num_targets: int = 9,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Projected gradient ascent with momentum and step sizes that are halved when it stalls.

    With :math:`\eta = 2\epsilon`, d the sign of the gradient ("linf") or the gradient over its norm
    ("l2"), and P the projection, separately for every sample:

    .. math::
        u = P(z_k + \eta\,d(\nabla\ell(z_k))), \qquad
        z_{k+1} = P(z_k + 0.75\,(u - z_k) + 0.25\,(z_k - z_{k-1}))

    and :math:`z_1 = u`. At `checkpoints` the step size is halved and the ascent continues from the
    best point so far if fewer than three quarters of the steps since the last one raised the loss,
    or if neither step size nor best loss have changed since then.

    The first start is the input, so that the first step is `fgsm`. A misclassified input is
    returned unchanged. For the others the first misclassified point is returned, or else the one
    with the largest loss.

    Args:
        model: As in `fgsm`.
        inputs: As in `fgsm`.
        targets: As in `fgsm`.
        eps: As in `fgsm`.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        loss: "ce" (cross-entropy, the default), "dlr" (difference of logits ratio),
            "targeted-dlr" (towards one wrong class after the other), or as in `fgsm`.
        num_steps: Steps from each start.
        num_restarts: Random starts besides the input.
        num_targets: How many wrong classes "targeted-dlr" tries, the most likely first.
        generator: As in `pgd`.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: An argument is invalid.
        FloatingPointError: The output of the model is NaN, or its gradient is NaN or Inf.

    Example:
        >>> weight = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
        >>> apgd(lambda v: v @ weight.T, torch.ones(1, 2), torch.tensor([1]), 0.5)
        tensor([[1.5000, 0.5000]])
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    check_number("num_steps", num_steps, above=1, strict=False, whole=True)
    check_number("num_restarts", num_restarts, strict=False, whole=True)
    check_number("num_targets", num_targets, above=1, strict=False, whole=True)
    if not callable(loss):
        check_choice("loss", loss, (None, "ce", "dlr", "targeted-dlr"))
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    found = inputs.detach().clone()
    with evaluating(model):
        fast = folded(model)
        everything = torch.arange(len(inputs), device=inputs.device)
        for rows in torch.split(everything, group_size(inputs)):
            attack = _Attack(model, fast, ball.rows(rows), targets[rows], loss, num_steps)
            found[rows] = attack.run(num_restarts, num_targets, generator)
    return found


def checkpoints(num_steps: int) -> list[int]:
    """The steps after which the progress is checked.

    The percentages 0, 22, 41, 57, ... of the steps, rounded up; the distance between them shrinks
    by 3 down to 6.

    Args:
        num_steps: The number of steps of the ascent.

    Example:
        >>> checkpoints(100)
        [0, 22, 41, 57, 70, 80, 87, 93, 99]
    """
    parts = [0, 22]
    while (following := parts[-1] + max(parts[-1] - parts[-2] - 3, 6)) <= 100:
        parts.append(following)
    return sorted({-(-part * num_steps // 100) for part in parts})


def group_size(inputs: Tensor) -> int:
    """The number of samples in a batch: small batches fit into the cache of a CPU."""
    return 128 if inputs.device.type == "cpu" else 2048


class _Rows(NamedTuple):
    """The state of the running ascents; each field has one row per ascent."""

    number: Tensor
    sample: Tensor
    center: Tensor
    targets: Tensor
    wanted: Tensor
    points: Tensor
    previous: Tensor
    gradient: Tensor
    loss: Tensor
    best_points: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    length: Tensor
    num_rises: Tensor
    checked_length: Tensor
    checked_loss: Tensor

    def only(self, mask: Tensor) -> "_Rows":
        return _Rows(*(field[mask] for field in self))


class _Attack:
    """APGD on a group of samples, from one start after the other."""

    def __init__(
        self,
        model: Model,
        fast: Model,
        ball: Ball,
        targets: Tensor,
        loss: LossName | Loss | None,
        num_steps: int,
    ) -> None:
        self.model, self.fast, self.ball, self.targets = model, fast, ball, targets
        self.is_targeted = loss == "targeted-dlr"
        named: dict[object, Loss | None] = {None: None, "ce": None}
        self.loss = loss if callable(loss) else named.get(loss, dlr)
        self.num_steps = num_steps

    def run(self, num_restarts: int, num_targets: int, generator: torch.Generator) -> Tensor:
        """The best points from all starts."""
        best = evaluate(self.model, self.ball.center.clone(), self.targets, self.loss)
        classes = self._classes(num_targets)
        starts = [(restart, j) for restart in range(num_restarts + 1) for j in range(len(classes))]
        while starts and not bool(best.fooled.all()):
            left = (~best.fooled).nonzero()[:, 0]
            at_once = max(1, group_size(best.points) // len(left))
            begun, starts = starts[:at_once], starts[at_once:]
            sample = left.repeat(len(begun))
            ball = self.ball.rows(sample)
            points = ball.center
            is_random = torch.tensor([restart > 0 for restart, _ in begun])
            if bool(is_random.any()):
                mask = is_random.repeat_interleave(len(left)).to(points.device)
                points = torch.where(per_row(mask, points), ball.sample(generator), points)
            wanted = torch.cat([classes[j][left] for _, j in begun])
            found = self._ascend(sample, points, wanted)
            outcome = evaluate(self.model, found, self.targets[sample], self.loss)
            for fields in zip(*(torch.split(field, len(left)) for field in outcome), strict=True):
                better = best.rows(left).better_of(Outcome(*fields))
                for field, values in zip(best, better, strict=True):
                    field[left] = values
        return best.points

    def _classes(self, num_targets: int) -> list[Tensor]:
        """The wanted classes of each targeted ascent; one unused tensor if it is untargeted."""
        if not self.is_targeted:
            return [self.targets]
        with torch.no_grad():
            outputs = self.model(self.ball.center)
        num = min(num_targets, outputs.shape[1] - 1)
        return list(likely_classes(outputs, self.targets, num).unbind(1))

    def _loss_of(self, wanted: Tensor) -> Loss | None:
        if not self.is_targeted:
            return self.loss
        return lambda outputs, targets: targeted_dlr(outputs, targets, wanted)

    def _ascend(self, sample: Tensor, start: Tensor, wanted: Tensor) -> Tensor:
        """From every start the first misclassified point, or else the one with the largest loss."""
        found = start.clone()
        targets = self.targets[sample]
        here, gradient = differentiate(self.fast, start, targets, self._loss_of(wanted))
        length = torch.full(sample.shape, 2.0 * self.ball.eps, dtype=torch.float64).to(start.device)
        rows = _Rows(
            number=torch.arange(len(start), device=start.device),
            sample=sample,
            center=self.ball.center[sample],
            targets=targets,
            wanted=wanted,
            points=start,
            previous=start,
            gradient=gradient,
            loss=here.losses,
            best_points=start,
            best_gradient=gradient,
            best_loss=here.losses,
            length=length,
            num_rises=torch.zeros_like(length),
            checked_length=length,
            checked_loss=here.losses,
        )
        rows = self._without_fooled(rows, here.fooled, found)
        checks = checkpoints(self.num_steps)
        for k in range(1, self.num_steps + 1):
            if not len(rows.number):
                break
            points = self._next(rows, 1.0 if k == 1 else _MOMENTUM)
            loss = self._loss_of(rows.wanted)
            if k < self.num_steps:
                here, gradient = differentiate(self.fast, points, rows.targets, loss)
            else:
                here, gradient = evaluate(self.fast, points, rows.targets, loss), rows.gradient
            rows = self._without_fooled(_moved(rows, here, gradient), here.fooled, found)
            if k in checks:
                rows = _checked(rows, k - checks[checks.index(k) - 1])
        found[rows.number] = rows.best_points
        return found

    def _next(self, rows: _Rows, momentum: float) -> Tensor:
        ball = self.ball._replace(center=rows.center)
        center = rows.center.double()
        here, before = rows.points.double() - center, rows.previous.double() - center
        length = per_row(rows.length, here)
        ahead = ball.place(here + length * ball.ascent(rows.gradient)).double() - center
        return ball.place(here + momentum * (ahead - here) + (1.0 - momentum) * (here - before))

    def _without_fooled(self, rows: _Rows, fooled: Tensor, found: Tensor) -> _Rows:
        """Write misclassified points into `found` and drop all ascents of their samples."""
        if not bool(fooled.any()):
            return rows
        candidates = rows.only(fooled)
        if self.fast is not self.model:
            # The folded network differs by rounding, so the network itself decides.
            outcome = evaluate(self.model, candidates.points, candidates.targets, self.loss)
            candidates = candidates.only(outcome.fooled)
        found[candidates.number] = candidates.points
        return rows.only(~torch.isin(rows.sample, candidates.sample))


def _moved(rows: _Rows, here: Outcome, gradient: Tensor) -> _Rows:
    """The state after a step."""
    is_best = here.losses > rows.best_loss
    mask = per_row(is_best, here.points)
    return rows._replace(
        points=here.points,
        previous=rows.points,
        gradient=gradient,
        loss=here.losses,
        best_points=torch.where(mask, here.points, rows.best_points),
        best_gradient=torch.where(mask, gradient, rows.best_gradient),
        best_loss=torch.where(is_best, here.losses, rows.best_loss),
        num_rises=rows.num_rises + (here.losses > rows.loss),
    )


def _checked(rows: _Rows, num_steps: int) -> _Rows:
    """The state after a checkpoint, `num_steps` after the previous one."""
    is_idle = (rows.length == rows.checked_length) & (rows.best_loss == rows.checked_loss)
    back = (rows.num_rises < _ENOUGH_RISES * num_steps) | is_idle
    mask = per_row(back, rows.points)
    return rows._replace(
        points=torch.where(mask, rows.best_points, rows.points),
        gradient=torch.where(mask, rows.best_gradient, rows.gradient),
        loss=torch.where(back, rows.best_loss, rows.loss),
        length=torch.where(back, 0.5 * rows.length, rows.length),
        num_rises=torch.zeros_like(rows.num_rises),
        checked_length=rows.length,
        checked_loss=rows.best_loss,
    )
