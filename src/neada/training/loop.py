"""The training loop."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neada import devices, parallel
from neada.data import Batches, Dataset
from neada.inner import BudgetExhausted
from neada.progress import progress_bar
from neada.runs import Checkpoint, RunFolder, encode, locked
from neada.tensors import NonFiniteGradient
from neada.training.config import LENGTH, ON_RESUME, TrainConfig
from neada.training.evaluation import evaluations
from neada.training.opening import load_data, make_model
from neada.training.players import Game, groups_of
from neada.training.result import METRICS, Meter, Progress, Schedule, TrainResult, TrainStatus
from neada.training.signals import Interruption, listening

__all__ = ["train"]


_EVALUATIONS, _ROWS = 10, 100
_MAX_SKIPS = 10


class _Interrupted(Exception):  # noqa: N818 (not an error)
    """A signal stops an evaluation."""


def train(
    config: TrainConfig,
    folder: Path | str | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    progress: bool | Callable[[Progress], None] = False,
    checkpoint_seconds: float = 60.0,
    tensorboard: bool = False,
    download: bool = False,
) -> TrainResult:
    """Train a model robustly.

    Every row of the metrics has the gradient calls and steps of the model so far, the means of
    loss, objective value, perturbation and inner steps since the last row, and the seconds; with
    ``on_nonfinite="skip"`` also the number of skipped batches. Evaluations add ``test_clean``,
    ``test_0.05`` and so on, and ``held_out_...`` if the data have such a part. The last row has all
    of them.

    With a folder, a checkpoint is saved every `checkpoint_seconds`, at the end, and on SIGINT or
    SIGTERM. A run that is killed at any moment and resumed gives the same rows (times aside) and
    the same model as an uninterrupted run.

    Under `torchrun`, or in a process group, each rank trains on a share of every batch, and rank 0
    reads and writes the folder. A run can be resumed with another number of ranks; the samples are
    then distributed differently.

    Args:
        config: The configuration.
        folder: The run folder; None writes nothing and leaves signals alone.
        resume: Resume the run in the folder; if there is none, start one. Length and machine may
            differ from the first call (`neada.training.config.ON_RESUME`).
        overwrite: Replace the run in the folder.
        model: A network to train in place, instead of ``config.model``.
        data: A data set, instead of ``config.data``.
        progress: True shows a progress bar on a terminal and in a notebook (the extra `cli`), and
            elsewhere writes to stderr every 30 seconds; a function is called after every
            step.
        checkpoint_seconds: The time between checkpoints.
        tensorboard: Also write the metrics for TensorBoard (the extra `tensorboard`).
        download: Whether ``config.data`` may be downloaded if it is missing, as in
            `neada.data.load`. It is not part of the run: pass it again to resume.

    Returns:
        The model, the metrics, and how the run ended.

    Raises:
        ValueError: The configuration does not fit the data or the run to resume.
        FileExistsError: The folder already holds a run.
        OSError: A file could not be written; the last checkpoint is intact.

    Example:
        >>> config = TrainConfig(data="synthetic", max_calls=100, lr_x=0.01, eval_eps=(0.5,))
        >>> result = train(config)
        >>> result.calls, sorted(result.accuracies)
        (100, ['test_0.5', 'test_clean'])
    """
    if folder is None and (resume or tensorboard):
        raise ValueError("resume and tensorboard require a run folder")
    folder = None if folder is None else Path(folder)
    writer = _summary_writer() if tensorboard else None
    device = devices.choose(config.device)
    with parallel.process_group(device), _threads(config.threads), contextlib.ExitStack() as held:
        data = _load_in_turn(config, download) if data is None else data
        model = make_model(config, data) if model is None else model
        model.to(device)
        run = RunFolder(folder) if folder is not None and parallel.rank() == 0 else None
        held.enter_context(devices.seeded(device, config.seed + parallel.rank()))
        training = _Training(config, model, data, device, run, folder)
        if run is not None:
            held.enter_context(locked(run.path))
        training.begin(resume, overwrite)
        if run is not None and writer is not None:
            next_step = training.rows[-1]["calls"] + 1 if training.rows else 0
            log = writer(run.path / "tensorboard", purge_step=next_step)
            training.log = held.enter_context(log)
        interruption = held.enter_context(listening(active=folder is not None))
        is_shown = not callable(progress) and progress and parallel.rank() == 0
        show = held.enter_context(progress_bar(is_shown))
        tell = progress if callable(progress) else lambda at: show(at.part, at.words)
        result = training.run(interruption, tell, show, checkpoint_seconds)
        if result.status is TrainStatus.FINISHED:
            show(1.0, "done")
        return result


class _Training:
    """The state of a training run.

    Args:
        config: The configuration.
        model: The network, on the device.
        data: The data set.
        device: The device of this rank.
        run: The run folder on rank 0; None on other ranks and without a folder.
        folder: The path of the run folder, on every rank.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        data: Dataset,
        device: torch.device,
        run: RunFolder | None,
        folder: Path | None,
    ) -> None:
        self.config, self.model, self.data, self.device = config, model, data, device
        self.run_folder, self.folder = run, folder
        self.fingerprint = {} if folder is None else data.fingerprint()
        if config.compile:
            devices.compile_in_place(model)
        self.game = Game(config, model, data)
        self.batches = Batches(
            data.inputs_train,
            data.targets_train,
            config.batch_size,
            seed=config.seed,
            extras=[groups_of(data)],
            part=(parallel.rank(), parallel.num_ranks()),
        )
        self.meter = Meter()
        self.rows_due = Schedule(config.log_every, _ROWS)
        self.evaluations_due = Schedule(config.eval_every, _EVALUATIONS)
        self.length = self.first_length = _length(asdict(config))
        self.rows: list[dict[str, Any]] = []
        self.accuracy: float | None = None
        self.used_up = self.complete = False
        self.num_skipped = self.skipped_in_a_row = 0
        self.started = self.saved_at = time.perf_counter()
        self.log: Any = None  # a SummaryWriter

    # The run folder.

    def begin(self, resume: bool, overwrite: bool) -> None:
        """Start a new run, or load a checkpoint."""
        checkpoint: Checkpoint | None = None
        fields = asdict(self.config)
        run = self.run_folder
        if run is not None and resume and run.exists():
            _check_same_config(run, fields)
            checkpoint = _find_checkpoint(run, self.length)
            overwrite = True  # without a checkpoint, the run had just been started
        checkpoint = parallel.from_first(checkpoint)
        if checkpoint is not None:
            self._load(checkpoint.state)
        if run is not None and checkpoint is None:
            run.start(fields, overwrite=overwrite)
        elif run is not None and checkpoint is not None:
            run.resume(checkpoint)
            self.rows = run.rows()
            known = run.config()
            if _length(known) != self.length:
                run.write_config(known | dict(zip(LENGTH, self.length, strict=True)))
        self.rows = parallel.from_first(self.rows)
        parallel.copy_from_first_([*self.model.parameters(), *self.model.buffers()])
        self.good_buffers = [buffer.clone() for buffer in self.model.buffers()]
        self.resumed = checkpoint is not None

    def _save(self) -> None:
        """Save a checkpoint; requires finite numbers in the model also without a folder."""
        _check_finite(self.model)
        rng = devices.rng_state(self.device)
        rng = {kind: parallel.gather_rows(state[None]) for kind, state in rng.items()}
        if self.run_folder is not None:
            self.run_folder.save_checkpoint(
                {
                    "model": self.model.state_dict(),
                    "game": self.game.state_dict(),
                    "batches": self.batches.state_dict(),
                    "rng": rng,
                    "meter": self.meter.state_dict(),
                    "num_rows": self.rows_due.num_passed,
                    "num_evaluations": self.evaluations_due.num_passed,
                    "calls": self.game.calls,
                    "length": self.length,
                    "first_length": self.first_length,
                    "skipped": [self.num_skipped, self.skipped_in_a_row],
                    "used_up": self.used_up,
                    "complete": self.complete,
                    "threads": torch.get_num_threads(),
                    "data": self.fingerprint,
                    "seconds": self._elapsed(),
                }
            )
        self.saved_at = time.perf_counter()

    def _load(self, state: dict[str, Any]) -> None:
        if state["data"] != self.fingerprint:
            raise ValueError("the data are not those that the run was started with")
        try:
            self.model.load_state_dict(state["model"])
            self.game.load_state_dict(state["game"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"the checkpoint in {self.folder} does not fit: {error}") from error
        self.batches.load_state_dict(state["batches"])
        if parallel.rank() < len(state["rng"]["cpu"]):  # other ranks start with their own seed
            own = {kind: each[parallel.rank()].clone() for kind, each in state["rng"].items()}
            devices.set_rng_state(self.device, own)
        self.meter.load_state_dict(state["meter"])
        self.rows_due.num_passed = state["num_rows"]
        self.evaluations_due.num_passed = state["num_evaluations"]
        self.first_length = state["first_length"]
        self.num_skipped, self.skipped_in_a_row = state["skipped"]
        self.used_up, self.complete = state["used_up"], state["complete"]
        self.started = time.perf_counter() - state["seconds"]
        if self.config.threads is None:
            torch.set_num_threads(state["threads"])

    # The loop.

    def run(
        self,
        interruption: Interruption,
        progress: Callable[[Progress], None],
        show: Callable[[float, str], None],
        checkpoint_seconds: float,
    ) -> TrainResult:
        """Train to the end, or until a signal arrives.

        Args:
            interruption: Whether a signal has arrived.
            progress: Called after every step.
            show: Called with the part that is done and a description during evaluations.
            checkpoint_seconds: The time between checkpoints.
        """
        batches = self.batches.endless()
        try:
            if self.folder is not None and not self.resumed:
                self._save()
            while not self.complete:
                by_clock = (
                    self.run_folder is not None
                    and time.perf_counter() - self.saved_at >= checkpoint_seconds
                )
                stopping, by_clock = self._agree(interruption.received, by_clock)

                # A row, sometimes with an evaluation, always with one at the end.
                done = self.used_up or self._part() >= 1.0
                at = (self.game.calls, self._share(self.first_length))
                found: list[dict[str, float]] = []
                if done or self.evaluations_due.is_due(*at):
                    found = [] if stopping else self._evaluate(done, interruption, show)
                    stopping = stopping or not found
                elif self.rows_due.is_due(*at):
                    found = [{}]
                if found:
                    self._write_rows(found)
                    self.rows_due.tick(*at)
                    self.evaluations_due.tick(*at)
                    self.complete = done

                # A checkpoint, but not after an inner loop that the budget cut short: a longer run
                # could not continue from there.
                if self.complete or ((stopping or by_clock) and not self.used_up):
                    self._save()
                if self.complete:
                    break
                if stopping:
                    words = "interrupted; resume=True continues from the last checkpoint"
                    return self._result(TrainStatus.INTERRUPTED, words)

                # A batch: the adversary, then the model.
                inputs, targets, ids, groups = next(batches)
                inputs, targets, groups = (
                    tensor.to(self.device) for tensor in (inputs, targets, groups)
                )
                try:
                    with self._autocast():
                        info = self.game.step(inputs, targets, ids, groups)
                except BudgetExhausted:
                    self.used_up = True
                    continue
                except FloatingPointError as error:
                    self._skip(error)
                    continue
                self._keep([float(getattr(info, name)) for name in METRICS])
                counts = (self.game.calls, self.game.x_steps, info.loss, info.inner_steps)
                progress(Progress(self._part(), *counts, self.accuracy))
        except FloatingPointError as error:
            words = f"after {self.game.calls} gradient calls: {error}"
            return self._result(TrainStatus.NON_FINITE, words)
        if self.run_folder is not None:
            self.run_folder.finish(self._elapsed())
        words = f"finished after {self.game.calls} gradient calls"
        return self._result(TrainStatus.FINISHED, words)

    def _agree(self, *flags: bool) -> list[bool]:
        """Return which flags are set on any rank, and average the counters over the ranks."""
        if not parallel.is_active():
            return list(flags)
        counters = self.game.counters
        counts = counters.state_dict()
        numbers = torch.tensor([*flags, *counts.values()], dtype=torch.float64, device=self.device)
        parallel.average_([numbers])
        means = numbers.tolist()
        joint = zip(counts, map(round, means[len(flags) :]), strict=True)
        counters.load_state_dict(dict(joint))
        return [mean > 0.0 for mean in means[: len(flags)]]

    def _evaluate(
        self, at_end: bool, interruption: Interruption, show: Callable[[float, str], None]
    ) -> list[dict[str, float]]:
        """Return accuracies; an empty list if a signal stopped the evaluation."""

        def tell(share: float, words: str) -> None:
            if interruption.received and not parallel.is_active():
                raise _Interrupted
            show(self._part(), f"evaluation: {words} {share:.0%}")

        try:
            with self._autocast():
                found = evaluations(self.config, self.model, self.data, at_end, tell)
        except _Interrupted:
            return []
        self.accuracy = found[-1]["test_clean"]
        return found

    def _write_rows(self, found: Sequence[Mapping[str, float]]) -> None:
        """Add one row to the metrics for each of some evaluations."""
        game = self.game
        row: dict[str, Any] = {
            "calls": game.calls,
            "x_steps": game.x_steps,
            "epoch": self.batches.epoch,
        }
        if self.config.on_nonfinite == "skip":
            row["skipped"] = self.num_skipped
        row |= self.meter.means()
        rows = [{**row, **accuracies, "seconds": round(self._elapsed(), 3)} for accuracies in found]
        self.rows += rows
        if self.run_folder is not None:
            self.run_folder.append(rows)
        if self.log is not None:
            for row in rows:
                for name, number in row.items():
                    if name != "calls":
                        self.log.add_scalar(name, number, row["calls"])

    def _keep(self, metrics: Sequence[float]) -> None:
        """Record a step; metrics and running statistics become means over the ranks."""
        joint = torch.tensor(metrics, dtype=torch.float64, device=self.device)
        buffers = list(self.model.buffers())
        parallel.average_([joint, *(buffer for buffer in buffers if buffer.is_floating_point())])
        self.meter.add(joint.tolist())
        self.skipped_in_a_row = 0
        if self.config.on_nonfinite == "skip":
            for good, buffer in zip(self.good_buffers, buffers, strict=True):
                good.copy_(buffer)

    def _skip(self, error: FloatingPointError) -> None:
        """Skip a batch whose step failed, or end the run."""
        if self.config.on_nonfinite == "stop":
            raise error
        with torch.no_grad():
            for good, buffer in zip(self.good_buffers, self.model.buffers(), strict=True):
                buffer.copy_(good)
        self.num_skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= _MAX_SKIPS:
            raise NonFiniteGradient(
                f"{_MAX_SKIPS} batches in a row were skipped, the last one because {error}"
            ) from error

    def _result(self, status: TrainStatus, message: str) -> TrainResult:
        counts = (self.game.calls, self.game.x_steps, self._elapsed())
        return TrainResult(status, message, self.model, self.rows, *counts, self.folder)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return devices.autocast(self.device, self.config.precision)

    def _elapsed(self) -> float:
        """Seconds since the start, without interruptions."""
        return time.perf_counter() - self.started

    def _part(self) -> float:
        """The part of the run that is done, from 0 to 1."""
        return min(1.0, self._share(self.length))

    def _share(self, length: Sequence[int | None]) -> float:
        """The calls or epochs so far divided by those of a length."""
        max_calls, epochs = length
        parts = []
        if max_calls is not None:
            parts.append(self.game.calls / max_calls)
        if epochs is not None:
            position = self.batches.epoch * len(self.batches) + self.batches.batch
            parts.append(position / (epochs * len(self.batches)))
        return max(parts)


# Resuming.


def _length(fields: Mapping[str, Any]) -> list[int | None]:
    return [fields.get(name) for name in LENGTH]


def _check_same_config(run: RunFolder, fields: dict[str, Any]) -> None:
    """Raise ValueError if the run has another configuration, apart from what may change."""
    known, wanted = encode(run.config()), encode(fields)
    for name in sorted((known.keys() | wanted.keys()) - set(ON_RESUME)):
        if known.get(name) != wanted.get(name):
            raise ValueError(
                f"the run in {run.path} has {name} = {known.get(name)!r}, not "
                f"{wanted.get(name)!r}: resume it with the configuration it was started with"
            )


def _find_checkpoint(run: RunFolder, length: Sequence[int | None]) -> Checkpoint | None:
    """Find the checkpoint to resume from; None if the run has not saved any.

    A complete run is continued to another length from its previous checkpoint, because the budget
    may have cut its last inner loop short. Its steps are then those of a run that had this length
    from the start.
    """
    complete = False
    for checkpoint in run.checkpoints():
        state = checkpoint.state
        if not complete and state["length"] != length:
            done = (state["calls"], state["batches"]["epoch"])
            for name, most, so_far in zip(LENGTH, length, done, strict=True):
                if most is not None and so_far >= most:
                    raise ValueError(
                        f"{name} = {most} is not more than the run in {run.path} has done "
                        f"({so_far}): ask for more"
                    )
        if not state["complete"] or state["length"] == length:
            return checkpoint
        complete = True
    if complete:
        raise ValueError(
            f"{run.path} has no checkpoint from before the end of the run, so it cannot be "
            "continued: start a new run"
        )
    if run.rows():
        raise ValueError(
            f"{run.path} has metrics but no checkpoint: restore the checkpoints, or start a new run"
        )
    return None


def _check_finite(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NonFiniteGradient(
                f"the model's {name} is NaN or Inf after the last step; lower the learning rate"
            )


# Surroundings.


@contextlib.contextmanager
def _threads(num_threads: int | None) -> Iterator[None]:
    """Use a number of threads in the block."""
    before = torch.get_num_threads()
    try:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        yield
    finally:
        torch.set_num_threads(before)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("tensorboard is missing: pip install 'neada[tensorboard]'") from error
    return SummaryWriter


def _load_in_turn(config: TrainConfig, download: bool) -> Dataset:
    """Load the data on rank 0, which may download them, and then on the other ranks."""
    data = load_data(config, download=download) if parallel.rank() == 0 else None
    parallel.from_first(None)
    return load_data(config) if data is None else data
