"""The run folder: config, environment, metrics, checkpoints; whole or not there."""

import contextlib
import errno
import hashlib
import importlib.metadata
import io
import os
import platform
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from neada import devices
from neada.checks import check_number
from neada.files import (
    append_lines,
    decode,
    drafts,
    encode,
    read_json,
    read_lines,
    replacing,
    sha256,
    sync,
    write_json,
)

__all__ = ["Checkpoints", "Run", "encode", "environment", "launched_by", "read_json", "write_json"]


_PACKAGES = ("neada", "torch", "numpy", "matplotlib", "scikit-learn", "mlxtend", "tqdm")


def environment() -> dict[str, Any]:
    """Versions, threads and devices of this process, as plain JSON.

    Example:
        >>> environment()["threads"] >= 1
        True
    """
    return {
        **({} if (launch := launched_by()) is None else {"launch": launch}),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": devices.descriptions(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def launched_by() -> str | None:
    """The torchrun that started this process, which also starts it again; None without one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return f"{platform.node()} {os.getppid()} {os.environ['TORCHELASTIC_RUN_ID']}"


_NAME = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{16})\.pt")
_FORMAT = 1
"""Of a checkpoint's content; raised when older content can no longer be read."""


class Checkpoints:
    """The checkpoints in a folder: written atomically, numbered, with a checksum in their names.

    A checkpoint is on disk before it gets its name, and those before it are removed only then, so
    that a crash, or a full disk, leaves the ones that were there. States are tensors, numbers,
    strings and None in dictionaries and lists: they are read with ``weights_only=True``, which
    runs no code from the file, and ``torch.load`` reads them as well. The key "format" has the
    format number of the content.

    Args:
        folder: Where they are; it must exist when one is saved.
        num_kept: How many to keep.

    Example:
        >>> import tempfile
        >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
        >>> for t in range(5):
        ...     path = checkpoints.save({"t": t, "weight": torch.ones(2)})
        >>> len(checkpoints.paths()), checkpoints.load()["t"]
        (2, 4)
    """

    def __init__(self, folder: Path, num_kept: int = 2) -> None:
        check_number("num_kept", num_kept, above=1, strict=False, whole=True)
        self.folder = Path(folder)
        self.num_kept = num_kept
        self._whole: list[Path] = []

    def paths(self) -> list[Path]:
        """The checkpoints, oldest first, whole or not."""
        try:
            found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        return sorted(found)

    def save(self, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint; only then are older ones removed.

        Raises:
            ValueError: The state has a "format" of its own.
            OSError: It could not be written, because the disk is full for example; the
                checkpoints that were there still are.
        """
        if "format" in state:
            raise ValueError('"format" is the checkpoint\'s own key: name this part differently')
        content = io.BytesIO()
        torch.save({"format": _FORMAT, **state}, content)
        known = self.paths()
        number = _number(known[-1]) + 1 if known else 1
        path = self.folder / f"checkpoint-{number:08d}-{_checksum(content.getbuffer())}.pt"
        try:
            with replacing(path) as file:
                file.write(content.getbuffer())
        except OSError as error:
            if error.errno == errno.ENOSPC:
                sentence = "the disk is full, so there is no new checkpoint; free some space and"
                raise OSError(errno.ENOSPC, f"{sentence} resume", str(path)) from error
            raise
        self._whole = [*self._whole, path][-self.num_kept :]
        self._tidy(keep=set(self._whole))
        return path

    def load(self) -> dict[str, Any] | None:
        """The state of the newest checkpoint that is whole; None if there is none at all.

        A damaged one is passed over with a warning.

        Raises:
            ValueError: There are checkpoints, but none is whole, or it has another format.
        """
        paths = self.paths()
        for path in reversed(paths):
            state = _read(path)
            if state is not None:
                _check_format(path, state.pop("format", None))
                self._whole = [path]
                return state
            warnings.warn(f"{path} is damaged; the checkpoint before it is used", stacklevel=2)
        if paths:
            raise ValueError(f"no checkpoint in {self.folder} is whole: start again")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._whole = []
        self._tidy(keep=set())

    def _tidy(self, keep: set[Path]) -> None:
        """Remove other checkpoints, and what a process that was killed left half-written."""
        for path in (*self.paths(), *drafts(self.folder, "checkpoint-*")):
            if path not in keep:
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """A checkpoint's state; None if the file is not what was written."""
    name = _NAME.fullmatch(path.name)
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
    if name is None or _checksum(content) != name[2]:
        return None
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch raises a dozen kinds for content it does not accept
        return None
    return state if isinstance(state, dict) else None


def _check_format(path: Path, found: object) -> None:
    if found == _FORMAT:
        return
    if isinstance(found, int) and found > _FORMAT:
        age, number, advice = "a newer", f"format {found}", "update neada"
    else:
        age, number, advice = "an older", "no format number", "finish the run with that version"
    raise ValueError(
        f"{path} was written by {age} version of neada ({number}; this version reads format "
        f"{_FORMAT}): {advice}, or start again"
    )


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _number(path: Path) -> int:
    name = _NAME.fullmatch(path.name)
    assert name is not None
    return int(name[1])


class Run:
    """A folder that can be opened again: config, environment, metrics, and a seal.

    `config.json` says what was asked, `environment.json` with what it ran, `metrics.jsonl` has one
    JSON object per line, and `result.json`, written last, seals the run: it has the checksum of
    the metrics, so that an unfinished or damaged run is known as such.

    Args:
        folder: Where the run is, or will be.

    Example:
        >>> import tempfile
        >>> run = Run(Path(tempfile.mkdtemp()) / "first")
        >>> run.start({"lr": 0.1})
        >>> run.append([{"calls": 2, "norm": float("inf")}])
        >>> run.seal()
        >>> run.trouble({"lr": 0.1}), run.trouble({"lr": 0.2})
        ('', 'it was made with another config')
        >>> run.rows()
        [{'calls': 2, 'norm': inf}]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._started = 0.0

    @property
    def metrics_file(self) -> Path:
        """One JSON object per line."""
        return self.folder / "metrics.jsonl"

    def start(self, config: Mapping[str, Any]) -> None:
        """Make the folder anew for a config; what an earlier attempt left is dropped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in ("result.json", "metrics.jsonl"):
            (self.folder / stale).unlink(missing_ok=True)
        write_json(self.folder / "config.json", dict(config))
        write_json(self.folder / "environment.json", environment())
        self.metrics_file.touch()
        self._started = time.perf_counter()

    def go_on(self, mark: int, seconds: float = 0.0) -> None:
        """Open the run again where it was at a mark; metrics written later are dropped.

        Args:
            mark: What `mark` returned then.
            seconds: How long it had been running.

        Raises:
            ValueError: The metrics up to the mark are not there any more; nothing was changed.
        """
        self.rows(mark)
        (self.folder / "result.json").unlink(missing_ok=True)
        with self.metrics_file.open("r+b") as file:
            file.truncate(mark)
        self._started = time.perf_counter() - seconds

    def mark(self) -> int:
        """Bring the metrics to the disk and say where they end."""
        with self.metrics_file.open("ab") as file:
            sync(file)
            return file.tell()

    def elapsed(self) -> float:
        """Seconds since the start, without those between an interruption and going on."""
        return time.perf_counter() - self._started

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the metrics."""
        append_lines(self.metrics_file, rows)

    def seal(self) -> None:
        """Say that the run is complete."""
        content = {
            "seconds": round(self.elapsed(), 3),
            "metrics_sha256": sha256(self.metrics_file),
        }
        write_json(self.folder / "result.json", content)

    def trouble(self, config: Mapping[str, Any]) -> str:
        """Why the folder cannot stand for a run of this config; empty if it can."""
        try:
            found = read_json(self.folder / "config.json")
            result = read_json(self.folder / "result.json")
            checksum = sha256(self.metrics_file)
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError):
            return "it cannot be read"
        if found != decode(encode(dict(config))):
            return "it was made with another config"
        if not isinstance(result, dict) or result.get("metrics_sha256") != checksum:
            return "metrics.jsonl is not what the run wrote"
        return ""

    def config(self) -> dict[str, Any]:
        """What was asked."""
        content: dict[str, Any] = read_json(self.folder / "config.json")
        return content

    def environment(self) -> dict[str, Any]:
        """With what it ran."""
        content: dict[str, Any] = read_json(self.folder / "environment.json")
        return content

    def seconds(self) -> float:
        """How long it took."""
        return float(read_json(self.folder / "result.json")["seconds"])

    def rows(self, mark: int | None = None) -> list[dict[str, Any]]:
        """The metrics; with a mark, as they were then.

        Raises:
            ValueError: They are missing, or damaged, or end before the mark.
        """
        try:
            return read_lines(self.metrics_file, mark)
        except FileNotFoundError:
            raise ValueError(
                f"{self.metrics_file} is missing: put it back, or start again"
            ) from None
