"""Lemma 1: up to which ratio of learning rates methods without nesting fail, over a grid.

f(x, y) = -y^2/2 + L x y - L^2 x^2/2 for many L, and many ratios r = lr_y / lr_x for each, all as
rows of one stepper, with the paper's rules as printed (`AdaptiveSGD`): second moments start at 0,
no eps, no bias correction. Every row starts at L x - y = 1, equally far from its solutions. GDA has
lr_x = 1/(L^2 + r), because above the lemma's border it also needs lr_x (r - L^2) < 2; the adaptive
methods have lr_y = 0.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from neada.optim import AdaptiveSGD
from neada.runs import RunFolder
from neada.steppers import Simultaneous
from reproduction import figures
from reproduction.experiment import Array, Claim, Record, Scale, Seeds
from reproduction.play import FAMILIES, Family

TITLE = "Up to which ratio of learning rates methods without nesting fail"
WHERE = "Lemma 1"
PAPER = (
    "On f(x, y) = -y^2/2 + L x y - L^2 x^2/2 without noise, GDA does not converge for ratios r = "
    "lr_y / lr_x up to L^2, and adaptive methods without nesting do not for r up to L. At the "
    "border the gradient stays as it was. So every fixed ratio fails on some problem."
)

_L_RANGE, _R_RANGE = (0.1, 10.0), (0.003, 300.0)
_DIVERGED = 1e12
# Numbers of L, of r, and of steps.
_SIZES: dict[Scale, tuple[int, int, int]] = {
    "quick": (13, 51, 1000),
    "standard": (33, 101, 5000),
    "paper": (49, 151, 20000),
}


@dataclass(frozen=True)
class Config:
    """One method on the whole grid.

    Attributes:
        family: The step rule of both players.
        num_l: How many strengths L of the coupling, from 0.1 to 10.
        num_r: How many ratios lr_y / lr_x, from 0.003 to 300.
        num_steps: Steps of both players.
        lr_y: The learning rate of y; GDA has lr_x = 1/(L^2 + r) instead.
        num_points: How often the gradient is recorded.
    """

    family: Family
    num_l: int
    num_r: int
    num_steps: int
    lr_y: float = 0.2
    num_points: int = 10

    @property
    def label(self) -> str:
        """The method."""
        return FAMILIES[self.family]

    @property
    def power(self) -> float:
        """The lemma's border is r = L^power."""
        return 2.0 if self.family == "gda" else 1.0

    @property
    def strengths(self) -> Array:
        """Every L."""
        return np.geomspace(*_L_RANGE, self.num_l)

    @property
    def ratios(self) -> Array:
        """Every r."""
        return np.geomspace(*_R_RANGE, self.num_r)


def configs(scale: Scale, seeds: Seeds = None) -> list[Config]:
    """Four methods; nothing is random."""
    return [Config(family, *_SIZES[scale]) for family in FAMILIES]


def run(config: Config, run: RunFolder) -> None:
    """Play the grid, and for every L also the ratio on the border itself.

    A row of the metrics has L, the steps, |grad_x| relative to the start for every ratio, and the
    same on the border.
    """
    border = config.strengths**config.power
    ratio = np.column_stack([np.tile(config.ratios, (config.num_l, 1)), border]).ravel()
    strength = np.repeat(config.strengths, config.num_r + 1)
    lr_x = 1.0 / (strength**2 + ratio) if config.family == "gda" else config.lr_y / ratio
    steps = np.unique(np.geomspace(1, config.num_steps, config.num_points).astype(np.intp))
    norms = _norms(config.family, strength, lr_x, lr_x * ratio, [0, *steps.tolist()])
    relative = (norms[1:] / norms[0]).reshape(len(steps), config.num_l, config.num_r + 1)
    run.append(
        [
            {"L": one, "steps": int(count), "relative": cells[:-1].tolist(), "border": cells[-1]}
            for count, block in zip(steps, relative, strict=True)
            for one, cells in zip(config.strengths.tolist(), block, strict=True)
        ]
    )


