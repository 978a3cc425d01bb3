"""What a training run leaves behind: status, metrics, checkpoints."""

import contextlib
import enum
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from neada import distributed, files, tables
from neada.robust import RobustInfo
from neada.robust.sharded_store import store_files
from neada.runs import FILES, Checkpoints, Run, check_files
from neada.tensors import NonFiniteGradient
from neada.training.checkpoint import candidates, length_of
from neada.training.config import LENGTH, TrainConfig
from neada.training.players import STORE_FILE, STORE_FILES
from neada.training.tensorboard import TensorBoardLog, tensorboard_module

__all__ = [
    "METRICS",
    "Meter",
    "Progress",
    "Record",
    "Schedule",
    "Stop",
    "TrainResult",
    "TrainStatus",
    "check_finite",
    "listening",
]


class Stop:
    """Whether somebody asked to stop.

    Attributes:
        heard: True once a signal has come to this process.
    """

    def __init__(self) -> None:
        self.heard = False
        self._agreed = False

    @property
    def asked(self) -> bool:
        """Whether to stop; on several ranks, what they have agreed upon last."""
        return self._agreed if distributed.is_active() else self.heard

    def agree(self, anybody_heard: bool) -> None:
        """Take note that all ranks know now whether one of them has heard a signal."""
        self._agreed = anybody_heard

    def __call__(self) -> bool:
        """The same as `asked`."""
        return self.asked


@contextlib.contextmanager
def listening(active: bool) -> Iterator[Stop]:
    """Let SIGINT and SIGTERM only set a flag; a second one acts as usual.

    Signals that are ignored stay ignored, and outside of the main thread, where Python has no
    handlers, nothing is changed. On several ranks a second signal does nothing: torchrun sends one
    after the terminal's, and ends processes that do not end by themselves.

    Args:
        active: Whether to listen at all.
    """
    stop = Stop()
    if not active or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

    def hear(number: int, frame: FrameType | None) -> None:
        stop.heard = True
        if not distributed.is_active():
            restore()

    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, hear)
    try:
        yield stop
    finally:
        restore()


class TrainStatus(enum.Enum):
    """How a training run ended."""

    FINISHED = "the gradient calls are spent, or the epochs are done"
    INTERRUPTED = "a signal stopped it; it can be resumed"
    NON_FINITE = "the loss, a gradient or the model is not finite"


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        part: The part of it that is done, from 0 to 1.
        calls: Gradient calls so far.
        x_steps: Steps of the model so far.
        loss: Of the last batch, at the perturbed inputs.
        inner_steps: Of the last batch.
        accuracy: The last one measured, on the clean test set; None before there was one.
        seconds_left: An estimate, from the pace so far; None before the first step.
    """

    part: float
    calls: int
    x_steps: int
    loss: float
    inner_steps: int
    accuracy: float | None
    seconds_left: float | None

    @property
    def words(self) -> str:
        """What a progress bar says."""
        accuracy = "" if self.accuracy is None else f", clean {self.accuracy:.1%}"
        return f"loss {self.loss:.3f}, {self.inner_steps} inner{accuracy}"


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What training came to.

    Attributes:
        status: How it ended.
        message: The same in a sentence.
        model: The network; after NON_FINITE in whatever state it was left.
        rows: The metrics, one dictionary per row; the last one of a finished run has all
            accuracies.
        calls: Gradient calls of both players, and values.
        x_steps: Steps of the model.
        seconds: How long it took, interruptions aside.
        folder: Where the run is, or None.
    """

    status: TrainStatus
    message: str
    model: nn.Module
    rows: list[dict[str, Any]]
    calls: int
    x_steps: int
    seconds: float
    folder: Path | None

    @property
    def accuracies(self) -> dict[str, float]:
        """The accuracies of the last row that has any, by name."""
        for row in reversed(self.rows):
            if "test_clean" in row:
                return {k: v for k, v in row.items() if k.startswith(("test_", "held_out_"))}
        return {}


METRICS = {
    "loss": "the mean loss at the worst y found",
    "value": "the same with the penalty or regularizer: what y maximizes",
    "perturbation": "how far y is from the clean point",
    "inner_steps": "steps of y per step of the model",
    "grad_sq_y": "the squared norm of y's last gradient mapping, as the rule saw it",
}
"""What a row has of the steps since the last row: means of these attributes of `RobustInfo`."""


