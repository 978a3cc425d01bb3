r"""APGD: gradient ascent in a ball that chooses its step sizes by its progress.

Croce & Hein 2020 (arXiv:2003.01690), with their published schedule in exact whole numbers; their
released code rounds the checkpoints differently when there are fewer than 100 steps.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neada.attacks.ball import Ball, Norm, per_row
from neada.attacks.gradient import Loss, Model, Seen, evaluating, look, look_up
from neada.attacks.losses import dlr, likely_classes, targeted_dlr
from neada.checks import check_choice, check_number
from neada.folding import folded

__all__ = ["LossName", "Tick", "apgd", "checkpoints", "group_size"]

LossName = Literal["ce", "dlr", "targeted-dlr"]
_LOSSES: tuple[LossName, ...] = ("ce", "dlr", "targeted-dlr")
Tick = Callable[[float], None]
"""Is told which part of the work is done."""

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
    tick: Tick = lambda part: None,
) -> Tensor:
    r"""Projected gradient ascent with momentum and step sizes that are halved when it stalls.

    With :math:`\eta = 2\epsilon`, d the sign of the gradient ("linf") or the gradient over its norm
    ("l2"), and P the projection, every sample by itself:

    .. math::
        u = P(z_k + \eta\,d(\nabla\ell(z_k))), \qquad
        z_{k+1} = P(z_k + 0.75\,(u - z_k) + 0.25\,(z_k - z_{k-1}))

    and :math:`z_1 = u`. At `checkpoints` the step size is halved and the ascent goes on from the
    best point so far if fewer than three quarters of the steps since the last one raised the loss,
    or if neither step size nor best loss have changed since then.

    The first start is the input, so that the first step is `fgsm`. An input that is misclassified
    is returned as it is. A sample is done with the first point that is misclassified; otherwise
    its best point by loss is returned.

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
        tick: Told again and again which part of the steps is done.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: an argument makes no sense.
        FloatingPointError: the model or its gradient is not finite.

    Example:
        >>> weight = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
        >>> apgd(lambda v: v @ weight.T, torch.ones(1, 2), torch.tensor([1]), 0.5)
        tensor([[1.5000, 0.5000]])
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    for name, number, least in (
        ("num_steps", num_steps, 1),
        ("num_restarts", num_restarts, 0),
        ("num_targets", num_targets, 1),
    ):
        check_number(name, number, above=least, strict=False, whole=True)
    if loss is not None and not callable(loss):
        check_choice("loss", loss, _LOSSES)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    found = inputs.detach().clone()
    with evaluating(model), folded(model) as fast:
        groups = torch.split(torch.arange(len(inputs), device=inputs.device), group_size(inputs))
        for i, rows in enumerate(groups):
            attack = _Attack(model, fast, ball.rows(rows), targets[rows], loss, num_steps)

            def tick_group(part: float, i: int = i) -> None:
                tick((i + part) / len(groups))

            found[rows] = attack.run(num_restarts, num_targets, generator, tick_group)
    return found


