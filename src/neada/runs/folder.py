"""The run folder: what was asked, with what it ran, what came out, and whether it is whole."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neada.runs import files
from neada.runs.environment import environment

__all__ = ["Run"]


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
        files.write_json(self.folder / "config.json", dict(config))
        files.write_json(self.folder / "environment.json", environment())
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
            os.fsync(file.fileno())
            return file.tell()

    def elapsed(self) -> float:
        """Seconds since the start, without those between an interruption and going on."""
        return time.perf_counter() - self._started

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the metrics."""
        files.append_lines(self.metrics_file, rows)

    def seal(self) -> None:
        """Say that the run is complete."""
        content = {
            "seconds": round(self.elapsed(), 3),
            "metrics_sha256": files.sha256(self.metrics_file),
        }
        files.write_json(self.folder / "result.json", content)

    def trouble(self, config: Mapping[str, Any]) -> str:
        """Why the folder cannot stand for a run of this config; empty if it can."""
        try:
            found = files.read_json(self.folder / "config.json")
            result = files.read_json(self.folder / "result.json")
            checksum = files.sha256(self.metrics_file)
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError):
            return "it cannot be read"
        if found != files.decode(files.encode(dict(config))):
            return "it was made with another config"
        if not isinstance(result, dict) or result.get("metrics_sha256") != checksum:
            return "metrics.jsonl is not what the run wrote"
        return ""

    def config(self) -> dict[str, Any]:
        """What was asked."""
        content: dict[str, Any] = files.read_json(self.folder / "config.json")
        return content

    def environment(self) -> dict[str, Any]:
        """With what it ran."""
        content: dict[str, Any] = files.read_json(self.folder / "environment.json")
        return content

    def seconds(self) -> float:
        """How long it took."""
        return float(files.read_json(self.folder / "result.json")["seconds"])

    def rows(self, mark: int | None = None) -> list[dict[str, Any]]:
        """The metrics; with a mark, as they were then.

        Raises:
            ValueError: They are missing, or damaged, or end before the mark.
        """
        try:
            return files.read_lines(self.metrics_file, mark)
        except FileNotFoundError:
            raise ValueError(
                f"{self.metrics_file} is missing: put it back, or start again"
            ) from None
