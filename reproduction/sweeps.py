"""Many small games played at once: seeds, ratios and methods as rows of one array.

A tick is one gradient call of every row. Nested rows are each in their own inner loop, so no row
waits for another; that is why this is not a batched stepper. What a row does is exactly what the
loop of the authors' scripts does for one run, with `torch.optim`'s arithmetic; the tests hold it
against that loop and against `neada.NeAda`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from neada.runs import RunFolder
from reproduction.experiment import Array, Progress, Record

__all__ = [
    "FAMILIES",
    "METHODS",
    "Family",
    "Game",
    "Loop",
    "Rows",
    "Rule",
    "Setting",
    "Sweep",
    "curves",
    "end_level",
    "method_name",
    "play",
    "play_ratios",
]

Family = Literal["gda", "adagrad", "adam", "amsgrad"]


@dataclass
class Rule:
    """One player's update for `num_rows` runs, or for both players of them one after the other.

    Attributes:
        family: "gda" (plain steps), "adagrad", "adam", "amsgrad".
        lr: The learning rate of each row.
        eps: Added to the root of the second moment.
        bias_correction: Whether Adam's moments are corrected for their start at zero.
        beta: Momentum of Adam and AMSGrad.
        gamma: Decay of their second moment.
    """

    family: Family
    lr: Array
    eps: float
    bias_correction: bool = True
    beta: float = 0.9
    gamma: float = 0.999
    _memory: dict[str, Array] = field(default_factory=dict)

    def step(self, gradient: Array, rows: slice | NDArray[np.intp] = slice(None)) -> Array:
        """What to subtract from the points of these rows, given their gradients.

        Args:
            gradient: One gradient per row that moves, of what is minimized.
            rows: Which rows move; all by default.
        """
        lr = self.lr[rows, None]
        if self.family == "gda":
            return lr * gradient
        if self.family == "adagrad":
            total = self._remembered("total", gradient, rows) + gradient * gradient
            self._memory["total"][rows] = total
            return lr * self._ratio(gradient, np.sqrt(total) + self.eps)
        return self._adam_step(gradient, rows, lr)

    def _adam_step(self, gradient: Array, rows: slice | NDArray[np.intp], lr: Array) -> Array:
        mean = self._remembered("mean", gradient, rows)
        mean = mean + (gradient - mean) * (1.0 - self.beta)
        square = self._remembered("square", gradient, rows) * self.gamma
        square += (1.0 - self.gamma) * gradient * gradient
        self._memory["mean"][rows] = mean
        self._memory["square"][rows] = square
        if self.family == "amsgrad":
            square = np.maximum(self._remembered("largest", gradient, rows), square)
            self._memory["largest"][rows] = square
        if not self.bias_correction:
            return lr * self._ratio(mean, np.sqrt(square) + self.eps)
        if "count" not in self._memory:
            self._memory["count"] = np.zeros(len(self.lr))
        count = self._memory["count"][rows, None] + 1.0
        self._memory["count"][rows] = count[:, 0]
        root = np.sqrt(square) / np.sqrt(1.0 - self.gamma**count) + self.eps
        return lr / (1.0 - self.beta**count) * self._ratio(mean, root)

    def _remembered(self, name: str, like: Array, rows: slice | NDArray[np.intp]) -> Array:
        if name not in self._memory:
            self._memory[name] = np.zeros((len(self.lr), like.shape[1]))
        return self._memory[name][rows]

    def _ratio(self, numerator: Array, denominator: Array) -> Array:
        """Division with 0/0 = 0, which is how the paper's rules without eps begin."""
        if self.eps > 0.0:
            return numerator / denominator
        start = np.zeros_like(numerator)
        return np.divide(numerator, denominator, out=start, where=denominator != 0.0)


Loop = Literal["released", "text"]
_NOISE_BLOCK = 512


@dataclass(frozen=True)
class Game:
    """A problem whose players have the same dimension, with its gradients for rows of points."""

    grad_x: Callable[[Array, Array], Array]
    grad_y: Callable[[Array, Array], Array]
    noise_std: float = 0.0


