"""The checkpoint that a training run goes on from: which one it is, and whether it fits."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neada import files
from neada.runs import Checkpoints, Run
from neada.training.config import LENGTH, ON_RESUME, RETIRED, TrainConfig, options_of

__all__ = ["candidates", "check_config", "check_fields", "check_like", "fitting", "length_of"]

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "model": dict,
    "game": dict,
    "batches": dict,
    "rng": list,
    "meter": dict,
    "num_rows": int,
    "num_evaluations": int,
    "calls": int,
    "used_up": bool,
    "complete": bool,
    "threads": int,
    "data": dict,
    "input_shape": list,
    "num_classes": int,
    "lengths": list,
    "skipped": list,
    "mark": dict,
    "seconds": (int, float),
}
"""What a checkpoint of training has."""

_MARK = dict.fromkeys(("metrics_sha256", "config_sha256", "environment_sha256"), "")


def candidates(
    run: Run, checkpoints: Checkpoints, fields: Mapping[str, Any]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The checkpoints that a run can go on from, newest first; nothing is changed.

    To another length a run goes on from before its end, where the last inner loop was cut short:
    the steps are then those of a run that was asked for that length at once.

    Args:
        run: What is there.
        checkpoints: Its checkpoints.
        fields: The config that is asked for now.

    Yields:
        A path and its state; the last of its lengths is the one that is asked for.

    Raises:
        ValueError: The folder is not what the run wrote, or the run cannot go on like this.
    """
    _check_same(run, fields)
    asked, is_newest, num_found = length_of(fields), True, 0
    for path, state in checkpoints.states():
        with fitting(path, ArithmeticError):
            check_fields(state)
            run.check(state["mark"])
            if is_newest:
                _check_newest(run, state, asked)
        is_newest = False
        if asked != state["lengths"][-1]:
            if state["complete"]:
                continue
            state = {**state, "lengths": [*state["lengths"], asked]}
        num_found += 1
        yield path, state
    if num_found == 0 and not is_newest:
        raise ValueError(
            f"no checkpoint in {run.folder} is from before the end of the run, so it cannot go on "
            "to another length: start a new run"
        )
    if is_newest and (left := _left_without_checkpoint(run)):
        raise ValueError(
            f"{run.folder} has {left} but no checkpoint: put the checkpoints back, or start again"
        )


def length_of(fields: Mapping[str, Any]) -> list[int | None]:
    """When a run ends, as a checkpoint has it."""
    return [fields.get(name) for name in LENGTH]


def check_config(run: Run, state: Mapping[str, Any]) -> None:
    """Raise unless the config in a folder is what the run wrote, its length included.

    Args:
        run: The folder.
        state: A checkpoint of it.

    Raises:
        ValueError: It is another one.
    """
    run.check_config(state["mark"])
    found = length_of(run.config())
    if found not in state["lengths"]:
        words = ", ".join(f"{name} = {n}" for name, n in zip(LENGTH, found, strict=True))
        raise ValueError(
            f"{run.folder / 'config.json'} is not what the run wrote ({words}): put it back as it "
            "was, or start again"
        )


@contextlib.contextmanager
def fitting(path: Path | None, *others: type[Exception]) -> Iterator[None]:
    """A block in which a checkpoint with odd contents is one sentence.

    Args:
        path: The checkpoint, to be named.
        others: What odd contents may raise here besides missing keys and wrong types.

    Raises:
        ValueError: In place of what odd contents raise.
    """
    kinds: tuple[type[Exception], ...] = (AttributeError, LookupError, TypeError, *others)
    try:
        yield
    except kinds as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        words = " ".join(what.split())[:200]
        raise ValueError(
            f"{path or 'the checkpoint'} does not fit the run ({words}): resume with the model and "
            "data that it was started with, or start again"
        ) from error