def checkpoints(num_steps: int) -> list[int]:
    """After how many steps the progress is looked at.

    The parts 0, 22, 41, 57, ... of a hundred, each time nearer by 3 but at least 6 apart, as whole
    numbers of steps, rounded up.

    Args:
        num_steps: Of the whole ascent.

    Example:
        >>> checkpoints(100)
        [0, 22, 41, 57, 70, 80, 87, 93, 99]
    """
    parts = [0, 22]
    while (following := parts[-1] + max(parts[-1] - parts[-2] - 3, 6)) <= 100:
        parts.append(following)
    return sorted({-(-part * num_steps // 100) for part in parts})


def group_size(inputs: Tensor) -> int:
    """How many samples to work on at once: on a processor what its cache holds is fastest."""
    return 128 if inputs.device.type == "cpu" else 2048


class _Rows(NamedTuple):
    """Everything about the ascents under way; each field has one row for each of them."""

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
    """On a group of samples, from one start after the other until they are broken."""

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
        self.loss: Loss | None
        if callable(loss):
            self.loss = loss
        else:
            self.loss = None if loss in (None, "ce") else dlr
        self.num_steps = num_steps

    def run(
        self, num_restarts: int, num_targets: int, generator: torch.Generator, tick: Tick
    ) -> Tensor:
        """The best points from all starts."""
        best = look(self.model, self.ball.center.clone(), self.targets, self.loss)
        classes = self._classes(num_targets)
        starts = [(restart, j) for restart in range(num_restarts + 1) for j in range(len(classes))]
        done = 0
        while done < len(starts) and not bool(best.fooled.all()):
            left = (~best.fooled).nonzero()[:, 0]
            at_once = max(1, group_size(best.points) // len(left))
            begun = starts[done : done + at_once]
            sample = left.repeat(len(begun))
            random = torch.tensor([restart > 0 for restart, _ in begun]).repeat_interleave(
                len(left)
            )
            center = self.ball.rows(sample)
            points = center.center
            if bool(random.any()):
                mask = per_row(random.to(points.device), points)
                points = torch.where(mask, center.sample(generator), points)
            wanted = torch.cat([classes[j][left] for _, j in begun])

            def tick_starts(part: float, done: int = done, num: int = len(begun)) -> None:
                tick((done + part * num) / len(starts))

            found = self._ascend(sample, points, wanted, tick_starts)
            seen = look(self.model, found, self.targets[sample], self.loss)
            for part in zip(*(torch.split(field, len(left)) for field in seen), strict=True):
                better = Seen(*(field[left] for field in best)).better_of(Seen(*part))
                for field, values in zip(best, better, strict=True):
                    field[left] = values
            done += len(begun)
        return best.points

    def _classes(self, num_targets: int) -> list[Tensor]:
        """One tensor of wanted classes for each targeted ascent; a single one that is unused."""
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

    def _ascend(self, sample: Tensor, start: Tensor, wanted: Tensor, tick: Tick) -> Tensor:
        """From every start the first misclassified point, or else the one with the largest loss."""
        found = start.clone()
        targets = self.targets[sample]
        seen, gradient = look_up(self.fast, start, targets, self._loss_of(wanted))
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
            loss=seen.losses,
            best_points=start,
            best_gradient=gradient,
            best_loss=seen.losses,
            length=length,
            num_rises=torch.zeros_like(length),
            checked_length=length,
            checked_loss=seen.losses,
        )
        rows = self._leave(rows, seen.fooled, found)
        checks = checkpoints(self.num_steps)
        for k in range(1, self.num_steps + 1):
            if not len(rows.number):
                break
            points = self._next(rows, 1.0 if k == 1 else _MOMENTUM)
            loss = self._loss_of(rows.wanted)
            if k < self.num_steps:
                seen, gradient = look_up(self.fast, points, rows.targets, loss)
            else:
                seen, gradient = look(self.fast, points, rows.targets, loss), rows.gradient
            rows = self._leave(_moved(rows, seen, gradient), seen.fooled, found)
            if k in checks:
                rows = _checked(rows, k - checks[checks.index(k) - 1])
            tick(k / self.num_steps)
        found[rows.number] = rows.best_points
        return found

    def _next(self, rows: _Rows, momentum: float) -> Tensor:
        ball = self.ball._replace(center=rows.center)
        center = rows.center.double()
        here, before = rows.points.double() - center, rows.previous.double() - center
        length = per_row(rows.length, here)
        ahead = ball.place(here + length * ball.ascent(rows.gradient)).double() - center
        return ball.place(here + momentum * (ahead - here) + (1.0 - momentum) * (here - before))

    def _leave(self, rows: _Rows, fooled: Tensor, found: Tensor) -> _Rows:
        """The rows without those of samples that are broken, in the eyes of the model itself."""
        if not bool(fooled.any()):
            return rows
        candidates = rows.only(fooled)
        if self.fast is not self.model:
            judged = look(self.model, candidates.points, candidates.targets, self.loss)
            candidates = candidates.only(judged.fooled)
        found[candidates.number] = candidates.points
        return rows.only(~torch.isin(rows.sample, candidates.sample))


def _moved(rows: _Rows, seen: Seen, gradient: Tensor) -> _Rows:
    """The rows one step later."""
    is_best = seen.losses > rows.best_loss
    mask = per_row(is_best, seen.points)
    return rows._replace(
        points=seen.points,
        previous=rows.points,
        gradient=gradient,
        loss=seen.losses,
        best_points=torch.where(mask, seen.points, rows.best_points),
        best_gradient=torch.where(mask, gradient, rows.best_gradient),
        best_loss=torch.where(is_best, seen.losses, rows.best_loss),
        num_rises=rows.num_rises + (seen.losses > rows.loss),
    )


def _checked(rows: _Rows, num_steps: int) -> _Rows:
    """The rows after a checkpoint, so many steps after the last one."""
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