@dataclass(frozen=True)
class Rows:
    """The runs: one row each.

    Attributes:
        x: Where x starts, shape (rows, dimension).
        y: Where y starts, the same shape.
        lr_x: Learning rates of x.
        lr_y: Learning rates of y.
        noise: One generator per row; unused without noise.
    """

    x: Array
    y: Array
    lr_x: Array
    lr_y: Array
    noise: tuple[np.random.Generator, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """How the rows are played.

    Attributes:
        family: The step rule of both players.
        nested: Whether y plays an inner loop before x moves.
        loop: Which inner loop. "released": until the squared gradient of y that the last step used
            is at most 1/(t+1), or `count_scale * t` steps (so none at t = 0). "text": until its
            norm is at most 1/t, or more than t steps; at least one.
        count_scale: The factor of the released loop.
        eps: As for `torch.optim`; 0 is the paper's text.
        bias_correction: As for `torch.optim`; False is the paper's text.
    """

    family: Family
    nested: bool
    loop: Loop = "released"
    count_scale: float = 1.0
    eps: float = 0.0
    bias_correction: bool = True


def play(
    game: Game,
    rows: Rows,
    sweep: Sweep,
    at: NDArray[np.intp],
    heard: Callable[[float], None] = lambda part: None,
) -> tuple[Array, Array]:
    """Play all rows and record the noiseless gradient norm of x.

    Args:
        game: The problem.
        rows: The runs.
        sweep: The method.
        at: Increasing numbers of gradient calls at which to record; the last is how many are made.
        heard: Told now and then which part is done.

    Returns:
        Two arrays of shape (len(at), rows): for every recorded number of calls the norm at the
        latest point where x stepped or is about to, and the largest norm since the record before;
        infinite after an overflow.
    """
    recorder = _Recorder(at, len(rows.x), heard)
    with np.errstate(all="ignore"):
        (_play_nested if sweep.nested else _play_at_once)(game, rows, sweep, recorder)
    return recorder.norms, recorder.peaks


def _play_at_once(game: Game, rows: Rows, sweep: Sweep, recorder: "_Recorder") -> None:
    """Both players step at the same point: two calls."""
    x, y = rows.x.copy(), rows.y.copy()
    x_rule, y_rule = _rule(sweep, rows.lr_x), _rule(sweep, rows.lr_y)
    noise = _Noise(game.noise_std, rows)
    calls = 0
    while not recorder.is_full:
        grad_x, grad_y = game.grad_x(x, y), game.grad_y(x, y)
        recorder.see(calls, _norms(grad_x))
        grad_x = noise.added(grad_x)
        y = y + y_rule.step(noise.added(grad_y))
        x = x - x_rule.step(grad_x)
        calls += 2


def _play_nested(game: Game, rows: Rows, sweep: Sweep, recorder: "_Recorder") -> None:
    """Every tick, each row takes one step of the player whose turn it is."""
    num_rows = len(rows.x)
    points = np.concatenate([rows.x, rows.y])  # x of every row, then y of every row
    rule = _rule(sweep, np.concatenate([rows.lr_x, rows.lr_y]))
    noise = _Noise(game.noise_std, rows)
    row = np.arange(num_rows)
    t, k = np.zeros(num_rows), np.zeros(num_rows)
    y_moves = _begins_with_y(t, sweep)
    last = _norms(game.grad_x(rows.x, rows.y))
    calls = 0
    while not recorder.is_full:
        x, y = points[:num_rows], points[num_rows:]
        grad_x = game.grad_x(x, y)
        last = np.where(y_moves, last, _norms(grad_x))
        recorder.see(calls, last)
        gradient = noise.added(np.where(y_moves[:, None], game.grad_y(x, y), grad_x))
        mover = np.where(y_moves, row + num_rows, row)
        ascent = np.where(y_moves, 1.0, -1.0)
        points[mover] += ascent[:, None] * rule.step(gradient, mover)
        k = np.where(y_moves, k + 1.0, 0.0)
        t = np.where(y_moves, t, t + 1.0)
        stopped = _inner_loop_stops(np.einsum("ij,ij->i", gradient, gradient), t, k, sweep)
        y_moves = np.where(y_moves, ~stopped, _begins_with_y(t, sweep))
        calls += 1


def _begins_with_y(t: Array, sweep: Sweep) -> NDArray[np.bool_]:
    """Whether outer step t has an inner loop at all."""
    if sweep.loop == "text":
        return np.ones(len(t), dtype=bool)
    return sweep.count_scale * t > 0.0


def _inner_loop_stops(grad_sq: Array, t: Array, k: Array, sweep: Sweep) -> NDArray[np.bool_]:
    if sweep.loop == "text":
        return (np.sqrt(grad_sq) * t <= 1.0) | (k > t)
    return (grad_sq <= 1.0 / (t + 1.0)) | (k >= sweep.count_scale * t)


def _rule(sweep: Sweep, lr: Array) -> Rule:
    return Rule(sweep.family, lr, sweep.eps, sweep.bias_correction)


def _norms(gradient: Array) -> Array:
    norms: Array = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))
    return norms


class _Noise:
    """Gaussian noise from one stream per row: every call takes the next numbers of its row."""

    def __init__(self, std: float, rows: Rows) -> None:
        self._std = std
        self._generators = rows.noise
        self._dimension = rows.x.shape[1]
        self._block = np.empty((0, 0, 0))
        self._used = 0

    def added(self, gradient: Array) -> Array:
        """The gradient plus the next noise of every row."""
        if self._std == 0.0:
            return gradient
        if self._used == len(self._block):
            size = (_NOISE_BLOCK, self._dimension)
            blocks = [self._std * g.standard_normal(size) for g in self._generators]
            self._block, self._used = np.stack(blocks, axis=1), 0
        noise: Array = self._block[self._used]
        self._used += 1
        return gradient + noise


