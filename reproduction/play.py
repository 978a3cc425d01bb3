"""Methods of Figures 1 and 2 as steppers of `neada`, and how they are run: one row per run.

To compare a method of your own, add an entry to `METHODS`: a function that makes a stepper from
the two players and their learning rates. Rows are independent runs with their own learning rates;
`neada` optimizers take one rate per row and freeze the rows that have finished.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neada.optim import PlayerOptimizer
from neada.runs import RunFolder
from neada.steppers import NeAda, Simultaneous, Stepper
from neada.stopping import StoppingRule
from reproduction.experiment import Array, Record

Family = Literal["adam", "amsgrad", "adagrad", "gda"]
FAMILIES: dict[Family, str] = {
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adagrad": "AdaGrad",
    "gda": "GDA",
}
_DIVERGED = 1e12
"""A row stops when the norm of its x gradient is larger."""


class TorchRows(PlayerOptimizer):
    """`torch.optim.SGD`, `Adagrad` or `Adam` with a learning rate and a step count per row.

    The paper's experiments use torch's optimizers, which differ from its Algorithms 1 and 2
    (`neada.optim.AdaptiveSGD`) by `eps` and the bias correction.

    Args:
        params: Tensors whose rows are independent runs.
        lr: One learning rate per row.
        family: Which optimizer; "gda" is plain SGD.
        eps: As in torch.
        maximize: Ascend instead of descend.
    """

    uses_gradient_norm = False
    masks_rows = True

    def __init__(
        self,
        params: list[Tensor],
        lr: Tensor,
        family: Family,
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "family": family, "eps": eps}, maximize=maximize)

    def _rests_at_zero_gradient(self) -> bool:
        return False  # momentum

    def _update(self, active: Any, numbers: dict[str, Any], objective: Any) -> None:
        (group, _), (param,), (gradient,) = active.spans[0], active.params, active.grads
        memory = self.state[param]
        if not memory:
            memory.update({name: torch.zeros_like(param) for name in _MEMORY[group["family"]]})
        moving = active.moving[:, None] if isinstance(active.moving, Tensor) else None
        weight = 1.0 if moving is None else moving.to(param.dtype)  # 0 for rows at rest
        if group["family"] == "gda":
            step = gradient
        elif group["family"] == "adagrad":
            total = memory["total"].add_(gradient * gradient * weight)
            step = gradient / (total.sqrt() + group["eps"])
        else:
            mean = memory["mean"].lerp_(gradient, 0.1 * weight)
            square = memory["square"].lerp_(gradient * gradient, 0.001 * weight)
            if group["family"] == "amsgrad":
                square = torch.maximum(memory["largest"], square, out=memory["largest"])
            count = memory["count"].add_(weight)
            root = (square / (1.0 - 0.999**count)).sqrt() + group["eps"]
            step = mean / (root * (1.0 - 0.9**count))
        step = group["lr"][:, None] * step
        param.sub_(step if moving is None else step.where(moving, 0.0))


_MEMORY: dict[Family, tuple[str, ...]] = {
    "gda": (),
    "adagrad": ("total",),
    "adam": ("mean", "square", "count"),
    "amsgrad": ("mean", "square", "count", "largest"),
}


@dataclass(frozen=True)
class Rows:
    """Independent runs of one method: one row each.

    Attributes:
        x: Where x starts, shape (rows, dimension); `play` moves it.
        y: Where y starts.
        lr_x: Learning rates of x.
        lr_y: Learning rates of y.
        max_calls: Gradient calls of each row.
        stopping: The rule of the inner loop; for nested methods.
        eps: Of Adam and AMSGrad.
    """

    x: Tensor
    y: Tensor
    lr_x: Tensor
    lr_y: Tensor
    max_calls: Tensor
    stopping: StoppingRule | None = None
    eps: float = 1e-8


Method = Callable[[Rows], Stepper]


def _optimizers(family: Family, rows: Rows) -> tuple[TorchRows, TorchRows]:
    eps = 1e-10 if family == "adagrad" else rows.eps
    return (
        TorchRows([rows.x], rows.lr_x, family, eps),
        TorchRows([rows.y], rows.lr_y, family, eps, maximize=True),
    )


def _simultaneous(family: Family) -> Method:
    return lambda rows: Simultaneous(*_optimizers(family, rows), rowwise=True)


def _nested(family: Family) -> Method:
    return lambda rows: NeAda(*_optimizers(family, rows), rows.stopping, rowwise=True)


METHODS: dict[str, Method] = {
    **{name: _simultaneous(family) for family, name in FAMILIES.items()},
    **{f"NeAda-{name}": _nested(family) for family, name in FAMILIES.items()},
}
"""Every method of Figures 1 and 2, by its name in the figures."""


def play(
    method: Method,
    fun: Callable[[Tensor, Tensor], Tensor],
    rows: Rows,
    noise: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Array, Array]:
    """Run all rows until each has used its calls or has diverged.

    Args:
        method: Makes the stepper.
        fun: f(x, y), one value per row.
        rows: The runs.
        noise: A function of the calls that each row has made; returns what is added to the
            gradients of x and y, side by side.

    Returns:
        Two arrays of shape (steps, rows): the calls of each row after every outer step, and the
        norm of the x gradient of that step without the noise; infinite after a row has diverged.
    """
    x, y = rows.x.requires_grad_(), rows.y.requires_grad_()
    stepper = method(rows)
    drawn = torch.zeros(len(x), x.shape[1] + y.shape[1], dtype=x.dtype)

    def closure() -> Tensor:
        nonlocal drawn
        if noise is None:
            return fun(x, y)
        drawn = noise(stepper.row_calls)
        return fun(x, y) + (drawn * torch.cat([x, y], dim=1)).sum(dim=1)

    calls, norms = [], []
    done = torch.zeros(len(x), dtype=torch.bool)
    while not done.all():
        stepper.step(closure)
        assert x.grad is not None
        norm = (x.grad - drawn[:, : x.shape[1]]).norm(dim=1)
        calls.append(stepper.row_calls.clone())
        diverged = ~(norm <= _DIVERGED)
        norms.append(norm.masked_fill(diverged, torch.inf))
        finished = done | (stepper.row_calls >= rows.max_calls) | diverged
        if not finished.equal(done):
            done = finished
            stepper.freeze(done)
    return torch.stack(calls).double().numpy(), torch.stack(norms).numpy()


def write_curves(
    run: RunFolder,
    calls: Array,
    norms: Array,
    max_calls: int,
    num_points: int,
    facts: Mapping[str, Any],
) -> None:
    """Append the curves of some rows to the metrics, at equally spaced numbers of calls.

    A line of the metrics has the facts, the calls, and for every row the norm of its last x
    gradient ("grad_x") and the largest norm since the line before ("peak").
    """
    grid = np.unique(np.linspace(0, max_calls, min(num_points, max_calls) + 1).astype(np.intp))
    columns = [_on_grid(calls[:, row], norms[:, row], grid) for row in range(calls.shape[1])]
    latest, peaks = (np.stack(part, axis=1).tolist() for part in zip(*columns, strict=True))
    run.append(
        [
            {**facts, "calls": int(number), "grad_x": norm, "peak": peak}
            for number, norm, peak in zip(grid, latest, peaks, strict=True)
        ]
    )


def _on_grid(calls: Array, norms: Array, grid: NDArray[np.intp]) -> tuple[Array, Array]:
    """The last norm at every point of a grid, and the largest since the point before."""
    moved = np.diff(calls, prepend=0) > 0
    calls, norms = calls[moved], norms[moved]
    last = norms[np.maximum(np.searchsorted(calls, grid, side="right") - 1, 0)]
    peaks = np.concatenate([last[:1], last[:-1]])
    interval = np.searchsorted(grid, calls)
    inside = interval < len(grid)
    np.maximum.at(peaks, interval[inside], norms[inside])
    return last, peaks


def curves(
    record: Record, ratio: float, column: str = "grad_x", **facts: object
) -> tuple[Array, Array]:
    """The calls, and one column of a ratio as an array of shape (points, seeds)."""
    found = [record.column(name, ratio=ratio, **facts) for name in ("calls", column)]
    return found[0], found[1]


def end_level(record: Record, ratio: float, **facts: object) -> Array:
    """For every seed the largest norm within the last tenth of the calls."""
    calls, peaks = curves(record, ratio, "peak", **facts)
    level: Array = peaks[calls > 0.9 * calls[-1]].max(axis=0)
    return level
