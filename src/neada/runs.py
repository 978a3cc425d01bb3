"""The run folder: config, environment, metrics, checkpoints; whole or not there."""

import errno
import fnmatch
import hashlib
import importlib.metadata
import io
import json
import os
import pickletools
import platform
import re
import time
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from neada import devices
from neada.checks import check_number
from neada.files import (
    FolderInUse,
    append_lines,
    decode,
    draft_pattern,
    drafts,
    encode,
    locked,
    read_json,
    read_lines,
    remove_drafts,
    replacing,
    sha256,
    sync,
    write_json,
)

__all__ = [
    "FILES",
    "Checkpoints",
    "FolderInUse",
    "Run",
    "check_files",
    "encode",
    "environment",
    "launched_by",
    "locked",
    "read_json",
    "remove_drafts",
    "write_json",
]


FILES = ("config.json", "environment.json", "metrics.jsonl", "result.json", "checkpoint-*.pt")
"""The names of the files in a run folder, as glob patterns."""
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
_FORMAT = 2
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
            return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
            return []

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
        for path, state in self.states():
            self._whole = [path]
            return state
        return None

    def states(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The checkpoints that are whole with their states, newest first.

        A damaged one is passed over with a warning.

        Raises:
            ValueError: There are checkpoints, but none is whole, or one has another format.
        """
        paths, num_whole = self.paths(), 0
        for path in reversed(paths):
            state = _read(path)
            if state is None:
                instead = "" if path == paths[0] else "; the checkpoint before it is used"
                warnings.warn(f"{path} is damaged{instead}", stacklevel=2)
                continue
            _check_format(path, state.pop("format", None))
            num_whole += 1
            yield path, state
        if paths and not num_whole:
            raise ValueError(f"no checkpoint in {self.folder} is whole: start again")

    def go_on_from(self, path: Path) -> None:
        """Keep this checkpoint and those before it; later ones are removed."""
        self._whole = [path]
        self._tidy(keep={each for each in self.paths() if each <= path})

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._whole = []
        self._tidy(keep=set())

    def _tidy(self, keep: set[Path]) -> None:
        """Remove other checkpoints, and what a process that was killed left half-written."""
        for path in (*self.paths(), *drafts(self.folder, "checkpoint-*")):
            if path not in keep and not path.is_dir():
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """A checkpoint's state; None if the file is not what was written."""
    name = _NAME.fullmatch(path.name)
    content = path.read_bytes() if path.is_file() else b""
    if name is None or _checksum(content) != name[2]:
        return None
    try:
        if not _is_bounded(content):
            return None
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch raises a dozen kinds for content it does not accept
        return None
    return state if isinstance(state, dict) else None


def _is_bounded(content: bytes) -> bool:
    """Whether what is in a file takes no more memory than the file: nothing is packed.

    ``weights_only`` lets a pickle make a `bytearray` of any length, which `save` never does.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            return False
        if sum(member.file_size for member in members) > len(content):
            return False
        pickles = [archive.read(each) for each in members if each.filename.endswith(".pkl")]
    names = (
        str(arg)
        for each in pickles
        for code, arg, _ in pickletools.genops(each)
        if code.name == "GLOBAL"
    )
    return not any(name.endswith(" bytearray") for name in names)


def _check_format(path: Path, found: object) -> None:
    if type(found) is int and found == _FORMAT:
        return
    if isinstance(found, int) and found > _FORMAT:
        age, number, advice = "a newer", f"format {found}", "update neada"
    else:
        number = f"format {found}" if isinstance(found, int) else "no format number"
        age, advice = "an older", "finish the run with that version"
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


def check_files(folder: Path, *patterns: str) -> None:
    """Raise unless everything in a folder that has the name of a run's file is a file of its own.

    Args:
        folder: Of the run, which is going to be written.
        patterns: Further names of files.

    Raises:
        ValueError: There is a folder, a pipe or the like, which could be neither read nor replaced,
            or a link, through which another file would be written.
    """
    names = [name for each in (*FILES, *patterns) for name in (each, draft_pattern(each))]
    for path in folder.iterdir() if folder.is_dir() else ():
        is_own_file = path.is_file() and not path.is_symlink()
        if not is_own_file and any(fnmatch.fnmatchcase(path.name, name) for name in names):
            raise ValueError(f"{path} is in the place of a file: remove it, or use another folder")


class Run:
    """A folder that can be opened again: config, environment, metrics, and a seal.

    `config.json` says what was asked, `environment.json` with what it ran, `metrics.jsonl` has one
    JSON object per line, and `result.json`, written last, seals the run: it has the checksums of
    the metrics, of the environment and of itself, so that an unfinished or damaged run is known as
    such. The checksum of the metrics is that of the lines as they were appended, and not of what
    is in the file later.

    Args:
        folder: Where the run is, or will be.
        may_change: Fields of the config that a mark does not vouch for.

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

    def __init__(self, folder: Path, may_change: Collection[str] = ()) -> None:
        self.folder = Path(folder)
        self._may_change = may_change
        self._started = 0.0
        self._digest, self._num_bytes = hashlib.sha256(), 0
        self._config_sha256 = self._environment_sha256 = ""

    @property
    def metrics_file(self) -> Path:
        """One JSON object per line."""
        return self.folder / "metrics.jsonl"

    def start(self, config: Mapping[str, Any]) -> None:
        """Make the folder anew for a config; what an earlier attempt left is dropped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in ("result.json", "metrics.jsonl"):
            (self.folder / stale).unlink(missing_ok=True)
        self.write_config(config)
        write_json(self.folder / "environment.json", environment())
        self.metrics_file.touch()
        self._environment_sha256 = sha256(self.folder / "environment.json")
        self._digest, self._num_bytes = hashlib.sha256(), 0
        self._started = time.perf_counter()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Say what is asked."""
        write_json(self.folder / "config.json", dict(config))
        self._config_sha256 = self._sha256_of_config(config)

    def go_on(self, mark: Mapping[str, Any], seconds: float = 0.0) -> None:
        """Open the run again where it was at a mark; metrics written later are dropped.

        Args:
            mark: What `mark` returned then.
            seconds: How long it had been running.

        Raises:
            ValueError: The run up to the mark is not there any more; nothing was changed.
        """
        self.check(mark)
        (self.folder / "result.json").unlink(missing_ok=True)
        with self.metrics_file.open("r+b") as file:
            file.truncate(mark["num_bytes"])
            file.seek(0)
            self._digest, self._num_bytes = hashlib.sha256(file.read()), mark["num_bytes"]
        self._config_sha256 = mark["config_sha256"]
        self._environment_sha256 = mark["environment_sha256"]
        self._started = time.perf_counter() - seconds

    def mark(self) -> dict[str, Any]:
        """Bring the metrics to the disk; where they end, and checksums of all that is there."""
        with self.metrics_file.open("ab") as file:
            sync(file)
        return {
            "num_bytes": self._num_bytes,
            "metrics_sha256": self._digest.hexdigest(),
            "config_sha256": self._config_sha256,
            "environment_sha256": self._environment_sha256,
        }

    def check(self, mark: Mapping[str, Any]) -> None:
        """Raise unless config, environment and metrics are what they were at a mark.

        Raises:
            ValueError: One is missing, or is not what the run wrote.
        """
        self.check_config(mark)
        if self._sha256("environment.json") != mark["environment_sha256"]:
            raise self._changed("environment.json")
        self.rows(mark)

    def check_config(self, mark: Mapping[str, Any]) -> None:
        """Raise unless the config is what it was at a mark, apart from what may change.

        Raises:
            ValueError: It is missing, or is not what the run wrote.
        """
        self._sha256("config.json")
        if self._sha256_of_config(self.config()) != mark["config_sha256"]:
            raise self._changed("config.json")

    def elapsed(self) -> float:
        """Seconds since the start, without those between an interruption and going on."""
        return time.perf_counter() - self._started

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the metrics."""
        content = append_lines(self.metrics_file, rows)
        self._digest.update(content)
        self._num_bytes += len(content)

    def seal(self) -> None:
        """Say that the run is complete."""
        content: dict[str, Any] = {
            "seconds": round(self.elapsed(), 3),
            "metrics_sha256": self._digest.hexdigest(),
            "environment_sha256": self._environment_sha256,
        }
        write_json(self.folder / "result.json", {**content, "sha256": _content_sha256(content)})

    def trouble(self, config: Mapping[str, Any]) -> str:
        """Why the folder cannot stand for a run of this config; empty if it can."""
        for name in ("metrics.jsonl", "environment.json"):
            if (self.folder / name).exists() and not (self.folder / name).is_file():
                return f"{name} is not a file"
        try:
            found = read_json(self.folder / "config.json")
            result = read_json(self.folder / "result.json")
            checksum = sha256(self.metrics_file)
            environment_checksum = sha256(self.folder / "environment.json")
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError):
            return "it cannot be read"
        if found != decode(encode(dict(config))):
            return "it was made with another config"
        if not _is_seal(result):
            return "result.json is not what the run wrote"
        if result["metrics_sha256"] != checksum:
            return "metrics.jsonl is not what the run wrote"
        if result.get("environment_sha256", environment_checksum) != environment_checksum:
            return "environment.json is not what the run wrote"
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

    def rows(self, mark: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The metrics; with a mark, as they were then.

        Raises:
            ValueError: They are missing, or damaged, or end before the mark.
        """
        num_bytes = None if mark is None else mark["num_bytes"]
        checksum = self._sha256("metrics.jsonl", num_bytes)
        rows = read_lines(self.metrics_file, num_bytes)
        if mark is not None and checksum != mark["metrics_sha256"]:
            raise self._changed("metrics.jsonl")
        return rows

    def _sha256(self, name: str, num_bytes: int | None = None) -> str:
        """The checksum of a file of the run, or of its beginning."""
        try:
            content = (self.folder / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise ValueError(
                f"{self.folder / name} is missing: put it back, or start again"
            ) from None
        return hashlib.sha256(content[:num_bytes]).hexdigest()

    def _sha256_of_config(self, fields: Mapping[str, Any]) -> str:
        return _content_sha256({k: v for k, v in fields.items() if k not in self._may_change})

    def _changed(self, name: str) -> ValueError:
        return ValueError(
            f"{self.folder / name} is not what the run wrote: put it back as it was, or start again"
        )


def _content_sha256(content: Mapping[str, Any]) -> str:
    """The checksum of JSON, whatever the order of its keys."""
    text = json.dumps(encode(dict(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_seal(result: Any) -> bool:
    """Whether this is what `Run.seal` wrote."""
    if not isinstance(result, dict):
        return False
    if result.keys() == {"seconds", "metrics_sha256"}:
        return True  # of a version that protected the metrics only
    content = {name: value for name, value in result.items() if name != "sha256"}
    return "metrics_sha256" in result and result.get("sha256") == _content_sha256(content)
