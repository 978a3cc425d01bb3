"""Run what is not in the folder yet, in several processes."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from neada.runs import RunFolder, locked, read_json, remove_temporary_files, write_json
from reproduction import experiment as registry
from reproduction.experiment import Record, Scale, Seeds, read_record, run_folder

_LOG_SECONDS = 30.0
_REQUEST = "reproduction.json"
"""In the folder of a reproduction: its experiments, scale, seeds and calls."""


@dataclass(frozen=True)
class Task:
    """One run to do."""

    experiment: str
    config: Any


@dataclass(frozen=True)
class Outcome:
    """What `reproduce` did.

    Attributes:
        num_run: Runs that were computed now.
        num_kept: Runs that were there already, whole and with the same config.
        broken: Runs that raised: (experiment and label, the error in one line).
    """

    num_run: int
    num_kept: int
    broken: Sequence[tuple[str, str]]


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    *,
    seeds: Seeds = None,
    max_calls: int | None = None,
    jobs: int = 1,
    overwrite: bool = False,
) -> Outcome:
    """Compute all runs of some experiments that are not in the folder yet.

    Finished runs survive an interruption; calling again does the rest. The folder also holds the
    arguments, so that the report can be made from the folder alone.

    Args:
        names: Which experiments.
        scale: "quick" (seconds), "standard" (minutes) or "paper" (the paper's budgets).
        out: The folder for everything.
        seeds: The seeds where there is randomness; None for the scale's own.
        max_calls: Gradient calls per run where that is a choice; None for the scale's own.
        jobs: How many processes.
        overwrite: Compute also what is there already.

    Raises:
        ValueError: The folder has files but no reproduction, or is in use by another process; or
            an experiment is unknown.
    """
    settings: dict[str, Any] = {
        "scale": scale,
        "seeds": None if seeds is None else list(seeds),
        "max_calls": max_calls,
    }
    wanted = [Task(name, config) for name in names for config in registry.configs(name, **settings)]
    before = last_request(out)
    if before is None and out.exists() and os.listdir(out):
        raise ValueError(f"{out} has files but no reproduction: use another folder")
    with locked(out):
        for folder in (out, *(out / name for name in names)):
            remove_temporary_files(folder)
        # Experiments of an earlier call with the same settings stay in the report.
        kept = before["names"] if before and before.items() >= settings.items() else []
        merged = [name for name in registry.EXPERIMENTS if name in {*names, *kept}]
        write_json(out / _REQUEST, {"names": merged, **settings})
        tasks = [
            task for task in wanted if overwrite or _folder(task, out).problem(asdict(task.config))
        ]
        broken = _execute(tasks, out, jobs)
    return Outcome(len(tasks) - len(broken), len(wanted) - len(tasks), broken)


def last_request(out: Path) -> dict[str, Any] | None:
    """Return the last arguments: names, scale, seeds, max_calls; None if there are none.

    Raises:
        ValueError: The file with them is damaged.
    """
    try:
        request: dict[str, Any] = read_json(out / _REQUEST)
    except FileNotFoundError:
        return None
    return request


def load(out: Path, name: str) -> list[Record]:
    """Read the runs of an experiment from a folder of `python -m reproduction`.

    `Record.columns` returns the numbers of a run as arrays by name.

    Raises:
        ValueError: The folder has no such experiment, or a run is missing or damaged.
    """
    request = last_request(out)
    if request is None or name not in request["names"]:
        raise ValueError(f"{out} has no runs of {name}")
    settings = [request[key] for key in ("scale", "seeds", "max_calls")]
    chosen = registry.configs(name, *settings)
    return [read_record(RunFolder(run_folder(out, name, config)), config) for config in chosen]


def _folder(task: Task, out: Path) -> RunFolder:
    return RunFolder(run_folder(out, task.experiment, task.config))


def _execute(tasks: Sequence[Task], out: Path, jobs: int) -> list[tuple[str, str]]:
    """Do all tasks; returns those that raised, each with the error in one line."""
    bar = _Bar(len(tasks))
    errors: list[BaseException | None] = []
    if jobs == 1:
        for task in tasks:
            errors.append(_error_of(task, out))
            bar.update()
    else:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, context, initializer=_prepare_worker)
        try:
            futures = [pool.submit(_do, task, out) for task in tasks]
            for _ in as_completed(futures):
                bar.update()
        except BaseException:
            # The workers ignore Ctrl-C, so that it is this process that decides; an unfinished run
            # is not sealed and will be done again.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown()
        errors += [future.exception() for future in futures]
    bar.close()
    return [
        (
            f"{task.experiment} ({task.config.label})",
            f"{type(error).__name__}: {' '.join(str(error).split())}",
        )
        for task, error in zip(tasks, errors, strict=True)
        if error is not None
    ]


class _Bar:
    """The number of finished runs: a bar on a terminal, elsewhere a line every 30 seconds."""

    def __init__(self, num_runs: int) -> None:
        self._bar = tqdm(total=num_runs, unit="run", disable=None)
        self._last_line = time.monotonic()

    def update(self) -> None:
        self._bar.n += 1
        self._bar.refresh()
        if self._bar.disable and time.monotonic() - self._last_line >= _LOG_SECONDS:
            self._last_line = time.monotonic()
            print(f"{self._bar.n} of {self._bar.total} runs", file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


def _do(task: Task, out: Path) -> None:
    run = _folder(task, out)
    with locked(run.path):
        run.start(asdict(task.config), overwrite=True)
        registry.make(task.experiment).run(task.config, run)
        run.finish()


def _error_of(task: Task, out: Path) -> Exception | None:
    try:
        _do(task, out)
    except Exception as error:
        return error
    return None


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # the processes are the parallelism


def _end_with_parent() -> None:
    """End a worker whose parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
