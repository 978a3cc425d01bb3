"""What an erratum is, and the errata of the lemma about methods without nesting."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neada.optim import AdaptiveSGD
from neada.steppers import Simultaneous
from reproduction.experiment import Array, Relation

__all__ = ["LEMMA", "Erratum", "Rows", "Statement", "curve", "measure"]


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Statement:
    """One number of an erratum, and how it has to be for the erratum to be right.

    Attributes:
        name: What the number is called in the rows.
        sentence: What is said about it.
        relation: How the number has to stand to `expected`.
        expected: The number to compare with; a pair for "between".
    """

    name: str
    sentence: str
    relation: Relation
    expected: float | tuple[float, float]


@dataclass(frozen=True)
class Erratum:
    """A place of the paper that is wrong or soft.

    Attributes:
        id: A short name.
        where: The place.
        printed: What the print says, in our words.
        corrected: What should stand there.
        compute: From the size at the scale, rows made by `measure` and `curve`.
        statements: What the rows have to show.
        axes: Labels of the picture: x and y.
        scales: Its scales: "log" or "linear" for x and y.
    """

    id: str
    where: str
    printed: str
    corrected: str
    compute: Callable[[int], Rows]
    statements: tuple[Statement, ...]
    axes: tuple[str, str]
    scales: tuple[Literal["log", "linear"], Literal["log", "linear"]] = ("log", "log")


def measure(name: str, value: float) -> dict[str, Any]:
    """The row of a number that a statement is about."""
    return {"measure": name, "value": float(value)}


def curve(name: str, x: Iterable[float], y: Iterable[float]) -> Rows:
    """The rows of a line in the picture."""
    return [
        {"curve": name, "x": float(at), "y": float(height)} for at, height in zip(x, y, strict=True)
    ]


_L, _LR_Y, _GAMMA = 2.0, 0.2, 0.999
_Psi = Literal["adagrad", "adam", "amsgrad"]


def _lemma_game(
    family: _Psi, ratios: Array, start: tuple[float, float], num_steps: int
) -> tuple[Array, Array, Array]:
    """The lemma's game without nesting, one row per ratio: x, y and v^x after every step.

    The rules are the paper's own, without eps and bias correction, from v_0 = m_0 = 0.
    """
    x, y = (torch.full((len(ratios), 1), w, dtype=torch.float64) for w in start)
    lr_x = torch.from_numpy(_LR_Y / ratios)
    stepper = Simultaneous(
        AdaptiveSGD([x.requires_grad_()], lr_x, family, gamma=_GAMMA),
        AdaptiveSGD([y.requires_grad_()], _LR_Y, family, gamma=_GAMMA, maximize=True),
        rowwise=True,
    )
    square, largest = np.zeros(x.shape), np.zeros(x.shape)
    points = [(x.detach().clone().numpy(), y.detach().clone().numpy(), square)]
    for _ in range(num_steps):
        stepper.step(lambda: -0.5 * (_L * x - y).square().sum(dim=1))
        assert x.grad is not None
        grad_sq = x.grad.numpy() ** 2
        if family == "adagrad":
            square = square + grad_sq
        else:
            square = _GAMMA * square + (1.0 - _GAMMA) * grad_sq
        largest = np.maximum(largest, square)
        v = largest if family == "amsgrad" else square
        points.append((x.detach().clone().numpy(), y.detach().clone().numpy(), v))
    xs, ys, vs = (np.stack(column)[:, :, 0] for column in zip(*points, strict=True))
    return xs, ys, vs


def _factors(family: _Psi, ratios: Array, v: Array) -> Array:
    """The factors of the lemma's product for given second moments."""
    kept = 1.0 if family == "adagrad" else 0.1  # 1 - beta
    with np.errstate(divide="ignore"):
        factors: Array = 1.0 + _L * (_LR_Y / ratios) / np.sqrt(v) * kept * (_L - ratios)
    return factors


def _lemma_sign(num_steps: int) -> Rows:
    ratios = np.array([0.5, 0.9]) * _L
    families: tuple[_Psi, ...] = ("adam", "amsgrad", "adagrad")
    signed, absolute, equality, literal = [], [], [], []
    rows: Rows = []
    for family in families:
        x, y, v = _lemma_game(family, ratios, (1.0, 0.01), num_steps)
        gradient = _L * (y - _L * x)
        product = np.cumprod(_factors(family, ratios, v[1:]), axis=0)
        bound = gradient[0] * product
        ratio = np.abs(gradient[1:]) / np.abs(bound)
        if family == "adagrad":
            equality.append(np.abs(ratio - 1.0).max())
        else:
            signed.append(((gradient[1:] - bound) / np.abs(bound))[-1].max())
            absolute.append(ratio.min())
        mirrored_x, mirrored_y, mirrored_v = _lemma_game(family, ratios, (-1.0, -0.01), num_steps)
        printed = 3.98 * np.prod(_factors(family, ratios, mirrored_v[:-1]), axis=0)
        literal.append((_L * (mirrored_y - _L * mirrored_x)[-1] / printed).max())
        if family == "adam":
            steps = np.arange(1, num_steps + 1)
            rows += curve("|gradient|, Adam", steps, np.abs(gradient[1:, 0]))
            rows += curve("lower bound", steps, np.abs(bound[:, 0]))
    return [
        measure("signed", max(signed)),
        measure("absolute", min(absolute)),
        measure("equality", max(equality)),
        measure("literal", max(literal)),
        *rows,
    ]


