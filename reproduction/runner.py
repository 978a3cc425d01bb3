"""Run what is not there yet: on all cores, resumable, with the progress of the whole."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from neada.runs import RunFolder, locked, read_json, remove_temporary_files, write_json
from reproduction import experiment as registry
from reproduction.experiment import Record, Scale, Seeds, read_record, run_folder

_REQUEST = "reproduction.json"
"""In the folder of a reproduction: its experiments, scale, seeds and calls."""
_REPORT = ("claims.json", "report.html")
_FIGURES = ("figure.png", "figure.svg")
_POLL_SECONDS = 0.2
Report = Callable[[float, str], None]
"""Called with the part of all runs that is done, and the name of the experiment at work."""

# In a worker: one entry per task, the part of it that is done. Set by `_prepare_worker`.
_shares: Any = None


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
        redone: Folders that were there but unfinished, damaged or of another config: (folder, why).
        broken: Runs that raised: (experiment and label, the error in one line).
    """

    num_run: int
    num_kept: int
    redone: Sequence[tuple[str, str]]
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
    report: Report | None = None,
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
        report: Called with the progress.

    Raises:
        ValueError: The folder is that of a single run, has files of that name that are not part
            of a reproduction, or is in use by another process; or an experiment is unknown.
    """
    seeds = None if seeds is None else list(seeds)
    for name in names:
        registry.configs(name, scale, seeds, max_calls)
    if (out / "config.json").exists():
        raise ValueError(f"{out} holds a run, not a reproduction: use another folder")
    _check_replaceable(out, names)
    with locked(out):
        tasks, redone, num_kept = pending(names, scale, out, seeds, max_calls, overwrite)
        for folder in (out, *(out / name for name in names)):
            remove_temporary_files(folder)
        settings = {"scale": scale, "seeds": seeds, "max_calls": max_calls}
        wanted = {*names, *_still_valid(last_request(out), settings)}
        merged = [name for name in registry.EXPERIMENTS if name in wanted]
        write_json(out / _REQUEST, {"names": merged, **settings})
        execute = _execute_here if jobs == 1 or len(tasks) <= 1 else _execute_in_processes
        broken = execute(tasks, out, jobs, report or (lambda part, name: None))
    return Outcome(len(tasks) - len(broken), num_kept, redone, broken)


def _check_replaceable(out: Path, names: Sequence[str]) -> None:
    """Raise if a report would replace files in a folder that holds no reproduction."""
    figures = [out / name / figure for name in names for figure in _FIGURES]
    found = [path for path in (*(out / name for name in _REPORT), *figures) if path.exists()]
    has_runs = any((out / name / "runs").is_dir() for name in registry.EXPERIMENTS)
    if found and not has_runs and not (out / _REQUEST).exists():
        raise ValueError(
            f"{found[0]} is not part of a reproduction: move it, or use another folder"
        )


def pending(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    seeds: Seeds,
    max_calls: int | None,
    overwrite: bool,
) -> tuple[list[Task], list[tuple[str, str]], int]:
    """The runs to do, the folders that will be redone and why, and how many are kept.

    Raises:
        ValueError: There is something in the place of a file that cannot be replaced.
    """
    tasks: list[Task] = []
    redone: list[tuple[str, str]] = []
    num_kept = 0
    for name in names:
        for config in registry.configs(name, scale, seeds, max_calls):
            run = RunFolder(run_folder(out, name, config))
            trouble = "--overwrite was given" if overwrite else run.problem(asdict(config))
            if not trouble:
                num_kept += 1
                continue
            run.check_kinds()
            if run.path.exists() and not overwrite:
                redone.append((str(run.path.relative_to(out)), trouble))
            tasks.append(Task(name, config))
    return tasks, redone, num_kept


def last_request(out: Path) -> dict[str, Any] | None:
    """Return the last arguments: names, scale, seeds, max_calls; None if there are none.

    Raises:
        ValueError: The file with them is damaged.
    """
    path = out / _REQUEST
    try:
        content = read_json(path)
        request = {name: content[name] for name in ("names", "scale", "seeds", "max_calls")}
        for name in request["names"]:
            registry.configs(name, request["scale"], request["seeds"], request["max_calls"])
    except FileNotFoundError:
        return None
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({_in_one_line(error)}): remove it and reproduce again into the "
            "same folder, which keeps the finished runs"
        ) from error
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


def _still_valid(asked: dict[str, Any] | None, settings: dict[str, Any]) -> list[str]:
    """Experiments of an earlier call that the same report can show."""
    if asked is None or any(asked[name] != value for name, value in settings.items()):
        return []
    return [str(name) for name in asked["names"]]


def _do(task: Task, out: Path, progress: Callable[[float], None]) -> None:
    run = RunFolder(run_folder(out, task.experiment, task.config))
    with locked(run.path):
        run.start(asdict(task.config), overwrite=True)
        registry.make(task.experiment).run(task.config, run, progress)
        run.finish()


def _execute_here(
    tasks: Sequence[Task], out: Path, jobs: int, report: Report
) -> list[tuple[str, str]]:
    broken = []
    for number, task in enumerate(tasks):

        def progress(part: float, number: int = number, name: str = task.experiment) -> None:
            report((number + part) / len(tasks), name)

        progress(0.0)
        try:
            _do(task, out, progress)
        except Exception as error:
            broken.append((_title(task), _in_one_line(error)))
        progress(1.0)
    return broken


def _execute_in_processes(
    tasks: Sequence[Task], out: Path, jobs: int, report: Report
) -> list[tuple[str, str]]:
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(tasks), lock=False)
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), context, initializer=_prepare_worker, initargs=(shares,)
    )
    try:
        futures = [pool.submit(_do_in_worker, i, task, out) for i, task in enumerate(tasks)]
        _watch(futures, tasks, shares, report)
        found = [
            (_title(task), _in_one_line(error))
            for task, future in zip(tasks, futures, strict=True)
            if (error := future.exception()) is not None
        ]
    except BaseException:
        # The workers ignore Ctrl-C, so that it is this process that decides; a run in mid-air is
        # not sealed and will be done again.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    return found


def _watch(
    futures: Sequence[Future[None]], tasks: Sequence[Task], shares: Any, report: Report
) -> None:
    """Report progress until all is done."""
    open_futures: set[Future[None]] = set(futures)
    while open_futures:
        _, open_futures = wait(open_futures, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        done = [1.0 if future.done() else shares[i] for i, future in enumerate(futures)]
        at_work = next(
            (t.experiment for t, part in zip(tasks, done, strict=True) if part < 1.0), ""
        )
        report(sum(done) / len(tasks), at_work)
        if open_futures:
            time.sleep(_POLL_SECONDS / 4)


def _prepare_worker(shares: Any) -> None:
    global _shares
    _shares = shares
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # the processes are the parallelism


def _end_with_parent() -> None:
    """Nobody is left to tell a worker to end when the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do_in_worker(number: int, task: Task, out: Path) -> None:
    def progress(part: float) -> None:
        _shares[number] = part

    _do(task, out, progress)


def _title(task: Task) -> str:
    return f"{task.experiment} ({task.config.label})"


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
