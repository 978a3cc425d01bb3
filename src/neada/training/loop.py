"""The training loop, written out."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neada import data as datasets
from neada import devices, distributed, models, tables
from neada.attacks.gradient import evaluating
from neada.checks import check_flags, check_number, check_path, shown
from neada.data import Batches, Dataset
from neada.inner import BudgetExhausted
from neada.progress import progress_bar
from neada.runs import Checkpoints, Run
from neada.tensors import NonFiniteGradient
from neada.training import ranks
from neada.training.checkpoint import (
    check_config,
    check_fields,
    check_like,
    fitting,
    length_of,
)
from neada.training.config import LENGTH, TrainConfig
from neada.training.evaluation import Interrupted, evaluations
from neada.training.players import groups_of, make_game
from neada.training.record import (
    Meter,
    Progress,
    Record,
    Schedule,
    Stop,
    TrainResult,
    TrainStatus,
    check_finite,
    listening,
)

__all__ = ["TrainedRun", "load_data", "make_model", "open_run", "train"]


_EVALUATIONS, _ROWS = 10, 100
_SKIPS = 10  # batches in a row that are not finite before a run stops that skips them


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
    """Train a model robustly, as a config says.

    Every row of the metrics has the gradient calls and steps of the model so far, the means of
    loss, objective value, perturbation and inner steps since the last row, and the seconds; with
    ``on_nonfinite="skip"`` also the batches that were skipped so far. Evaluations add
    ``test_clean``, ``test_0.05`` and so on, and ``held_out_...`` where the data have such a part.
    The last row always has all of them.

    With a folder there are checkpoints: every so often, at the end of every epoch, and when a
    signal (SIGINT, SIGTERM) asks to stop. A run that was killed at any moment and is resumed gives
    the same rows, times aside, and the same model as one that was left alone.

    Under torchrun, or in a process group, the ranks train together: each has a part of every batch
    and all return the same, rank 0 reads and writes the folder. A run can go on with another number
    of ranks.

    Args:
        config: What to do.
        folder: Where to write the run; None writes nothing, and signals do what they always do.
        resume: Go on with the run in the folder, also to another length and on another machine
            (`neada.training.config.ON_RESUME`); without one there, begin.
        overwrite: Replace the run in the folder.
        model: A network of one's own instead of ``config.model``; it is trained in place.
        data: Data of one's own instead of ``config.data``.
        progress: True shows a bar on a terminal and in a notebook (the extra `cli`), and elsewhere
            writes a line to stderr every 30 seconds; a function is called after every step.
        checkpoint_seconds: The longest time between checkpoints.
        tensorboard: Write the metrics for TensorBoard too (the extra `tensorboard`).
        download: Whether ``config.data`` may be downloaded if it is missing, as in
            `neada.data.load`. It is not part of the run: pass it again to resume.

    Returns:
        The model, the metrics, and how it ended.

    Raises:
        ValueError: The parts of the config do not fit each other, the data, or the run to resume.
        FileExistsError: The folder holds a run already.
        OSError: Something could not be written; the last checkpoint is still there.

    Example:
        >>> config = TrainConfig(data="synthetic", max_calls=100, lr_x=0.01, eval_eps=(0.5,))
        >>> result = train(config)
        >>> result.calls, sorted(result.accuracies)
        (100, ['test_0.5', 'test_clean'])
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {shown(config)}")
    check_number("checkpoint_seconds", checkpoint_seconds, most=math.inf)
    check_flags(resume=resume, overwrite=overwrite, tensorboard=tensorboard)
    folder = None if folder is None else check_path("folder", folder)
    if config.warm_start == "disk" and folder is None:
        raise ValueError("warm_start='disk' needs a run folder to keep the perturbations in")
    device = devices.choose(config.device)
    with ranks.met(device), _own_threads(config.threads):
        config = ranks.of_first(config)
        if data is None:
            data = ranks.first_then_others(partial(load_data, config, download=download))
        model = make_model(config, data) if model is None else model
        model.to(device)
        with (
            devices.seeded(device, ranks.seed_of_rank(config.seed)),
            listening(active=folder is not None) as stop,
            contextlib.closing(
                Record(config, folder, resume=resume, overwrite=overwrite, tensorboard=tensorboard)
            ) as record,
        ):
            run = _Training(config, folder, model, data, device, record)
            shown_here = not callable(progress) and progress and distributed.rank() == 0
            with progress_bar(shown_here) as show:
                tell = progress if callable(progress) else lambda at: show(at.part, at.words)
                result = run.go_on(stop, tell, checkpoint_seconds, show)
                if result.status is TrainStatus.FINISHED:
                    show(1.0, "done")
            return result


