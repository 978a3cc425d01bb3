"""The run folder: configuration, metrics, checkpoints and result of one run.

==================  ===============================================================================
config.json         The configuration.
environment.json    Versions, threads and devices of the process that started the run.
metrics.jsonl       One JSON object per row.
checkpoint/         The last two checkpoints: ``00000007.safetensors`` has the tensors,
                    ``00000007.json`` everything else and the checksums of both.
result.json         Written when the run is complete.
==================  ===============================================================================

Files are written to a temporary file and renamed, so a crash leaves the old file or the new one,
and neither hard links nor symbolic links to a file are written through. Nothing is pickled.

NaN and infinity are the strings "nan", "inf" and "-inf" in JSON files.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the command line imports this module without torch
    from torch import Tensor

__all__ = [
    "Checkpoint",
    "RunFolder",
    "atomic_write",
    "encode",
    "environment",
    "launched_by",
    "locked",
    "read_json",
    "remove_temporary_files",
    "write_json",
]

_FORMAT = 1
_FILES = ("config.json", "environment.json", "metrics.jsonl", "result.json")
_CHECKPOINT_FILE = re.compile(r"(\d{8})\.(json|safetensors)")
_PACKAGES = ("neada", "torch", "numpy", "matplotlib", "scikit-learn", "mlxtend", "tqdm")
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


# Files.


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` at the end of the block.

    The content is on disk before the file is renamed. If the block raises, `path` is unchanged and
    the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.neada-tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that killed processes left; the caller holds the lock."""
    for left in folder.glob(f".*.{8 * '[0-9a-f]'}.neada-tmp"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it does not exist.

    The lock is released when the process ends, in whatever way. The lock file is not removed.

    Raises:
        ValueError: Another process holds the lock.
    """
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".neada-lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise ValueError(
            f"{folder} is in use by another process: wait until it has ended, or use another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically; NaN and infinity become strings."""
    with atomic_write(path) as file:
        file.write(json.dumps(encode(content), indent=2, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Read a file that `write_json` wrote.

    Raises:
        ValueError: The file does not contain JSON.
    """
    try:
        return decode(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def encode(content: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by strings.

    Example:
        >>> encode({"a": (1.0, float("inf"))})
        {'a': [1.0, 'inf']}
    """
    if isinstance(content, dict):
        return {key: encode(entry) for key, entry in content.items()}
    if isinstance(content, list | tuple):
        return [encode(entry) for entry in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(float(content))
    return content


def decode(content: Any) -> Any:
    """Undo `encode`; tuples remain lists."""
    if isinstance(content, dict):
        return {key: decode(entry) for key, entry in content.items()}
    if isinstance(content, list):
        return [decode(entry) for entry in content]
    return _NON_FINITE.get(content, content) if isinstance(content, str) else content


# The run folder.


class Checkpoint(NamedTuple):
    """A checkpoint that has been read.

    Attributes:
        number: Its number, from 1.
        num_rows: The number of rows in the metrics when it was saved.
        state: The state, as it was passed to `RunFolder.save_checkpoint`.
    """

    number: int
    num_rows: int
    state: dict[str, Any]


class RunFolder:
    """A folder that holds one run. The writer must hold `locked(run.path)`.

    Args:
        path: The folder, which may not exist yet.

    Example:
        >>> import tempfile, torch
        >>> run = RunFolder(Path(tempfile.mkdtemp()) / "first")
        >>> with locked(run.path):
        ...     run.start({"lr": 0.1})
        ...     run.append([{"calls": 2, "loss": float("inf")}])
        ...     run.save_checkpoint({"model": {"weight": torch.ones(2)}, "step": 1})
        ...     run.finish()
        >>> run.rows()
        [{'calls': 2, 'loss': inf}]
        >>> next(run.checkpoints()).state["model"]["weight"]
        tensor([1., 1.])
        >>> run.problem({"lr": 0.1}), run.problem({"lr": 0.2})
        ('', 'it has another configuration')
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._num_rows = 0
        self._started = time.perf_counter()

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / "config.json").exists()

    def start(self, config: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Start a new run.

        Args:
            config: The configuration, plain values.
            overwrite: Remove the files of the run that the folder holds.

        Raises:
            FileExistsError: The folder holds a run, or a part of one.
            ValueError: The folder has a file that is not part of a run and would be replaced.
        """
        self.check_kinds()
        self._check_replaceable(overwrite)
        self.path.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(self.path)
        write_json(self.path / "environment.json", environment())  # marks the folder
        for name in ("config.json", "result.json", "metrics.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        self._num_rows, self._started = 0, time.perf_counter()
        self._remove_checkpoints_except([])
        self._write_rows([])
        self.write_config(config)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue the run after a checkpoint; later checkpoints and rows are removed.

        Args:
            checkpoint: One of `checkpoints()`.

        Raises:
            ValueError: Rows are missing, or the folder has a file that cannot be replaced.
        """
        self.check_kinds()
        lines = self._lines()
        if len(lines) < checkpoint.num_rows:
            raise ValueError(
                f"{self.path / 'metrics.jsonl'} has {len(lines)} rows, but the checkpoint was "
                f"saved after {checkpoint.num_rows}: restore the file, or start a new run"
            )
        remove_temporary_files(self.path)
        (self.path / "result.json").unlink(missing_ok=True)
        numbers = [number for number in self._checkpoint_numbers() if number <= checkpoint.number]
        self._remove_checkpoints_except(numbers[-2:])
        self._write_rows(lines[: checkpoint.num_rows])

    def check_kinds(self) -> None:
        """Raise ValueError if something else is in the place of a file or folder of the run."""
        for name in _FILES:
            if (self.path / name).exists() and not (self.path / name).is_file():
                raise ValueError(f"{self.path / name} is not a file: remove it")
        folder = self._checkpoint_folder
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ValueError(f"{folder} is not a folder: remove it")

    def config(self) -> dict[str, Any]:
        """The configuration."""
        return self._read_object("config.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration."""
        write_json(self.path / "config.json", dict(config))

    def environment(self) -> dict[str, Any]:
        """Versions, threads and devices of the process that started the run."""
        return self._read_object("environment.json")

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the metrics."""
        lines = [json.dumps(encode(row), allow_nan=False).encode() for row in rows]
        path = self.path / "metrics.jsonl"
        if path.is_symlink() or path.stat().st_nlink > 1:
            self._write_rows(self._lines())
        with path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        self._num_rows += len(lines)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics.

        Raises:
            ValueError: A line is not JSON.
        """
        try:
            return [decode(json.loads(line)) for line in self._lines()]
        except ValueError as error:
            raise ValueError(f"{self.path / 'metrics.jsonl'} is damaged: {error}") from error

    def finish(self, seconds: float | None = None) -> None:
        """Write `result.json`, which marks the run as complete.

        Args:
            seconds: The duration of the run; None for the time since `start`.
        """
        seconds = time.perf_counter() - self._started if seconds is None else seconds
        facts = {"seconds": round(seconds, 3), "metrics_sha256": self._metrics_sha256()}
        write_json(self.path / "result.json", facts)

    def result(self) -> dict[str, Any]:
        """The content of `result.json`: the duration in seconds, and a checksum of the metrics."""
        return self._read_object("result.json")

    def problem(self, config: Mapping[str, Any]) -> str:
        """Return why the folder is not a complete run of this configuration; "" if it is."""
        try:
            self.check_kinds()
            if self.config() != decode(encode(dict(config))):
                return "it has another configuration"
            if self.result().get("metrics_sha256") != self._metrics_sha256():
                return "metrics.jsonl was changed"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    # Checkpoints.

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save a checkpoint; the previous one is kept and older ones are removed.

        Args:
            state: Tensors, numbers, strings, booleans and None in dictionaries, lists and tuples.

        Raises:
            OSError: It could not be written; the previous checkpoints are unchanged.
        """
        import safetensors.torch

        numbers = self._checkpoint_numbers()
        number = numbers[-1] + 1 if numbers else 1
        tensors: dict[str, Tensor] = {}
        tree = _pack(state, "", tensors, {})
        with (self.path / "metrics.jsonl").open("rb") as rows:
            os.fsync(rows.fileno())
        self._checkpoint_folder.mkdir(exist_ok=True)
        with atomic_write(self._checkpoint_file(number, "safetensors")) as file:
            content = safetensors.torch.save(tensors)
            file.write(content)
        facts = {
            "format": _FORMAT,
            "number": number,
            "num_rows": self._num_rows,
            "tensors_sha256": hashlib.sha256(content).hexdigest(),
            "state": tree,
        }
        write_json(self._checkpoint_file(number, "json"), {**facts, "sha256": _sha256(facts)})
        self._remove_checkpoints_except([*numbers, number][-2:])

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Read the checkpoints, newest first; a damaged one is skipped with a warning.

        Raises:
            ValueError: No checkpoint is intact, or one has another format.
        """
        numbers, num_intact = self._checkpoint_numbers(), 0
        for number in reversed(numbers):
            checkpoint = self._read_checkpoint(number)
            if checkpoint is None:
                path = self._checkpoint_file(number, "json")
                warnings.warn(f"{path} or its tensors are damaged: it is skipped", stacklevel=2)
                continue
            num_intact += 1
            yield checkpoint
        if numbers and not num_intact:
            raise ValueError(f"{self._checkpoint_folder} has no intact checkpoint: start a new run")

    def _read_checkpoint(self, number: int) -> Checkpoint | None:
        """Read a checkpoint; None if its content does not have the checksums."""
        import safetensors.torch

        try:
            facts = json.loads(self._checkpoint_file(number, "json").read_bytes())
            checksum = facts.pop("sha256")
            if checksum != _sha256(facts) or facts["number"] != number:
                return None
            if facts["format"] == _FORMAT:
                content = self._checkpoint_file(number, "safetensors").read_bytes()
                if hashlib.sha256(content).hexdigest() != facts["tensors_sha256"]:
                    return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        if facts["format"] != _FORMAT:
            raise ValueError(
                f"{self._checkpoint_file(number, 'json')} has format {facts['format']}, but this "
                f"version of neada reads format {_FORMAT}: use the version that wrote it"
            )
        state = _unpack(facts["state"], safetensors.torch.load(content))
        return Checkpoint(number, facts["num_rows"], state)

    @property
    def _checkpoint_folder(self) -> Path:
        return self.path / "checkpoint"

    def _checkpoint_file(self, number: int, suffix: str) -> Path:
        return self._checkpoint_folder / f"{number:08d}.{suffix}"

    def _checkpoint_numbers(self) -> list[int]:
        """The numbers of the checkpoints; the JSON file is written last."""
        return sorted(int(path.stem) for path in self._checkpoint_files() if path.suffix == ".json")

    def _checkpoint_files(self) -> list[Path]:
        if not self._checkpoint_folder.is_dir():
            return []
        return [p for p in self._checkpoint_folder.iterdir() if _CHECKPOINT_FILE.fullmatch(p.name)]

    def _remove_checkpoints_except(self, kept: Sequence[int]) -> None:
        remove_temporary_files(self._checkpoint_folder)
        for path in sorted(self._checkpoint_files()):  # the JSON file first
            if int(path.stem) not in kept:
                path.unlink()

    # Metrics.

    def _lines(self) -> list[bytes]:
        return (self.path / "metrics.jsonl").read_bytes().splitlines()

    def _write_rows(self, lines: Sequence[bytes]) -> None:
        with atomic_write(self.path / "metrics.jsonl") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        self._num_rows = len(lines)

    def _metrics_sha256(self) -> str:
        return hashlib.sha256((self.path / "metrics.jsonl").read_bytes()).hexdigest()

    def _read_object(self, name: str) -> dict[str, Any]:
        content = read_json(self.path / name)
        if not isinstance(content, dict):
            raise ValueError(f"{self.path / name} is not a JSON object")
        return content

    def _check_replaceable(self, overwrite: bool) -> None:
        own = [self.path / name for name in _FILES]
        found = [path for path in own if path.exists() and path.stat().st_size > 0]
        found += self._checkpoint_files()
        if not found:
            return
        try:
            is_run = {"threads", "packages"} <= self.environment().keys()
        except (OSError, ValueError):
            is_run = False
        if not is_run:
            raise ValueError(f"{found[0]} is not part of a run: move it, or use another folder")
        if not overwrite and [path.name for path in found] != ["environment.json"]:
            raise FileExistsError(
                f"{self.path} already holds a run: resume it, overwrite it, or use another folder"
            )


# The content of a checkpoint. Values that JSON does not have are objects with one key: "$tensor",
# "$tuple", "$dict" (for keys that are not strings) or "$float" (for NaN and infinity).


def _pack(value: Any, name: str, tensors: "dict[str, Tensor]", names: dict[Any, str]) -> Any:
    """Replace the tensors of a state by their names.

    Args:
        value: The state, or a part of it.
        name: The name of a tensor at this place.
        tensors: Receives the tensors by name, on the CPU and contiguous.
        names: The names by place in memory: tied tensors are stored once.
    """
    import torch

    if isinstance(value, torch.Tensor):
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in names:
            while name in tensors:
                name += "_"
            names[key] = name
            # `clone` because safetensors stores no two tensors that share memory.
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        stride = torch.empty_like(value, device="meta").stride()  # contiguous if value has gaps
        is_contiguous = stride == tensors[names[key]].stride()
        return {"$tensor": names[key], **({} if is_contiguous else {"stride": list(stride)})}
    if isinstance(value, Mapping):
        packed = {
            key: _pack(entry, f"{name}.{key}" if name else str(key), tensors, names)
            for key, entry in value.items()
        }
        if all(isinstance(key, str) and not key.startswith("$") for key in packed):
            return packed
        return {"$dict": [[_pack(key, name, tensors, names), packed[key]] for key in packed]}
    if isinstance(value, list | tuple):
        entries = [_pack(entry, f"{name}.{i}", tensors, names) for i, entry in enumerate(value)]
        return {"$tuple": entries} if isinstance(value, tuple) else entries
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(float(value))}
    return value


def _unpack(value: Any, tensors: "Mapping[str, Tensor]") -> Any:
    """Undo `_pack`."""
    import torch

    if isinstance(value, list):
        return [_unpack(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        stored = tensors[value["$tensor"]]
        if "stride" not in value:
            return stored
        laid_out = torch.empty_strided(stored.shape, value["stride"], dtype=stored.dtype)
        return laid_out.copy_(stored)
    if "$tuple" in value:
        return tuple(_unpack(entry, tensors) for entry in value["$tuple"])
    if "$dict" in value:
        return {_unpack(key, tensors): _unpack(entry, tensors) for key, entry in value["$dict"]}
    if "$float" in value:
        return float(value["$float"])
    return {key: _unpack(entry, tensors) for key, entry in value.items()}


def _sha256(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, allow_nan=False).encode()).hexdigest()


# The environment.


def environment() -> dict[str, Any]:
    """Return versions, threads and devices of this process.

    Example:
        >>> environment()["threads"] >= 1
        True
    """
    import torch

    from neada import devices

    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    launch = launched_by()
    return {
        **({} if launch is None else {"launch": launch}),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": devices.descriptions(),
        "packages": found,
    }


def launched_by() -> str | None:
    """Identify the `torchrun` that started this process, and restarts it; None without one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return f"{platform.node()} {os.getppid()} {os.environ['TORCHELASTIC_RUN_ID']}"
