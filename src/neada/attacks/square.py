"""The Square attack: random search with squares of changed pixels.

Andriushchenko et al. 2020 (arXiv:1912.00049). It uses only the outputs of the model and no
gradients, so that it also works where gradients are masked.
"""

import math

import torch
from torch import Tensor

from neada.attacks.auto_pgd import group_size
from neada.attacks.ball import Ball, Norm, per_row
from neada.attacks.gradient import Model, Outcome, evaluate, evaluating
from neada.attacks.losses import margin
from neada.checks import check_number
from neada.folding import folded

__all__ = ["check_queries", "square"]

# Of 10,000 queries; the side of the squares shrinks after each.
_HALVINGS = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)
_INITIAL_PART = 0.8  # of the pixels, as in AutoAttack
_CROWD = 100  # samples to which `patience` refers


def square(
    model: Model,
    inputs: Tensor,
    targets: Tensor,
    eps: float,
    *,
    norm: Norm = "linf",
    bounds: tuple[float, float] | None = None,
    num_queries: int = 5000,
    patience: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Random search: change a square of pixels, keep the change if it lowers the margin.

    "linf": stripes of one pixel as a start, then squares, with plus or minus eps in every channel.
    "l2": a grid of tiles with a hump and a hollow each as a start; then such a tile is added to one
    square, and the perturbation of another square is set to zero. The squares begin with 0.8 of the
    pixels and shrink at the published times. All samples have the same squares, but different
    signs. Inputs that are no images (batch, channels, height, width) are treated as images with one
    row.

    A misclassified input is returned unchanged. For the others the first misclassified point is
    returned, or else the one with the smallest margin.

    Args:
        model: As in `fgsm`; only its outputs are used.
        inputs: As in `fgsm`.
        targets: The classes.
        eps: As in `fgsm`.
        norm: As in `fgsm`.
        bounds: As in `fgsm`.
        num_queries: The number of evaluations per sample.
        patience: Stop after this many consecutive queries without a newly misclassified sample; if
            n < 100 samples are left, after 100/n times as many. By default never.
        generator: For the squares, on the CPU; by default a new one with seed 0.

    Returns:
        The perturbed batch.

    Raises:
        ValueError: An argument is invalid.
        FloatingPointError: The output of the model is NaN.
    """
    ball = Ball.around(inputs, eps, norm, bounds)
    check_queries(num_queries, patience)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    proposals = _Linf(ball, generator) if norm == "linf" else _L2(ball, generator)
    with evaluating(model):
        return _search(model, folded(model), proposals, targets, num_queries, patience)


def check_queries(num_queries: int, patience: int | None) -> None:
    """Raise ValueError unless the arguments of a search are valid."""
    check_number("num_queries", num_queries, above=1, strict=False, whole=True)
    if patience is not None:
        check_number("patience", patience, above=1, strict=False, whole=True)


def _search(
    model: Model,
    fast: Model,
    proposals: "_Linf | _L2",
    targets: Tensor,
    num_queries: int,
    patience: int | None,
) -> Tensor:
    """The first misclassified point of each sample, or the one with the least margin."""
    found = proposals.center.clone()
    is_left = ~_evaluate(model, found, targets).fooled
    left = is_left.nonzero()[:, 0]
    proposals.keep(is_left)
    points = proposals.first()
    worst = torch.full(left.shape, -torch.inf, dtype=points.dtype, device=points.device)
    best = Outcome(points, worst, torch.zeros_like(left, dtype=torch.bool))
    num_idle = 0
    for query in range(num_queries):
        if not len(left):
            break
        if patience is not None and num_idle * min(len(left), _CROWD) >= patience * _CROWD:
            break
        here = _evaluate(fast, points, targets[left])
        best = best.better_of(here)
        num_idle += 1
        if bool(here.fooled.any()):
            fooled = here.fooled.clone()
            if fast is not model:
                # The folded network differs by rounding, so the network itself decides.
                fooled[here.fooled] = _evaluate(model, points[fooled], targets[left[fooled]]).fooled
            found[left[fooled]] = points[fooled]
            num_idle = 0 if bool(fooled.any()) else num_idle
            left = left[~fooled]
            best = best.rows(~fooled)
            proposals.keep(~fooled)
        points = proposals.near(best.points, (query + 1) / num_queries)
    found[left] = best.points
    return found


def _evaluate(model: Model, points: Tensor, targets: Tensor) -> Outcome:
    """As `evaluate` with the margin as the loss, in groups."""
    size = group_size(points)
    groups = zip(torch.split(points, size), torch.split(targets, size), strict=True)
    outcomes = [evaluate(model, *group, margin) for group in groups]
    return Outcome(*(torch.cat(fields) for fields in zip(*outcomes, strict=True)))


class _Linf:
    """Proposals whose entries are all at the ends of the feasible interval."""

    def __init__(self, ball: Ball, generator: torch.Generator) -> None:
        self.center, self.generator = ball.center, generator
        ends = torch.full_like(ball.center, ball.eps, dtype=torch.float64)
        self.low, self.high = _as_images(ball.place(-ends)), _as_images(ball.place(ends))

    def keep(self, mask: Tensor) -> None:
        self.center, self.low, self.high = self.center[mask], self.low[mask], self.high[mask]

    def first(self) -> Tensor:
        num, channels, _, width = self.low.shape
        up = _coins((num, channels, 1, width), self.generator, self.center.device)
        return torch.where(up, self.high, self.low).reshape(self.center.shape)

    def near(self, points: Tensor, part: float) -> Tensor:
        images = _as_images(points).clone()
        num, channels, *shape = images.shape
        rows, columns = _window(shape, _sides(shape, part, 1), self.generator)
        up = _coins((num, channels, 1, 1), self.generator, points.device)
        images[:, :, rows, columns] = torch.where(
            up, self.high[:, :, rows, columns], self.low[:, :, rows, columns]
        )
        return images.reshape(points.shape)


class _L2:
    """Proposals with the full radius before they are clipped to the range."""

    def __init__(self, ball: Ball, generator: torch.Generator) -> None:
        self.ball, self.generator = ball, generator

    @property
    def center(self) -> Tensor:
        return self.ball.center

    def keep(self, mask: Tensor) -> None:
        self.ball = self.ball.rows(mask)

    def first(self) -> Tensor:
        images = _as_images(self.center)
        num, channels, *shape = images.shape
        sides = [max(1, side // 5) for side in shape]
        offsets = torch.zeros(images.shape, dtype=torch.float64, device=images.device)
        for top in range(0, shape[0] - sides[0] + 1, sides[0]):
            for start in range(0, shape[1] - sides[1] + 1, sides[1]):
                window = slice(top, top + sides[0]), slice(start, start + sides[1])
                offsets[:, :, *window] = self._tiles(num, channels, sides)
        return self._at(offsets)

    def near(self, points: Tensor, part: float) -> Tensor:
        images = _as_images(points)
        num, channels, *shape = images.shape
        offsets = images.double() - _as_images(self.center).double()
        sides = [
            min(side | 1, most) for side, most in zip(_sides(shape, part, 3), shape, strict=True)
        ]
        getting = _window(shape, sides, self.generator)
        giving = _window(shape, sides, self.generator)
        unused = (self.ball.eps**2 - _squares(offsets).sum(1, keepdim=True)).clamp_min(0.0)
        outside = offsets.clone()
        outside[:, :, *getting] = 0.0
        outside[:, :, *giving] = 0.0
        available = _squares(offsets) - _squares(outside) + unused / channels
        old = offsets[:, :, *getting]
        new = _unit(old) + self._tiles(num, channels, sides)
        offsets[:, :, *giving] = 0.0
        offsets[:, :, *getting] = _unit(new) * available.clamp_min(0.0).sqrt()
        return self._at(offsets)

    def _tiles(self, num: int, channels: int, sides: list[int]) -> Tensor:
        """One tile for all samples, with a sign for each sample and channel."""
        device = self.center.device
        signs = _coins((num, channels, 1, 1), self.generator, device).double() * 2.0 - 1.0
        is_turned = sides[0] == sides[1] and bool(_coins((1,), self.generator, device))
        tile = _tile(sides[0], sides[1]).to(device)
        return signs * (tile.T if is_turned else tile)

    def _at(self, offsets: Tensor) -> Tensor:
        """Scale the offsets to the radius, and clip the points to the range."""
        offsets = offsets.reshape(self.center.shape)
        sizes = offsets.flatten(1).norm(dim=1).clamp_min(1e-300)
        return self.ball.place(offsets * per_row(self.ball.eps / sizes, offsets))


def _as_images(points: Tensor) -> Tensor:
    return points if points.dim() == 4 else points.flatten(1)[:, None, None, :]


def _sides(shape: list[int], part: float, least: int) -> list[int]:
    """Height and width of the squares after that share of the queries."""
    halvings = sum(10_000 * part > query for query in _HALVINGS)
    pixels = _INITIAL_PART / 2**halvings * math.prod(shape)
    side = round(pixels if shape[0] == 1 else math.sqrt(pixels))
    return [min(max(side, least), most) for most in shape]


def _window(shape: list[int], sides: list[int], generator: torch.Generator) -> tuple[slice, slice]:
    """A square anywhere in the image."""
    starts = [
        int(torch.randint(most - side + 1, (), generator=generator))
        for most, side in zip(shape, sides, strict=True)
    ]
    rows, columns = (slice(a, a + side) for a, side in zip(starts, sides, strict=True))
    return rows, columns


def _coins(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    return (torch.rand(shape, generator=generator) < 0.5).to(device)


def _tile(height: int, width: int) -> Tensor:
    """A hump in the left half and a hollow in the right one, of length 1."""
    left = width // 2
    tile = torch.cat([_hump(height, left), -_hump(height, width - left)], 1)
    return tile / tile.square().sum().sqrt()


def _hump(height: int, width: int) -> Tensor:
    """A sum of squares around the center: the k-th smallest adds 1 / k^2."""
    down = (torch.arange(height, dtype=torch.float64) - height // 2).abs()
    across = (torch.arange(width, dtype=torch.float64) - width // 2).abs()
    distance = torch.maximum(down[:, None], across[None, :])
    hump = torch.zeros(height, width, dtype=torch.float64)
    for radius in range(max(height, width) // 2 + 1):
        hump += (distance <= radius) / (radius + 1.0) ** 2
    return hump


def _squares(offsets: Tensor) -> Tensor:
    return offsets.square().sum((2, 3), keepdim=True)


def _unit(offsets: Tensor) -> Tensor:
    return offsets / _squares(offsets).sqrt().clamp_min(1e-300)