def check_like(saved: Any, fresh: Any, where: str) -> None:
    """Raise unless a saved state has the form of a fresh one.

    Where the fresh one has nothing yet, None or an empty dictionary, the saved one may have
    anything. It has no generator where several ranks saved it. Settings of optimizers are left to
    who loads them: those that a later version of torch adds may be missing.

    Args:
        saved: Dictionaries, lists, tensors, numbers, text.
        fresh: The same before the first step.
        where: What it is a state of.

    Raises:
        TypeError: It has another form.
    """
    if fresh is None or (saved is None and where.endswith(".generator")):
        return
    if isinstance(fresh, Mapping):
        fits = isinstance(saved, Mapping) and saved.keys() >= fresh.keys()
    elif isinstance(fresh, Tensor):
        fits = isinstance(saved, Tensor) and _form(saved) == _form(fresh)
    elif isinstance(fresh, Sequence) and not isinstance(fresh, str):
        fits = isinstance(saved, Sequence) and len(saved) == len(fresh)
    elif isinstance(fresh, bool | str):
        fits = type(saved) is type(fresh)
    elif isinstance(fresh, int | float):
        fits = type(saved) is float or (type(saved) is int and abs(saved) < 2**63)
    else:
        fits = True
    if not fits:
        raise TypeError(f"{where} has another form")
    if isinstance(fresh, Mapping):
        for key, value in fresh.items():
            check_like(saved[key], value, f"{where}.{key}")
    elif isinstance(fresh, list | tuple) and not where.endswith(".param_groups"):
        for place, value in enumerate(fresh):
            check_like(saved[place], value, f"{where}[{place}]")


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def check_fields(state: Mapping[str, Any]) -> None:
    """Raise unless a state has everything that a checkpoint of training has.

    Args:
        state: What the checkpoint holds.

    Raises:
        LookupError: Something is missing.
        TypeError: Something has another form.
    """
    for name, kind in _FIELDS.items():
        value = state[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} has another form")
    for name in ("num_rows", "num_evaluations", "calls", "threads", "seconds"):
        if not 0 <= state[name] < 2**63:
            raise TypeError(f"{name} = {state[name]}")
    check_like(state["mark"], _MARK, "mark")
    if not all(isinstance(checksum, str) for checksum in state["data"].values()):
        raise TypeError("data has another form")
    if type(state["mark"]["num_bytes"]) is not int:
        raise TypeError("mark.num_bytes has another form")
    whole_numbers = {"input_shape": state["input_shape"], "skipped": state["skipped"]}
    for each in state["lengths"]:
        if not isinstance(each, list) or len(each) != len(LENGTH):
            raise TypeError("lengths has another form")
        whole_numbers["lengths"] = [number for number in each if number is not None]
        _check_whole_numbers(whole_numbers)


def _check_whole_numbers(lists: Mapping[str, list[Any]]) -> None:
    for name, numbers in lists.items():
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TypeError(f"{name} has another form")


def _check_newest(run: Run, state: Mapping[str, Any], asked: list[int | None]) -> None:
    """Raise unless the last checkpoint is of this config, and before the end that is asked for."""
    check_config(run, state)
    sealed = (run.folder / "result.json").exists()
    if state["complete"] and sealed and (trouble := run.trouble(run.config())):
        raise ValueError(
            f"the run in {run.folder} was complete, but {trouble}: put it back as it was, or start "
            "again"
        )
    if asked == state["lengths"][-1]:
        return
    done = {"max_calls": state["calls"], "epochs": state["batches"]["epoch"]}
    for name, most in zip(LENGTH, asked, strict=True):
        if most is not None and done[name] >= most:
            raise ValueError(
                f"{name} = {most} is no more than what the run in {run.folder} has done "
                f"({done[name]}): ask for more"
            )


def _left_without_checkpoint(run: Run) -> str:
    """A file that a run has only after its first checkpoint; empty if there is none."""
    if (run.folder / "result.json").exists():
        return "result.json"
    metrics = run.metrics_file
    return metrics.name if metrics.exists() and metrics.stat().st_size else ""


def _check_same(run: Run, fields: Mapping[str, Any]) -> None:
    """Raise unless the run that is there was asked for the same, apart from what may differ."""
    try:
        known = run.config()
    except ValueError:
        raise ValueError(f"{run.folder / 'config.json'} cannot be read: start again") from None
    if not isinstance(known, dict):
        raise ValueError(f"{run.folder / 'config.json'} is no config: start again")
    wanted = files.decode(files.encode(dict(fields)))
    # An option that there was not yet when the run was started had no other value than this.
    defaults = {option.name: option.default for option in options_of(TrainConfig)}
    for name in sorted((known.keys() | wanted.keys()) - {*ON_RESUME, *RETIRED}):
        found = known.get(name, defaults.get(name))
        if found != wanted.get(name):
            raise ValueError(
                f"the run in {run.folder} has {name} = {found!r}, not "
                f"{wanted.get(name)!r}: resume it with the config it was started with"
            )