def _norms(family: Family, strength: Array, lr_x: Array, lr_y: Array, at: list[int]) -> Array:
    """The norms of the x gradient of every row after some numbers of steps."""
    couplings = torch.from_numpy(strength)[:, None]
    x = (1.0 / couplings).requires_grad_()
    y = torch.zeros_like(couplings).requires_grad_()
    psi: Any = "none" if family == "gda" else family
    stepper = Simultaneous(
        AdaptiveSGD([x], torch.from_numpy(lr_x), psi),
        AdaptiveSGD([y], torch.from_numpy(lr_y), psi, maximize=True),
        rowwise=True,
    )

    def value() -> Tensor:
        return (-0.5 * (couplings * x - y).square()).sum(dim=1)

    norms = []
    diverged = torch.zeros(len(x), dtype=torch.bool)
    for step in range(at[-1] + 1):
        norm = torch.as_tensor(stepper.step(value).grad_sq_x).sqrt()
        if step in at:
            norms.append(norm.where(~diverged, torch.inf))
        if (norm > _DIVERGED).any():
            diverged |= norm > _DIVERGED
            stepper.freeze(diverged)
    return torch.stack(norms).numpy()


def claims(records: Sequence[Record]) -> list[Claim]:
    """For every method the measured border, and constancy on it."""
    return [claim for record in records for claim in _claims_of(record)]


def _claims_of(record: Record) -> list[Claim]:
    family: Family = record.config.family
    name = record.config.label
    power = record.config.power
    words = "r = L^2" if family == "gda" else "r = L"
    where = "Lemma 1(1)" if family == "gda" else "Lemma 1(2)"
    slope, factor = _fitted_border(record)
    return [
        Claim(
            f"lemma/{family}-border",
            f"{name} stops converging at {words}: slope of log r against log L along the "
            "measured border",
            where,
            slope,
            "between",
            (power - 0.05, power + 0.05),
            note=f"fitted r = {factor:.3f} L^{slope:.3f}",
        ),
        Claim(
            f"lemma/{family}-constant",
            f"|grad_x| of {name} stays as it was at {words}: largest relative change over all L "
            "and times",
            where,
            float(np.abs(_column(record, "border") - 1.0).max()),
            "<=",
            1e-9,
        ),
    ]


def _column(record: Record, name: str) -> Array:
    """One column of the metrics: first the times, then the strengths."""
    column = record.column(name)
    return column.reshape(-1, record.config.num_l, *column.shape[1:])


def _fitted_border(record: Record) -> tuple[float, float]:
    """Exponent and factor of the power law through the last ratios that fail and the next ones."""
    grows = _column(record, "relative")[-1] >= 1.0
    ratios: Array = record.config.ratios
    if not grows[:, 0].all() or grows[:, -1].any():
        return float("nan"), float("nan")
    last = grows.shape[1] - 1 - np.argmax(grows[:, ::-1], axis=1)
    border = np.log(ratios[last] * ratios[last + 1]) / 2.0
    slope, intercept = np.polyfit(np.log(record.config.strengths), border, 1)
    return float(slope), float(np.exp(intercept))


def figure(records: Sequence[Record]) -> Figure:
    """How far the gradient has come, with both lines of the lemma."""
    maps = []
    for record in records:
        config = record.config
        change = np.log10(np.clip(_column(record, "relative")[-1], 1e-9, 1e9)).T
        on_line = np.geomspace(*_L_RANGE, 50)
        lines = [("r = L", on_line, on_line), ("r = L$^2$", on_line, on_line**2)]
        slope, factor = _fitted_border(record)
        title = f"{config.label} fails up to r = {factor:.2f} L^{slope:.2f}"
        maps.append(figures.HeatMap(title, config.strengths, config.ratios, change, lines))
    return figures.heat_maps_figure(
        maps,
        num_columns=2,
        x_label="L",
        y_label="r",
        panel_size=(4.0, 2.9),
        value_label="log10 of |grad_x| at the end / at the start",
        value_range=(-3.0, 3.0),
        note=f"after {records[0].config.num_steps} steps; r = lr_y / lr_x",
    )