class _Training:
    """A training run that is begun, or taken up where its record ends.

    Args:
        config: What to do.
        folder: Where the run is, or None.
        model: The network, on the device.
        data: What it is trained on.
        device: Where it is trained.
        record: What is there of the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path | None,
        model: nn.Module,
        data: Dataset,
        device: torch.device,
        record: Record,
    ) -> None:
        self.config, self.folder, self.device, self.record = config, folder, device, record
        self.model, self.data = model, data
        self.fingerprint = {} if folder is None else data.fingerprint()
        if config.compile:
            with evaluating(model):
                devices.compile_in_place(model, data.inputs_train[:2].to(device))
        self.game = make_game(config, model, data)
        self.batches = Batches(
            data.inputs_train,
            data.targets_train,
            config.batch_size,
            seed=config.seed,
            extras=[groups_of(data)],
            part=(distributed.rank(), distributed.num_ranks()),
        )
        self.meter = Meter()
        self.rows_due = Schedule(config.log_every, _ROWS)
        self.evaluations_due = Schedule(config.eval_every, _EVALUATIONS)
        self.used_up = self.complete = False
        self.num_skipped = self.skipped_in_a_row = 0
        self.lengths = [length_of(asdict(config))]
        if record.state is not None:
            self._resume()
        record.begin()
        with distributed.together(torch.zeros(())):
            if record.state is None:
                self.game.open(folder)
            if not self.complete:
                self.game.settle()
        distributed.copy_from_first([*model.parameters(), *model.buffers()])

    def _resume(self) -> None:
        """Load the newest checkpoint whose stored perturbations are whole; nothing is written."""
        record = self.record
        fresh = {
            "model": self.model.state_dict(),
            "game": self.game.state_dict(),  # without a store, whose state is looked at below
            "batches": self.batches.state_dict(),
            "meter": self.meter.state_dict(),
        }
        self.game.open(self.folder)
        while True:
            saved = record.state
            assert saved is not None
            with distributed.together(torch.zeros(())), fitting(record.path, RuntimeError):
                if saved["data"] != self.fingerprint:
                    raise ValueError("the data are not those that the run was started with")
                for name, like in fresh.items():
                    check_like(saved[name], like, name)
                self.model.load_state_dict(saved["model"])
            try:
                with distributed.together(torch.zeros(())), fitting(record.path):
                    self.game.load_store(saved["game"])
            except ValueError as error:
                record.fall_back(error)
                continue
            with distributed.together(torch.zeros(())), fitting(record.path, RuntimeError):
                self._load(saved)
            return

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds; the same on all ranks, apart from a store, which rank 0 has."""
        check_finite(self.model)
        with distributed.together(torch.zeros(())):
            self.game.commit()
        return {
            "model": devices.on_cpu(self.model.state_dict()),
            "game": devices.on_cpu(self.game.state_dict()),
            "batches": self.batches.state_dict(),
            "rng": distributed.gather(devices.rng_state(self.device)),
            "meter": self.meter.state_dict(),
            "num_rows": self.rows_due.num_passed,
            "num_evaluations": self.evaluations_due.num_passed,
            "calls": self.game.calls,
            "lengths": self.lengths,
            "skipped": [self.num_skipped, self.skipped_in_a_row],
            "used_up": self.used_up,
            "complete": self.complete,
            "threads": torch.get_num_threads(),
            "data": self.fingerprint,
            "input_shape": list(self.data.input_shape),
            "num_classes": self.data.num_classes,
        }

    def _load(self, saved: dict[str, Any]) -> None:
        self.game.load_state_dict(saved["game"])
        self.batches.load_state_dict(saved["batches"])
        if distributed.rank() < len(saved["rng"]):  # a rank that is new begins with its seed
            devices.set_rng_state(self.device, saved["rng"][distributed.rank()])
        self.meter.load_state_dict(saved["meter"])
        self.rows_due.num_passed = saved["num_rows"]
        self.evaluations_due.num_passed = saved["num_evaluations"]
        self.num_skipped, self.skipped_in_a_row = saved["skipped"]
        self.used_up, self.complete = saved["used_up"], saved["complete"]
        self.lengths = saved["lengths"]
        if self.config.threads is None:
            torch.set_num_threads(saved["threads"])

    def go_on(
        self,
        stop: Stop,
        progress: Callable[[Progress], None],
        checkpoint_seconds: float,
        show: Callable[[float, str], None],
    ) -> TrainResult:
        """Train to the end, or until somebody asks to stop; `show` reports evaluations."""
        game, batches, record = self.game, self.batches, self.record
        first_part = self._part()
        began = time.perf_counter()
        endless = batches.endless()
        accuracy: float | None = None
        taken_up = record.path
        was_complete = self.complete
        try:
            if self.folder is not None and record.state is None:
                record.save(self._state())
            while not self.complete:
                part = self._part()
                done = self.used_up or part >= 1.0
                heard, by_clock = ranks.agreed(stop.heard, record.is_due(checkpoint_seconds))
                stop.agree(heard)

                # A row, with an evaluation now and then and at the end.
                at = (game.calls, self._share(self.lengths[0]))
                if done or self.rows_due.is_due(*at) or self.evaluations_due.is_due(*at):
                    found: list[dict[str, float]] = []
                    if done or self.evaluations_due.is_due(*at):

                        def tell(share: float, words: str, part: float = part) -> None:
                            show(part, f"evaluation: {words} {share:.0%}")

                        with contextlib.suppress(Interrupted), self._autocast():
                            found = evaluations(
                                self.config, self.model, self.data, done, stop, tell
                            )
                            accuracy = found[-1]["test_clean"]
                    if not stop.asked or found:
                        self._write_row(found)
                        self.rows_due.tick(*at)
                        self.evaluations_due.tick(*at)
                        self.complete = done

                # A checkpoint: by the clock, after an epoch, at the end, before leaving; but not of
                # an inner loop that was cut short, since to another length it would go on.
                epoch_ended = batches.batch == 0 and batches.epoch > 0
                is_due = stop.asked or epoch_ended or by_clock
                if self.complete or (is_due and not self.used_up):
                    record.save(self._state())
                if self.complete:
                    break
                if stop.asked:
                    words = "interrupted; resume=True goes on from the last checkpoint"
                    return self._ended(TrainStatus.INTERRUPTED, words)

                # A batch: the adversary, then the model.
                inputs, targets, ids, group_ids = next(endless)
                batch = (
                    inputs.to(self.device),
                    targets.to(self.device),
                    ids,
                    group_ids.to(self.device),
                )
                try:
                    for _ in range(game.replays):
                        with self._autocast(), self._taking_up(taken_up):
                            info = ranks.joint_step(game, self.model, batch, batches.part_is_empty)
                        self.meter.add(info)
                        taken_up = None
                except BudgetExhausted:
                    self.used_up = True
                    continue
                except FloatingPointError as error:
                    self._skip(error)
                    continue
                self.skipped_in_a_row = 0
                part = self._part()
                pace = (time.perf_counter() - began) / max(part - first_part, 1e-9)
                counts = (game.calls, game.x_steps, info.loss, info.inner_steps, accuracy)
                progress(Progress(part, *counts, seconds_left=pace * (1.0 - part)))
        except FloatingPointError as error:
            return self._ended(
                TrainStatus.NON_FINITE, f"after {game.calls} gradient calls: {error}"
            )
        record.seal()
        if not was_complete:
            game.tidy()
        return self._ended(TrainStatus.FINISHED, f"finished after {game.calls} gradient calls")

    def _skip(self, error: FloatingPointError) -> None:
        """Leave a batch out whose step was undone, or stop."""
        if self.config.on_nonfinite == "stop":
            raise error
        self.num_skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= _SKIPS:
            raise NonFiniteGradient(
                f"{_SKIPS} batches in a row were skipped, the last one since {error}"
            ) from error

    def _write_row(self, found: list[dict[str, float]]) -> None:
        """Add a row to the metrics, or one for each of several evaluations."""
        game = self.game
        row = {"calls": game.calls, "x_steps": game.x_steps, "epoch": self.batches.epoch}
        if self.config.on_nonfinite == "skip":
            row["skipped"] = self.num_skipped
        means = self.meter.means()
        for accuracies in found or [{}]:
            seconds = round(self.record.elapsed(), 3)
            self.record.append({**row, **means, **accuracies, "seconds": seconds})

    def _ended(self, status: TrainStatus, message: str) -> TrainResult:
        counts = (self.game.calls, self.game.x_steps, self.record.elapsed())
        return TrainResult(status, message, self.model, self.record.rows, *counts, self.folder)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return devices.autocast(self.device, self.config.precision)

    @staticmethod
    def _taking_up(checkpoint: Path | None) -> contextlib.AbstractContextManager[Any]:
        """What is around the first batch after a checkpoint, which uses some of its contents."""
        if checkpoint is None:
            return contextlib.nullcontext()
        return fitting(checkpoint, OverflowError, ZeroDivisionError)

    def _part(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(1.0, self._share(self.lengths[-1]))

    def _share(self, length: Sequence[int | None]) -> float:
        """How much of a length is done; more than 1 beyond it."""
        max_calls, epochs = length
        parts = []
        if max_calls is not None:
            parts.append(self.game.calls / max_calls)
        if epochs is not None:
            position = self.batches.epoch * len(self.batches) + self.batches.batch
            parts.append(position / (epochs * len(self.batches)))
        return max(parts)


def load_data(config: TrainConfig, *, download: bool = False) -> Dataset:
    """The data that a config speaks of; they are downloaded only if the caller allows it."""
    return datasets.load(
        config.data, folder=config.data_folder, seed=config.data_seed, download=download
    )


def make_model(config: TrainConfig, data: Dataset) -> nn.Module:
    """The model that a config speaks of, freshly initialized."""
    name = config.model_name
    model = models.make(name, data.input_shape, data.num_classes, seed=config.seed)
    fast = tables.MODELS[name].channels_last
    if fast if config.channels_last is None else config.channels_last:
        # The convolutions give their layout on to what follows them.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@contextlib.contextmanager
def _own_threads(num_threads: int | None) -> Iterator[None]:
    """A number of threads for the block; afterwards what it was."""
    before = torch.get_num_threads()
    try:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What is in a run folder.

    Attributes:
        config: What was asked.
        data: What it was trained on.
        model: The network of the newest checkpoint, in evaluation mode.
        complete: Whether the run had ended.
        folder: Where it is.
    """

    config: TrainConfig
    data: Dataset
    model: nn.Module
    complete: bool
    folder: Path


def open_run(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    device: str = "cpu",
    download: bool = False,
) -> TrainedRun:
    """Open a folder that `train` wrote.

    Args:
        folder: The run.
        model: A network to load the weights into, if it was one's own.
        data: The data, if they were one's own; or others with such inputs and as many classes.
        device: Where the model is put, as in `TrainConfig`.
        download: Whether the data of the run may be downloaded if they are missing.

    Raises:
        ValueError: The folder holds no training run, or none with a checkpoint; or the data do not
            fit it, or there is no such device.
    """
    folder = check_path("folder", folder)
    run = Run(folder, may_change=LENGTH)
    try:
        config = TrainConfig.from_dict(run.config())
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run: give a folder that training wrote") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder} holds no training run: {error}") from None
    path, state = next(Checkpoints(folder).states(), (None, None))
    if state is None:
        raise ValueError(f"{folder} has no checkpoint yet: train first")
    with fitting(path):
        check_fields(state)
        check_config(run, state)
    data = load_data(config, download=download) if data is None else data
    if data.fingerprint() != state["data"]:
        warnings.warn(f"the data are not those that {folder} was trained on", stacklevel=2)
    _check_fit(folder, state, data)
    model = make_model(config, data) if model is None else model
    try:
        check_like(state["model"], model.state_dict(), "model")
        model.load_state_dict(state["model"])
    except (RuntimeError, TypeError):
        raise ValueError(
            f"the weights in {folder} are of another model than its config and the data make: give "
            "the data and the model that it was trained with"
        ) from None
    model.to(devices.choose(device))
    return TrainedRun(config, data, model.eval(), state["complete"], folder)


def _check_fit(folder: Path, state: dict[str, Any], data: Dataset) -> None:
    """Raise unless data have the inputs and classes that a run was trained with."""
    shape, num_classes = tuple(state["input_shape"]), state["num_classes"]
    if (data.input_shape, data.num_classes) != (shape, num_classes):
        raise ValueError(
            f"{data.name} has inputs of shape {data.input_shape} in {data.num_classes} classes, "
            f"but the run in {folder} was trained on inputs of shape {shape} in {num_classes}: "
            "give data like those"
        )