class Meter:
    """Means of what steps report, from one row to the next."""

    def __init__(self) -> None:
        self._num = 0
        self._sums = dict.fromkeys(METRICS, 0.0)
        self._last: dict[str, float] = {}

    def add(self, info: RobustInfo) -> None:
        """Take a step into account."""
        self._num += 1
        for name in METRICS:
            self._sums[name] += getattr(info, name)

    def means(self) -> dict[str, float]:
        """The means since the last time, or those of then; none before the first step."""
        if self._num > 0:
            self._last = {name: total / self._num for name, total in self._sums.items()}
            self._num, self._sums = 0, dict.fromkeys(METRICS, 0.0)
        return dict(self._last)

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts."""
        return {"num": self._num, "sums": dict(self._sums), "last": dict(self._last)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from saved sums."""
        self._num = state_dict["num"]
        self._sums, self._last = dict(state_dict["sums"]), dict(state_dict["last"])
        numbers = (self._num, *self._sums.values(), *self._last.values())
        if any(not isinstance(number, int | float) for number in numbers):
            raise TypeError("the sums and means of the meter are no numbers")


class Schedule:
    """Something to do every so many calls, or so many times in a whole run.

    Args:
        every: Calls from one time to the next; None to go by the part of the run that is done.
        in_all: How often in the whole run then.

    Example:
        >>> schedule = Schedule(every=10, in_all=5)
        >>> [schedule.is_due(calls, 0.0) for calls in (9, 12)]
        [False, True]
        >>> schedule.tick(12, 0.0)
        >>> schedule.is_due(19, 0.0), schedule.is_due(20, 0.0)
        (False, True)
    """

    def __init__(self, every: int | None, in_all: int) -> None:
        self.every = every
        self.in_all = in_all
        self.num_passed = 0

    def is_due(self, calls: int, part: float) -> bool:
        """Whether it is time."""
        return self._passed(calls, part) > self.num_passed

    def tick(self, calls: int, part: float) -> None:
        """It has been done."""
        self.num_passed = self._passed(calls, part)

    def _passed(self, calls: int, part: float) -> int:
        return int(part * self.in_all) if self.every is None else calls // self.every