class _Recorder:
    """Keeps the norms that were valid at given numbers of calls, and the peaks between them."""

    def __init__(self, at: NDArray[np.intp], num_rows: int, heard: Callable[[float], None]) -> None:
        self._at = at.tolist()
        self._next = 0
        self._heard = heard
        self._latest: Array = np.full(num_rows, np.nan)
        self._peak: Array = np.zeros(num_rows)
        self.norms = np.empty((len(at), num_rows))
        self.peaks = np.empty((len(at), num_rows))

    @property
    def is_full(self) -> bool:
        return self._next == len(self._at)

    def see(self, calls: int, norms: Array) -> None:
        """The norms at the points that stand after this many calls."""
        if calls > self._at[self._next]:  # two calls at once stepped over an odd number
            self._record(self._latest)
            if self.is_full:
                return
        self._latest = norms
        self._peak = np.maximum(self._peak, norms)  # a NaN stays
        if calls == self._at[self._next]:
            self._record(norms)

    def _record(self, norms: Array) -> None:
        self.norms[self._next] = np.where(np.isfinite(norms), norms, np.inf)
        self.peaks[self._next] = np.where(np.isfinite(self._peak), self._peak, np.inf)
        self._peak = norms
        self._next += 1
        self._heard(self._next / len(self._at))


FAMILIES: dict[Family, str] = {
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adagrad": "AdaGrad",
    "gda": "GDA",
}
METHODS: tuple[tuple[Family, bool], ...] = tuple(
    (family, nested) for nested in (False, True) for family in FAMILIES
)


def method_name(family: Family, nested: bool) -> str:
    """The name in legends: "Adam", "NeAda-Adam".

    Example:
        >>> method_name("amsgrad", True)
        'NeAda-AMSGrad'
    """
    return f"NeAda-{FAMILIES[family]}" if nested else FAMILIES[family]


@dataclass(frozen=True)
class Setting:
    """What a figure fixes for all its methods.

    Attributes:
        lr_y: The learning rate of y; that of x is lr_y divided by the ratio.
        num_points: How many points of each curve are kept.
    """

    lr_y: float
    num_points: int


def play_ratios(
    game: Game,
    starts: tuple[Array, Array],
    sweep: Sweep,
    max_calls: Sequence[tuple[float, int]],
    setting: Setting,
    noise_seeds: Sequence[int],
    run: RunFolder,
    progress: Progress,
) -> None:
    """Play every ratio from every start as one batch, and write the curves.

    A row of the metrics has the ratio, the calls, and for every seed the norm of the x gradient
    and its largest value since the row before.

    Args:
        game: The problem.
        starts: x and y of every seed.
        sweep: The method.
        max_calls: The ratios, each with its number of gradient calls.
        setting: What the figure fixes.
        noise_seeds: One per start; ratios of the same seed see the same noise.
        run: Where the rows go.
        progress: Hears which part is done.
    """
    num_seeds, num_ratios = len(starts[0]), len(max_calls)
    ratios = np.repeat([ratio for ratio, _ in max_calls], num_seeds)
    grids = {ratio: _grid(calls, setting.num_points) for ratio, calls in max_calls}
    at = np.unique(np.concatenate(list(grids.values())))
    rows = Rows(
        x=np.tile(starts[0], (num_ratios, 1)),
        y=np.tile(starts[1], (num_ratios, 1)),
        lr_x=setting.lr_y / ratios,
        lr_y=np.full(len(ratios), setting.lr_y),
        noise=tuple(np.random.default_rng(seed) for _ in max_calls for seed in noise_seeds),
    )
    norms, peaks = play(game, rows, sweep, at, progress)
    for number, (ratio, _) in enumerate(max_calls):
        mine = slice(number * num_seeds, (number + 1) * num_seeds)
        wanted = np.isin(at, grids[ratio])
        # Peaks between points of other ratios' grids belong to the next point of this one.
        groups = np.searchsorted(grids[ratio], at[at <= grids[ratio][-1]])
        own = np.zeros((len(grids[ratio]), num_seeds))
        np.maximum.at(own, groups, peaks[at <= grids[ratio][-1]][:, mine])
        run.append(
            [
                {"ratio": ratio, "calls": int(calls), "grad_x": list(norm), "peak": list(peak)}
                for calls, norm, peak in zip(
                    at[wanted], norms[wanted][:, mine].tolist(), own.tolist(), strict=True
                )
            ]
        )


def _grid(calls: int, num_points: int) -> Any:
    return np.unique(np.linspace(0, calls, min(num_points, calls) + 1).astype(np.intp))


def curves(record: Record, ratio: float, column: str = "grad_x") -> tuple[Array, Array]:
    """The calls, and one column of a ratio as an array of shape (points, seeds)."""
    rows = [row for row in record.rows if row["ratio"] == ratio]
    return np.array([row["calls"] for row in rows]), np.array([row[column] for row in rows])


def end_level(record: Record, ratio: float) -> Array:
    """For every seed the largest norm within the last tenth of the calls."""
    calls, peaks = curves(record, ratio, "peak")
    level: Array = peaks[calls > 0.9 * calls[-1]].max(axis=0)
    return level
