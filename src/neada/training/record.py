"""Where a training run is written down: metrics, checkpoints, TensorBoard; or only in memory."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neada.runs import Checkpoints, Run, files
from neada.tensors import NonFiniteGradient
from neada.training.config import TrainConfig
from neada.training.game import STORE_FILE
from neada.training.tensorboard import TensorBoardLog, check_installed

__all__ = ["Record", "check_finite"]


class Record:
    """The run folder of a training run; without a folder, rows in memory.

    Constructing it only looks, so that whatever else is wrong can still be said without harm;
    `begin` changes the folder.

    Args:
        config: What is asked for.
        folder: Where the run is or will be; None to write nothing.
        resume: Go on with the run that is there, if there is one.
        overwrite: Replace the run that is there.
        tensorboard: Write the metrics for TensorBoard too.

    Attributes:
        rows: The metrics so far.
        state: The checkpoint to go on from, or None.
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
        self.rows: list[dict[str, Any]] = []
        self.state: dict[str, Any] | None = None
        self._fields = asdict(config)
        self._run = None if folder is None else Run(folder)
        self._checkpoints = None if folder is None else Checkpoints(folder)
        if tensorboard:
            check_installed()
        self._with_log = tensorboard
        self._log: TensorBoardLog | None = None
        self._saved_at = self._started = time.perf_counter()
        if self._run is not None:
            self._look(self._run, resume, overwrite)

    def _look(self, run: Run, resume: bool, overwrite: bool) -> None:
        """Find what is there, or why it cannot be used; nothing is changed."""
        assert self._checkpoints is not None
        if (run.folder / "config.json").exists():
            if resume:
                _check_same(run, self._fields)
                self.state = self._checkpoints.load()
                if self.state is not None:
                    self.rows = run.rows(self.state["mark"])
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

    def begin(self) -> None:
        """Make the folder ready: go on from the checkpoint, or start anew.

        Until here nothing was changed; from here on an earlier run is gone, unless it goes on.
        """
        if self._run is None or self._checkpoints is None:
            return
        if self.state is None:
            self._checkpoints.clear()
            for stale in self._run.folder.glob(f"{STORE_FILE}*"):
                stale.unlink()
            self._run.start(self._fields)
            self._saved_at = self._started = time.perf_counter()
        else:
            self._run.go_on(self.state["mark"], self.state["seconds"])
            self._started = time.perf_counter() - self.state["seconds"]
        if self._with_log:
            step = self.rows[-1]["calls"] + 1 if self.rows else None
            self._log = TensorBoardLog(self._run.folder / "tensorboard", step)

    def elapsed(self) -> float:
        """Seconds since the start, interruptions aside."""
        return time.perf_counter() - self._started

    def since_saved(self) -> float:
        """Seconds since the last checkpoint, or since the start."""
        return time.perf_counter() - self._saved_at

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to the metrics."""
        self.rows.append(row)
        if self._run is not None:
            self._run.append([row])
        if self._log is not None:
            self._log.append(row)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint."""
        if self._run is not None and self._checkpoints is not None:
            mark = self._run.mark()
            self._checkpoints.save({**state, "mark": mark, "seconds": self.elapsed()})
            self._saved_at = time.perf_counter()

    def seal(self) -> None:
        """Say that the run is complete."""
        if self._run is not None:
            self._run.seal()

    def close(self) -> None:
        """Let go of what is open."""
        if self._log is not None:
            self._log.close()


def _leftovers(folder: Path) -> list[Path]:
    """Files in a folder that a new run would remove."""
    own = [folder / "metrics.jsonl", folder / "result.json", *folder.glob(f"{STORE_FILE}*")]
    return [*Checkpoints(folder).paths(), *(path for path in own if path.exists())]


def check_finite(model: nn.Module) -> None:
    """Raise unless a model is worth keeping: with every number of its state finite."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NonFiniteGradient(
                f"the model's {name} is not finite after the last step; lower the learning rate"
            )


def _check_same(run: Run, fields: dict[str, Any]) -> None:
    """Raise unless the run that is there was asked for the same."""
    try:
        known = run.config()
    except ValueError:
        raise ValueError(f"{run.folder / 'config.json'} cannot be read: start again") from None
    wanted = files.decode(files.encode(fields))
    for name in sorted(known.keys() | wanted.keys()):
        if known.get(name) != wanted.get(name):
            raise ValueError(
                f"the run in {run.folder} has {name} = {known.get(name)!r}, not "
                f"{wanted.get(name)!r}: resume it with the config it was started with"
            )