class Record:
    """The run folder of a training run; without a folder, rows in memory.

    Constructing it only locks the folder and looks, so that whatever else is wrong can still be
    said without harm; `begin` changes the folder, and `close` leaves it to others.

    Args:
        config: What is asked for.
        folder: Where the run is or will be; None to write nothing.
        resume: Go on with the run that is there, if there is one.
        overwrite: Replace the run that is there.
        tensorboard: Write the metrics for TensorBoard too.

    Attributes:
        rows: The metrics so far.
        state: The checkpoint to go on from, or None.
        path: Where that is; None on other ranks than the first.

    On several ranks rank 0 reads and writes, and all have the rows and the state.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path | None,
        *,
        resume: bool,
        overwrite: bool,
        tensorboard: bool,
    ) -> None:
        if folder is None and (resume or tensorboard):
            raise ValueError("resume and tensorboard need a run folder: give one")
        if distributed.rank() > 0:
            folder, tensorboard = None, False
        self.rows: list[dict[str, Any]] = []
        self.state: dict[str, Any] | None = None
        self.path: Path | None = None
        self._fields = asdict(config)
        self._candidates: Iterator[tuple[Path, dict[str, Any]]] = iter(())
        self._run = None if folder is None else Run(folder, may_change=LENGTH)
        self._checkpoints = None if folder is None else Checkpoints(folder)
        self._with_log = tensorboard
        self._log: TensorBoardLog | None = None
        self._saved_at = self._started = time.perf_counter()
        with contextlib.ExitStack() as held:
            with distributed.together(torch.zeros(())):
                if tensorboard:
                    tensorboard_module("compat")  # before anything is changed
                if self._run is not None:
                    held.enter_context(files.locked(self._run.folder))
                    self._look(self._run, resume, overwrite)
            self.rows, self.state = distributed.from_first((self.rows, self.state))
            self._held = held.pop_all()

    def _look(self, run: Run, resume: bool, overwrite: bool) -> None:
        """Find what is there, or why it cannot be used; nothing is changed."""
        assert self._checkpoints is not None
        if (run.folder / tables.REQUEST_FILE).exists():
            raise ValueError(f"{run.folder} holds a reproduction: use another folder")
        check_files(run.folder, STORE_FILES)
        if (run.folder / "config.json").exists():
            if resume:
                self._candidates = candidates(run, self._checkpoints, self._fields)
                self._take_next(run)
            elif not overwrite:
                raise FileExistsError(
                    f"{run.folder} holds a run already: resume it, overwrite it, or use another "
                    "folder"
                )
        elif not overwrite and (left := _leftovers(run.folder)):
            raise ValueError(
                f"{run.folder} has {left[0].name} but no config.json, so nobody knows what run it "
                "is: use another folder"
            )
        if overwrite and (left := _leftovers(run.folder)) and not _is_run(run):
            raise ValueError(
                f"{run.folder} has {left[0].name} but is not the folder of a training run: move "
                "the file, or use another folder"
            )

    def _take_next(self, run: Run) -> None:
        self.path, self.state = next(self._candidates, (None, None))
        self.rows = [] if self.state is None else run.rows(self.state["mark"])

    def fall_back(self, error: ValueError) -> None:
        """Go on from the checkpoint before the present one.

        Args:
            error: Why the present one cannot be used; raised if there is none before it.
        """
        path = self.path
        with distributed.together(torch.zeros(())):
            if self._run is not None:
                self._take_next(self._run)
                if self.state is not None:
                    warnings.warn(f"{path} cannot be used: {error}", stacklevel=2)
        self.rows, self.state = distributed.from_first((self.rows, self.state))
        if self.state is None:
            raise error

    def begin(self) -> None:
        """Make the folder ready: go on from the checkpoint, or start anew.

        Until here nothing was changed; from here on an earlier run is gone, unless it goes on.
        """
        with distributed.together(torch.zeros(())):
            if self._run is not None and self._checkpoints is not None:
                self._begin(self._run, self._checkpoints)

    def _begin(self, run: Run, checkpoints: Checkpoints) -> None:
        files.remove_drafts(run.folder, (*FILES, STORE_FILES))
        if self.state is None:
            checkpoints.clear()
            for stale in store_files(run.folder / STORE_FILE):
                stale.unlink()
            run.start(self._fields)
            self._saved_at = self._started = time.perf_counter()
        else:
            self._go_on(run, checkpoints, self.state)
            self._started = time.perf_counter() - self.state["seconds"]
        if self._with_log:
            step = self.rows[-1]["calls"] + 1 if self.rows else None
            self._log = TensorBoardLog(run.folder / "tensorboard", step)

    def _go_on(self, run: Run, checkpoints: Checkpoints, state: dict[str, Any]) -> None:
        assert self.path is not None
        checkpoints.go_on_from(self.path)
        if state["complete"] and (run.folder / "result.json").exists():
            return  # it was verified, and there is nothing to do
        known = run.config()
        if length_of(known) != state["lengths"][-1]:
            # The length is in all checkpoints that are kept before it is in the config: whatever
            # one of them is lost, a length that none of them knows is damage.
            for _ in range(checkpoints.num_kept):
                checkpoints.save(state)
        run.go_on(state["mark"], state["seconds"])
        if length_of(known) != state["lengths"][-1]:
            run.write_config({**known, **dict(zip(LENGTH, state["lengths"][-1], strict=True))})

    def elapsed(self) -> float:
        """Seconds since the start, interruptions aside."""
        return time.perf_counter() - self._started

    def is_due(self, seconds: float) -> bool:
        """Whether so much time has passed since the last checkpoint, where there are any."""
        return self._run is not None and time.perf_counter() - self._saved_at >= seconds

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to the metrics."""
        self.rows.append(row)
        with distributed.together(torch.zeros(())):
            if self._run is not None:
                self._run.append([row])
        if self._log is not None:
            self._log.append(row)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""
        with distributed.together(torch.zeros(())):
            if self._run is not None and self._checkpoints is not None:
                mark = self._run.mark()
                self._checkpoints.save({**state, "mark": mark, "seconds": self.elapsed()})
        self._saved_at = time.perf_counter()

    def seal(self) -> None:
        """Say that the run is complete."""
        with distributed.together(torch.zeros(())):
            if self._run is not None and not (self._run.folder / "result.json").exists():
                self._run.seal()

    def close(self) -> None:
        """Let go of what is open, and of the folder."""
        if self._log is not None:
            self._log.close()
        self._held.close()


def _leftovers(folder: Path) -> list[Path]:
    """Files in a folder that a new run would remove or replace."""
    own = [folder / name for name in FILES]
    own += [*Checkpoints(folder).paths(), *store_files(folder / STORE_FILE)]
    return [path for path in own if path.exists()]


def _is_run(run: Run) -> bool:
    """Whether a folder has a checkpoint or the config of a training run."""
    try:
        return bool(Checkpoints(run.folder).paths() or TrainConfig.from_dict(run.config()))
    except (OSError, TypeError, ValueError):
        return False


def check_finite(model: nn.Module) -> None:
    """Raise unless a model is worth keeping: with every number of its state finite."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NonFiniteGradient(
                f"the model's {name} is not finite after the last step; lower the learning rate"
            )