def _lemma_average(num_steps: int) -> Rows:
    ratios = np.array([0.5, 1.0, 1.5, 2.0]) * _L  # the last two lie in (L, L^2]
    rows: Rows = []
    below, above, crossings = [], [], []
    families: tuple[_Psi, ...] = ("adam", "adagrad")
    for family in families:
        x, y, _ = _lemma_game(family, ratios, (1.0, 0.01), num_steps)
        counts = np.arange(1, num_steps + 2)[:, None]
        mean_x, mean_y = np.cumsum(x, axis=0) / counts, np.cumsum(y, axis=0) / counts
        level = np.abs(_L * (mean_y - _L * mean_x)) / np.abs(_L * (y - _L * x))[0]
        below.append(level[-1, :2].min())
        above.append(level[-1, 2:].max())
        sides = np.sign(y - _L * x)
        crossings.append((sides[1:, 2:] * sides[:-1, 2:] < 0.0).sum())
        kept = np.unique(np.geomspace(1, num_steps, 60).astype(int))
        name = "Adam" if family == "adam" else "AdaGrad"
        for number in (1, 2):
            rows += curve(f"{name}, r/L = {ratios[number] / _L:g}", kept, level[kept, number])
    return [
        measure("below", min(below)),
        measure("above", max(above)),
        measure("crossings", max(crossings)),
        *rows,
    ]


def _lemma_value(x: Tensor, y: Tensor) -> Tensor:
    return (-0.5 * y * y + _L * x * y - 0.5 * (_L * x) ** 2).sum()


def _gda_step(num_steps: int) -> Rows:
    ratio, rows = 8.0, list[dict[str, Any]]()
    for product in (1.9, 2.0, 2.1):
        lr = product / (ratio - _L**2)
        x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
        y = torch.tensor([0.01], dtype=torch.float64, requires_grad=True)
        stepper = Simultaneous(
            AdaptiveSGD([x], lr, "none"), AdaptiveSGD([y], ratio * lr, "none", maximize=True)
        )
        norms = []
        for _ in range(num_steps + 1):
            norms.append(abs(_L * (y - _L * x).item()))
            stepper.step(partial(_lemma_value, x, y))
        rows.append(measure(f"growth-{product:g}", norms[-1] / norms[0]))
        rows += curve(f"lr_x (r - L²) = {product:g}", range(num_steps + 1), norms)
    return rows


LEMMA = (
    Erratum(
        "lemma-sign",
        "Lemma 1, part 2",
        "with r <= L the x gradient of a non-nested adaptive method is at least its first value "
        "times a product over t of 1 + L lr_x (1 - beta)(L - r) / sqrt(v_t), from v_0 = 0",
        "the inequality is about absolute values and the product has v_{t+1}: with a negative "
        "first gradient, which is the paper's own start, the signed one is reversed, and v_0 = 0 "
        "divides by zero; without momentum it is an equality",
        _lemma_sign,
        (
            Statement(
                "signed",
                "at the paper's start the signed inequality, even with v_{t+1}, is violated by "
                "Adam and AMSGrad: largest (gradient - product) / |product| at the end",
                "<",
                0.0,
            ),
            Statement(
                "absolute",
                "between absolute values it holds: smallest |gradient| / |product|",
                ">=",
                1.0 - 1e-9,
            ),
            Statement(
                "equality",
                "for AdaGrad it is an equality: largest |ratio - 1|",
                "<=",
                1e-9,
            ),
            Statement(
                "literal",
                "with v_t as printed the product is infinite, so that the inequality fails at the "
                "mirrored start too: largest gradient / product",
                "<",
                1.0,
            ),
        ),
        ("step", "|gradient of x|"),
    ),
    Erratum(
        "lemma-average",
        "Lemma 1, proof, averaged iterate",
        "for adaptive methods the iterates stay on one side of the stationary line as r <= L^2, so "
        "the averaged iterate does not converge either",
        "for adaptive methods the argument needs r <= L: there -m^x = L m^y exactly, and y - L x "
        "moves by a multiple of L - r; between L and L^2 the averages converge",
        _lemma_average,
        (
            Statement(
                "crossings",
                "with L < r <= L^2 Adam crosses the line: most changes of side",
                ">=",
                1.0,
            ),
            Statement(
                "above",
                "with L < r <= L^2 the averaged iterates of Adam and AdaGrad converge: largest "
                "gradient at the average, end / start",
                "<=",
                0.1,
            ),
            Statement(
                "below",
                "with r <= L they do not: smallest gradient at the average, end / start",
                ">=",
                1.0 - 1e-9,
            ),
        ),
        ("step", "gradient at the average"),
    ),
    Erratum(
        "gda-step",
        "Lemma 1, part 1, and the text after it",
        "r = L^2 is the threshold of GDA",
        "r > L^2 is necessary, not sufficient: GDA also needs lr_x (r - L^2) < 2",
        _gda_step,
        (
            Statement(
                "growth-1.9",
                "r = 2 L^2 and lr_x (r - L^2) = 1.9: GDA converges: |gradient| end / start",
                "<",
                1e-2,
            ),
            Statement(
                "growth-2.1",
                "r = 2 L^2 and lr_x (r - L^2) = 2.1: GDA diverges: |gradient| end / start",
                ">",
                1e2,
            ),
        ),
        ("step", "|gradient of x|"),
        ("linear", "log"),
    ),
)
